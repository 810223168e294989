"""Runs on their way through a Ray cluster."""

import contextlib
import itertools
import math
import re
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runmanager.errors import GridError
from runmanager.executors.base import Watch, uncommitted
from runmanager.executors.ray import cluster, tasks
from runmanager.executors.ray.cluster import Needs, Node
from runmanager.executors.ray.tasks import Begun, Happening, Place, Printed, Raised, Stuck, Unfit
from runmanager.executors.serialize import load
from runmanager.grid import Run, device_of
from runmanager.outcome import Outcome, Status

_MOST_LOSSES = 20  # of the nodes of one run
_GRACE_S = 5  # a process outlives its node's by a second, at which Ray looks, or by more on a busy machine
_NEW_NODE_S = 60  # a run waits for a node that it fits on, if there was one before
_ANSWER_S = 60  # until a node has to answer
_STOP_S = 5  # until a run that is to stop is forced to
_TURN_S = 0.1


@dataclass(eq=False)
class _Flight:
    """A run that was given to Ray.

    Attributes:
        number: What it is called here; a run that goes on elsewhere is another flight.
        run: The run.
        device: Where it wants to be executed.
        task: Its task.
        lane: Where it is shown, None before it has begun.
        node: Ray's name of its node, "" before it has begun.
        worker: Ray's name of its process.
        heard: When there was news of it (monotonic, s).
        verdict: How it ended if that was decided here.
        asked: A task on its node, which tells whether that is alive, once the process has died.
    """

    number: int
    run: Run
    device: str
    task: Any
    lane: int | None = None
    node: str = ""
    worker: str = ""
    heard: float = 0.0
    verdict: Outcome | None = None
    asked: Any = None


