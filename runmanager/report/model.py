"""What a page is about: the runs, which of them are best, and by what."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runmanager.console import printable
from runmanager.goal import is_larger_better
from runmanager.hyperparameters import canonical, text
from runmanager.outcome import Status
from runmanager.results import tables
from runmanager.results.effects import effects
from runmanager.results.ranking import best, main_metric
from runmanager.storage.folders import varying
from runmanager.storage.run_state import RunResult

if TYPE_CHECKING:
    import pandas as pd

MISSING = "none"


@dataclass(frozen=True)
class Axis:
    """A hyperparameter that varies.

    Attributes:
        name: Its name.
        labels: Its values as text, numbers in their order, then others as they came.
        place: The position of each run's value among them.
        is_ordered: Whether the values are numbers.
    """

    name: str
    labels: Sequence[str]
    place: Sequence[int]
    is_ordered: bool


@dataclass(frozen=True)
class Gathered:
    """What a page is about.

    Attributes:
        title: Of the page.
        results: The runs.
        names: How each is called on the page, as "run 7".
        runs: The table of `load_runs`, row by row as `results`.
        metric: What the runs are judged by.
        is_larger_better: Whether large values of it are good.
        scores: The metric of each run, NaN if it is not completed.
        order: The positions of the runs that have a score, the best first.
        axes: The hyperparameters that vary, the one that explains most first.
        explained: Hyperparameter -> which share of the metric's variation it explains, if that is known.
        effects: The table of `effects`.
    """

    title: str
    results: Sequence[RunResult]
    names: Sequence[str]
    runs: "pd.DataFrame"
    metric: str
    is_larger_better: bool
    scores: Sequence[float]
    order: Sequence[int]
    axes: Sequence[Axis]
    explained: dict[str, float]
    effects: "pd.DataFrame"

    @property
    def compared(self) -> list[Axis]:
        """The hyperparameters of which at least two values have a score."""
        return [axis for axis in self.axes if len({axis.place[position] for position in self.order}) > 1]

    def params(self, position: int) -> str:
        """Write the hyperparameters of a run that vary."""
        return ", ".join(f"{axis.name} {axis.labels[axis.place[position]]}" for axis in self.axes)


def gather(
    title: str, found: Mapping[str, Sequence[RunResult]], by: str | None = None, *, largest: bool | None = None
) -> Gathered:
    """Judge runs.

    Args:
        title: Of the page.
        found: Experiment -> its runs; those without runs are left out.
        by: The metric; by default the one that `best` sorts by.
        largest: Whether its large values are good; by default as its name says.

    Raises:
        GridError: There is no such metric, or it is not known whether large values are good.
    """
    found = {name: runs for name, runs in found.items() if runs}
    results = [run for runs in found.values() for run in runs]
    experiments = [name for name, runs in found.items() for _ in runs]
    table = tables.concat([(name, tables.runs_table(runs)) for name, runs in found.items()])
    metric = (main_metric(table) or "loss") if by is None else by
    ranked = best(table.reset_index(drop=True), metric, largest=largest)
    completed = [run.status is Status.COMPLETED for run in results]
    scores = [float(v) if ok else math.nan for v, ok in zip(table[metric], completed, strict=True)]
    order = [position for position in ranked.index if math.isfinite(scores[position])]
    larger = bool(is_larger_better(metric) if largest is None else largest)
    known = effects(table, metric)
    explained = {str(name): float(share) for name, share in known.groupby("axis")["explained"].first().items()}
    params = [dict(run.folder.params) for run in results]
    if len(found) > 1:
        params = [{"experiment": name, **given} for name, given in zip(experiments, params, strict=True)]
    axes = [_axis(name, params) for name in varying(params)]
    axes.sort(key=lambda axis: -_or_zero(explained.get(axis.name)))
    several = len(found) > 1
    names = [
        f"{printable(name)} run {run.folder.number}" if several else f"run {run.folder.number}"
        for name, run in zip(experiments, results, strict=True)
    ]
    return Gathered(title, results, names, table, metric, larger, scores, order, axes, explained, known)


def _axis(name: str, params: Sequence[dict[str, Any]]) -> Axis:
    keys = [json.dumps(canonical(given.get(name))) for given in params]
    values: dict[str, Any] = {key: given.get(name) for key, given in zip(keys, params, strict=True)}
    numbers = {key: value for key, value in values.items() if type(value) in (int, float)}
    in_order = sorted(numbers, key=lambda key: (math.isnan(numbers[key]), numbers[key]))
    distinct = [*in_order, *(key for key in values if key not in numbers)]
    place = {key: number for number, key in enumerate(distinct)}
    labels = [MISSING if values[key] is None else printable(text(values[key])) for key in distinct]
    if len(set(labels)) < len(labels):  # text() shortens
        labels = [printable(repr(values[key])) for key in distinct]
    return Axis(name, labels, [place[key] for key in keys], is_ordered=len(numbers) == len(values))


def _or_zero(share: float | None) -> float:
    return share if share is not None and math.isfinite(share) else 0.0
