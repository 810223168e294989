"""Show the best runs first, with the columns in which they differ."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pandas as pd

from runmanager.answers.answers import answers_of
from runmanager.answers.compare import AGAINST, OVERALL
from runmanager.answers.conclusion import all_digits
from runmanager.answers.effects import EXPLAINED
from runmanager.answers.ranking import (
    ASSUMED,
    AVERAGED,
    PARETO,
    RANKED,
    are_epochs,
    columns_of_goals,
    completed,
    numbered,
    own_goals,
    ranking_of,
    repeats_of,
    rows_of,
)
from runmanager.answers.sentences import counts_of
from runmanager.answers.table_views import averages_view, base_view, effects_view, pairs_view, settings_view
from runmanager.answers.usual_goals import companion
from runmanager.answers.view import View, notes_of_view, same_in_all, span
from runmanager.core.goal import Goal
from runmanager.core.outcome import LEADING, Status
from runmanager.core.values import COLUMNS
from runmanager.tables.cells import cell
from runmanager.tables.columns import HYPERPARAMETERS, check_table, hyperparameters_of, metrics_of, notes_of

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
            `compare` or `effects` is shown in its order.
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
        best accuracy first · the same in all: epochs=5
    """
    check_table(runs)
    view = _view_of(runs, goal, n, repeats)
    return replace(view, notes=notes_of_view((*view.notes, runs.attrs.get(ASSUMED, ""), *notes_of(runs))))


def _view_of(
    runs: pd.DataFrame, goal: str | Sequence[str] | None, n: int, repeats: str | Sequence[str] | None
) -> View:
    attrs = runs.attrs if goal is None else {}
    special: dict[str, Callable[[pd.DataFrame, int], View]] = {
        AGAINST: base_view,
        OVERALL: pairs_view,
        EXPLAINED: effects_view,
    }
    if key := next((key for key in special if key in attrs), ""):
        return special[key](runs, n)
    if AVERAGED in attrs:
        view = averages_view(runs, n)
        return replace(view, notes=[*filter(None, [_unbeaten(runs)]), *view.notes])
    if PARETO in attrs:
        return of_runs(runs, Goal(*attrs[RANKED]), n, _unbeaten(runs))
    if RANKED in attrs and repeats is None:
        return _of_ranked(runs, Goal(*attrs[RANKED]), n)
    return ranked(runs, goal, n, repeats)


def _unbeaten(runs: pd.DataFrame) -> str:
    """Describe a table of `pareto`, "" for any other table."""
    goals = runs.attrs.get(PARETO)
    return f"no other is better in all of {', '.join(goals)}" if goals else ""


def ranked(
    runs: pd.DataFrame,
    goal: str | Sequence[str] | None = None,
    n: int | None = None,
    repeats: str | Sequence[str] | None = None,
    *,
    with_others: bool = True,
) -> View:
    """Show the best runs or settings first; without `with_others`, only runs or settings with results."""
    if goal is None and not own_goals(runs) and with_others:
        return of_runs(runs, None, n)
    if repeats_of(runs, repeats)[0] and not are_epochs(runs):
        return settings_view(answers_of(runs, goal, repeats), runs, n, with_others=with_others)
    ranking = ranking_of(runs, goal, repeats)
    if with_others or are_epochs(runs):
        rows = rows_of(runs, ranking, ranking.all_settings)
        return _of_ranked(rows, ranking.goal, n, *(note.removesuffix(".") for note in ranking.notes))
    others = counts_of(runs["status"].iloc[setting.rows[0]] for setting in ranking.others)
    lacks = {Status.COMPLETED: " without a number"}
    note = ", ".join(f"{number} {status}{lacks.get(Status(status), '')}" for status, number in others.items())
    note = f"{ranking.count} ({note})" if others else ""
    rows = rows_of(runs, ranking, ranking.first)
    sentences = answers_of(runs, goal, repeats).sentences
    return of_runs(rows, ranking.goal, n, *sentences, note, *map(str, all_digits(rows)))


def _of_ranked(rows: pd.DataFrame, goal: Goal, n: int | None, *notes: str) -> View:
    """Show rows in the order of a ranking."""
    has_best = len(rows) and not math.isnan(completed(rows, goal.metric)[0])
    return of_runs(rows, goal, n, *notes, *map(str, all_digits(rows) if has_best else ()), is_ranked=True)


def of_runs(
    rows: pd.DataFrame,
    goal: Goal | None,
    n: int | None = None,
    *notes: str,
    is_ranked: bool = False,
) -> View:
    """Show rows in their order."""
    metric = goal.metric if goal else None
    params = hyperparameters_of(rows)
    same = {name: values[0] for name in rows if len(values := numbered(rows[name])[1]) == 1}
    whole = [name for name in rows if len(rows) == 1 or name not in same or name in ("run", metric)]
    goals = columns_of_goals(rows)
    essential = [
        *_LEADING,
        *params,
        metric,
        *goals,
        companion(metric, metrics_of(rows)) if metric else None,
        _TIME,
        "status",
    ]
    measured = [name for name in metrics_of(rows) if name not in (*essential, *LEADING[2:])]
    errors = ["error"] if "error" in rows and rows["error"].ne("").any() else []
    order = [name for name in dict.fromkeys([*essential, *measured, *errors, *rows]) if name in whole]
    main = [name for name in order if name in {*essential, *measured, *errors}]
    first = [*_LEADING, metric, *goals, *params, "status"]
    constant = [name for name in measured if name not in COLUMNS and name in same and cell(same[name])]
    dropped = {str(name): cell(same[name]) for name in ("status", *params, "epochs", *constant) if name in same}
    caption = notes_of_view(
        (
            f"{n:,} of {len(rows):,} rows" if n is not None and n < len(rows) else "",
            f"best {metric} first" if is_ranked and len(rows) else "",
            *notes,
            same_in_all({name: value for name, value in dropped.items() if name not in order}),
        )
    )
    table = rows[order].reset_index(drop=True)
    table.attrs = {**rows.attrs, HYPERPARAMETERS: [name for name in params if name in order]}
    best_rows = [0] if goal and len(rows) > 1 and not math.isnan(completed(rows, goal.metric)[0]) else []
    bars = {str(metric): span(rows[metric])} if goal and len(rows) > 1 else {}
    names = list(dict.fromkeys(str(name) for name in first if name))
    view = View(table, caption, main, names, best_rows, bars, rows.reset_index(drop=True))
    return view if n is None else view.taken(range(min(n, len(rows))))


def runs_view(runs: pd.DataFrame) -> View:
    """Show all runs in their order, with the runs of the best setting in bold."""
    answers = answers_of(runs)
    ranking = answers.ranking
    if ranking is None or not ranking.settings:
        return of_runs(runs, None)
    notes = dict.fromkeys([answers.headline, answers.result, ranking.assumption])
    view = of_runs(runs, ranking.goal, None, *notes)
    return replace(view, best=list(ranking.settings[0].rows) if len(runs) > 1 else [])
