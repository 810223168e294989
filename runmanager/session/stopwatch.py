"""A stopwatch of runs: the time for which each run occupies its lane."""

import time
from typing import Any

from runmanager.core.listener import Listener
from runmanager.core.outcome import Outcome
from runmanager.core.run import Run


class Stopwatch(Listener):
    """Measures the time of each run.

    Attributes:
        first: The time when the first run began (time.monotonic, s), None before the first run.
        seconds: Identity of a run -> total time of its attempts in this launch (s).
    """

    def __init__(self) -> None:
        self.first: float | None = None
        self.seconds: dict[str, float] = {}
        self._begun: dict[str, float] = {}

    def run_began(self, run: Run, network: Any, loader: Any) -> None:
        """Start the clock of a run."""
        now = self._begun[self.slot.id] = time.monotonic()
        self.first = now if self.first is None else self.first

    def run_ended(self, outcome: Outcome) -> None:
        """Stop the clock of a run, if it has begun."""
        self._end(self.slot.id)

    def stop(self) -> None:
        """Stop all clocks."""
        for id_ in list(self._begun):
            self._end(id_)

    def _end(self, id_: str) -> None:
        now = time.monotonic()
        self.seconds[id_] = self.seconds.get(id_, 0.0) + now - self._begun.pop(id_, now)
