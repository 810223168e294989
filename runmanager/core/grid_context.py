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
    """The settings of a manager; without a grid, most of them keep their defaults."""

    run: Run | None = None  # the only run that may begin, whose tables the grid writes; None for any
    folder: Path | None = None  # of this run
    jobs: int = 1  # runs that share the machine at most; a column if above 1
    fingerprint: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # what results depend on
    changes_since: Callable[..., Sequence[str]] = lambda *_, **__: ()  # of a run; a changed run starts over
    keep_changed: bool = False  # whether a changed run is resumed, and marked as mixed
    goal: Goal | None = None
    x_axis: str | None = None
    listeners: Sequence[RunListener] = ()  # in the run's process, called after TensorBoard
    report: Report | None = None  # reports the events of the run to the process that started the grid
    asks: bool = False  # whether the run waits for an answer of the parent after each epoch
    rule: str = ""  # to record for runs that the answers stop
    boards: Boards | None = None  # None for no TensorBoard
    measure: Measure | None = None  # counts the samples of a batch
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
