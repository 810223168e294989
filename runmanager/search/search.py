"""The contracts of searches, which choose the next runs, and of pruners, which stop runs after an epoch."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runmanager.core.folders import Experiment, RunFolder
from runmanager.core.goal import Goal
from runmanager.core.listener import Listener
from runmanager.core.outcome import EpochRecord, Outcome, Status
from runmanager.core.run import Run
from runmanager.core.run_trials import KeptTrial
from runmanager.core.state import RunResult
from runmanager.errors import of_grid


@dataclass(frozen=True)
class Decision:
    """A decision of a search; runs are given by identity.

    Attributes:
        due: The runs to execute now, in this order. A run that was executed before is resumed.
        sentences: Sentences to print.
        new: New runs, to execute after the runs in `due`; the grid creates their folders.
    """

    due: Sequence[str] = ()
    sentences: Sequence[str] = ()
    new: Sequence[Run] = ()


class Search(ABC):
    """Chooses the next runs of a grid, from their folders and journals.

    Each launch of a grid creates a search and calls `begin` once. The grid calls `next` before the first run,
    and after every outcome, while other runs may be in progress. The grid ends when no run is due or in
    progress; runs that were never due stay pending and do not count as missing.

    A search may hold state during a launch. State that must survive a kill is derived from the journals, or is
    stored with the runs (`trials_of`): a search that is restarted with the same runs makes the same decisions.
    A run that was killed or ended by a fault in this launch does not become due again; the grid decides about
    retries.

    A search may create runs, as `Decision.new`. From then on, the runs belong to the grid and are in `results`.
    If this launch can execute none of the new runs, as their device is missing, `next` is called again at once.

    `begin` and `next` are called in one thread, under torchrun only on rank 0. An exception in one of them
    ends the grid; committed epochs stay.
    """

    num_lanes = 1
    """The maximum number of concurrent runs; the grid sets this number before the first decision."""
    axes: Sequence[str] = ()
    """The hyperparameters that vary in the runs that the search creates; empty if it creates no runs."""

    @abstractmethod
    def begin(self, runs: Sequence[RunFolder], executable: Collection[str]) -> None:
        """Receive the runs of the grid.

        Args:
            runs: All runs of the grid, in order.
            executable: The identities of the runs that this launch may execute. Completed and unavailable runs
                are left out. Runs that ended by a fault are left out too, unless they are retried.
        """

    @abstractmethod
    def next(self, results: Mapping[str, RunResult], in_progress: Collection[str]) -> Decision:
        """Decide which runs are executed next.

        Args:
            results: The current result of each run. A run that must start over counts as pending until it has
                been executed.
            in_progress: The identities of due runs that have not ended.
        """

    def runs(self, experiment: Experiment) -> list[Run] | None:
        """Return the runs in an experiment that belong to the search; None if the grid lists all its runs."""
        return None

    def trials_of(self, run: Run) -> Sequence[KeptTrial]:
        """Return the trials to store in the run.json of a run that the search created."""
        return ()

    def to_try(self) -> list[Run]:
        """Return sample runs; the grid is checked with these runs."""
        return []

    def examples(self) -> Sequence[Run]:
        """Return sample runs; their number is the maximum number of concurrent runs of the search."""
        return ()

    def num_more(self) -> int:
        """Return the number of runs that the search may still create."""
        return 0

    def left_out(self) -> Collection[str]:
        """Return the identities of the runs that the search has not requested so far; messages leave them out.

        At the end of the grid, the experiment drops those of the returned runs that have not begun.
        """
        return ()

    def introduction(self) -> str:
        """Return a sentence to print before the first run, "" for none."""
        return ""

    def conclusion(self, outcomes: Sequence[Outcome]) -> str:
        """Return a sentence to print at the end, "" for none."""
        return ""


class Pruner(Listener, ABC):
    """Decides after each epoch of a run whether the run continues.

    Each launch of a grid creates a pruner and calls `begin` once. The grid calls `should_stop` when a run has
    committed an epoch; when a run is resumed, the grid calls `should_stop` for the last epoch. All calls are
    made in one thread of the process that starts the grid, under torchrun only on rank 0. The run waits for the
    answer.

    State that must survive a kill is derived from the journals; they name the `rule` for each stopped run.

    Args:
        goal: The metric by which runs are compared.
        rule: The description of the pruner, for journals and messages. A rule stops a run only once.
    """

    def __init__(self, goal: Goal, rule: str) -> None:
        self.goal = goal
        self.rule = rule

    may_stop = True

    @abstractmethod
    def begin(self, results: Iterable[RunResult]) -> None:
        """Receive the results of the runs in the order of the grid; a run that starts over has no epochs."""

    @abstractmethod
    def should_stop(self, id_: str, record: EpochRecord) -> str:
        """Receive the last epoch of the run with this identity.

        Return the reason why the run should stop, "" to continue.

        An epoch that is executed again replaces its earlier values and all later epochs.

        Raises:
            InvalidArgumentError: The runs cannot be compared.
        """

    def epoch_ended(self, record: EpochRecord, network: Any) -> str | None:
        """Return the reason why the run should stop, None to continue."""
        return self.should_stop(self.slot.id, record)

    def introduction(self) -> str:
        """Return a sentence to print before the first run."""
        return f"{self.rule}: a run that is behind is stopped at once, and can be continued"

    def conclusion(self, outcomes: Sequence[Outcome]) -> str:
        """Return a sentence to print at the end, "" for none."""
        return ""

    def value(self, record: EpochRecord) -> float:
        """Return the metric of an epoch by which runs are compared.

        Raises:
            InvalidArgumentError: The epoch has no such metric.
        """
        if self.goal.metric not in record.metrics:
            raise of_grid(
                f"pruning compares runs by {self.goal.metric!r}, which epoch {record.epoch} does not have; "
                f"it has: {', '.join(record.metrics)}. Track it in every epoch"
            )
        return record.metrics[self.goal.metric]

    def is_left(self, result: RunResult) -> bool:
        """Whether a pruned run stays pruned: this rule has pruned it, or would stop it again."""
        if result.status is not Status.PRUNED or not result.epochs:
            return False
        return result.pruned_by == self.rule or bool(self.should_stop(result.folder.id, result.epochs[-1]))


def run_seconds(result: RunResult) -> float:
    """Return the duration of a run (s)."""
    return result.epochs[-1].metrics.get("run duration", 0.0) if result.epochs else 0.0


class AllRuns(Search):
    """Executes every executable run, in the order of the grid."""

    def begin(self, runs: Sequence[RunFolder], executable: Collection[str]) -> None:
        """Select the due runs."""
        self._due = [folder.id for folder in runs if folder.id in executable]

    def next(self, results: Mapping[str, RunResult], in_progress: Collection[str]) -> Decision:
        """Return all runs, once."""
        due, self._due = self._due, []
        return Decision(due)
