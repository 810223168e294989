"""Runs on a Ray cluster: the loop of the driver, the task on a node, and the mailbox between them."""

import asyncio
import contextlib
import io
import itertools
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from runmanager.core.files import HOLDER
from runmanager.core.outcome import BatchProgress, EpochRecord, News, Outcome, Question, Status
from runmanager.core.run import Run, device_of
from runmanager.errors import first_line
from runmanager.executors.base import Task, Watch, uncommitted
from runmanager.executors.deaths import MOST_LINES, hung, whereabouts
from runmanager.executors.serialize import dump, dump_error, load_dumped, send_to_children_by_value
from runmanager.executors.worker import Raised

_MOST_LOSSES = 20  # maximum number of lost nodes per run
_GRACE_S = 5  # a process outlives its node by a second, Ray's polling interval, or by more on a busy machine
_NEW_NODE_S = 60  # time that a run waits for a fitting node, if there was a fitting node before
_ANSWER_S = 60  # timeout for an answer of a node
_STOP_S = 5  # grace period before a run is stopped by force
_TURN_S = 0.1


class Begun(NamedTuple):
    """The event of a run that has begun on a node."""

    node: str


class Printed(NamedTuple):
    """The event of a line that a run has printed."""

    line: str


class Died(NamedTuple):
    """The event of a run whose process has died on a living node."""

    node: str


Event = Begun | Printed | Died | News | Outcome | Raised


class Driver(NamedTuple):
    """What a node needs to know about the driver."""

    folder: Path  # the experiment's folder, which the nodes must share
    lock: str  # the content of the folder's lock file, by which a node recognizes the folder
    directory: str  # the working directory, used for runs on nodes where it exists
    share: int | None  # the maximum number of runs that share a node and its cores; with None, Ray decides


class Mailbox:
    """An actor on the driver's node, through which runs and driver talk; each waits without polling."""

    def __init__(self) -> None:
        self._events: list[tuple[int, Event]] = []
        self._came = asyncio.Event()
        self._answers: dict[int, asyncio.Future[str | None]] = {}
        self._is_stopping = False
        self._nodes: dict[int, tuple[str, str]] = {}

    async def begin(self, number: int, node: str, name: str) -> tuple[str, str] | None:
        """Note the node of a run; return the id and name of the node where it began before, if it did."""
        before, self._nodes[number] = self._nodes.get(number), (node, name)
        return before

    async def put(self, number: int, event: Event) -> None:
        """Send an event of a run to the driver."""
        self._events.append((number, event))
        self._came.set()

    async def take(self) -> list[tuple[int, Event]]:
        """Return the events since the last call, at least one."""
        await self._came.wait()
        self._came.clear()
        events, self._events = self._events, []
        return events

    async def report(self, number: int, news: News) -> str | None:
        """Send a report of a run to the driver; return the answer, None if the run must stop."""
        await self.put(number, news)
        if isinstance(news, Question) and not self._is_stopping:
            self._answers[number] = asyncio.get_running_loop().create_future()
            return await self._answers[number]
        return None if self._is_stopping else ""

    async def answer(self, number: int, why: str) -> None:
        """Answer the question of a run."""
        self._answers.pop(number).set_result(why)

    async def stop(self) -> None:
        """Let each run stop at its next report."""
        self._is_stopping = True
        for answer in self._answers.values():
            answer.set_result(None)


@dataclass(eq=False)
class _Flight:
    """A run submitted to Ray."""

    number: int
    run: Run
    device: str
    task: Any
    lane: int | None = None  # None before the run has begun
    node: str = ""  # the name of the node, "" before the run has begun
    news: EpochRecord | BatchProgress | None = None
    heard: float = 0.0  # time of the last event (time.monotonic)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_LINES))  # the last output of the run
    verdict: Outcome | None = None  # the outcome, if the driver has cancelled the task


