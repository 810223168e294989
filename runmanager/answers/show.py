"""Show the best runs first, with the columns in which they differ."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import pandas as pd
from pandas.api.types import is_numeric_dtype

from runmanager.answers.answers import INTERVAL, REPEATS, answers_of, columns_of_numbers
from runmanager.answers.compare import SETTING
from runmanager.answers.contest import plain_means
from runmanager.answers.finding import Finding
from runmanager.answers.ranking import (
    RUNS,
    Ranking,
    Setting,
    are_epochs,
    beside_settings,
    completed,
    numbered,
    own_goals,
    ranking_of,
    rows_of,
    which_value,
)
from runmanager.answers.usual_goals import companion
from runmanager.answers.view import View, span
from runmanager.core.goal import KEPT, Goal
from runmanager.core.outcome import LEADING
from runmanager.core.values import COLUMNS
from runmanager.core.wording import printable
from runmanager.tables.cells import cell
from runmanager.tables.columns import (
    check_table,
    from_columns,
    hyperparameters_of,
    metrics_of,
    notes_of,
)

_LEADING = ("experiment", "run", "epoch")
_TIME = "run duration"


def show(
    runs: pd.DataFrame,
    goal: str | Sequence[str] | None = None,
    n: int = 20,
    *,
    repeats: str | Sequence[str] | None = None,
) -> View:
    """Show the best runs or settings, without the columns that are the same in all of them.

    Args:
        runs: The table of `load_runs` or `load_results`, or rows of it. A table of `best`, `pareto`,
            `compare`, `effects` or `importances` is shown in its order, with its sentence.
        goal: The goal that decides, as in `best`.
        n: The number of rows.
        repeats: As in `best`. With repeat axes, a row is a setting with its mean, the 95 % interval of the
            mean, and the number of repeats that count.

    Returns:
        A view that a notebook draws and `print` writes, as wide as the terminal; its last lines name the
        columns that do not fit. Its `table` has the rows and columns; `to_markdown()` and `to_latex()` write
        this table for a document.

    Raises:
        InvalidArgumentError: `best` refuses the arguments.

    Example:
        >>> runs = pd.DataFrame({"run": [1, 2], "lr": [0.1, 0.01], "epochs": 5, "accuracy": [0.81, 0.86]})
        >>> show(runs)  # doctest: +NORMALIZE_WHITESPACE
        run accuracy   lr
          2     0.86 0.01
          1     0.81 0.10
        best accuracy first · the last value of each run counts · the same in all: epochs=5
    """
    check_table(runs)
    if isinstance(runs, Finding) and goal is None and repeats is None:
        view = of_table(runs, (), n, runs.sentence)
    else:
        view = ranked(runs, goal, n, repeats)
    return replace(view, notes=[*view.notes, *notes_of(runs)])


def ranked(
    runs: pd.DataFrame,
    goal: str | Sequence[str] | None,
    n: int | None,
    repeats: str | Sequence[str] | None,
    *,
    with_others: bool = True,
) -> View:
    """Show the best runs or settings first; without `with_others`, only runs or settings with results."""
    if goal is None and not own_goals(runs) and with_others:
        return of_table(runs, (), n)
    ranking = ranking_of(runs, goal, repeats)
    settings = ranking.all_settings if with_others else ranking.first
    notes = [ranking.order_in_words, *ranking.notes]
    if not are_epochs(runs):
        answers = answers_of(runs, goal, repeats)
        if ranking.repeats:
            decision = (answers.headline, answers.open) if answers.has_verdict else ()
            notes[1:1] = [*decision, answers.front_sentence]
            notes += [ranking.assumption, answers.scope]
        elif not with_others:
            notes = [answers.headline, *answers.details]
        notes.append(ranking.count if ranking.others else "")
    notes.append(which_value(runs, ranking.goal.metric))
    return settings_view(runs, ranking, settings, n, *(note.removesuffix(".") for note in notes))


def settings_view(
    runs: pd.DataFrame, ranking: Ranking, settings: Sequence[Setting], n: int | None = None, *notes: str
) -> View:
    """Show settings of a ranking in their order: runs, or means over the repeats."""
    if not ranking.repeats:
        return of_table(rows_of(runs, ranking, settings), ranking.goals, n, *notes, varying=ranking.varying)
    numbers = columns_of_numbers(ranking, settings)
    for name in (companion(ranking.goal.metric, metrics_of(runs)), _TIME):
        if name in runs and name not in numbers and is_numeric_dtype(runs[name]):
            column = completed(runs, name).to_numpy()
            numbers[name] = plain_means(column[list(setting.rows)] for setting in settings)
    rows = beside_settings(runs, ranking, settings, from_columns(numbers, ()))
    return of_table(rows, ranking.goals, n, *notes, varying=ranking.varying)


def of_table(
    rows: pd.DataFrame,
    goals: Sequence[Goal] = (),
    n: int | None = None,
    *notes: str,
    varying: Collection[str] = (),
) -> View:
    """Show rows in their order, without the columns that are the same in all of them, but those that vary."""
    metrics, params = [goal.metric for goal in goals], hyperparameters_of(rows)
    is_computed = isinstance(rows, Finding) and "run" not in rows  # of settings, pairs or effects
    may_go = params if is_computed else [*rows]
    same = {name: cell(values[0]) for name in may_go if len(values := numbered(rows[name])[1]) == 1}
    kept = ("run", REPEATS, *metrics, *varying)
    said = [f"{name} std" for name in rows] + (params if is_computed and SETTING in rows else [])
    whole = [name for name in rows if name not in said and (len(rows) == 1 or name not in same or name in kept)]
    ahead = [*_LEADING, *params, *metrics]
    if metrics:
        ahead += [INTERVAL, REPEATS, companion(metrics[0], metrics_of(rows))]
    measured = [name for name in metrics_of(rows) if name not in (*ahead, *LEADING[2:])]
    if isinstance(rows, Finding):  # a table of `best` is in the order of columns that are no metrics of a run
        measured = [name for name in map(str, rows) if is_computed or name.startswith(KEPT)] + measured
    means = [name for name in measured if name.endswith(" mean")]  # of `best` and `pareto`
    main = [name for name in (*ahead, *measured, _TIME, "status", "error") if name != RUNS]
    order = [name for name in dict.fromkeys([*main, *rows]) if name in whole]
    silent = COLUMNS - {"status", "epochs"}
    left_out = [name for name in same if name not in order and name not in silent and same[name]]
    texts = ", ".join(f"{name}={same[name]}" for name in left_out)
    has_best = len(rows) > 1 and bool(metrics) and not math.isnan(completed(rows, metrics[0])[0])
    some = f"{n:,} of {len(rows):,} rows" if n is not None and n < len(rows) else ""
    view = View(
        rows.reset_index(drop=True),
        [*map(printable, filter(None, [some, *notes]))],
        [name for name in order if name in main],
        [*dict.fromkeys([*_LEADING, *metrics, *means, *params, REPEATS, INTERVAL, "status"])],
        [0] if has_best else [],
        {metrics[0]: span(rows[metrics[0]])} if metrics and len(rows) > 1 else {},
        order,
        printable(f"the same in all: {texts}") if texts else "",
    )
    return view if n is None else view.head(n)


def runs_view(runs: pd.DataFrame) -> View:
    """Show all runs in their order, with the runs of the best setting in bold."""
    answers = answers_of(runs)
    ranking = answers.ranking
    if ranking is None or not ranking.settings:
        return of_table(runs)
    notes = dict.fromkeys([answers.headline, answers.result, ranking.assumption])
    view = of_table(runs, ranking.goals, None, *notes)
    return replace(view, best=list(ranking.settings[0].rows) if len(runs) > 1 else [])
