"""Display the tables of `best`, `effects` and `compare`."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from runmanager.answers.answers import INTERVAL, REPEATS, Answers, columns_of_numbers
from runmanager.answers.compare import AGAINST, AXIS, COMPARED, DIFFERENCES, LEFT_OUT, NO_RUN, OVERALL, is_cost
from runmanager.answers.conclusion import all_digits
from runmanager.answers.effects import EXPLAINED, OVERLAP
from runmanager.answers.ranking import (
    ALL_REPEATS,
    AVERAGED,
    FAILED_REPEATS,
    RUNS,
    axes_of,
    intervals,
    numbered,
)
from runmanager.answers.view import View, notes_of_view, same_in_all, span
from runmanager.core.wording import counted
from runmanager.tables.cells import cell
from runmanager.tables.columns import HYPERPARAMETERS, beside, from_columns, hyperparameters_of

_LACKS = {NO_RUN: "a run that does not exist", "no number": "a run without a number"}


def settings_view(answers: Answers, runs: pd.DataFrame, n: int | None, *, with_others: bool) -> View:
    """Show settings in the order of their means."""
    ranking = answers.ranking
    assert ranking
    settings = ranking.all_settings if with_others else ranking.first
    listed = settings[:n]
    metric = ranking.goal.metric
    params = {name: [s.params[name] for s in listed] for name in (settings[0].params if settings else ())}
    numbers = columns_of_numbers(ranking, runs, listed) if listed else {metric: [], INTERVAL: [], REPEATS: []}
    columns = {name: numbers[name] for name in (*(g.metric for g in ranking.goals), INTERVAL, REPEATS)}
    if all(map(str.isdecimal, columns[REPEATS])):
        columns[REPEATS] = [*map(int, columns[REPEATS])]
    same = [name for name in axes_of(runs) if name not in ranking.repeats and name not in params]
    notes = notes_of_view(
        (
            f"{len(listed):,} of {len(settings):,} settings" if len(listed) < len(settings) else "",
            f"best mean {metric} over {' and '.join(ranking.repeats)} first" if listed else "",
            *((answers.headline, answers.open) if answers.has_verdict else ()),
            "" if with_others else answers.front_sentence.removesuffix("."),
            *(note.removesuffix(".") for note in ranking.notes),
            ranking.assumption,
            ranking.count if ranking.others else "",
            answers.scope(columns[INTERVAL]),
            *(map(str, all_digits(runs, ranking.settings[0].rows[0])) if ranking.settings else ()),
            same_in_all({name: cell(runs[name].iloc[0]) for name in same if len(runs)}),
        )
    )
    table = beside(_frame(params, list(params)), _frame(columns, ()))
    bars = {metric: span(table[metric])}
    first = [metric, *hyperparameters_of(table)]
    return View(table, notes, list(map(str, table)), first, [0] if ranking.settings else [], bars)


def averages_view(averages: pd.DataFrame, n: int) -> View:
    """Show a table of `best`: mean, interval and number of runs for each averaged column."""
    names: Sequence[str] = averages.attrs[AVERAGED]
    rows = averages.head(n)
    own = {f"{name} {part}" for name in names for part in ("n", "mean", "std", "low", "high")}
    params = [str(name) for name in rows if name not in (*own, ALL_REPEATS, FAILED_REPEATS, RUNS)]
    same = [name for name in params if len(rows) > 1 and len(numbered(rows[name])[1]) == 1]
    params = [name for name in params if name not in same]
    columns: dict[str, Any] = {}
    for name in names:
        mark = f"{name} " if len(names) > 1 else ""
        columns[name] = rows[f"{name} mean"].tolist()
        columns[f"{mark}{INTERVAL}"] = intervals(name, rows[f"{name} low"], rows[f"{name} high"])
        columns["repeats" if not mark else f"{mark}n"] = rows[f"{name} n"].tolist()
    if FAILED_REPEATS in rows and rows[FAILED_REPEATS].any():
        columns[FAILED_REPEATS] = rows[FAILED_REPEATS].tolist()
    table = beside(_frame({name: rows[name].tolist() for name in params}, params), _frame(columns, ()))
    notes = notes_of_view(
        (
            f"{len(rows):,} of {len(averages):,} settings" if len(rows) < len(averages) else "",
            f"mean {' and '.join(names)} of each setting",
            "the best first",
            same_in_all({name: cell(rows[name].iloc[0]) for name in same}),
        )
    )
    return View(
        table,
        notes,
        list(map(str, table)),
        [*names, *hyperparameters_of(table)],
        [0] if len(rows) > 1 else [],
        {name: span(table[name]) for name in names},
    )


def effects_view(effects: pd.DataFrame, n: int) -> View:
    """Show a table of `effects`: how much each hyperparameter explains, and the mean of each value."""
    name = str(effects.attrs[EXPLAINED])
    rows = effects.head(n)
    is_first = ~rows["axis"].duplicated()
    explained = rows["explained"].astype("float64")
    columns: dict[str, Any] = {
        "axis": rows["axis"].where(is_first, "").tolist(),
        "explained": [f"{share:.0f} %" if share >= 0 else "" for share in (100 * explained).where(is_first)],
        "value": [cell(value) for value in rows["value"]],
        f"mean {name}": rows["mean"].tolist(),
    }
    if "low" in rows:
        columns[INTERVAL] = intervals(name, rows["low"], rows["high"])
    else:
        columns["std"] = rows["std"].tolist()
    columns["settings" if "low" in rows else "runs"] = rows["n"].tolist()
    table = _frame(columns, ["value"])
    notes = notes_of_view(
        (
            f"{len(rows):,} of {len(effects):,} rows" if len(rows) < len(effects) else "",
            f"explained: how much of the variation of {name} each axis explains",
            effects.attrs[OVERLAP],
            "" if len(effects) else "no hyperparameter varies",
        )
    )
    bars = {f"mean {name}": span(table[f"mean {name}"])}
    return View(table, notes, list(columns), list(columns), [], bars)


def base_view(table: pd.DataFrame, n: int | None = None) -> View:
    """Show a table of `compare` with a base."""
    rows = table.head(len(table) if n is None else n)
    metric, params = str(table.attrs[COMPARED]), hyperparameters_of(table)
    names = [str(name) for name in rows]
    first = [*params, "difference", "verdict", metric]
    rows.attrs = {HYPERPARAMETERS: params}
    notes = notes_of_view([table.attrs[AGAINST]])
    return View(rows, notes, names, first, [0], {metric: span(rows[metric])})


def pairs_view(pairs: pd.DataFrame, n: int | None = None) -> View:
    """Show a table of `compare`: the pairs, with a caption on all pairs together."""
    rows = pairs.iloc[:n].reset_index(drop=True)
    compared, axis = pairs.attrs[COMPARED], pairs.attrs[AXIS]
    names = [str(name) for name in rows]
    params = hyperparameters_of(pairs)
    num_values = 1 + (len(names) - len(params)) // 3 if len(names) > len(params) else 0
    measured = names[len(params) :]
    are_many = num_values > 2  # noqa: PLR2004 - two values have one difference
    against = f", each against {measured[0]}, the first value with the most results" if are_many else ""
    notes = notes_of_view(
        (
            f"{compared} of runs that differ in {axis} only{against}",
            f"the verdict on {axis} compares the best value with the others"
            if are_many and not is_cost(compared)
            else "",
            *_sentences(pairs),
            f"no two completed runs differ in {axis} only and have {compared}" if pairs.empty else "",
            f"{len(rows):,} of {len(pairs):,} pairs" if len(rows) < len(pairs) else "",
        )
    )
    # the ends of the columns of values and of the columns of differences; ratios follow
    ends = num_values, 2 * num_values - 1
    differences, ratios = measured[ends[0] : ends[1]], measured[ends[1] :]
    first = [*params, *measured[: ends[0]], *(ratios if is_cost(compared) else differences)]
    rows.attrs = {HYPERPARAMETERS: params}
    main = [name for name in names if name in first]
    return View(rows, notes, main, first)


def _sentences(pairs: pd.DataFrame) -> list[str]:
    """Summarise the pairs of `compare`: durations and memory by their ratio, metrics by their difference."""
    left_out: Mapping[str, int] = pairs.attrs[LEFT_OUT]
    parts = [_difference(overall) for overall in pairs.attrs[DIFFERENCES]]
    if is_cost(pairs.attrs[COMPARED]):
        parts = [_ratio(overall) for overall in pairs.attrs[OVERALL]]
    if left_out:
        why = ", ".join(f"{number} with {_LACKS.get(why) or _a_run(why)}" for why, number in left_out.items())
        number = sum(left_out.values())
        parts.append(f"{counted(number, 'pair')} {'is' if number == 1 else 'are'} left out: {why}")
    return parts


def _a_run(status: str) -> str:
    return f"{'an' if status[0] in 'aeiou' else 'a'} {status} run"


def _ratio(overall: Mapping[str, Any]) -> str:
    low, mean, high = (cell(overall[name]) for name in ("low", "mean", "high"))
    interval = f", 95 % interval {low} to {high}" if low else ""
    return f"{overall['ratio']}: {mean} (geometric mean of {overall['n']}{interval})" if mean else ""


def _difference(overall: Mapping[str, Any]) -> str:
    low, mean, high = (cell(overall[name]) for name in ("low", "mean", "high"))
    interval = f", 95 % interval at every look {low} to {high}" if low else ""
    number = counted(overall["pairs"], "pair")
    if overall["n"] != overall["pairs"]:
        number += f" in {counted(overall['n'], overall['unit'])}"
    sign = "+" if overall["mean"] > 0 else ""
    return f"{overall['difference']}: {sign}{mean} (mean of {number}{interval})" if mean else ""


def _frame(columns: Mapping[str, Sequence[Any]], params: Sequence[str]) -> pd.DataFrame:
    """Make a table; the values keep their types."""
    return from_columns({name: list(values) for name, values in columns.items()}, params)
