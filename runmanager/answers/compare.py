"""Compare the values of a hyperparameter in otherwise equal runs, or all settings with one of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from runmanager.answers.contest import Contest, rule_of, told_apart
from runmanager.answers.evidence import Lead, fewest, leads
from runmanager.answers.finding import Finding, with_sentence
from runmanager.answers.ranking import (
    Ranking,
    axes_of,
    check_comparable,
    completed,
    own_goals,
    ranking_of,
    settings_without,
    statistics_of,
)
from runmanager.answers.sentences import statuses_in_words
from runmanager.answers.verdict_sentence import losses
from runmanager.core.values import key_of, text
from runmanager.core.wording import counted, printable
from runmanager.errors import InvalidArgumentError
from runmanager.tables.cells import cell, label, labels
from runmanager.tables.columns import beside, check_table

SETTING = "setting"  # the column with what a setting changes in the base

_FOR_SPEED = ("device", "num_workers", "persistent_workers", "pin_memory", "prefetch_factor")


def compare(
    runs: pd.DataFrame,
    axis: str | None = None,
    goal: str | None = None,
    *,
    base: Mapping[str, Any] | None = None,
    repeats: str | list[str] | None = None,
) -> Finding:
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

        `sentence` says what all pairs show together: for a duration or a size the geometric mean of each ratio
        with its 95 % interval, by Student's t of the logarithms; for any other column the mean of each
        difference over the repeats, each the mean of its pairs, with the interval of `verdict`. One pair has no
        interval. If a ratio is 0 or negative, there is no geometric mean either. Pairs of which a run has no
        number are left out, and counted.

        With `base`, one row per setting, the base first, then the best first: its hyperparameters, those that
        differ from the base as `setting`, its mean and standard deviation, the number of repeats that it shares
        with the base, the mean `difference` from the base in these repeats, the interval of the difference
        (`low`, `high`), and whether the setting is better, worse, equal, identical or undecided, by the rule of
        `verdict`. All intervals hold together with a probability of 95 %, and stay valid if repeats are added.

    Raises:
        InvalidArgumentError: `axis` names no hyperparameter of these runs, `goal` names no column of numbers,
            or `base` names no setting or several.

    Example:
        >>> runs = pd.DataFrame(
        ...     {"lr": [0.1, 0.1], "device": ["cuda", "cpu"], "epoch duration": [2.0, 5.0]}
        ... )
        >>> runs.attrs["hyperparameters"] = ["lr", "device"]  # load_runs() sets them
        >>> compare(runs)
           cuda  cpu  cpu vs cuda  cpu / cuda
        0   2.0  5.0          3.0         2.5
    """
    if base is not None and axis is not None:
        raise InvalidArgumentError("axis= and base= are two questions: give one of them")
    if base is None:
        axis = axis or "device"
    check_table(runs, needs_axes=True)
    check_comparable(runs, [*(base or ()), *filter(None, [axis])])
    if goal is None:
        own = [] if axis in _FOR_SPEED else own_goals(runs)
        goal = str(own[0]) if own else "epoch duration"
    ranking = ranking_of(runs, goal, repeats, axis)  # the compared axis is no repeat axis
    if axis is None:
        return _against(runs, base or {}, ranking)
    pairs, summary = _paired(runs, axis, ranking)
    if pairs.empty:
        summary.append(
            f"no two completed runs differ in {printable(axis)} alone and have {ranking.goal.metric}"
        )
    return with_sentence(pairs, f"{ranking.goal.metric} of runs that differ in {axis} only", *summary)


