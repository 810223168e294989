"""The conclusion of a grid: the best settings, the causes of failures, the time spent, and the next steps."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from runmanager.answers.answers import Answers, answers_of
from runmanager.answers.failures import failures
from runmanager.answers.sentences import counts_of, left_to_execute
from runmanager.answers.show import settings_view
from runmanager.answers.time_spent import time_spent
from runmanager.core.files import CHECKPOINT, for_people
from runmanager.core.outcome import Status
from runmanager.core.wording import counted, listed, printable
from runmanager.drawing.table import Table
from runmanager.tables.columns import INSIDE, notes_of

_NUM_BEST = 5  # settings in the table


class Sentence(NamedTuple):
    """A sentence of the panel with its details."""

    mark: str  # ✓ good, ✗ bad, ! attention; other marks are neutral
    text: str
    details: Sequence[str] = ()
    in_notebook: Sequence[str] | None = None  # the details for a notebook, if they differ from `details`


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
    steps: Sequence[tuple[str, str, str]]  # command for a terminal, call for Python, purpose


def conclude(
    runs: pd.DataFrame,
    all_runs: pd.DataFrame,
    folder: Path,
    *,
    is_over: bool,
    has_events: bool,
    more: int,
    num_changed: int,
    page: Path | None,
    times: tuple[Any, ...] = (),
) -> Conclusion:
    """Draw the conclusion from the runs of a grid and all of the experiment; `times` are for `time_spent`."""
    counts, problems = counts_of(runs["status"]), _failed(runs, folder)
    left = [Status.INTERRUPTED, *([] if is_over else [Status.PENDING])]
    number = sum(counts.get(status, 0) for status in left) + more
    if number:
        positions = runs.get(INSIDE, [""] * len(runs))
        rows = zip(runs["status"], runs["run"], runs["epochs"], runs["folder"], positions, strict=True)
        resumes = [
            f"run {run} resumes {position or f'after epoch {epoch}'}"
            if position or (Path(path) / CHECKPOINT).exists()
            else f"run {run} starts over, unless it has its own checkpoint"
            for status, run, epoch, path, position in rows
            if status == Status.INTERRUPTED
        ]
        then = f": {listed(resumes)}" if resumes else ""
        again = ([f"{what} again{then}"] for what in ("start the same command", "execute this cell"))
        text = left_to_execute(number, len(runs) + more)
        if done := counts.get(Status.COMPLETED):
            text += f"; {counted(done, 'completed run')} {'is' if done == 1 else 'are'} kept"
        problems.insert(0, Sentence("!", text, *again))
    if num_changed:
        text = f"The tables keep the earlier results of {counted(num_changed, 'run')} until the first new epoch"
        step = "if the change is undone, completed runs are not executed again"
        problems.append(Sentence("–", text, [step]))  # noqa: RUF001
    answers = answers_of(all_runs, is_over=number == 0)
    facts = [("matters", sentence) for sentence in dict.fromkeys(answers.matters_sentences)]
    if times:
        facts.append(("time", time_spent(*times)))
    steps: list[tuple[str, str, str]] = []
    if page:
        facts.append(("page", for_people(page).as_posix()))
    elif answers.settings:
        what = "which is best, and why" if len(answers.runs) > 1 else "its curves and settings"
        steps.append((cli_command("report", folder), f"write_report({_text(folder)})", f"a page: {what}"))
    if has_events and (answers.runs["epochs"] > 0).any():
        steps.append((cli_command("tensorboard", folder), f"open_tensorboard({_text(folder)})", "all curves"))
    steps.append((cli_command("list", folder), f"show(load_runs({_text(folder)}))", "all runs"))
    return Conclusion(
        printable(str(folder)), " ".join(notes_of(runs)), list(counts.items()),
        _best(answers, len(runs)), *_table(answers), problems, facts, steps[:2],
    )  # fmt: skip


def _best(answers: Answers, num_runs: int) -> Sentence:
    """Say which setting is best, and which repeat axes were assumed."""
    ranking, details = answers.ranking, list(answers.details)
    if ranking and ranking.assumption:
        details.append(f"{ranking.assumption}.")
    if answers.settings and num_runs < len(answers.runs):
        number = counted(sum(setting.number for setting in answers.settings), "completed run")
        details.append(f"The ranking has {number} of the experiment; this grid has {num_runs:,}.")
    mark = "✓" if answers.is_decided or len(answers.runs) == 1 else "–"  # noqa: RUF001
    return Sentence(mark if answers.settings else "!", answers.headline, details)


def _table(answers: Answers) -> tuple[Table | None, str]:
    """Return a table of the best settings, and which settings these are."""
    ranking = answers.ranking
    if ranking is None or len(ranking.settings) < 2:  # noqa: PLR2004 - a ranking needs two
        return None, ""
    settings, front = (ranking.front, "the Pareto front") if ranking.is_choice else (ranking.settings, "")
    best = settings[: _NUM_BEST if len(settings) > _NUM_BEST + 1 else None]  # hiding one row saves no line
    first = f"the first {len(best)}" if len(best) < len(settings) else ""
    count = ranking.count if front or first or ranking.others else ""
    which = "; ".join(filter(None, [front, first, count, answers.scope]))
    return settings_view(answers.runs, ranking, best).drawn(), which


def _failed(runs: pd.DataFrame, folder: Path) -> list[Sentence]:
    findings = []
    for failure in failures(runs):
        mark = "!" if failure.status in (Status.UNAVAILABLE, Status.CHANGED) else "✗"
        run = f"{folder}/{runs['run'].iloc[failure.rows[0]]}"
        steps = (
            failure.next_step(cli_command("show", run)),
            failure.next_step(f"load_run({_text(run)}).error", "this cell"),
        )
        details, in_notebook = ([*filter(None, [failure.cause, step])] for step in steps)
        findings.append(Sentence(mark, f"{failure.status}: {failure.runs}", details, in_notebook))
    return findings


def cli_command(name: str, path: Path | str) -> str:
    """Return a shell command about an experiment or a run."""
    return f"runmanager {name} {printable(shlex.quote(str(path)))}"


def _text(folder: Path | str) -> str:
    return printable(json.dumps(str(folder), ensure_ascii=False))
