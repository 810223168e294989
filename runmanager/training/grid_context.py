"""What a grid gives the manager of one of its runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from runmanager.devices import ranks
from runmanager.errors import PruneError
from runmanager.goal import Goal
from runmanager.grid import Run
from runmanager.listener import Listener
from runmanager.outcome import EpochRecord, OnStep, Question, Status
from runmanager.storage.fingerprint import Fingerprint, fingerprint_changes
from runmanager.storage.run_state import RunResult


class Rungs(Protocol):
    """The numbers of epochs after which a run waits until the others are there too."""

    def next_rung(self, epoch: int, /) -> int:
        """Return the first one after an epoch."""

    def check(self, metrics: Mapping[str, float], /) -> None:
        """Raise a PruneError if runs cannot be compared by the metrics of an epoch."""


@dataclass(frozen=True)
class GridContext:
    """The part of `RunManager` that a grid decides, not the user; the grid writes the tables of its runs.

    Attributes:
        run: The one run that may be begun, None for any.
        on_epoch: Called with the record of each epoch that was committed.
        ask: Called in its place, with a question whose answer is why the run is to stop, "" to go on.
        on_step: Called with a function that returns the progress: at each batch of `batches` and of an
            evaluation, and in a loop without them at each loss.
        jobs: How many runs share the machine, at most; a column of the tables if they are several.
        fingerprint: The code, data and versions that results depend on. A run that began with others is
            executed from its first epoch.
        keep_changed: Resume such a run nevertheless; it is marked as mixed.
        prune: Ends the run as pruned at its next rung.
        rule: What a run is stopped by that asks.
        goal: That of the experiment, which TensorBoard shows.
        x_axis: What the curves of the experiment are drawn over.
        listeners: Those that follow the run in its process.
    """

    run: Run | None = None
    on_epoch: Callable[[EpochRecord], object] | None = None
    ask: Callable[[Question], str | None] | None = None
    on_step: OnStep | None = None
    jobs: int = 1
    fingerprint: Fingerprint = field(default_factory=dict)
    keep_changed: bool = False
    prune: Rungs | None = None
    rule: str = ""
    goal: Goal | None = None
    x_axis: str | None = None
    listeners: Sequence[Listener] = ()

    def facts(self) -> dict[str, Any]:
        """Return what a journal says of a run's grid: what results depend on, and who shared the machine."""
        shared = {name: n for name, n in (("jobs", self.jobs), ("ranks", ranks.num_ranks())) if n > 1}
        return {"fingerprint": self.fingerprint, **shared}

    def check_resumable(self, *, is_saved: bool) -> None:
        """Raise a PruneError if the run is to be stopped at a rung, and saves no checkpoint."""
        if self.prune and not is_saved:
            raise PruneError(
                "prune= stops runs at a rung and resumes the best of them, but this run saves no checkpoint: "
                "write `for epoch in manager.epochs(n, checkpoint={...})`"
            )

    def is_changed(self, earlier: RunResult) -> bool:
        """Whether a run began with other code, data or versions."""
        return bool(fingerprint_changes(earlier.start.get("fingerprint", {}), self.fingerprint))

    def starts_over(self, earlier: RunResult) -> bool:
        """Whether a run that is executed again is not resumed, even if it has a checkpoint."""
        return earlier.status is Status.COMPLETED or (self.is_changed(earlier) and not self.keep_changed)
