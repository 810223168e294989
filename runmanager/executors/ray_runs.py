"""Runs on a connected Ray cluster: the driver, the task on a node, and the mailbox between them."""

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
from ray.exceptions import NodeDiedError, RayError, WorkerCrashedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from runmanager.core.contracts import Task, Watch, uncommitted
from runmanager.core.files import HOLDER
from runmanager.core.outcome import BatchProgress, EpochRecord, News, Outcome, Question, Status
from runmanager.core.run import Run, device_of
from runmanager.errors import first_line
from runmanager.executors.deaths import hung, whereabouts
from runmanager.executors.serialize import dump, dump_error, load_dumped, send_to_children_by_value
from runmanager.executors.worker import Raised

_MOST_LOSSES = 20  # maximum number of lost nodes per run
_GRACE_S = 5  # a process outlives its node by a second, Ray's polling interval, or by more on a busy machine
_NEW_NODE_S = 60  # time that a run waits for a fitting node, if there was a fitting node before
_STOP_S = 5  # grace period before a run is stopped by force
_TURN_S = 0.1


class Begun(NamedTuple):
    """The event of a run that has begun on a node."""

    node: str


Event = Begun | str | News
"""An event of a run; a text is a line that it has printed."""


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

    async def put(self, number: int, event: Event) -> str | None:
        """Send an event of a run to the driver; return the answer, None if the run must stop."""
        self._events.append((number, event))
        self._came.set()
        if isinstance(event, Question) and not self._is_stopping:
            self._answers[number] = asyncio.get_running_loop().create_future()
            return await self._answers[number]
        return None if self._is_stopping else ""

    async def wait(self) -> None:
        """Return when an event has come."""
        await self._came.wait()

    async def take(self) -> list[tuple[int, Event]]:
        """Return the events since the last call."""
        self._came.clear()
        events, self._events = self._events, []
        return events

    async def answer(self, number: int, why: str) -> None:
        """Answer the question of a run."""
        if number in self._answers:  # else its node was lost
            self._answers.pop(number).set_result(why)

    async def stop(self) -> None:
        """Let each run stop at its next report."""
        self._is_stopping = True
        for answer in self._answers.values():
            answer.set_result(None)


@dataclass(frozen=True)
class Node:
    """A living node."""

    name: str  # the name of the node's host, and a prefix of the node's id
    resources: Mapping[str, float] = field(hash=False)  # total resources, both free and used

    def room_for(self, needs: Mapping[str, float]) -> int:
        """Return the number of runs with these needs that fit on the node when it is idle."""
        return min(int(self.resources.get(name, 0) / number + 1e-6) for name, number in needs.items())


def living_nodes() -> list[Node]:
    """Return the living nodes of the cluster."""
    return [
        Node(f"{node['NodeManagerHostname']} ({node['NodeID'][:6]})", node["Resources"])
        for node in ray.nodes()
        if node["Alive"]
    ]


@dataclass(eq=False)
class _Flight:
    """A run submitted to Ray."""

    number: int
    run: Run
    task: Any = None
    lane: int | None = None  # None before the run has begun
    node: str = ""  # the name of the node, "" while no node executes the run
    lost: list[str] = field(default_factory=list)  # the names of its lost nodes
    news: EpochRecord | BatchProgress | None = None
    heard: float = 0.0  # time of the last event (time.monotonic)
    verdict: Outcome | None = None  # the outcome, if the driver has cancelled the task


