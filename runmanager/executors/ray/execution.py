"""Execution of runs on a Ray cluster: submission, reports, lost nodes and outcomes."""

import contextlib
import itertools
import math
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import exceptions
from ray.exceptions import RayError

from runmanager.errors import DeviceError, first_line
from runmanager.executors.base import Watch, uncommitted
from runmanager.executors.deaths import MOST_LINES, hung, whereabouts
from runmanager.executors.ray import cluster, tasks
from runmanager.executors.ray.cluster import Needs, Node
from runmanager.executors.ray.tasks import Begun, DriverInfo, Event, Printed, Spoiled, Stuck
from runmanager.executors.serialize import dump, load_dumped
from runmanager.executors.worker import Raised, Refused
from runmanager.outcome import BatchProgress, EpochRecord, Outcome, Question, Status
from runmanager.run import Run, device_of

_MOST_LOSSES = 20  # maximum number of lost nodes per run
_GRACE_S = 5  # a process outlives its node by a second, Ray's polling interval, or by more on a busy machine
_NEW_NODE_S = 60  # time that a run waits for a fitting node, if there was a fitting node before
_ANSWER_S = 60  # timeout for an answer of a node
_STOP_S = 5  # grace period before a run is stopped by force
_TURN_S, _SHORTEST_TURN_S = 0.1, 0.005


@dataclass(eq=False)
class _Flight:
    """A run submitted to Ray; after the loss of its node, the run is submitted again, as a new object."""

    number: int
    run: Run
    device: str
    task: Any
    num_losses: int  # the number of nodes that the run has lost
    lane: int | None = None  # number of the lane; None before the run has begun
    node: str = ""  # Ray's id of the node, "" before the run has begun
    process: str = ""  # Ray's id of the process
    news: EpochRecord | BatchProgress | None = None
    heard: float = field(default_factory=time.monotonic)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_LINES))  # the last output of the run
    verdict: Outcome | None = None  # the outcome, if the task did not return it
    ping: Any = None  # a task that tests whether the node is alive, after the death of the process

    def log(self, *more: str) -> str:
        """Return the last output of the run."""
        return "\n".join([*self.lines, *more]).strip()


