"""The settings that a manager has from its grid, or from its user, for every run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runmanager.core.contracts import Boards, Report, RunListener
from runmanager.core.epoch import OpenEpoch
from runmanager.core.evaluate import OpenEvaluation
from runmanager.core.goal import Goal
from runmanager.core.loaders import Measure
from runmanager.core.outcome import EpochRecord, Status
from runmanager.core.run import Run
from runmanager.core.state import RunResult


@dataclass(frozen=True)
class GridContext:
    """The settings of a manager; without a grid, most of them keep their defaults.

    Attributes:
        run: The only run that may begin, whose tables the grid writes; None if any run may begin.
        folder: The folder of this run.
        jobs: The maximum number of runs that share the machine; a column of the tables if above 1.
        fingerprint: The code, data and versions that results depend on, for the journal.
        changes_since: Returns the changes since a run began; a changed run starts over.
        keep_changed: Whether a changed run is resumed instead; such a run is marked as mixed.
        goal: The experiment's goal, which TensorBoard shows.
        x_axis: The x-axis of the experiment's curves.
        listeners: The listeners in the run's process, called after TensorBoard.
        report: Reports the events of the run to the process that started the grid.
        asks: Whether a listener in the parent may stop runs; then the run waits for an answer after each epoch.
        rule: The rule to record for runs that the answers stop.
        boards: The classes of TensorBoard's objects, None for no TensorBoard.
        measure: The user's function that counts the samples of a batch, None by default.
        epoch_type: The class of an open epoch.
        evaluation_type: The class of an open evaluation.
    """

    run: Run | None = None
    folder: Path | None = None
    jobs: int = 1
    fingerprint: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    changes_since: Callable[..., Sequence[str]] = lambda *_, **__: ()
    keep_changed: bool = False
    goal: Goal | None = None
    x_axis: str | None = None
    listeners: Sequence[RunListener] = ()
    report: Report | None = None
    asks: bool = False
    rule: str = ""
    boards: Boards | None = None
    measure: Measure | None = None
    epoch_type: type[OpenEpoch] = OpenEpoch
    evaluation_type: type[OpenEvaluation] = OpenEvaluation

    def is_changed(self, earlier: RunResult) -> bool:
        """Whether code, data, versions or loaded files have changed since a run began."""
        return bool(self.changes_since(earlier, of_results={}))

    def starts_over(self, earlier: RunResult) -> bool:
        """Whether a run is executed from its first epoch, even if it has a checkpoint."""
        return earlier.status is Status.COMPLETED or (self.is_changed(earlier) and not self.keep_changed)

    def continued(self, earlier: RunResult) -> Sequence[EpochRecord] | None:
        """Return the epochs to resume from, without an epoch that diverged; None if the run starts over."""
        if self.starts_over(earlier):
            return None
        epochs = earlier.epochs[: -1 if earlier.status is Status.DIVERGED else None]
        # of a damaged journal, those before the first that is missing
        return [record for number, record in enumerate(epochs, 1) if record.epoch == number]
