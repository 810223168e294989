"""Dispatch of run events: immediately to the grid's listeners, in a thread to the user's listeners."""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from runmanager.core.listener import Listener, Slot, guarded
from runmanager.core.outcome import EpochRecord, News, Outcome, Question
from runmanager.core.run import Run, copy_of, id_of
from runmanager.core.wording import printable
from runmanager.executors.signals import Stop

ANSWER_S = 10.0
"""The timeout (s) for the answer of a user's listener, and for its thread at the end of a grid."""

_MOST_WAITING = 1000  # maximum number of queued events per listener
# events are dropped in this order; `run_ended` is never dropped
_DROPPED_FIRST = ("step_ended", "epoch_ended", "run_began")


class Dispatcher:
    """The watch of an executor: passes its events to the listeners, in order.

    Args:
        listeners: The listeners. If several listeners stop a run, the reason of the first of them counts.
        stop: The state of signals, checked before each event; the check passes its exception to the executor.
        say: Prints a line.
        stopping: Called when a signal stops the grid.
    """

    def __init__(
        self,
        listeners: Sequence[Listener],
        stop: Stop,
        say: Callable[[str], None],
        stopping: Callable[[], None] = lambda: None,
    ) -> None:
        self.say, self.stopping = say, stopping
        self._listeners = listeners
        self._stop = stop
        self._begun: dict[str, tuple[Run, Slot]] = {}  # id -> the copy for listeners, slot

    def run_started(self, run: Run, lane: int, device: str) -> None:
        """Report that a run has begun."""
        self._stop.check()
        id_ = id_of(run)
        self._begun[id_] = copy_of(run), Slot(id_, lane, device)
        for listener in self._listening(run):
            listener.run_began(listener.run, None, None)

    def run_progressed(self, run: Run, news: News) -> str:
        """Report the progress of a run."""
        self._stop.check()
        listeners = self._listening(run)
        if not isinstance(news, EpochRecord | Question):
            for listener in listeners:
                listener.step_ended(news)
            return ""
        record, is_new = (news, True) if isinstance(news, EpochRecord) else news
        reasons = []
        for listener in listeners:
            if (is_new or listener.may_stop) and (why := listener.epoch_ended(record, None)):
                reasons += [why] if listener.may_stop else []
        return next(iter(reasons), "")

    def run_ended(
        self,
        run: Run,
        outcome: Outcome,
        *,
        is_retried: bool = False,
        listeners: Sequence[Listener] | None = None,
    ) -> None:
        """Report the outcome of a run after the outcome was committed; `listeners` are None for all."""
        for listener in self._listening(run, is_retried=is_retried, listeners=listeners):
            listener.run_ended(outcome)
        self._begun.pop(id_of(run), None)

    @property
    def begun(self) -> Collection[str]:
        """The identities of the runs in progress."""
        return self._begun.keys()

    def _listening(
        self, run: Run, *, is_retried: bool = False, listeners: Sequence[Listener] | None = None
    ) -> Iterator[Listener]:
        id_ = id_of(run)
        copy, slot = self._begun.get(id_, (run, Slot(id_)))
        for listener in self._listeners if listeners is None else listeners:
            listener.run, listener.slot = copy, slot._replace(is_retried=is_retried)
            yield listener


class _Event(NamedTuple):
    name: str
    run: Run
    slot: Slot
    arguments: tuple[Any, ...]
    answer: "Future[str | None] | None" = None


class Guarded(Listener):
    """A user's listener, called in a separate thread, so that it can neither end nor slow down a grid.

    Args:
        listener: The user's listener.
        say: Prints a line.
    """

    def __init__(self, listener: Listener, say: Callable[[str], None]) -> None:
        self.may_stop = listener.may_stop
        self._listener = listener
        self._name = printable(type(listener).__name__)
        self._say = say
        self._has_warned = False
        self._waiting: deque[_Event] = deque()
        self._is_closed = self._is_late = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None  # None before the first event

    def run_began(self, run: Run, network: Any, loader: Any) -> None:
        """Queue the event."""
        self._put("run_began", run, network, loader)

    def step_ended(self, progress: Any) -> None:
        """Queue the event."""
        self._put("step_ended", progress)

    def epoch_ended(self, record: EpochRecord, network: Any) -> str | None:
        """Queue the event; wait for the answer if the listener may stop runs."""
        record = record.copy()
        if not self.may_stop or self._is_late:
            self._put("epoch_ended", record, network)
            return None
        answer: Future[str | None] = Future()
        self._put("epoch_ended", record, network, answer=answer)
        try:
            why = answer.result(ANSWER_S)
        except TimeoutError:
            with self._changed:
                self._is_late = not answer.done()  # true until the listener has answered
            self._warn_once(f"gave no answer in {ANSWER_S:g} s, and the run continues")
            return None
        return why

    def run_ended(self, outcome: Outcome) -> None:
        """Queue the event."""
        self._put("run_ended", outcome)

    def close(self) -> None:
        """Deliver the queued events and end the thread."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        thread.join(ANSWER_S)
        if thread.is_alive():
            with self._changed:
                ends = [event for event in self._waiting if event.name == "run_ended"]
                self._waiting = deque(ends)
            thread.join(ANSWER_S)
        if thread.is_alive():
            with self._changed:
                number = len(self._waiting)
                self._waiting.clear()
            self._warn_once(f"did not finish in {2 * ANSWER_S:g} s: {number} ends of runs are lost")

    def _put(self, name: str, *arguments: Any, answer: "Future[str | None] | None" = None) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"listener {self._name}", daemon=True)
            self._thread.start()
        with self._changed:
            if len(self._waiting) >= _MOST_WAITING:
                self._drop_one()
            self._waiting.append(_Event(name, self.run, self.slot, arguments, answer))
            self._changed.notify()

    def _drop_one(self) -> None:
        self._warn_once(f"is slow: {_MOST_WAITING:,} events wait, and some are dropped")
        for name in _DROPPED_FIRST:
            for index, event in enumerate(self._waiting):
                if event.name == name and event.answer is None:
                    del self._waiting[index]
                    return

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                event = self._waiting.popleft()
            why, problem = guarded(self._listener, event.name, event.run, event.slot, *event.arguments)
            if problem:
                self._warn_once(problem)
            with self._changed:
                if event.answer:
                    event.answer.set_result(why)
                if not self._waiting:
                    self._is_late = False

    def _warn_once(self, problem: str) -> None:
        """Print only the first problem, as further problems are similar or its consequences."""
        if not self._has_warned:
            self._has_warned = True
            self._say(f"! listener {self._name}: {printable(problem)}")
