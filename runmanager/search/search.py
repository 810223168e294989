"""What every search and every pruner promises: which runs are executed next, and which go on after an epoch."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runmanager.errors import PruneError
from runmanager.goal import Goal
from runmanager.listener import Listener
from runmanager.outcome import EpochRecord, Outcome, Status
from runmanager.run import Run
from runmanager.storage.folders import Experiment, RunFolder
from runmanager.storage.run_state import RunResult, read_run
from runmanager.storage.run_trials import KeptTrial


@dataclass(frozen=True)
class Decision:
    """What a search has decided; runs are named by their identity.

    Attributes:
        due: The runs to execute now, in this order. One that was executed before continues.
        behind: All runs that are behind now; where the journal does not say so, the grid commits that.
        sentences: What to tell the user.
        new: Runs that the grid does not have yet, to execute after those that are due: it gives them folders.
    """

    due: Sequence[str] = ()
    behind: Sequence[str] = ()
    sentences: Sequence[str] = ()
    new: Sequence[Run] = ()


class Search(ABC):
    """Decides which runs of a grid are executed next, from what their folders and journals say.

    Each start of a grid makes a search and calls `begin` once. It asks `next` before the first run. Later it
    asks after every outcome if the search `is_asynchronous`, while other runs may be in progress; otherwise
    only when all runs that were due have ended. The grid ends when nothing is due and nothing is in progress;
    runs that were never handed out stay pending, and are not missing.

    A search may keep notes on this start, but everything that has to survive a kill must follow from the
    journals, or be kept with the runs (`trials_of`): a search that is begun again with the same runs decides
    the same. It hands out no run again that was killed or ended by a fault in this start: the grid itself
    retries those, the next start the others.

    A search may bring forth runs, as `Decision.new`. From then on they are runs of the grid, which `results`
    has. If this start may execute none of them, as their device is not there, `next` is asked again at once.

    `begin` and `next` are called in one thread, under torchrun on rank 0 alone. What they raise ends the grid;
    what was committed is kept.
    """

    is_asynchronous = False
    """Whether it decides after every single run. Otherwise each decision is a batch of its own, with the number
    of lanes that its runs have use for; an asynchronous search keeps the lanes of its first decision."""
    num_lanes = 1
    """How many runs can be executed at the same time; the grid sets it before the first decision."""
    axes: Sequence[str] = ()
    """The hyperparameters that vary in the runs that it brings forth, none if it does not."""

    @abstractmethod
    def begin(self, runs: Sequence[RunFolder], executable: Collection[str]) -> None:
        """Get to know the grid.

        Args:
            runs: All runs of the grid, in order.
            executable: The identities of the runs that this start may execute: not those that are completed,
                that are unavailable, or that ended by a fault and are not to be retried.
        """

    @abstractmethod
    def next(self, results: Mapping[str, RunResult], in_progress: Collection[str]) -> Decision:
        """Decide what is executed next.

        Args:
            results: What the journal of each run says now. A run that has to start over counts as pending until
                it has been executed. Reading costs time: ask for the runs that matter.
            in_progress: The identities of the runs that are due and have not ended.
        """

    def runs(self, experiment: Experiment) -> list[Run] | None:
        """Return the runs of the grid that an experiment has, None if the grid lists its runs."""
        return None

    def trials_of(self, run: Run) -> Sequence[KeptTrial]:
        """Return what the run.json of a run that it has brought forth keeps of its trials."""
        return ()

    def to_try(self) -> list[Run]:
        """Return runs like those that it will bring forth, to check the grid by."""
        return []

    def examples(self) -> Sequence[Run]:
        """Return runs like those that it brings forth, as many as may be executed at the same time."""
        return ()

    def num_more(self) -> int:
        """Return how many runs it may still bring forth."""
        return 0

    def left_out(self) -> Collection[str]:
        """Return the identities of the runs that are not asked for by now, so that nothing is said about them.

        When the grid has come to its end, the experiment forgets those of them that have not begun.
        """
        return ()

    def introduction(self) -> str:
        """Return a sentence that is printed before the first run, "" for none."""
        return ""

    def conclusion(self, outcomes: Sequence[Outcome]) -> str:
        """Return a sentence that is printed at the end, "" for none."""
        return ""


class Pruner(Listener, ABC):
    """Decides after each epoch of a run whether that goes on; which runs come next, a search decides.

    Each start of a grid makes a pruner and calls `begin` once. It asks `should_stop` when a run has committed
    an epoch, and when one is resumed, about the last one before. All calls are made in one thread of the
    process that starts the grid, under torchrun on rank 0 alone. The run waits for the answer.

    What has to survive a kill follows from the journals, in which each run that was stopped has the `rule`.

    Args:
        goal: What runs are compared by.
        rule: What stops runs, for journals and people: the same rule stops no run a second time.
    """

    def __init__(self, goal: Goal, rule: str) -> None:
        self.goal = goal
        self.rule = rule

    may_stop = True

    @abstractmethod
    def begin(self, results: Iterable[RunResult]) -> None:
        """Get to know what the journals of the grid say, in its order; a run that starts over has no epochs."""

    @abstractmethod
    def should_stop(self, id_: str, record: EpochRecord) -> str:
        """Take the last epoch of a run, by its identity; return why the run is to stop there, "" to go on.

        An epoch that comes again replaces those from it on.

        Raises:
            PruneError: The runs cannot be compared.
        """

    def epoch_ended(self, record: EpochRecord, network: Any) -> str | None:
        """Answer whether the run goes on."""
        return self.should_stop(self.slot.id, record)

    def introduction(self) -> str:
        """Return a sentence that is printed before the first run."""
        return f"{self.rule}: a run that is behind is stopped at once, and can be continued"

    def conclusion(self, outcomes: Sequence[Outcome]) -> str:
        """Return a sentence that is printed at the end, "" for none."""
        return ""

    def value(self, record: EpochRecord) -> float:
        """Return what an epoch is compared by.

        Raises:
            PruneError: It has no such metric.
        """
        if self.goal.metric not in record.metrics:
            raise PruneError(
                f"runs are to be compared by {self.goal.metric!r}, which epoch {record.epoch} does not have; "
                f"it has: {', '.join(record.metrics)}. Track it in every epoch"
            )
        return record.metrics[self.goal.metric]

    def is_left(self, result: RunResult) -> bool:
        """Whether a run that was pruned before stays so: by the same rule, or as it would be stopped again."""
        if result.status is not Status.PRUNED or not result.epochs:
            return False
        return result.pruned_by == self.rule or bool(self.should_stop(result.folder.id, result.epochs[-1]))


class AllRuns(Search):
    """Execute every run that may be executed, in the order of the grid, in one batch."""

    def begin(self, runs: Sequence[RunFolder], executable: Collection[str]) -> None:
        """Find out which runs are due."""
        self._due = [folder.id for folder in runs if folder.id in executable]

    def next(self, results: Mapping[str, RunResult], in_progress: Collection[str]) -> Decision:
        """Hand out all runs, once."""
        due, self._due = self._due, []
        return Decision(due)


class Journals(Mapping[str, RunResult]):
    """What the journals of a grid's runs say, by identity.

    A journal is read again when it is asked for and its run has ended meanwhile; nothing else writes it.
    The runs that start over count as pending until they have ended.
    """

    def __init__(self, results: Iterable[RunResult], start_over: Collection[str] = ()) -> None:
        self._results = {result.folder.id: result for result in results}
        self._changed: set[str] = set()
        for id_ in start_over:
            self._results[id_] = RunResult(self._results[id_].folder, Status.PENDING, [], 0, "", {})

    def __getitem__(self, id_: str) -> RunResult:
        if id_ in self._changed:
            self._results[id_] = read_run(self._results[id_].folder)
            self._changed.remove(id_)
        return self._results[id_]

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def add(self, result: RunResult) -> None:
        """Add a run that a search has brought forth."""
        self._results[result.folder.id] = result

    def run_ended(self, id_: str) -> None:
        """Note that the journal of a run has changed."""
        self._changed.add(id_)
