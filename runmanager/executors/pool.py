"""The lanes of a grid: they get its runs, and are replaced if they die, hang or lose their device."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import connection as connections
from typing import Any

from runmanager.errors import GridError
from runmanager.executors import serialize
from runmanager.executors.base import BatchProgress, Watch, uncommitted
from runmanager.executors.deaths import Deaths, hung, whereabouts
from runmanager.executors.lane import Lane
from runmanager.executors.placement import Placement
from runmanager.executors.spawn import signals_blocked
from runmanager.executors.worker import Changed, Lost, Raised, Ready, Refused
from runmanager.grid import Run, device_of
from runmanager.outcome import EpochRecord, Outcome, Status

_TICK_S = 1.0
_PATIENCE_S = 5.0  # until a lane that is asked to end is killed
_MOST_PROBES = 2  # of a device that does not answer


class Pool:
    """The lanes of a grid."""

    def __init__(
        self,
        context: Any,
        task: bytes,
        placement: Placement,
        num_lanes: int,
        watch: Watch,
        timeout: float | None,
    ) -> None:
        self._context = context
        self._task = task
        self._placement = placement
        self._num_lanes = num_lanes
        self._watch = watch
        self._timeout = timeout
        self._lanes: list[Lane] = []
        self._failed_probes: dict[str, int] = {}
        self._deaths = Deaths()
        self._looked = time.monotonic()
        self._since_measured = 0.0
        self._has_said_changes = False

    @property
    def busy(self) -> list[Lane]:
        """The lanes that execute a run."""
        return [lane for lane in self._lanes if lane.run is not None]

    def begin(self, runs: deque[Run]) -> Iterator[tuple[Run, Outcome]]:
        """Give runs to lanes as long as devices are free; yield those that can never get one."""
        waiting: list[Run] = []
        while runs and len(self.busy) < self._placement.most:
            run = runs.popleft()
            why = self._placement.why_never(device_of(run))
            if why:
                yield run, uncommitted(Status.UNAVAILABLE, why)
            elif (device := self._placement.take(device_of(run))) is None:
                waiting.append(run)
            else:
                lane = self._lane(device)
                lane.begin(run)
                self._send(lane)
        runs.extendleft(reversed(waiting))

    def wait(self, runs: deque[Run]) -> Iterator[tuple[Run, Outcome]]:
        """Wait until something happens, or a tick; yield the runs that have ended."""
        sources: dict[Any, Lane] = {}
        for lane in self._lanes:
            for source in (lane.connection, lane.output, lane.process.sentinel):
                if source is not None:
                    sources[source] = lane
        ready = connections.wait(list(sources), _TICK_S)
        now = time.monotonic()
        awake_s = min(now - self._looked, 2 * _TICK_S)  # not the time for which this machine slept
        self._looked = now
        for lane in self.busy:
            lane.quiet_s += awake_s if lane.is_ready else 0.0  # until something is heard of it
        for lane in dict.fromkeys(sources[source] for source in ready):
            yield from self._hear(lane, runs)
        self._since_measured += awake_s
        if self._since_measured >= _TICK_S:
            self._since_measured = 0.0
            for lane in self.busy:
                lane.measure()
        for lane in self.busy:
            if self._timeout is not None and lane.quiet_s > self._timeout:
                yield self._hung(lane)

    def end(self) -> None:
        """End all lanes: runs are stopped, and lanes that do not end within seconds are killed."""
        try:
            for lane in self._lanes:
                if lane.run is None:
                    with suppress(OSError):
                        lane.connection.send(None)
                else:
                    lane.process.terminate()
            until = time.monotonic() + _PATIENCE_S
            while self._lanes and time.monotonic() < until:
                alive = [lane for lane in self._lanes if lane.process.is_alive()]
                if not alive:
                    break
                connections.wait([s for lane in alive for s in (lane.process.sentinel, lane.output) if s], 0.2)
                for lane in alive:
                    for _ in lane.lines():
                        pass  # so that it does not wait for a reader
        except KeyboardInterrupt:
            self._watch.say("Forced stop.")
            raise
        finally:
            with signals_blocked():
                for lane in self._lanes:
                    lane.process.kill()  # all, before a second signal can come between
                for lane in self._lanes:
                    lane.close()
                self._lanes.clear()

    def _lane(self, device: str) -> Lane:
        """Return an idle lane of a device, or make one; it may replace an idle one of another."""
        idle = [lane for lane in self._lanes if lane.run is None and not lane.is_spent]
        for lane in idle:
            if lane.device == device:
                return lane
        if idle and len(self._lanes) >= self._num_lanes:
            self._remove(idle[0])
        numbers = {lane.number for lane in self._lanes}
        number = next(number for number in range(len(numbers) + 1) if number not in numbers)
        with signals_blocked():  # so that `end` knows of every process
            self._lanes.append(Lane(number, device, self._context, self._task, self._num_lanes))
        return self._lanes[-1]

    def _send(self, lane: Lane) -> None:
        if lane.is_ready and lane.run is not None:
            self._watch.run_started(lane.run, lane.number, lane.device)
            lane.send()

    def _hear(self, lane: Lane, runs: deque[Run]) -> Iterator[tuple[Run, Outcome]]:
        has_ended = not lane.process.is_alive()  # first, so that no message comes after the last look
        for message in lane.messages():
            lane.quiet_s = 0.0
            match message:
                case Ready():
                    lane.is_ready = True
                    self._failed_probes.pop(lane.device, None)
                    self._send(lane)
                case EpochRecord() | BatchProgress() if lane.run is not None:
                    lane.news = message
                    self._watch.run_progressed(lane.run, message)
                case Outcome() if lane.run is not None:
                    self._print(lane)
                    # an error may leave an accelerator in a bad state, which ends with the process
                    lane.is_spent |= lane.device != "cpu" and message.status.is_exception
                    yield self._free(lane), message
                case Changed(names):
                    lane.is_spent = True
                    self._say_changes(lane, names)
                case Raised() | Refused():
                    raise _error(message)
                case Lost(why):
                    self._probe_failed(lane, why, runs)
        self._print(lane)
        if has_ended or (lane.is_spent and lane.run is None):
            if lane.run is not None:
                yield self._died(lane)
            self._remove(lane)

    def _say_changes(self, lane: Lane, names: str) -> None:
        if not self._has_said_changes:
            self._has_said_changes = True
            rule = "such runs are followed by a new process, which costs its start"
            self._watch.say(f"{lane.run!r} left its process with other settings: {names}; {rule}")

    def _print(self, lane: Lane) -> None:
        for line in lane.lines():
            if line.strip():
                self._watch.say(f"[lane {lane.number}] {line}" if self._num_lanes > 1 else line)

    def _free(self, lane: Lane) -> Run:
        run, lane.run = lane.run, None
        assert run is not None
        self._placement.give_back(lane.device)
        return run

    def _remove(self, lane: Lane) -> None:
        """End a lane without a run, and forget it."""
        assert lane.run is None
        with suppress(OSError):
            lane.connection.send(None)
        lane.process.join(_PATIENCE_S)
        with signals_blocked():
            self._lanes.remove(lane)
            lane.close()

    def _probe_failed(self, lane: Lane, why: str, runs: deque[Run]) -> None:
        runs.appendleft(self._free(lane))
        lane.is_spent = True
        failed = self._failed_probes[lane.device] = self._failed_probes.get(lane.device, 0) + 1
        if failed >= _MOST_PROBES:
            self._placement.lost[lane.device] = f"{lane.device} stopped answering ({why})"
            self._watch.say(f"! {lane.device} stopped answering ({why}): it gets no more runs")

    def _died(self, lane: Lane) -> tuple[Run, Outcome]:
        where = whereabouts(lane.news) if lane.is_ready else " before it began"
        status, cause = self._deaths.explain(lane.process.exitcode, where, lane.memory)
        return self._free(lane), uncommitted(status, cause, log=lane.log())

    def _hung(self, lane: Lane) -> tuple[Run, Outcome]:
        lane.show_stacks()
        lane.kill()
        outcome = hung(self._timeout, lane.news, lane.log())
        run = self._free(lane)
        self._remove(lane)
        return run, outcome


def _error(message: Raised | Refused) -> BaseException:
    if isinstance(message, Refused):
        return GridError([f"train() cannot be loaded by a worker process: {message.why}"])
    error: BaseException = serialize.load(message.error)
    return error
