"""Compare the values of a hyperparameter in otherwise equal runs, or all settings with one of them."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from runmanager.answers.contest import IDENTICAL, UNDECIDED, Contest, told_apart
from runmanager.answers.evidence import Lead, difference, differences, leads
from runmanager.answers.ranking import (
    Ranking,
    axes_of,
    check_comparable,
    completed,
    describe,
    goals_of,
    numbered,
    own_goals,
    ranking_of,
    repeats_of,
    settings_without,
)
from runmanager.answers.sampled import is_sampled
from runmanager.core.goal import Goal
from runmanager.core.values import key_of, text
from runmanager.core.wording import counted, did_you_mean, printable
from runmanager.errors import InvalidArgumentError, Problems
from runmanager.tables.cells import label
from runmanager.tables.columns import HYPERPARAMETERS, Numbers, beside, check_table, from_columns

OVERALL, DIFFERENCES, LEFT_OUT, COMPARED, AXIS = "overall", "differences", "left out", "compared", "axis"
"""The keys in the `attrs` of a table of `compare`: ratios, differences, missing pairs, column, axis."""

AGAINST = "against"
"""The key in the `attrs` of a table of `compare` with a base: a sentence on the base and the intervals."""

NO_RUN = "no such run"
"""The reason why a pair is left out if the table has only one of its two runs."""

_FOR_SPEED = ("device", "num_workers", "persistent_workers", "pin_memory", "prefetch_factor")


def compare(
    runs: pd.DataFrame,
    axis: str | None = None,
    goal: str | None = None,
    *,
    base: Mapping[str, Any] | None = None,
    repeats: str | list[str] | None = None,
) -> pd.DataFrame:
    """Pair runs that differ in one hyperparameter only, or compare all settings with a base.

    Source of the mean of ratios: Fleming and Wallace (1986), How Not to Lie with Statistics. The interval of
    the differences is the interval of `verdict`.

    Args:
        runs: The table of `load_runs`, or rows of it.
        axis: The hyperparameter, or "experiment" for the runs of `load_runs([a, b])`. For "experiment", a
            hyperparameter with a single value in each experiment is not part of the setting. The default is
            "device".
        goal: The column to compare, as in `best`. By default, `compare` uses the epoch duration if `axis` is a
            device or a setting of the data loader, else the metric that decides.
        base: The hyperparameters of one setting, as many as identify it. All other settings are compared with
            this one, as in an ablation; then there is no `axis`.
        repeats: The axes that only repeat a setting, as in `best`.

    Returns:
        One row per setting: the other hyperparameters that vary, then a column per value of `axis`. Repeat axes
        are among the other hyperparameters, so runs are paired repeat by repeat. Runs with the same
        hyperparameters are averaged. The value that has results in the largest number of settings comes first,
        of several such values the first in the table; `verdict` compares the best value with the others.
        Each other value has its difference from the first and its ratio to the first: ``cpu vs cuda`` is how
        much more the cpu takes, ``cpu / cuda`` how many times as much. A value of `axis` without any result,
        such as a missing device, is left out if two other values have results.

        ``attrs["overall"]`` has a dict per ratio: its name `ratio`, the number of pairs `n`, and their
        geometric `mean`. `low` and `high` are its 95 % interval, by Student's t of the logarithms. One pair has
        no interval. If a ratio is 0 or negative, there is no geometric mean either. ``attrs["differences"]``
        has a dict per `difference`: the mean over `n` repeats, each the mean of its pairs, with the interval of
        `verdict`. ``attrs["left out"]`` counts the pairs left out by reason, ``attrs["compared"]`` is the
        column, ``attrs["axis"]`` the axis. `show` writes all of these attributes as sentences.

        With `base`, one row per setting, the base first, then the best first: its hyperparameters, its mean,
        the number of repeats that it shares with the base, the mean `difference` from the base in these
        repeats, the interval of the difference (`low`, `high`), and whether the setting is better, worse,
        identical or undecided. All intervals hold together with a probability of 95 %, and stay valid if
        repeats are added.

    Raises:
        InvalidArgumentError: `axis` names no hyperparameter of these runs, `goal` names no column of numbers,
            `base` names no setting or several, or no two runs differ in `axis` alone, as in a sample or a
            search of ranges.

    Example:
        >>> runs = pd.DataFrame(
        ...     {"lr": [0.1, 0.1], "device": ["cuda", "cpu"], "epoch duration": [2.0, 5.0]}
        ... )
        >>> runs.attrs["hyperparameters"] = ["lr", "device"]  # load_runs() sets them
        >>> compare(runs)
           cuda  cpu  cpu vs cuda  cpu / cuda
        0   2.0  5.0          3.0         2.5
    """
    if base is not None:
        if axis is not None:
            raise InvalidArgumentError("axis= and base= are two questions: give one of them")
        return _against(runs, base, goal, repeats)
    axis = "device" if axis is None else axis
    pairs = _paired(runs, axis, goal, repeats)
    if pairs.empty and axis != "experiment" and any(is_sampled(runs[name].tolist()) for name in axes_of(runs)):
        fact = f"no two completed runs differ in {printable(axis)} alone"
        raise InvalidArgumentError([f"{fact}: importances() says what matters in a sample or a search"])
    return pairs


def is_cost(metric: str) -> bool:
    """Whether a column is a duration or a size, which is compared by its ratio."""
    return metric.endswith(("duration", "memory"))


def _ranked(runs: pd.DataFrame, axis: str | None, goal: str | None, repeats: Any) -> Ranking:
    """Rank runs by one goal; the compared axis is no repeat axis."""
    check_table(runs, needs_axes=True)
    goals: list[Goal] = [] if goal is None else [Goal("", 1)]
    problems = Problems()
    with problems.collecting():
        check_comparable(runs, [] if axis is None else [axis], [])
    with problems.collecting():
        if goal is None and axis not in _FOR_SPEED:
            goals = own_goals(runs)
        if goal is not None or not goals:
            goals = goals_of(runs, "epoch duration" if goal is None else goal)
    problems.raise_if_any(InvalidArgumentError)
    return ranking_of(runs, str(goals[0]), [name for name in repeats_of(runs, repeats)[0] if name != axis])


@np.errstate(over="ignore", invalid="ignore")  # the mean of huge numbers may overflow to infinity or NaN
def _paired(runs: pd.DataFrame, axis: str, goal: str | None, repeats: Any) -> pd.DataFrame:
    """Pair runs as `compare` does; without pairs, return a table without rows."""
    ranking = _ranked(runs, axis, goal, repeats)
    metric, sign = ranking.goal.metric, ranking.goal.sign
    codes, values = numbered(runs[axis])
    group, table = settings_without(runs, [axis, *(told_apart(runs, codes) if axis == "experiment" else [])])
    # a lone surrogate is not valid in the name of a column
    names = [text(value).encode("utf-8", "backslashreplace").decode() for value in values]
    is_ambiguous = len({*names}) < len(names) or any(" vs " in name or " / " in name for name in names)
    if is_ambiguous or not {*names}.isdisjoint(table):
        names = [repr(value) for value in values]
    means = completed(runs, metric).groupby([group, codes]).mean().unstack()  # noqa: PD010 - of a Series
    sides = pd.DataFrame({name: means[code] for code, name in enumerate(names)}, index=table.index)
    counts = sides.notna().sum()
    measured = [name for name in names if counts[name]]
    listed = measured if len(measured) > 1 else names
    first = max(listed, key=lambda name: counts[name], default="")
    pairs_with: Mapping[int, Lead] = {}
    contest = Contest.of(runs, ranking, axis)
    if listed:
        pairs_with = leads(contest.scores, names.index(first))
    others = [name for name in listed if name != first]
    pairs = sides[[first, *others] if listed else []]
    is_paired = (
        sides[first].notna() & sides[others].notna().any(axis="columns") if others else [False] * len(sides)
    )
    pairs, table = (part[is_paired].reset_index(drop=True) for part in (pairs, table))
    between = {f"{name} vs {first}": pairs[name] - pairs[first] for name in others}
    ratios = {f"{name} / {first}": pairs[name] / pairs[first] for name in others}
    pairs = beside(table, beside(pairs, pd.DataFrame({**between, **ratios}, index=pairs.index)))
    turned = {f"{name} vs {first}": _turned(pairs_with[names.index(name)], -sign) for name in others}
    pairs.attrs = {
        OVERALL: [_overall(name, ratio.dropna()) for name, ratio in ratios.items()],
        DIFFERENCES: [
            {
                "difference": name,
                "pairs": int(pairs[name].notna().sum()),
                "unit": contest.unit,
                "n": lead.n,
                "mean": lead.mean,
                "low": lead.low,
                "high": lead.high,
            }
            for name, lead in turned.items()
        ],
        LEFT_OUT: _left_out(runs, group, codes, sides, names.index(first)) if others else {},
        COMPARED: metric,
        AXIS: axis,
        HYPERPARAMETERS: list(table),
    }
    return pairs


def _turned(lead: Lead, sign: int) -> Lead:
    """Return the difference in units of the metric, from the difference of scores."""
    return lead if sign > 0 else lead._replace(mean=0.0 - lead.mean, low=0.0 - lead.high, high=0.0 - lead.low)


def _left_out(
    runs: pd.DataFrame, group: Numbers, codes: Numbers, sides: pd.DataFrame, first: int
) -> dict[str, int]:
    """Count the pairs that have a run but lack a result, separately for each reason."""
    statuses = runs["status"].astype(str) if "status" in runs else ["completed"] * len(runs)
    reasons: dict[tuple[int, int], str] = {}
    for setting, code, status in zip(group, codes, statuses, strict=True):
        reasons[setting, code] = "no number" if status == "completed" else status
    left_out: Counter[str] = Counter()
    for setting, is_there in enumerate(sides.notna().to_numpy()):
        for code in range(len(sides.columns)):
            cells = [(setting, code), (setting, first)]
            if code == first or not any(cell in reasons for cell in cells) or all(is_there[[code, first]]):
                continue
            lacking = [cell for cell in cells if not is_there[cell[1]]]
            left_out[min((reasons.get(cell, NO_RUN) for cell in lacking), key=lambda why: why == NO_RUN)] += 1
    return dict(left_out.most_common())


def _overall(name: str, ratios: "pd.Series[float]") -> dict[str, Any]:
    """Describe ratios by their geometric mean, which treats a ratio and its inverse alike."""
    logarithms = ratios.where((ratios > 0) & np.isfinite(ratios)).map(np.log)
    statistics = describe(logarithms, np.zeros(len(ratios))).reindex([0]).iloc[0]
    if logarithms.isna().any():
        statistics *= math.nan
    means = {key: float(np.exp(statistics[key])) for key in ("mean", "low", "high")}
    return {"ratio": name, "n": len(ratios), **means}


def _against(runs: pd.DataFrame, base: Mapping[str, Any], goal: str | None, repeats: Any) -> pd.DataFrame:
    """Compare each setting with the base, repeat by repeat."""
    ranking = _ranked(runs, None, goal, repeats)
    contest = Contest.of(runs, ranking)
    position = _position_of(base, runs, ranking)
    metric, sign = ranking.goal.metric, ranking.goal.sign
    rows = differences(contest.scores, position)
    number = max(len(rows) - 1, 1)
    pairs_with = {
        rival: _turned(difference(row[~np.isnan(row)], num_pairs=number), -sign)
        for rival, row in enumerate(rows)
    }
    order = [position, *(rival for rival in contest.order if rival != position)]
    settings = [ranking.all_settings[rival] for rival in order]
    listed = [pairs_with[rival] for rival in order]
    none = math.nan
    computed: dict[str, list[Any]] = {
        metric: [setting.mean for setting in settings],
        f"{contest.unit}s": [settings[0].number, *(lead.n for lead in listed[1:])],
        **{
            name: [none, *(getattr(lead, field) for lead in listed[1:])]
            for name, field in {"difference": "mean", "low": "low", "high": "high"}.items()
        },
        "verdict": ["base", *(_state(lead, sign) for lead in listed[1:])],
    }
    params = {name: [setting.params[name] for setting in settings] for name in settings[0].params}
    names = {name: name if name not in computed else f"{name} (hyperparameter)" for name in params}
    columns = {names[name]: column for name, column in params.items()}
    table = from_columns(columns | computed, columns)
    what = f"{metric} of each setting against {printable(label(dict(base)))}, paired by {contest.unit}"
    error = f"all {number} intervals hold together with 95 %, however often one looks"
    if number == 1:
        error = "the 95 % interval holds however often one looks"
    lost = [
        f"{contest.names[rival]} lost {ranking.all_settings[rival].counts}"
        for rival in order
        if ranking.all_settings[rival].lost
    ]
    table.attrs = {HYPERPARAMETERS: list(columns), COMPARED: metric, AGAINST: "; ".join([what, error, *lost])}
    return table


def _state(lead: Lead, sign: int) -> str:
    """Say whether a setting is better than the base; `lead` is its difference in units of the metric."""
    if lead.is_identical:
        return IDENTICAL
    if not (lead.low > 0 or lead.high < 0):
        return UNDECIDED
    return "better" if sign * lead.mean > 0 else "worse"


def _position_of(base: Mapping[str, Any], runs: pd.DataFrame, ranking: Ranking) -> int:
    """Return the position of the setting that has the values of a base."""
    axes = [name for name in axes_of(runs) if name not in ranking.repeats]
    if not base:
        raise InvalidArgumentError("base= has to have the values of one setting, as base={'lr': 0.1}")
    if not {*base} <= {*axes}:
        name = next(name for name in base if name not in axes)
        raise InvalidArgumentError(f"base= names no hyperparameter {name!r}; {did_you_mean(name, axes)}")
    columns = {name: runs[name].tolist() for name in base}
    positions = [
        position
        for position, setting in enumerate(ranking.all_settings)
        if all(key_of(columns[name][setting.rows[0]]) == key_of(value) for name, value in base.items())
    ]
    if len(positions) != 1:
        rule = f"base= has to name one setting, {printable(label(dict(base)))} names {len(positions)}"
        varied = {name: value for name, value in ranking.all_settings[0].params.items() if name not in base}
        more = f"add the values of {', '.join(varied)}" if positions else "its values are not those of a run"
        if positions and not varied:
            more = f"{counted(len(positions), 'run')} have these values: name the repeats"
        raise InvalidArgumentError(f"{rule}: {more}")
    return positions[0]
