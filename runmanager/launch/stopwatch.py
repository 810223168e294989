"""What the runs of a grid report: how long they keep its lanes busy, and the answers to their questions."""

import time
from collections.abc import Callable
from typing import Self

from runmanager.executors.base import Watch
from runmanager.grid import Run
from runmanager.outcome import EpochRecord, News, Question
from runmanager.search.search import Pruner
from runmanager.storage.identity import identity


class Stopwatch:
    """Passes on what an executor reports, and takes the time of each run.

    Args:
        epoch_ended: Called after every epoch that is reported.
        pruner: Answers the questions, None if there are none.

    Attributes:
        first: When the first run began (time.monotonic), None before.
        seconds: Identity of a run -> how long it was executed; of several attempts, all.
    """

    def __init__(self, epoch_ended: Callable[[], None] = lambda: None, pruner: Pruner | None = None) -> None:
        self._epoch_ended = epoch_ended
        self._pruner = pruner
        self.first: float | None = None
        self.seconds: dict[str, float] = {}
        self._begun: dict[str, float] = {}
        self._runs: dict[str, Run] = {}  # that are executed, by identity
        self._watch: Watch

    def reporting_to(self, watch: Watch) -> Self:
        """Pass on what comes from now on to another one."""
        self._watch = watch
        return self

    def run_started(self, run: Run, lane: int, device: str) -> None:
        """Start the clock of a run."""
        now = time.monotonic()
        id_ = identity(run._asdict())
        self._begun[id_], self._runs[id_] = now, run
        self.first = now if self.first is None else self.first
        self._watch.run_started(run, lane, device)

    def run_progressed(self, run: Run, news: News) -> str:
        """Pass on how far a run has come; return why it is to stop if it asks, "" to go on."""
        answer, is_question = "", isinstance(news, Question)
        if isinstance(news, Question) and self._pruner:
            answer = self._pruner.should_stop(self._id(run), news.record)
        if not isinstance(news, Question) or news.is_new:
            self._watch.run_progressed(run, news)
        if is_question or isinstance(news, EpochRecord):
            self._epoch_ended()
        return answer

    def stopping(self) -> None:
        """Pass on that the grid is being stopped."""
        self._watch.stopping()

    def say(self, line: str) -> None:
        """Pass on a line for the user."""
        self._watch.say(line)

    def run_ended(self, id_: str) -> None:
        """Stop the clock of a run, if it has begun."""
        now = time.monotonic()
        self.seconds[id_] = self.seconds.get(id_, 0.0) + now - self._begun.pop(id_, now)
        self._runs.pop(id_, None)

    def stop(self) -> None:
        """Stop all clocks."""
        for id_ in list(self._begun):
            self.run_ended(id_)

    def _id(self, run: Run) -> str:
        """Return the identity of a run; executed in this process, train() may have changed a list in it."""
        return next((id_ for id_, begun in self._runs.items() if begun is run), "")
