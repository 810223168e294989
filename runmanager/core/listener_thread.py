"""A user's listener in the process that started the grid, called in a thread of its own."""

import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from runmanager.core.contracts import Listener, Slot, guarded
from runmanager.core.outcome import BatchProgress, EpochRecord, Outcome
from runmanager.core.run import Run
from runmanager.core.wording import printable

ANSWER_S = 10.0
"""The timeout (s) for the answer of a user's listener, and for its thread at the end of a grid."""

# event -> number of queued events from which on it is dropped; `run_ended` is never dropped
_MOST_WAITING = {"step_ended": 100, "epoch_ended": 1000, "run_began": 1000}


class _Event(NamedTuple):
    name: str
    run: Run
    slot: Slot
    arguments: tuple[Any, ...]
    answer: "Future[str | None] | None" = None


class ListenerThread(Listener):
    """Passes the events of all runs to a user's listener, which can neither end nor slow down a grid."""

    def __init__(self, listener: Listener, say: Callable[[str], None]) -> None:
        self.may_stop = listener.may_stop
        self._listener, self._say = listener, say
        self._waiting: deque[_Event] = deque()
        self._is_closed = self._is_late = self._has_warned = False
        self._changed = threading.Condition()
        name = f"listener {type(listener).__name__}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def run_began(self, run: Run, network: Any, loader: Any) -> None:
        """Queue the event."""
        self._put("run_began", run, network, loader)

    def step_ended(self, progress: BatchProgress) -> None:
        """Queue the event."""
        self._put("step_ended", progress)

    def epoch_ended(self, record: EpochRecord, network: Any) -> str | None:
        """Queue the event; wait for the answer if the listener may stop runs."""
        answer: Future[str | None] | None = Future() if self.may_stop and not self._is_late else None
        self._put("epoch_ended", record.copy(), network, answer=answer)
        if answer is None:
            return None
        try:
            return answer.result(ANSWER_S)
        except TimeoutError:
            with self._changed:
                self._is_late = not answer.done()  # true until the listener has answered
            self._warn(f"gave no answer in {ANSWER_S:g} s, and the run continues")
            return None

    def run_ended(self, outcome: Outcome) -> None:
        """Queue the event."""
        self._put("run_ended", outcome)

    def close(self) -> None:
        """Deliver the queued events and end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(ANSWER_S)
        with self._changed:
            self._waiting = deque(event for event in self._waiting if event.name == "run_ended")
        self._thread.join(ANSWER_S)
        if self._thread.is_alive():
            with self._changed:
                number, self._waiting = len(self._waiting), deque()
            self._warn(f"did not finish in {2 * ANSWER_S:g} s: {number} ends of runs are lost")

    def _put(self, name: str, *arguments: Any, answer: "Future[str | None] | None" = None) -> None:
        with self._changed:
            if answer is None and len(self._waiting) >= _MOST_WAITING.get(name, math.inf):
                self._warn("is slow: 100 events or more wait, and some are dropped")
                return
            self._waiting.append(_Event(name, self.run, self.slot, arguments, answer))
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                event = self._waiting.popleft()
            why, problem = guarded(self._listener, event.name, event.run, event.slot, *event.arguments)
            if problem:
                self._warn(problem)
            with self._changed:
                if event.answer:
                    event.answer.set_result(why)
                if not self._waiting:
                    self._is_late = False

    def _warn(self, problem: str) -> None:
        """Print only the first problem, as further problems are similar or its consequences."""
        if not self._has_warned:
            self._has_warned = True
            self._say(f"! listener {printable(type(self._listener).__name__)}: {printable(problem)}")
