"""The default search: every run that may be executed, all at once."""

from collections.abc import Collection, Mapping, Sequence

from runmanager.search.base import Decision, Search
from runmanager.storage.folders import RunFolder
from runmanager.storage.run_state import RunResult


class AllRuns(Search):
    """Execute every run that may be executed, in the order of the grid, in one batch."""

    def begin(self, runs: Sequence[RunFolder], executable: Collection[str]) -> None:
        """Find out which runs are due."""
        self._due = [folder.id for folder in runs if folder.id in executable]

    def next(self, results: Mapping[str, RunResult], in_progress: Collection[str]) -> Decision:  # noqa: ARG002
        """Hand out all runs, once."""
        due, self._due = self._due, []
        return Decision(due)