class Execution:
    """Runs on their way through a cluster."""

    def __init__(
        self,
        runs: deque[Run],
        watch: Watch,
        place: Place,
        sent: bytes,
        most: float,
        needs: Mapping[str, Needs],
        words: list[str],
    ) -> None:
        import ray

        self._runs = runs
        self._watch = watch
        self._place = place
        self._sent = ray.put(sent)
        self._most = most
        self._needs = needs
        self._words = words
        self._flights: dict[int, _Flight] = {}
        self._resting: deque[tuple[float, Run]] = deque()
        self._numbers = itertools.count()
        self._losses: Counter[int] = Counter()
        self._nodes: dict[str, Node] = {}
        self._avoided: set[str] = set()
        self._fitted: dict[str, float] = {}
        self._looked = -math.inf
        self._execute: Any = ray.remote(max_retries=0)(tasks.execute)
        here = ray.get_runtime_context().get_node_id()
        lasting = {"max_restarts": -1, "max_task_retries": -1}
        self._news: Any = ray.remote(tasks.News).options(**cluster.on_node(here), **lasting).remote()

    def outcomes(self) -> Iterator[tuple[Run, Outcome]]:
        """Execute the runs and yield each with its outcome."""
        self._check_nodes()
        while self._runs or self._flights or self._resting:
            self._submit()
            landed = self._wait()
            self._hear()
            for flight in landed:
                outcome = self._outcome(flight)
                if outcome is not None:
                    del self._flights[flight.number]
                    self._losses.pop(id(flight.run), None)
                    yield flight.run, outcome
            self._give_up()

    def stop(self) -> None:
        """Stop what is running: kindly, and after a while, or if Ctrl-C comes again, by force."""
        import ray

        tasks = [flight.task for flight in self._flights.values()]
        with contextlib.suppress(KeyboardInterrupt):
            _cancel(tasks, within=_STOP_S)
        with contextlib.suppress(KeyboardInterrupt):
            _cancel(tasks, within=_STOP_S / 2, force=True)
        ray.kill(self._news)

    def _check_nodes(self) -> None:
        """Find out which nodes can execute runs.

        Raises:
            GridError: None of those that have room for them.
        """
        import ray
        from ray.exceptions import RayError

        self._look()
        wanted = [self._needs[device] for device in {device_of(run) for run in self._runs} & set(self._needs)]
        able = [node for node in self._nodes.values() if any(node.room_for(needs) for needs in wanted)]
        probe = ray.remote(max_retries=0)(tasks.unfit)
        asked = {
            probe.options(**cluster.on_node(node.id)).remote(self._place, self._sent): node for node in able
        }
        reasons = []
        _, silent = ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_S) if asked else ([], [])
        for task, node in asked.items():
            try:
                reason = f"it did not answer for {_ANSWER_S} s" if task in silent else ray.get(task)
            except RayError as error:
                reason = f"it cannot execute anything ({_first_line(error)})"
            if reason:
                reasons.append(self._avoid(node.id, reason))
        if able and len(reasons) == len(able):
            raise GridError(reasons)

    def _avoid(self, node: str, reason: str) -> str:
        said = f"node {self._name(node)} is not used: {reason}"
        if node not in self._avoided:
            self._avoided.add(node)
            self._watch.say(said)
        return said

    def _submit(self) -> None:
        while self._resting and self._resting[0][0] <= time.monotonic():
            self._runs.appendleft(self._resting.popleft()[1])
        while self._runs and len(self._flights) + len(self._resting) < self._most:
            run, number = self._runs.popleft(), next(self._numbers)
            device = device_of(run)
            avoid = sorted(self._avoided & self._nodes.keys())
            options = cluster.task_options(self._needs.get(device, {"CPU": 1}), avoid)
            task = self._execute.options(**options).remote(self._place, self._sent, number, run, self._news)
            self._flights[number] = _Flight(number, run, device, task, heard=time.monotonic())

    def _wait(self) -> list[_Flight]:
        """Return the runs that may have ended, after a moment if there are none."""
        import ray

        waiting = {flight.asked or flight.task: flight for flight in self._flights.values()}
        if not waiting:
            time.sleep(_TURN_S)
            return []
        ready, _ = ray.wait(list(waiting), timeout=_TURN_S)
        return [waiting[task] for task in ready]

    def _hear(self) -> None:
        """Pass on the news."""
        import ray

        for number, happening in ray.get(self._news.take.remote()):
            flight = self._flights.get(number)
            if flight is not None:
                flight.heard = time.monotonic()
                self._pass_on(flight, happening)

    def _pass_on(self, flight: _Flight, happening: Happening) -> None:
        match happening:
            case Begun(node, worker):
                lanes = {other.lane for other in self._flights.values()}
                flight.lane = next(lane for lane in itertools.count() if lane not in lanes)
                flight.node, flight.worker = node, worker
                self._watch.run_started(flight.run, flight.lane, flight.device)
            case Printed(line):
                self._watch.say(line)
            case Stuck(stack):
                self._end_hung(flight, stack)
            case news:
                self._watch.run_progressed(flight.run, news)

    def _outcome(self, flight: _Flight) -> Outcome | None:
        """Return how a run ended, None if it goes on elsewhere, or if that is still to be found out.

        Raises:
            BaseException: What left `work`.
        """
        import ray
        from ray.exceptions import RayError

        if flight.asked is not None:
            return self._after_death(flight)
        try:
            ended: Outcome | Unfit | Raised = ray.get(flight.task)
        except RayError as error:
            return flight.verdict or self._broken(flight, error)
        if isinstance(ended, Raised):
            raise load(ended.error)
        if isinstance(ended, Unfit):
            self._avoid(ended.node, ended.reason)
            self._put_back(flight, after=0)
            return None
        return ended

    def _broken(self, flight: _Flight, error: Exception) -> Outcome | None:
        """Return how a run ended that Ray gave up, None if its node is lost, or if that is to be found out."""
        import ray
        from ray import exceptions

        if isinstance(error, exceptions.WorkerCrashedError) and flight.node:
            ping = ray.remote(max_retries=0)(_answer)
            flight.asked = ping.options(**cluster.on_node(flight.node)).remote()
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
        return uncommitted(Status.KILLED, f"Ray ended it: {_first_line(error)}", log=str(error))

    def _after_death(self, flight: _Flight) -> Outcome | None:
        """Return how a run ended whose process died: with its node, or by itself."""
        import ray
        from ray.exceptions import RayError

        try:
            ray.get(flight.asked)
        except RayError:
            return self._lose(flight)
        said = " ".join(line for line in self._words if flight.worker in line)
        detail = re.search(r"Worker exit detail: (.*?)(?:\. |$)", said)
        reason = f": {detail[1]}" if detail else ""
        return uncommitted(
            Status.KILLED, f"its process on node {self._name(flight.node)} died{reason}", log=said
        )

    def _lose(self, flight: _Flight) -> Outcome | None:
        """Let a run go on elsewhere whose node is lost, unless that happened too often."""
        self._losses[id(flight.run)] += 1
        if flight.node:
            self._avoided.add(flight.node)
        name = self._name(flight.node)
        if self._losses[id(flight.run)] > _MOST_LOSSES:
            return uncommitted(
                Status.KILLED, f"its node was lost {_MOST_LOSSES + 1} times, the last was {name}"
            )
        if flight.node:
            self._watch.say(f"node {name} lost; {flight.run!r} goes on elsewhere from its last committed epoch")
        self._put_back(flight, after=_GRACE_S)
        return None

    def _put_back(self, flight: _Flight, after: float) -> None:
        del self._flights[flight.number]
        self._resting.append((time.monotonic() + after, flight.run))

    def _give_up(self) -> None:
        """Decide about runs that are silent for too long, and about those that no node has room for."""
        import ray

        now, limit = time.monotonic(), self._place.timeout
        if now >= self._looked + 1:
            self._look()
        for flight in self._flights.values():
            if flight.verdict is None and flight.node and limit and now > flight.heard + limit + _STOP_S:
                self._end_hung(flight, "it did not even say where it is")
            if flight.verdict is None and not flight.node:
                fitted = self._fitted.get(flight.device, -math.inf)
                if now > fitted + _NEW_NODE_S:
                    reason = f"no node that can be used has room for device {flight.device!r}"
                    flight.verdict = uncommitted(Status.UNAVAILABLE, reason)
                    ray.cancel(flight.task)

    def _end_hung(self, flight: _Flight, stack: str) -> None:
        import ray

        silence = f"no batch and no epoch for {self._place.timeout:g} s"
        flight.verdict = uncommitted(Status.HUNG, silence, log=stack)
        ray.cancel(flight.task, force=True)

    def _look(self) -> None:
        """See which nodes there are, and which devices have one."""
        self._looked = time.monotonic()
        self._nodes = {node.id: node for node in cluster.nodes()}
        usable = [node for node in self._nodes.values() if node.id not in self._avoided]
        for device, needs in self._needs.items():
            if any(node.room_for(needs) for node in usable):
                self._fitted[device] = self._looked

    def _name(self, node: str) -> str:
        return self._nodes[node].name if node in self._nodes else node[:6] or "of an unknown name"


def _cancel(tasks: list[Any], *, within: float, force: bool = False) -> None:
    """Cancel tasks and wait until they have ended, but not for long."""
    import ray

    left = tasks
    until = time.monotonic() + within
    _, left = ray.wait(tasks, num_returns=len(tasks), timeout=0) if tasks else ([], [])
    for task in left:
        ray.cancel(task, force=force)
    while left and time.monotonic() < until:
        _, left = ray.wait(left, num_returns=len(left), timeout=_TURN_S)


def _answer() -> None:
    """Do nothing, on a node that has to be alive for that."""


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
