"""Show the best runs first, and only the columns that differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pandas as pd

from runmanager.console import Table, cell, join, printable
from runmanager.hyperparameters import counted
from runmanager.results.decisive import goal_of, repeats_of
from runmanager.results.effects import COMPARED, DIFFERENCES, LEFT_OUT, OVERALL
from runmanager.results.findings import Findings, find
from runmanager.results.ranking import are_epochs, axes_of, best, deciding, numbered
from runmanager.results.tables import beside, check_table, from_columns, hyperparameters_of

_LEADING = ("experiment", "run", "epoch", "status")


@dataclass(frozen=True, repr=False)
class View:
    """Some rows and columns of a table: drawn in a notebook, text elsewhere."""

    table: pd.DataFrame
    caption: str  # how the rows are sorted, and what is left out

    def __repr__(self) -> str:
        return "\n".join([*Table.of(self.table).lines(), self.caption]) if len(self.table) else "no rows"

    def _repr_html_(self) -> str:
        return f"{Table.of(self.table).to_html()}\n<p>{escape(self.caption)}</p>"


def show(
    runs: pd.DataFrame,
    by: str | None = None,
    n: int = 20,
    *,
    largest: bool | None = None,
    repeats: str | Sequence[str] | None = None,
) -> View:
    """Show the best runs or settings, without the columns that are the same in all of them.

    Args:
        runs: What `load_runs` or `load_results` returned, or rows of it. What `best`, `compare`, `over_repeats`
            or `effects` returned is shown in its own order.
        by: The column to sort by, as in `best`.
        n: How many rows.
        largest: As in `best`.
        repeats: As in `best`: with repeat axes, a row is a setting with its mean, the 95 % interval of the
            mean, and how many of its repeats count.

    Returns:
        What a notebook draws and `print` writes; its `table` has the rows and columns.

    Raises:
        InvalidArgumentError: As `best` does.

    Example:
        >>> runs = pd.DataFrame({"run": [1, 2], "lr": [0.1, 0.01], "epochs": 5, "accuracy": [0.81, 0.86]})
        >>> show(runs)  # doctest: +NORMALIZE_WHITESPACE
        run accuracy   lr
          2     0.86 0.01
          1     0.81  0.1
        best accuracy first · the same in all: epochs=5
    """
    check_table(runs)
    has_order = OVERALL in runs.attrs
    goal = None
    if by is not None or not (has_order or goal_of(runs) is None):
        goal = deciding(runs, by, largest=largest, n=n)
        axes = repeats_of(runs, repeats)
        if axes and not are_epochs(runs):
            return _settings(find(runs, by, largest=largest, repeats=axes), runs, n)
    column = goal.metric if goal else None
    same = {name: values[0] for name in runs if len(values := numbered(runs[name])[1]) == 1}
    first = dict.fromkeys([*_LEADING, *hyperparameters_of(runs), *([column] if column else [])])
    order = [*(name for name in first if name in runs), *(name for name in runs if name not in first)]
    columns = [name for name in order if len(runs) == 1 or name not in same or name in ("run", column)]
    rows = best(runs, by, n, largest=largest, repeats=()) if goal else runs.head(n)
    dropped = {str(name): cell(same[name]) for name in order if name not in columns}
    parts = (
        f"{len(rows):,} of {len(runs):,} rows" if len(rows) < len(runs) else "",
        f"best {column} first" if column else "",
        *(_sentences(runs) if has_order else ()),
        _left_out(dropped),
    )
    return View(rows[columns].reset_index(drop=True), printable(join(parts)))


def _settings(findings: Findings, runs: pd.DataFrame, n: int) -> View:
    """Show settings by their mean."""
    settings = [*findings.settings, *findings.others]
    listed = settings[:n]
    params = from_columns({name: [s.params[name] for s in listed] for name in settings[0].params}, ())
    computed: dict[str, list[Any]] = {
        findings.goal.metric: [setting.mean for setting in listed],
        "95 % interval": [_interval(setting.low, setting.high) for setting in listed],
        "repeats": [setting.counts for setting in listed],
    }
    names = [name for name in axes_of(runs) if name not in (*findings.repeats, *params)]
    parts = (
        f"{len(listed):,} of {len(settings):,} settings" if len(listed) < len(settings) else "",
        f"best mean {findings.goal.metric} over {' and '.join(findings.repeats)} first",
        findings.verdict.rstrip(".").replace("Its", "its", 1),
        _left_out({name: cell(runs[name].iloc[0]) for name in names}),
    )
    return View(beside(params, from_columns(computed, ())), printable(join(parts)))


def _sentences(pairs: pd.DataFrame) -> list[str]:
    """Say what the pairs of `compare` come to: costs by their ratio, metrics by their difference."""
    left_out: Mapping[str, int] = pairs.attrs[LEFT_OUT]
    is_cost = str(pairs.attrs[COMPARED]).endswith(("duration", "memory"))
    parts = [_ratio(overall) for overall in pairs.attrs[OVERALL]] if is_cost else []
    parts += [] if is_cost else [_difference(overall) for overall in pairs.attrs[DIFFERENCES]]
    if left_out:
        why = ", ".join(f"{number} {reason}" for reason, number in left_out.items())
        parts.append(f"{counted(sum(left_out.values()), 'pair')} left out: {why}")
    return parts


def _ratio(overall: Mapping[str, Any]) -> str:
    low, mean, high = (cell(overall[name]) for name in ("low", "mean", "high"))
    interval = f", 95 % interval {low} to {high}" if low else ""
    return f"{overall['ratio']}: {mean} (geometric mean of {overall['n']}{interval})" if mean else ""


def _difference(overall: Mapping[str, Any]) -> str:
    low, mean, high = (cell(overall[name]) for name in ("low", "mean", "high"))
    interval = f", 95 % interval {low} to {high}" if low else ""
    number = counted(overall["n"], "pair")
    return f"{overall['difference']}: {mean} (mean of {number}{interval})" if mean else ""


def _interval(low: float, high: float) -> str:
    return f"{cell(low)} to {cell(high)}" if cell(low) else ""


def _left_out(dropped: Mapping[str, str]) -> str:
    text = ", ".join(f"{name}={value}" for name, value in dropped.items() if value)
    return f"the same in all: {text}" if text else ""
