"""What every search promises: it decides which runs of a grid are executed next."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from runmanager.grid import Run
from runmanager.outcome import Outcome, Status
from runmanager.storage.folders import RunFolder
from runmanager.storage.run_state import RunResult, read_run


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
    """Decides which runs of a grid are executed next, from what their journals say.

    Each start of a grid makes a search and calls `begin` once. It asks `next` before the first run. Later it
    asks after every outcome if the search `is_asynchronous`, while other runs may be in progress; otherwise
    only when all runs that were due have ended. The grid ends when nothing is due and nothing is in progress;
    runs that were never handed out stay pending, and are not missing.

    A search may keep notes on this start, but everything that has to survive a kill must follow from the
    journals: a search that is begun again with the same journals decides the same. It hands out no run again
    that was killed or ended by a fault in this start: the grid itself retries those, the next start the others.

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

    def conclusion(self, outcomes: Sequence[Outcome]) -> str:  # noqa: ARG002 - for those who have one
        """Return a sentence that is printed at the end, "" for none."""
        return ""


class AllRuns(Search):
    """Execute every run that may be executed, in the order of the grid, in one batch."""

    def begin(self, runs: Sequence[RunFolder], executable: Collection[str]) -> None:
        """Find out which runs are due."""
        self._due = [folder.id for folder in runs if folder.id in executable]

    def next(self, results: Mapping[str, RunResult], in_progress: Collection[str]) -> Decision:  # noqa: ARG002
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