@np.errstate(over="ignore", invalid="ignore")  # the mean of huge numbers may overflow to infinity or NaN
def _paired(runs: pd.DataFrame, axis: str, ranking: Ranking) -> tuple[pd.DataFrame, list[str]]:
    """Return a row per setting in which two values of an axis have results, and what the rows show together."""
    metric, sign = ranking.goal.metric, ranking.goal.sign
    contest = Contest(runs, ranking, axis)
    group, settings = settings_without(runs, [axis, *told_apart(runs, axis, contest.rivals)])
    numbers = completed(runs, metric)
    cells = numbers.groupby([group, contest.rivals])
    sides, sizes = (part.unstack() for part in (cells.mean(), cells.size()))  # noqa: PD010 - of a Series
    if sides.empty:
        return settings.head(0), []
    counts = sides.count().tolist()
    first = counts.index(max(counts))
    others = [rival for rival, number in enumerate(counts) if number and rival != first]
    is_paired = sides[first].notna() & sides[others].notna().any(axis="columns")
    pairs, settings = (table[is_paired].reset_index(drop=True) for table in (sides, settings))
    names = [printable(text(value)) for value in contest.levels]
    if len({*names}) < len(names) or any(" vs " in name or " / " in name for name in names):
        names = [repr(value) for value in contest.levels]
    values = {names[rival]: pairs[rival] for rival in (first, *others)}
    between = {f"{names[rival]} vs {names[first]}": pairs[rival] - pairs[first] for rival in others}
    ratios = {f"{names[rival]} / {names[first]}": pairs[rival] / pairs[first] for rival in others}
    if metric.endswith(("duration", "memory")):
        summary = [_ratio(name, ratio.dropna()) for name, ratio in ratios.items()]
    else:
        ahead = leads(contest.scores, first)
        summary = [
            _difference(name, part.count(), ahead[rival], -sign, contest.unit)
            for rival, (name, part) in zip(others, between.items(), strict=True)
        ]
    num_others = sizes.drop(columns=first).count(axis="columns").where(sizes[first].notna(), 0)
    if lost := int(num_others.sum()) - sum(int(part.count()) for part in between.values()):
        is_without = numbers.isna().to_numpy() & (num_others.to_numpy()[group] > 0)
        why = statuses_in_words(runs["status"][is_without]) if "status" in runs else ""
        summary.append(f"{counted(lost, 'pair')} left out, as runs have no number{why and f' ({why})'}")
    return beside(settings, pd.DataFrame({**values, **between, **ratios}, index=settings.index)), summary


def _ratio(name: str, ratios: "pd.Series[float]") -> str:
    """Describe ratios by their geometric mean, which treats a ratio and its inverse alike."""
    if not len(ratios) or not ((ratios > 0) & np.isfinite(ratios)).all():
        return ""
    statistics = statistics_of(np.log(ratios).tolist())
    low, mean, high = (cell(float(np.exp(statistics[part]))) for part in ("low", "mean", "high"))
    interval = f", 95 % interval {low} to {high}" if low else ""
    return f"{name}: {mean} (geometric mean of {len(ratios)}{interval})"


def _difference(name: str, num_pairs: int, lead: Lead, sign: int, unit: str) -> str:
    """Describe differences by their mean over the repeats; `lead` is in units of the score."""
    mean, *ends = (0.0 + sign * number for number in (lead.mean, lead.low, lead.high))
    if np.isnan(mean):
        return ""
    low, high = map(cell, sorted(ends))
    interval = f", 95 % interval at every look {low} to {high}" if low else ""
    repeats = f" in {counted(lead.n, unit)}" if lead.n != num_pairs else ""
    return f"{name}: {'+' * (mean > 0)}{cell(mean)} (mean of {counted(num_pairs, 'pair')}{repeats}{interval})"


def _against(runs: pd.DataFrame, base: Mapping[str, Any], ranking: Ranking) -> Finding:
    """Compare each setting with the base, repeat by repeat, by the rule of `verdict`."""
    metric = ranking.goal.metric
    rule = rule_of(runs, metric, ranking.repeats)
    contest = Contest(runs, ranking, None, rule.margin, rule.error, _position_of(base, runs, ranking))
    table = contest.table(-ranking.goal.sign)
    settings = [ranking.all_settings[rival] for rival in contest.rows]
    own, *others = (setting.params for setting in settings)
    changed = [
        {name: value for name, value in params.items() if key_of(value) != key_of(own[name])}
        for params in others
    ]
    least, unit = fewest(contest.level), contest.unit
    first = table.columns.get_loc(metric)
    computed = table.iloc[:, first:].drop(columns="evidence")
    computed.insert(0, SETTING, ["base", *labels(changed)])
    computed.insert(2, f"{metric} std", [setting.statistics[0]["std"] for setting in settings])
    return with_sentence(
        beside(table.iloc[:, :first], computed),
        f"{metric} of each setting against {label(dict(base))}, paired by {unit}",
        f"the {100 - 100 * rule.error:g} % intervals hold together, however often one looks",
        f"a verdict needs at least {least} {unit}s" if (table[f"{unit}s"] < least).any() else "",
        *losses(contest),
    )


def _position_of(base: Mapping[str, Any], runs: pd.DataFrame, ranking: Ranking) -> int:
    """Return the position of the setting that has the values of a base."""
    axes = axes_of(runs, ranking.repeats)
    firsts = runs.iloc[[setting.rows[0] for setting in ranking.all_settings]]
    fits = np.full(len(firsts), {*base} <= {*axes})  # a base names no repeat
    for name, value in base.items():
        fits &= [key_of(each) == key_of(value) for each in firsts[name]]
    if fits.sum() != 1:
        rule = f"base= has to have the values of one setting, {label(dict(base))!r} are those of {fits.sum()}"
        raise InvalidArgumentError(
            f"{rule}: give a value of {', '.join(axes)}; repeats= names what only repeats a setting"
        )
    return int(fits.argmax())