class RayRuns:
    """Executes runs on the connected cluster, for the driver.

    Ray begins a run again whose process or node was lost; on a living node, the run then ends as killed.
    """

    def __init__(
        self,
        runs: deque[Run],
        watch: Watch,
        sent: bytes,
        needs: Mapping[str, Mapping[str, float]],
        living_nodes: Callable[[], list[Any]],
        share: int | None,
        timeout: float | None,
        folder: Path,
    ) -> None:
        self._runs = runs
        self._watch = watch
        self._sent = ray.put(sent)
        self._needs = needs  # device -> the Ray resources of a run
        self._living_nodes = living_nodes
        self._most = share or math.inf
        self._timeout = timeout
        self._driver = Driver(folder, lock_of(folder), str(Path.cwd()), share)
        self._flights: dict[int, _Flight] = {}
        self._tasks: dict[Any, _Flight] = {}
        self._numbers = itertools.count()
        self._fitted: dict[str, float] = {}  # device -> when a node last had room for it (time.monotonic)
        self._looked = 0.0
        # one run per process: a process stays on its first GPU
        self._execute: Any = ray.remote(max_retries=_MOST_LOSSES, max_calls=1)(execute)
        here = ray.get_runtime_context().get_node_id()
        self._mailbox: Any = ray.remote(Mailbox).options(**_on_node(here)).remote()

    def outcomes(self) -> Iterator[tuple[Run, Outcome]]:
        """Execute the runs, and yield each run with its outcome."""
        events = self._mailbox.take.remote()
        while self._runs or self._flights:
            while self._runs and len(self._flights) < self._most:
                self._launch(self._runs.popleft())
            ready, _ = ray.wait([events, *self._tasks], timeout=_TURN_S)
            if ready and ready[0] != events:
                yield from self._ended(self._tasks.pop(ready[0]))
                continue
            for number, event in ray.get(ready[0]) if ready else ():
                if flight := self._flights.get(number):
                    flight.heard = time.monotonic()
                    yield from self._hear(flight, event)
            if ready:
                events = self._mailbox.take.remote()
            self._give_up()

    def stop(self) -> None:
        """Stop all runs at their next report; after a while, or on a second Ctrl-C, by force."""
        refs = [self._mailbox.stop.remote(), *self._tasks]
        for is_forced in (False, True):
            with contextlib.suppress(KeyboardInterrupt):
                for ref in refs if is_forced else ():
                    ray.cancel(ref, force=True)  # at the moment of the task's end, it would abort this process
                if refs:
                    refs = ray.wait(refs, num_returns=len(refs), timeout=_STOP_S)[1]
        ray.kill(self._mailbox)

    def _launch(self, run: Run) -> None:
        number, device = next(self._numbers), device_of(run)
        needs = dict(self._needs[device])
        task = self._execute.options(
            num_cpus=needs.pop("CPU", 0), num_gpus=needs.pop("GPU", 0), resources=needs
        ).remote(self._driver, self._sent, number, dump(run), self._mailbox)
        self._flights[number] = self._tasks[task] = _Flight(number, run, device, task)

    def _hear(self, flight: _Flight, event: Event) -> Iterator[tuple[Run, Outcome]]:
        match event:
            case Begun(node):
                if flight.node:
                    self._watch.say(
                        f"node {flight.node} lost; {flight.run!r} resumes on node {node} after its last epoch"
                    )
                else:
                    lanes = {other.lane for other in self._flights.values()}
                    flight.lane = next(lane for lane in itertools.count() if lane not in lanes)
                    self._watch.run_started(flight.run, flight.lane, flight.device)
                flight.node = node
            case Printed(line):
                flight.lines.append(line)
                self._watch.say(line if self._most == 1 else f"[lane {flight.lane}] {line}")
            case Question(record):
                flight.news = record
                answer = self._watch.run_progressed(flight.run, event)
                self._mailbox.answer.remote(flight.number, answer or "")
            case EpochRecord() | BatchProgress():
                flight.news = event
                self._watch.run_progressed(flight.run, event)
            case Died(node):
                cause = f"its process on node {node} died{whereabouts(flight.news)}"
                yield self._land(flight, uncommitted(Status.KILLED, cause, "\n".join(flight.lines)))
            case Outcome():
                yield self._land(flight, event)
            case Raised(sent):
                raise load_dumped(sent)

    def _land(self, flight: _Flight, outcome: Outcome) -> tuple[Run, Outcome]:
        del self._flights[flight.number]
        return flight.run, outcome

    def _ended(self, flight: _Flight) -> Iterator[tuple[Run, Outcome]]:
        """Yield the outcome of a task that Ray gave up; other tasks have sent their outcomes."""
        try:
            ray.get(flight.task)
        except RayError as error:
            if flight.number in self._flights:
                cause = f"Ray ended it: {first_line(error)}"
                killed = uncommitted(Status.KILLED, cause, "\n".join([*flight.lines, str(error)]))
                yield self._land(flight, flight.verdict or killed)

    def _give_up(self) -> None:
        """End runs that have made no progress for too long, and runs that fit on no node."""
        now = time.monotonic()
        if now >= self._looked + 1:
            self._looked = now
            nodes = self._living_nodes()
            for flight in self._flights.values():
                if any(node.room_for(self._needs[flight.device]) for node in nodes):
                    self._fitted[flight.device] = now
                if flight.node not in [node.name for node in nodes]:
                    flight.heard = now  # its node is lost, so it waits until Ray begins it again
        for flight in self._flights.values():
            if flight.verdict is not None:
                continue
            if flight.node and self._timeout and now > flight.heard + self._timeout:
                flight.verdict = hung(self._timeout, flight.news, "\n".join(flight.lines))
            elif now > self._fitted.get(flight.device, 0.0) + _NEW_NODE_S:
                reason = f"no node has room for device {flight.device!r}"
                flight.verdict = uncommitted(Status.UNAVAILABLE, reason)
            if flight.verdict:
                ray.cancel(flight.task, force=True)


