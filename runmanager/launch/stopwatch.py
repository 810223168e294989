"""How long the runs of a grid keep its lanes busy."""

import time
from collections.abc import Callable
from typing import Self

from runmanager.executors.base import Watch
from runmanager.grid import Run
from runmanager.outcome import BatchProgress, EpochRecord
from runmanager.storage.identity import identity


class Stopwatch:
    """Passes on what an executor reports, and takes the time of each run.

    Args:
        epoch_ended: Called after every epoch that is reported.

    Attributes:
        first: When the first run began (time.monotonic), None before.
        seconds: Identity of a run -> how long it was executed; of several attempts, all.
    """

    def __init__(self, epoch_ended: Callable[[], None] = lambda: None) -> None:
        self._epoch_ended = epoch_ended
        self.first: float | None = None
        self.seconds: dict[str, float] = {}
        self._begun: dict[str, float] = {}
        self._watch: Watch

    def reporting_to(self, watch: Watch) -> Self:
        """Pass on what comes from now on to another one."""
        self._watch = watch
        return self

    def run_started(self, run: Run, lane: int, device: str) -> None:
        """Start the clock of a run."""
        now = time.monotonic()
        self._begun[identity(run._asdict())] = now
        self.first = now if self.first is None else self.first
        self._watch.run_started(run, lane, device)

    def run_progressed(self, run: Run, news: EpochRecord | BatchProgress) -> None:
        """Pass on how far a run has come."""
        self._watch.run_progressed(run, news)
        if isinstance(news, EpochRecord):
            self._epoch_ended()

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

    def stop(self) -> None:
        """Stop all clocks."""
        for id_ in list(self._begun):
            self.run_ended(id_)
