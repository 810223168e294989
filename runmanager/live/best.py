"""Which run of a grid is best so far; where settings are repeated, which setting."""

import math
import statistics
from collections.abc import Sequence

from runmanager.console import cell, join, printable
from runmanager.goal import Goal, default_goal
from runmanager.live.columns import written
from runmanager.outcome import Status
from runmanager.storage.design import Design
from runmanager.storage.identity import identity
from runmanager.storage.run_state import RunResult


class BestSoFar:
    """Compares completed runs by the goal, as `best` does.

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
        self._values: dict[str, float] = {}  # of the goal, by the identity of the run
        self._names: dict[str, None] = {}

    def add(self, result: RunResult) -> None:
        """Count a run, if it is completed."""
        if result.status is not Status.COMPLETED or not result.epochs:
            return
        self._results[result.folder.id] = result
        self._names |= dict.fromkeys(name for record in result.epochs for name in record.metrics)
        self._kept_by = self._design.decisive([result.start]) or self._kept_by
        goal = self._kept_by or default_goal(self._names)
        due = [result] if goal == self.goal else list(self._results.values())
        self.goal = goal
        for each in due:
            self._values[each.folder.id] = _value(each, goal)

    def __str__(self) -> str:
        """Return the metric and the run or setting in a line, "" before there is one."""
        in_order = sorted(self._values, key=lambda id_: self._results[id_].folder.number)
        numbers = {id_: self._values[id_] for id_ in in_order if math.isfinite(self._values[id_])}
        if self.goal is None or not numbers:
            return ""
        repeats = self._design.repeats or ()
        settings: dict[str, list[str]] = {}
        for id_ in numbers:
            params = self._results[id_].folder.params
            setting = {name: value for name, value in params.items() if name not in repeats}
            settings.setdefault(identity(setting) if repeats else id_, []).append(id_)
        sign = self.goal.sign
        means = {key: statistics.fmean(numbers[id_] for id_ in ids) for key, ids in settings.items()}
        key = max(means, key=lambda key: (len(settings[key]) > 1, sign * means[key]))  # one repeat may be luck
        folder = self._results[settings[key][0]].folder
        number = len(settings[key])
        count = f"mean of {number}" if number > 1 else "1 run"
        which = count if repeats else f"run {folder.number}"
        names = [name for name in self._varying if name in folder.params and name not in repeats]
        label = " ".join(f"{printable(name)}={written(folder.params[name])}" for name in names)
        return join([f"{printable(self.goal.metric)} {cell(means[key])}", which, label])


def _value(result: RunResult, goal: Goal | None) -> float:
    from runmanager.results import tables  # pandas, which takes its time: it is there once a run has ended

    last = {name: value for record in result.epochs for name, value in record.metrics.items()}
    return math.nan if goal is None else tables.kept(result, goal, last)
