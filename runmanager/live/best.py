"""Which run of a grid is best so far; where settings are repeated, which setting."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runmanager.console import cell, join, printable
from runmanager.goal import Goal, default_goal
from runmanager.outcome import Status
from runmanager.storage.design import Design
from runmanager.storage.identity import identity
from runmanager.storage.run_state import RunResult
from runmanager.wording import label

if TYPE_CHECKING:
    from runmanager.results.ranking import Ranking


class BestSoFar:
    """Ranks completed runs, as `best` does.

    Args:
        design: What decides; without a goal, that of ``keep=``, else the metric that decides by its name.
        varying: The hyperparameters that tell the runs apart.
    """

    def __init__(self, design: Design, varying: Sequence[str]) -> None:
        self.goal = design.goal
        self.all_goals = design.all_goals
        self._design = design
        self._varying = varying
        self._kept_by: Goal | None = None
        self._results: dict[str, RunResult] = {}
        self._values: dict[str, list[float]] = {}  # of the goals, by the identity of the run
        self._names: dict[str, None] = {}

    def add(self, result: RunResult) -> None:
        """Count a run, if it is completed."""
        if result.status is not Status.COMPLETED or not result.epochs:
            return
        self._results[result.folder.id] = result
        metrics = {name: value for record in result.epochs for name, value in record.metrics.items()}
        self._names |= dict.fromkeys(name for name, value in metrics.items() if not math.isnan(value))
        self._kept_by = self._design.decisive([result.start]) or self._kept_by
        goal = self._kept_by or default_goal(self._names)
        due = [result] if goal == self.goal else list(self._results.values())
        self.goal = goal
        for each in due:
            self._values[each.folder.id] = [_value(each, goal) for goal in self._goals]

    @property
    def _goals(self) -> Sequence[Goal]:
        return self.all_goals or ([self.goal] if self.goal else [])

    def __str__(self) -> str:
        """Return the metric and the run or setting in a line, "" before there is one."""
        ranking = self._ranking() if self._values and self.goal else None
        if ranking is None or not ranking.settings:
            return ""
        best = ranking.settings[0]
        count = f"mean of {best.number}" if best.number > 1 else "1 run"
        which = count if best.run is None else f"run {best.run}"
        params = {name: best.params[name] for name in self._varying if name in best.params}
        return join([f"{printable(ranking.metric)} {cell(best.mean)}", which, label(params)])

    def _ranking(self) -> "Ranking":
        from runmanager.results.ranking import Ranking, Setting  # with pandas, which takes its time

        repeats = self._design.repeating(self._varying)
        in_order = sorted(self._values, key=lambda id_: self._results[id_].folder.number)
        runs: dict[str, list[str]] = {}
        for id_ in in_order:
            setting = _without(self._results[id_].folder.params, repeats)
            runs.setdefault(identity(setting) if repeats else id_, []).append(id_)
        settings = []
        for ids in runs.values():
            folder = self._results[ids[0]].folder
            numbers = [
                list(filter(math.isfinite, values))
                for values in zip(*(self._values[id_] for id_ in ids), strict=True)
            ]
            run = None if repeats else folder.number
            settings.append(Setting(_without(folder.params, repeats), range(len(ids)), numbers, run=run))
        return Ranking.of(self._goals, repeats, settings, is_assumed=self._design.repeats is None)


def _without(params: Mapping[str, Any], repeats: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name not in repeats}


def _value(result: RunResult, goal: Goal) -> float:
    from runmanager.results import tables  # pandas: it is there once a run has ended

    last = {name: value for record in result.epochs for name, value in record.metrics.items()}
    return tables.kept(result, goal, last)
