"""Which run of a grid is best so far; where settings are repeated, which setting."""

from collections.abc import Sequence

from runmanager.errors import InvalidArgumentError
from runmanager.goal import Goal
from runmanager.outcome import Status
from runmanager.storage.design import Design
from runmanager.storage.naming import varying
from runmanager.storage.run_state import RunResult
from runmanager.wording import cell, join, label, printable


class BestSoFar:
    """Ranks runs as `best` does, by the table of the runs that were added.

    Args:
        design: What decides; without a goal, that of ``keep=``, else the metric that decides by its name.
        names: The hyperparameters that tell the runs apart, whichever were added.

    Attributes:
        goals: What decides, the first first; from `design` until a run has a number.
    """

    def __init__(self, design: Design, names: Sequence[str]) -> None:
        self.goals: Sequence[Goal] = design.all_goals
        self._design = design
        self._names = names
        self._results: dict[str, RunResult] = {}

    def add(self, result: RunResult) -> None:
        """Take note of a run, or of what has become of it."""
        self._results[result.folder.id] = result

    def __str__(self) -> str:
        """Return the metric and the run or setting in a line, "" before there is one."""
        results = sorted(self._results.values(), key=lambda result: result.folder.number)
        if not any(result.status is Status.COMPLETED for result in results):
            return ""
        from runmanager.tables.columns import KEPT, runs_table
        from runmanager.tables.ranking import ranking_of  # with pandas: it is there once a run has ended

        try:
            ranking = ranking_of(runs_table("", results, self._design))
        except InvalidArgumentError:  # no metric decides
            return ""
        self.goals = [Goal(each.metric.removeprefix(KEPT), each.sign) for each in ranking.goals]
        if not ranking.settings:
            return ""
        best = ranking.settings[0]
        count = f"mean of {best.number}" if best.number > 1 else "1 run"
        which = count if best.run is None else f"run {best.run}"
        all_names = [*self._names, *varying([result.folder.params for result in results])]
        names = [name for name in dict.fromkeys(all_names) if name not in ranking.repeats]
        params = results[best.rows[0]].folder.params
        named = label({name: params[name] for name in names if name in params})
        return join([f"{printable(ranking.metric)} {cell(best.mean)}", which, named])
