"""What the runs of a grid report goes to its listeners: to the grid's own at once, to a user's in a thread."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from runmanager.executors.signals import Stop
from runmanager.listener import Listener, Slot, problem_of
from runmanager.outcome import EpochRecord, News, Outcome, Question
from runmanager.run import Run
from runmanager.storage.identity import identity
from runmanager.wording import printable

ANSWER_S = 10.0
"""How long a run waits for the answer of a user's listener, and the end of a grid for its thread."""

_MOST_WAITING = 1000  # events of a listener
_DROPPED_FIRST = ("step_ended", "epoch_ended", "run_began")  # in this order; never the end of a run


class Dispatcher:
    """The watch of an executor: tells listeners what it reports, in their order.

    Args:
        listeners: The first reason counts that one of them has to stop a run.
        stop: Asked before each event; what it raises goes to the executor.
        say: Shows the user a line.
        stopping: Called when the grid is being stopped.
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
        self._begun: dict[str, tuple[Run, Slot]] = {}  # what is executed, by identity

    def run_started(self, run: Run, lane: int, device: str) -> None:
        """Tell that a run has begun."""
        self._stop.check()
        id_ = identity(run._asdict())
        self._begun[id_] = run, Slot(id_, lane, device)
        for listener in self._told(*self._begun[id_]):
            listener.run_began(run, None, None)

    def run_progressed(self, run: Run, news: News) -> str:
        """Tell how far a run has come; return why it is to stop if it asks, "" to go on."""
        self._stop.check()
        told = self._told(*self._begun.get(self._id(run), (run, Slot(self._id(run)))))
        if not isinstance(news, EpochRecord | Question):
            for listener in told:
                listener.step_ended(news)
            return ""
        record, is_new = (news, True) if isinstance(news, EpochRecord) else news
        answers = [listener.epoch_ended(record, None) for listener in told if is_new or listener.may_stop]
        stoppers = [listener.may_stop for listener in self._listeners if is_new or listener.may_stop]
        return next((why for why, counts in zip(answers, stoppers, strict=True) if why and counts), "")

    def run_ended(self, run: Run, outcome: Outcome, *, is_retried: bool = False) -> None:
        """Tell how a run has ended, once that is committed."""
        id_ = self._id(run)
        begun, slot = self._begun.pop(id_, (run, Slot(id_)))
        for listener in self._told(begun, slot._replace(is_retried=is_retried)):
            listener.run_ended(outcome)

    def _told(self, run: Run, slot: Slot) -> Iterator[Listener]:
        for listener in self._listeners:
            listener.run, listener.slot = run, slot
            yield listener

    def _id(self, run: Run) -> str:
        """Return the identity of a run; executed in this process, train() may have changed a list in it."""
        begun = (id_ for id_, (begun, _) in self._begun.items() if begun is run)
        return next(begun, "") or identity(run._asdict())


class _Event(NamedTuple):
    name: str
    run: Run
    slot: Slot
    arguments: tuple[Any, ...]
    answer: "Future[Any] | None" = None


class Guarded(Listener):
    """A listener of a user, called in a thread of its own: it can neither end a grid nor slow it down.

    Args:
        listener: The user's.
        say: Shows the user a line.
    """

    def __init__(self, listener: Listener, say: Callable[[str], None]) -> None:
        self.may_stop = listener.may_stop
        self._listener = listener
        self._name = printable(type(listener).__name__)
        self._say = say
        self._has_said = False
        self._waiting: deque[_Event] = deque()
        self._is_closed = self._is_late = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None  # until there is something to hear

    def run_began(self, run: Run, network: Any, loader: Any) -> None:
        """Let the listener hear of it."""
        self._put("run_began", run, network, loader)

    def step_ended(self, progress: Any) -> None:
        """Let the listener hear of it."""
        self._put("step_ended", progress)

    def epoch_ended(self, record: EpochRecord, network: Any) -> str | None:
        """Let the listener hear of it; wait for its answer if that counts."""
        record = record.copy()
        if not self.may_stop or self._is_late:
            self._put("epoch_ended", record, network)
            return None
        answer: Future[Any] = Future()
        self._put("epoch_ended", record, network, answer=answer)
        try:
            why = answer.result(ANSWER_S)
        except TimeoutError:
            self._is_late = True  # until it has caught up
            self._say_once(f"gave no answer in {ANSWER_S:g} s, and the run goes on")
            return None
        if problem := problem_of(why):
            self._say_once(problem)
            return None
        return why or None

    def run_ended(self, outcome: Outcome) -> None:
        """Let the listener hear of it."""
        self._put("run_ended", outcome)

    def close(self) -> None:
        """Let the listener hear of what waits, and end its thread."""
        if self._thread is None:
            return
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(ANSWER_S)
        if self._thread.is_alive():
            self._say_once(f"did not come to an end in {ANSWER_S:g} s: {len(self._waiting)} events are lost")

    def _put(self, name: str, *arguments: Any, answer: "Future[Any] | None" = None) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"listener {self._name}", daemon=True)
            self._thread.start()
        with self._changed:
            if len(self._waiting) >= _MOST_WAITING:
                self._drop_one()
            self._waiting.append(_Event(name, self.run, self.slot, arguments, answer))
            self._changed.notify()

    def _drop_one(self) -> None:
        self._say_once(f"is slow: {_MOST_WAITING:,} events wait, and it does not hear of some")
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
            self._listener.run, self._listener.slot = event.run, event.slot
            why: Any = None
            try:
                why = getattr(self._listener, event.name)(*event.arguments)
            except BaseException as error:  # noqa: BLE001 - whatever it raises, no run is to end by it
                self._say_once(f"{event.name}() raised {type(error).__name__}: {error}")
            if event.answer:
                event.answer.set_result(why)
            if not self._waiting:
                self._is_late = False

    def _say_once(self, problem: str) -> None:
        """Say the first problem; the others are like it, or follow from it."""
        if not self._has_said:
            self._has_said = True
            self._say(f"! listener {self._name}: {printable(problem)}")
