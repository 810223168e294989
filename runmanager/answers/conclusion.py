"""The conclusion of a grid: the best settings, the causes of failures, the time spent, and the next steps."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from runmanager.answers.answers import INTERVAL, REPEATS, Answers, answers_of, columns_of_numbers
from runmanager.answers.failures import failures
from runmanager.answers.ranking import addresses_of
from runmanager.answers.sentences import capital, counts_of
from runmanager.answers.view import span
from runmanager.core.files import for_people
from runmanager.core.outcome import Status, retry_failed
from runmanager.core.wording import counted, printable
from runmanager.table import Table
from runmanager.tables.cells import all_of, brief, cell, concise, duration, durations
from runmanager.tables.columns import INSIDE, hyperparameters_of, notes_of

_DURATION = "run duration"
_NUM_BEST = 5  # settings in the table
_MOST_CAUSES = 5
_TRIAL_PRUNED = "TrialPruned"
_LARGEST = 10**15  # larger hyperparameters are written as text


@dataclass(frozen=True)
class Sentence:
    """A finding with its details."""

    mark: str  # ✓ good, ✗ bad, ! attention; other marks are neutral
    text: str
    details: Sequence[str] = ()
    in_notebook: Sequence[str] | None = None  # the details for a notebook, if they differ from `details`


@dataclass(frozen=True)
class Step:
    """A suggested next step."""

    command: str  # the command for a terminal
    call: str  # the call for Python
    purpose: str

    def __str__(self) -> str:
        return f"{self.command}: {self.purpose}"


@dataclass(frozen=True)
class Conclusion:
    """The conclusion of a grid, for the panel at its end."""

    folder: str
    note: str  # the note on why the grid was executed, "" without a note
    counts: Sequence[tuple[str, int]]  # each status, and its number of runs
    best: Sentence
    table: Table | None  # the best settings; None if fewer than two settings have a value of the goal
    which: str  # a description of the settings in the table
    problems: Sequence[Sentence]
    facts: Sequence[tuple[str, str]]  # name -> sentence
    steps: Sequence[Step]


def conclude(
    runs: pd.DataFrame,
    folder: Path,
    *,
    is_over: bool = True,
    is_broken_off: bool = False,
    has_events: bool = True,
    more: int = 0,
    time: str | None = None,
    all_runs: pd.DataFrame | None = None,
    num_changed: int = 0,
    stoppers: Sequence[str] = ("prune=",),
    page: Path | None = None,
) -> Conclusion:
    """Draw the conclusion from the runs of a grid; `page` is the page that was written."""
    ranked = runs if all_runs is None else all_runs
    left = runs["status"].isin([Status.INTERRUPTED, *([] if is_over else [Status.PENDING])])
    is_left = more > 0 or bool(left.any())
    answers = answers_of(ranked, is_over=not is_left)
    ranking = answers.ranking
    return Conclusion(
        printable(str(folder)),
        " ".join(notes_of(runs)),
        list(counts_of(runs["status"]).items()),
        _best(answers, len(runs)),
        *_table(answers, ranked),
        [
            *_left(runs, left, more, is_broken_off=is_broken_off),
            *_failed(runs, folder),
            *_changed(num_changed),
            *_pruned(runs, stoppers),
        ],
        [
            *(("matters", sentence) for sentence in answers.matters_sentences),
            *_facts(runs, time, is_left=is_left),
            *([("page", for_people(page).as_posix())] if page else []),
        ],
        [
            *_steps(ranked, folder, has_result=bool(answers.result) and not page, has_events=has_events),
            *(all_digits(ranked, ranking.settings[0].rows[0]) if ranking and ranking.settings else []),
        ],
    )


def all_digits(runs: pd.DataFrame, row: int = 0) -> list[Step]:
    """Return the step that shows all digits of the best run, in this row, if tables round its values."""
    values = (runs[name].iloc[row] for name in hyperparameters_of(runs) if len(runs))
    if all(concise(value) == brief(value) for value in values):
        return []
    return [
        Step(_command("show", run), f"load_run({_text(run)}).params", "its values, with all digits")
        for run in addresses_of(runs.iloc[[row]])
    ]


def _best(answers: Answers, num_runs: int) -> Sentence:
    """Say which setting is best, and which repeat axes were assumed."""
    ranking, details = answers.ranking, list(answers.details)
    if ranking and ranking.assumption:
        details.append(f"{ranking.assumption}.")
    num_ranked = sum(setting.number for setting in answers.settings)
    if num_ranked and num_runs < sum(answers.counts.values()) - answers.counts.get(Status.PENDING, 0):
        which = f"{counted(num_ranked, 'completed run')} of the experiment"
        details.append(f"The ranking has {which}; this grid has {num_runs:,}.")
    mark = "✓" if answers.is_decided else "–" if answers.result else "!"  # noqa: RUF001
    return Sentence(mark, answers.headline, details)


def _table(answers: Answers, runs: pd.DataFrame) -> tuple[Table | None, str]:
    """Return a table of the best settings, and which settings these are."""
    ranking = answers.ranking
    if ranking is None or len(ranking.settings) < 2:  # noqa: PLR2004 - a ranking needs two
        return None, ""
    has_front = len(ranking.goals) > 1 and len(ranking.front) > 1
    listed = ranking.front if has_front else ranking.settings
    best = listed[: _NUM_BEST if len(listed) > _NUM_BEST + 1 else None]  # hiding one row saves no line
    numbers = columns_of_numbers(ranking, runs, best)
    which = f"the first {len(best)}" if len(best) < len(listed) else ""
    if has_front:
        some = f"{len(best)} of " if which else ""
        which = f"the Pareto front, {some}{counted(len(listed), ranking.noun)}"
    num_without = 0 if ranking.repeats else answers.counts.get(Status.COMPLETED, 0) - len(ranking.settings)
    without = f"{num_without:,} completed without a number" if num_without > 0 else ""
    count = ranking.count if which or ranking.others else ""
    which = "; ".join(filter(None, [which, count, without, answers.scope(numbers.get(INTERVAL, ()))]))
    goals = [goal.metric for goal in ranking.goals]
    metric, means = goals[0], numbers[goals[0]]
    if _DURATION in numbers and _DURATION not in goals:
        numbers[_DURATION] = durations(numbers[_DURATION])
    params = {name: [_readable(setting.params[name]) for setting in best] for name in ranking.varying}
    columns = [*params.items(), *numbers.items()]
    if not ranking.repeats:
        columns.insert(0, ("run", [setting.run for setting in best]))
    columns = [(name, cells) for name, cells in columns if any(map(cell, cells))]
    table = Table(
        [name for name, _ in columns],
        zip(*(cells for _, cells in columns), strict=True),
        right=[_DURATION, REPEATS],
        even=[name for name in numbers if name not in (INTERVAL, REPEATS, _DURATION)],
        first=["run", *goals, *ranking.varying, REPEATS, INTERVAL],
        best=[0],
        bars={metric: span(means)} if len(means) > 1 else {},
    )
    return table, which


def _readable(value: Any) -> Any:
    """Return a number unchanged, and any other value as text, shortened if it is long."""
    if isinstance(value, np.integer):
        return int(value)
    is_number = isinstance(value, (int, float)) and abs(value) < _LARGEST  # the comparison is false for NaN
    return value if is_number else brief(value)


def _left(runs: pd.DataFrame, left: "pd.Series[bool]", more: int, *, is_broken_off: bool) -> list[Sentence]:
    """Say which runs remain to be executed, at which epochs they resume, and how to resume the grid."""
    number, total, kept = int(left.sum()) + more, len(runs) + more, ""
    if not (number or is_broken_off):
        return []
    text = "The grid was broken off"
    if number:
        done = int((runs["status"] == Status.COMPLETED).sum())
        kept = f"; {counted(done, 'completed run')} {'is' if done == 1 else 'are'} kept" if done else ""
        which = (
            capital(all_of(total, "runs")) if number == total > 1 else f"{number} of {counted(total, 'run')}"
        )
        text = f"{which} {'is' if number == 1 else 'are'} left to execute"
        has_begun = (runs["epochs"] > 0) | (runs[INSIDE] != "" if INSIDE in runs else False)
        if begun := int((left & has_begun).sum()):
            text += f"; {begun} of them {'resumes' if begun == 1 else 'resume'} after the last checkpoint"
    return [Sentence("!", text, [f"start the same command again{kept}"], [f"execute this cell again{kept}"])]


def _failed(runs: pd.DataFrame, folder: Path) -> list[Sentence]:
    groups = failures(runs)
    sentences = []
    for failure in groups[:_MOST_CAUSES]:
        mark = "!" if failure.status in (Status.UNAVAILABLE, Status.CHANGED) else "✗"
        number = runs["run"].iloc[failure.rows[0]]
        steps = (
            failure.next_step(_command("show", f"{folder}/{number}")),
            failure.next_step(f"load_run({_text(f'{folder}/{number}')}).error", "this cell"),
        )
        details, in_notebook = ([each for each in (failure.cause, step) if each] for step in steps)
        sentences.append(Sentence(mark, f"{failure.status}: {failure.runs}", details, in_notebook))
    if (more := len(groups) - _MOST_CAUSES) > 0:
        text = counted(more, "more cause")
        sentences.append(Sentence("✗", text, [f"see {_command('list', folder)}"], [f"see {_call(folder)}"]))
    return sentences


def _changed(number: int) -> list[Sentence]:
    if not number:
        return []
    until = "it has" if number == 1 else "they have"
    text = f"The tables keep the earlier results of {counted(number, 'run')} until {until} an epoch"
    return [Sentence("–", text, ["if the change is undone, completed runs are not executed again"])]  # noqa: RUF001


def _command(name: str, path: Path | str) -> str:
    """Return a shell command about an experiment or a run."""
    return f"runmanager {name} {printable(shlex.quote(str(path)))}"


def _call(folder: Path) -> str:
    """Return a Python call that shows the runs of an experiment."""
    return f"show(load_runs({_text(folder)}))"


def _text(folder: Path | str) -> str:
    return printable(json.dumps(str(folder), ensure_ascii=False))


def _pruned(runs: pd.DataFrame, stoppers: Sequence[str]) -> list[Sentence]:
    pruned = runs[runs["status"] == Status.PRUNED]
    errors = pruned["error"] if "error" in runs else pd.Series("", pruned.index)
    by_train = int(errors.str.startswith(_TRIAL_PRUNED).sum())
    number = len(errors) - by_train
    step = f"the same grid without {' or '.join(stoppers)} continues them"
    by_grid = [Sentence("–", "Pruned runs keep their checkpoints", [step])] if number else []  # noqa: RUF001
    raised = f"{counted(by_train, 'run')} pruned by train() itself, by {_TRIAL_PRUNED}"
    return by_grid + ([Sentence("–", raised, [retry_failed("continues them")])] if by_train else [])  # noqa: RUF001


def _facts(runs: pd.DataFrame, time: str | None, *, is_left: bool) -> list[tuple[str, str]]:
    if time is not None:
        return [("time", time)]
    seconds = runs["run duration"].sum() if "run duration" in runs else 0.0
    before = f"; its runs took {duration(seconds)} before" if seconds else ""
    is_missing = bool((runs["status"] == Status.UNAVAILABLE).all())
    nothing = "no run was begun" if is_left or is_missing else "nothing was left to execute"
    return [("time", f"{nothing}{before}")]


def _steps(runs: pd.DataFrame, folder: Path, *, has_result: bool, has_events: bool) -> list[Step]:
    """Return the two most useful next steps."""
    steps = []
    if has_result:
        call = f"write_report({_text(folder)})"
        shows = "which is best, and why" if len(runs) > 1 else "its curves and settings"
        steps.append(Step(_command("report", folder), call, f"a page: {shows}"))
    if has_events and (runs["epochs"] > 0).any():
        call = f"open_tensorboard({_text(folder)})"
        steps.append(Step(_command("tensorboard", folder), call, "all curves"))
    steps.append(Step(_command("list", folder), _call(folder), "all runs" if len(runs) > 1 else "the run"))
    return steps[:2]
