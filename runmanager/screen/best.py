"""The best run of a grid so far; the best setting if settings are repeated."""

from collections.abc import Sequence

from runmanager.core.experiment import Design, varying
from runmanager.core.goal import KEPT, Goal
from runmanager.core.outcome import Status
from runmanager.core.state import RunResult
from runmanager.core.wording import printable
from runmanager.errors import InvalidArgumentError
from runmanager.tables.cells import cell, join, label


class BestSoFar:
    """Ranks the added runs in the same way as the function `best`.

    Args:
        design: The design, whose goals rank the runs; without goals, the metric of ``keep=`` ranks the runs,
            else the default metric.
        names: The hyperparameters that vary in the whole grid, not only among the added runs.

    Attributes:
        goals: The goals that rank the runs, the most important first; until a run has a score, the goals of
            `design`.
    """

    def __init__(self, design: Design, names: Sequence[str]) -> None:
        self.goals: Sequence[Goal] = design.all_goals
        self._design = design
        self._names = names
        self._results: dict[str, RunResult] = {}

    def add(self, result: RunResult) -> None:
        """Add a run, or update it."""
        self._results[result.folder.id] = result

    def __str__(self) -> str:
        """Return the best score and its run or setting as one line; "" before a run has a score."""
        results = sorted(self._results.values(), key=lambda result: result.folder.number)
        if not any(result.status is Status.COMPLETED for result in results):
            return ""
        from runmanager.answers.ranking import ranking_of  # loads pandas, so imported after a run
        from runmanager.tables.columns import runs_table

        try:
            ranking = ranking_of(runs_table({"": results}, self._design))
        except InvalidArgumentError:  # the error of runs that no metric can rank
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
        return join([f"{printable(ranking.goal.metric)} {cell(best.mean)}", which, named])