class RayRuns:
    """Executes runs on the connected cluster, for the driver; a run whose node is lost is submitted again."""

    def __init__(
        self,
        runs: deque[Run],
        watch: Watch,
        sent: bytes,
        needs: Mapping[str, Mapping[str, float]],
        share: int | None,
        timeout: float | None,
        folder: Path,
    ) -> None:
        self._runs = runs
        self._watch = watch
        self._sent = ray.put(sent)
        self._needs = needs  # device -> the Ray resources of a run
        self._most = share or math.inf
        self._timeout = timeout
        self._driver = Driver(folder, lock_of(folder), str(Path.cwd()), share)
        self._flights: dict[int, _Flight] = {}
        self._numbers = itertools.count()
        self._fitted: dict[str, float] = {}  # device -> when a node last had room for it (time.monotonic)
        self._looked = 0.0
        # one run per process: a process stays on its first GPU
        self._execute: Any = ray.remote(max_retries=0, max_calls=1)(execute)
        # the mailbox is on the node of the driver, however busy this node is
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._mailbox: Any = ray.remote(Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()

    def outcomes(self) -> Iterator[tuple[Run, Outcome]]:
        """Execute the runs, and yield each run with its outcome."""
        came = self._mailbox.wait.remote()
        while self._runs or self._flights:
            while self._runs and len(self._flights) < self._most:
                number = next(self._numbers)
                self._flights[number] = _Flight(number, self._runs.popleft())
                self._launch(self._flights[number])
            tasks = {flight.task: flight for flight in self._flights.values()}
            ready, _ = ray.wait([came, *tasks], timeout=_TURN_S)
            if ready:
                for number, event in ray.get(self._mailbox.take.remote()):
                    if flight := self._flights.get(number):  # a run that was ended may have sent it
                        self._hear(flight, event)
            if came in ready:
                came = self._mailbox.wait.remote()
            for task in ready:
                if task in tasks and (outcome := self._ended(tasks[task])):
                    yield self._flights.pop(tasks[task].number).run, outcome
            self._give_up()

    def stop(self) -> None:
        """Stop all runs at their next report; after a while, or on a second Ctrl-C, by force."""
        refs = [self._mailbox.stop.remote(), *(flight.task for flight in self._flights.values())]
        for is_forced in (False, True):
            with contextlib.suppress(KeyboardInterrupt):
                for ref in refs if is_forced else ():
                    ray.cancel(ref, force=True)  # at the moment of the task's end, it would abort this process
                if refs:
                    refs = ray.wait(refs, num_returns=len(refs), timeout=_STOP_S)[1]
        ray.kill(self._mailbox)

    def _launch(self, flight: _Flight) -> None:
        needs = dict(self._needs[device_of(flight.run)])
        pause_s = _GRACE_S if flight.lost else 0  # the process on the lost node may still write
        flight.task = self._execute.options(
            num_cpus=needs.pop("CPU", 0), num_gpus=needs.pop("GPU", 0), resources=needs
        ).remote(self._driver, self._sent, flight.number, dump(flight.run), self._mailbox, pause_s)

    def _hear(self, flight: _Flight, event: Event) -> None:
        flight.heard = time.monotonic()
        match event:
            case Begun(node):
                if flight.lost:
                    resumed = f"{flight.run!r} resumes on node {node} after its last epoch"
                    self._watch.say(f"node {flight.lost[-1]} lost; {resumed}")
                else:
                    lanes = {other.lane for other in self._flights.values()}
                    flight.lane = next(lane for lane in itertools.count() if lane not in lanes)
                    self._watch.run_started(flight.run, flight.lane, device_of(flight.run))
                flight.node = node
            case str():
                self._watch.run_printed(flight.run, event)
            case Question(record):
                flight.news = record
                answer = self._watch.run_progressed(flight.run, event)
                self._mailbox.answer.remote(flight.number, answer or "")
            case EpochRecord() | BatchProgress():
                flight.news = event
                self._watch.run_progressed(flight.run, event)

    def _ended(self, flight: _Flight) -> Outcome | None:
        """Return the outcome of a task that has ended, None if its node was lost and the run goes on."""
        try:
            result: Outcome | Raised = ray.get(flight.task)
        except RayError as error:
            if flight.verdict:
                return flight.verdict
            if isinstance(error, NodeDiedError) and len(flight.lost) < _MOST_LOSSES:
                if flight.node:
                    flight.lost.append(flight.node)
                    flight.node = ""
                self._launch(flight)
                return None
            log = self._watch.last_output(flight.run)
            if isinstance(error, WorkerCrashedError) and flight.node:
                cause = f"its process on node {flight.node} died{whereabouts(flight.news)}"
                return uncommitted(Status.KILLED, cause, log)
            return uncommitted(Status.KILLED, f"Ray ended it: {first_line(error)}", f"{log}\n{error}")
        if isinstance(result, Raised):
            raise load_dumped(result.error)
        return result

    def _give_up(self) -> None:
        """End runs that have made no progress for too long, and runs that fit on no node."""
        now = time.monotonic()
        if now >= self._looked + 1:
            self._looked = now
            nodes = living_nodes()
            for device, needs in self._needs.items():
                if any(node.room_for(needs) for node in nodes):
                    self._fitted[device] = now
        for flight in self._flights.values():
            device = device_of(flight.run)
            if flight.verdict is not None:
                continue
            if flight.node and self._timeout and now > flight.heard + self._timeout:
                flight.verdict = hung(self._timeout, flight.news, self._watch.last_output(flight.run))
            elif now > self._fitted.get(device, 0.0) + _NEW_NODE_S:
                reason = f"no node has room for device {device!r}"
                flight.verdict = uncommitted(Status.UNAVAILABLE, reason)
            if flight.verdict:
                ray.cancel(flight.task, force=True)


def execute(
    driver: Driver, sent: bytes, number: int, sent_run: bytes, mailbox: Any, pause_s: float
) -> Outcome | Raised:
    """Execute a run on this node, `pause_s` seconds from now; send its events to the mailbox."""
    time.sleep(pause_s)
    name = f"{socket.gethostname()} ({ray.get_runtime_context().get_node_id()[:6]})"

    def tell(event: Event) -> str:
        answer: str | None = ray.get(mailbox.put.remote(number, event))  # wait: the run may kill its process
        if answer is None and not isinstance(event, str):
            raise KeyboardInterrupt
        return answer or ""

    try:
        with contextlib.suppress(OSError):
            os.chdir(driver.directory)
        if lock_of(driver.folder) != driver.lock:
            rule = f"{driver.folder} on node {name} is missing or another folder"
            return uncommitted(Status.FAILED, f"{rule}: it must be on storage shared by all nodes")
        try:
            task: Task = load_dumped(sent)
            run = load_dumped(sent_run)
        except Exception as error:  # noqa: BLE001 - the user's modules are imported
            cause = f"train() cannot be loaded on node {name} ({type(error).__name__}: {error})"
            return uncommitted(Status.FAILED, cause)
        import torch  # the import takes seconds, so it comes before the run begins

        from runmanager.devices.torch_devices import num_cores

        if driver.share is not None:  # without a share, Ray sets one thread per requested CPU
            torch.set_num_threads(max(1, num_cores() // driver.share))
        send_to_children_by_value()
        tell(Begun(name))
        lines = _Lines(tell)
        with contextlib.redirect_stdout(lines), contextlib.redirect_stderr(lines):
            outcome = task(run, tell)
        lines.write("\n" if lines.unfinished else "")
    except BaseException as error:  # noqa: BLE001 - it goes on in the driver
        return Raised(dump_error(error))
    return outcome


def lock_of(folder: Path) -> str:
    """Return the content of the lock file of an experiment, another one for each grid; "" without it."""
    with contextlib.suppress(OSError):
        return (folder / HOLDER).read_text(encoding="utf-8")
    return ""


class _Lines(io.TextIOBase):
    """Passes output to the driver, line by line."""

    def __init__(self, tell: Callable[[Event], object]) -> None:
        self._tell = tell
        self.unfinished = ""

    def write(self, text: str) -> int:
        """Pass the complete lines to the driver."""
        *lines, self.unfinished = (self.unfinished + text).split("\n")
        for line in lines:
            self._tell(line)
        return len(text)