class RayExecution:
    """The execution of runs on a cluster."""

    def __init__(
        self,
        runs: deque[Run],
        watch: Watch,
        driver: DriverInfo,
        sent: bytes,
        needs: Mapping[str, Needs],
        notices: list[str],
    ) -> None:
        self._runs = runs
        self._watch = watch
        self._driver = driver
        self._sent = ray.put(sent)
        self._most = driver.share or math.inf
        self._needs = needs
        self._notices = notices
        self._flights: dict[int, _Flight] = {}
        # (end of the pause, run, number of lost nodes) of each paused run
        self._resting: deque[tuple[float, Run, int]] = deque()
        self._numbers = itertools.count()
        self._nodes: dict[str, Node] = {}
        self._avoided: set[str] = set()
        self._fitted: dict[str, float] = {}
        self._looked = -math.inf
        self._asked = -math.inf  # time of the last question of a run
        # a process stays on its first GPU, so the next run needs another process
        self._execute: Any = ray.remote(max_retries=0, max_calls=1)(tasks.execute)
        self._execute_warm: Any = ray.remote(max_retries=0)(tasks.execute)
        here = ray.get_runtime_context().get_node_id()
        lasting = {"max_restarts": -1, "max_task_retries": -1}
        self._mailbox: Any = ray.remote(tasks.Mailbox).options(**cluster.on_node(here), **lasting).remote()

    def outcomes(self) -> Iterator[tuple[Run, Outcome]]:
        """Execute the runs, and yield each run with its outcome."""
        self._check_nodes()
        while self._runs or self._flights or self._resting:
            self._submit()
            landed = self._wait()
            self._hear()
            for flight in landed:
                outcome = self._outcome(flight)
                if outcome is not None:
                    del self._flights[flight.number]
                    yield flight.run, outcome
            self._give_up()

    def stop(self) -> None:
        """Stop all runs: first gracefully, then after a while, or on a second Ctrl-C, by force."""
        refs = [flight.task for flight in self._flights.values()]
        with contextlib.suppress(KeyboardInterrupt):
            _cancel(refs, within=_STOP_S)
        with contextlib.suppress(KeyboardInterrupt):
            _cancel(refs, within=_STOP_S / 2, force=True)
        ray.kill(self._mailbox)

    def _check_nodes(self) -> None:
        """Check which nodes can execute runs.

        Raises:
            DeviceError: No node with enough resources can execute runs.
        """
        self._look()
        devices = {device_of(run) for run in self._runs} & self._needs.keys()
        roomy = [n for n in self._nodes.values() if any(n.room_for(self._needs[device]) for device in devices)]
        probe = ray.remote(max_retries=0)(tasks.unfit)
        refs = [probe.options(**cluster.on_node(node.id)).remote(self._driver, self._sent) for node in roomy]
        reasons = []
        _, silent = ray.wait(refs, num_returns=len(refs), timeout=_ANSWER_S) if refs else ([], [])
        for node, ref in zip(roomy, refs, strict=True):
            try:
                reason = f"it did not answer for {_ANSWER_S} s" if ref in silent else ray.get(ref)
            except RayError as error:
                reason = f"it cannot execute anything ({first_line(error)})"
            if reason:
                reasons.append(self._avoid(node.id, reason))
        if roomy and len(reasons) == len(roomy):
            raise DeviceError("; ".join(reasons))

    def _avoid(self, node: str, reason: str) -> str:
        line = f"node {self._name(node)} is not used: {reason}"
        if node not in self._avoided:
            self._avoided.add(node)
            self._watch.say(line)
        return line

    def _submit(self) -> None:
        while self._resting and self._resting[0][0] <= time.monotonic():
            _, run, num_losses = self._resting.popleft()
            self._launch(run, num_losses)
        while self._runs and len(self._flights) + len(self._resting) < self._most:
            self._launch(self._runs.popleft())

    def _launch(self, run: Run, num_losses: int = 0) -> None:
        number, device = next(self._numbers), device_of(run)
        avoid = sorted(self._avoided & self._nodes.keys())
        needs = self._needs.get(device, {"CPU": 1})
        options = cluster.task_options(needs, avoid)
        function = self._execute_warm if needs.keys() <= {"CPU", "memory"} else self._execute
        task = function.options(**options).remote(self._driver, self._sent, number, dump(run), self._mailbox)
        self._flights[number] = _Flight(number, run, device, task, num_losses)

    def _wait(self) -> list[_Flight]:
        """Return the runs whose tasks may have ended; wait briefly if there are no such runs."""
        waiting = {flight.ping or flight.task: flight for flight in self._flights.values()}
        if not waiting:
            time.sleep(_TURN_S)
            return []
        # runs wait for answers, so poll faster if questions are frequent
        turn_s = min(max((time.monotonic() - self._asked) / 20, _SHORTEST_TURN_S), _TURN_S)
        ready, _ = ray.wait(list(waiting), timeout=turn_s)
        return [waiting[ref] for ref in ready]

    def _hear(self) -> None:
        """Pass the events of runs to the watch."""
        for number, event in ray.get(self._mailbox.take.remote()):
            if flight := self._flights.get(number):
                flight.heard = time.monotonic()
                self._pass_on(flight, event)

    def _pass_on(self, flight: _Flight, event: Event) -> None:
        match event:
            case Begun(node, process):
                lanes = {other.lane for other in self._flights.values()}
                flight.lane = next(lane for lane in itertools.count() if lane not in lanes)
                flight.node, flight.process = node, process
                self._watch.run_started(flight.run, flight.lane, flight.device)
            case Printed(line):
                flight.lines.append(line)
                self._watch.say(line if self._most == 1 else f"[lane {flight.lane}] {line}")
            case Spoiled(outcome):
                flight.verdict = outcome
            case Stuck(stack):
                self._end_hung(flight, stack)
            case Question(record):
                flight.news = record
                answer = self._watch.run_progressed(flight.run, event)
                self._mailbox.answer.remote(flight.number, answer or "")
                self._asked = time.monotonic()
            case news:
                flight.news = news
                self._watch.run_progressed(flight.run, news)

    def _outcome(self, flight: _Flight) -> Outcome | None:
        """Return the outcome of a run; None if it is rescheduled or the outcome is unknown yet.

        Raises:
            BaseException: An exception of the task.
        """
        if flight.ping is not None:
            return self._after_death(flight)
        try:
            node, ended = ray.get(flight.task)
        except RayError as error:
            return flight.verdict or self._broken(flight, error)
        match ended:
            case Raised(sent):
                raise load_dumped(sent)
            case Refused(why):
                self._avoid(node, why)
                self._put_back(flight, after=0)
                return None
        outcome: Outcome = ended
        return outcome

    def _broken(self, flight: _Flight, error: Exception) -> Outcome | None:
        """Return the outcome of a run that Ray gave up; None if its node is lost or still being tested."""
        if isinstance(error, exceptions.WorkerCrashedError) and flight.node:
            ping = ray.remote(max_retries=0)(tasks.torch_version)  # any small task tests the node
            flight.ping = ping.options(**cluster.on_node(flight.node)).remote()
            return None
        of_nodes = (
            exceptions.NodeDiedError,
            exceptions.LocalRayletDiedError,
            exceptions.ObjectLostError,
            exceptions.TaskUnschedulableError,
            exceptions.WorkerCrashedError,
        )
        if isinstance(error, of_nodes):
            return self._lose(flight)
        return uncommitted(Status.KILLED, f"Ray ended it: {first_line(error)}", flight.log(str(error)))

    def _after_death(self, flight: _Flight) -> Outcome | None:
        """Return the outcome of a run whose process died, alone or with its node."""
        try:
            ray.get(flight.ping)
        except RayError:
            return self._lose(flight)
        words = " ".join(line for line in self._notices if flight.process in line)
        detail = re.search(r"Worker exit detail: (.*?)(?:\. |$)", words)
        reason = f": {detail[1]}" if detail else ""
        cause = f"its process on node {self._name(flight.node)} died{whereabouts(flight.news)}{reason}"
        return uncommitted(Status.KILLED, cause, flight.log(words))

    def _lose(self, flight: _Flight) -> Outcome | None:
        """Reschedule a run whose node is lost, unless the run has lost too many nodes."""
        name = self._name(flight.node)
        if flight.node:
            self._avoided.add(flight.node)
        flight.num_losses += 1
        if flight.num_losses > _MOST_LOSSES:
            cause = f"its node was lost {flight.num_losses} times, the last was {name}"
            return uncommitted(Status.KILLED, cause, flight.log())
        if flight.node:
            self._watch.say(
                f"node {name} lost; {flight.run!r} resumes on another node after its last committed epoch"
            )
        self._put_back(flight, after=_GRACE_S)
        return None

    def _put_back(self, flight: _Flight, after: float) -> None:
        del self._flights[flight.number]
        self._resting.append((time.monotonic() + after, flight.run, flight.num_losses))

    def _give_up(self) -> None:
        """End runs that have made no progress for too long, and runs that fit on no node."""
        now, limit = time.monotonic(), self._driver.timeout
        if now >= self._looked + 1:
            self._look()
        for flight in self._flights.values():
            if flight.verdict is not None:
                continue
            if flight.node and limit and now > flight.heard + limit + _STOP_S:
                self._end_hung(flight, "(no stack trace available)")
            if not flight.node and now > self._fitted.get(flight.device, -math.inf) + _NEW_NODE_S:
                reason = f"no node that can be used has room for device {flight.device!r}"
                flight.verdict = uncommitted(Status.UNAVAILABLE, reason)
                ray.cancel(flight.task)

    def _end_hung(self, flight: _Flight, stack: str) -> None:
        flight.verdict = hung(self._driver.timeout, flight.news, flight.log(stack))
        ray.cancel(flight.task, force=True)

    def _look(self) -> None:
        """Update the nodes, and the devices that they provide."""
        self._looked = time.monotonic()
        self._nodes = {node.id: node for node in cluster.nodes()}
        usable = [node for node in self._nodes.values() if node.id not in self._avoided]
        for device, needs in self._needs.items():
            if any(node.room_for(needs) for node in usable):
                self._fitted[device] = self._looked

    def _name(self, node: str) -> str:
        return self._nodes[node].name if node in self._nodes else node[:6] or "of an unknown name"


def _cancel(refs: list[Any], *, within: float, force: bool = False) -> None:
    """Cancel tasks and wait for their end, for a limited time."""
    until = time.monotonic() + within
    _, left = ray.wait(refs, num_returns=len(refs), timeout=0) if refs else ([], [])
    for ref in left:
        ray.cancel(ref, force=force)
    while left and time.monotonic() < until:
        _, left = ray.wait(left, num_returns=len(left), timeout=_TURN_S)