def _on_node(node: str) -> dict[str, Any]:
    """Return the options of a small task that runs on a node even if the node is busy."""
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


def execute(driver: Driver, sent: bytes, number: int, sent_run: bytes, mailbox: Any) -> None:
    """Execute a run on this node, and send its events and its outcome to the mailbox."""
    node = ray.get_runtime_context().get_node_id()
    name = f"{socket.gethostname()} ({node[:6]})"

    def tell(event: Event) -> None:
        ray.get(mailbox.put.remote(number, event))  # wait, as the run may kill its process

    before = ray.get(mailbox.begin.remote(number, node, name))
    if before and _is_alive(before[0]):
        tell(Died(before[1]))
        return
    if before:
        time.sleep(_GRACE_S)  # the old process may still write

    def report(news: News) -> str:
        answer: str | None = ray.get(mailbox.report.remote(number, news))
        if answer is None:
            raise KeyboardInterrupt
        return answer

    try:
        with contextlib.suppress(OSError):
            os.chdir(driver.directory)
        if lock_of(driver.folder) != driver.lock:
            rule = f"{driver.folder} on node {name} is missing or another folder"
            tell(uncommitted(Status.FAILED, f"{rule}: it must be on storage shared by all nodes"))
            return
        try:
            task: Task = load_dumped(sent)
            run = load_dumped(sent_run)
        except Exception as error:  # noqa: BLE001 - the user's modules are imported
            cause = f"train() cannot be loaded on node {name} ({type(error).__name__}: {error})"
            tell(uncommitted(Status.FAILED, cause))
            return
        import torch  # the import takes seconds, so it comes before the run begins

        from runmanager.devices.torch_devices import num_cores

        if driver.share is not None:  # without a share, Ray sets one thread per requested CPU
            torch.set_num_threads(max(1, num_cores() // driver.share))
        send_to_children_by_value()
        tell(Begun(name))
        lines = _Lines(lambda line: tell(Printed(line)))
        with contextlib.redirect_stdout(lines), contextlib.redirect_stderr(lines):
            outcome = task(run, report)
        lines.write("\n" if lines.unfinished else "")
        tell(outcome)
    except BaseException as error:  # noqa: BLE001 - it goes on in the driver
        tell(Raised(dump_error(error)))


def lock_of(folder: Path) -> str:
    """Return the content of the lock file of an experiment, another one for each grid; "" without it."""
    with contextlib.suppress(OSError):
        return (folder / HOLDER).read_text(encoding="utf-8")
    return ""


def _is_alive(node: str) -> bool:
    """Whether a node executes tasks; it takes seconds until Ray knows that a node is lost."""
    try:
        ping = ray.remote(max_retries=0)(lambda: None).options(**_on_node(node))
        ray.get(ping.remote(), timeout=_ANSWER_S)
    except RayError:
        return False
    return True


class _Lines(io.TextIOBase):
    """Passes output to the driver, line by line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.unfinished = ""

    def write(self, text: str) -> int:
        """Pass the complete lines to the driver."""
        *lines, self.unfinished = (self.unfinished + text).split("\n")
        for line in lines:
            self._say(line)
        return len(text)
