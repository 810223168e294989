"""What a grid gives the manager of one of its runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from runmanager.devices import ranks
from runmanager.goal import Goal
from runmanager.outcome import Status
from runmanager.run import Run
from runmanager.storage.fingerprint import Fingerprint
from runmanager.storage.loaded_weights import changes_since
from runmanager.storage.run_state import RunResult
from runmanager.training.listeners import RunListener


@dataclass(frozen=True)
class GridContext:
    """The part of `RunManager` that a grid decides, not the user; the grid writes the tables of its runs.

    Attributes:
        run: The one run that may be begun, None for any.
        jobs: How many runs share the machine, at most; a column of the tables if they are several.
        fingerprint: The code, data and versions that results depend on. A run that began with others is
            executed from its first epoch.
        keep_changed: Resume such a run nevertheless; it is marked as mixed.
        goal: That of the experiment, which TensorBoard shows.
        x_axis: What the curves of the experiment are drawn over.
        listeners: Those that follow the run in its process, after TensorBoard.
    """

    run: Run | None = None
    jobs: int = 1
    fingerprint: Fingerprint = field(default_factory=dict)
    keep_changed: bool = False
    goal: Goal | None = None
    x_axis: str | None = None
    listeners: Sequence[RunListener] = ()

    def facts(self) -> dict[str, Any]:
        """Return what a journal says of a run's grid: what results depend on, and who shared the machine."""
        shared = {name: n for name, n in (("jobs", self.jobs), ("ranks", ranks.num_ranks())) if n > 1}
        return {"fingerprint": self.fingerprint, **shared}

    def is_changed(self, earlier: RunResult) -> bool:
        """Whether a run began with other code, data or versions, or has loaded other weights."""
        return bool(changes_since(earlier, self.fingerprint))

    def starts_over(self, earlier: RunResult) -> bool:
        """Whether a run that is executed again is not resumed, even if it has a checkpoint."""
        return earlier.status is Status.COMPLETED or (self.is_changed(earlier) and not self.keep_changed)
