"""The pool of a grid's lanes: assigns runs to lanes, and replaces lanes that die, hang or lose their device."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import connection as connections
from typing import Any

from runmanager.core.outcome import BatchProgress, EpochRecord, News, Outcome, Question, Status
from runmanager.core.run import Run, device_of
from runmanager.errors import GridError
from runmanager.executors import serialize
from runmanager.executors.base import Watch, uncommitted
from runmanager.executors.deaths import Deaths, hung, whereabouts
from runmanager.executors.lane import Lane
from runmanager.executors.placement import Placement
from runmanager.executors.process_start import signals_blocked
from runmanager.executors.worker import Binding, Lost, Raised, Ready, Refused

_TICK_S = 1.0
_PATIENCE_S = 5.0  # grace period before a lane is killed
_MOST_PROBES, _MOST_PROBES_OF_FULL = 2, 8  # of a failed device, of one filled by other processes
_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 60.0  # time before the next probe, doubled after each probe
_BIND_S = 120.0  # timeout for a lane to bind its device


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
        self._pauses: dict[str, float] = {}  # device -> end of its pause (time.monotonic)
        self._deaths = Deaths()

    @property
    def busy(self) -> list[Lane]:
        """The lanes that are executing a run."""
        return [lane for lane in self._lanes if lane.run is not None]

    def begin(self, runs: deque[Run]) -> Iterator[tuple[Run, Outcome]]:
        """Assign runs to lanes while devices are free; yield runs that can never get a device."""
        waiting: list[Run] = []
        now = time.monotonic()
        self._placement.resting = {device for device, until in self._pauses.items() if until > now}
        while runs and len(self.busy) < self._placement.most:
            run = runs.popleft()
            why = self._placement.why_never(device_of(run))
            if why:
                yield run, uncommitted(Status.UNAVAILABLE, why)
            elif (device := self._placement.take(device_of(run))) is None:
                waiting.append(run)
            else:
                numbers = {lane.number for lane in self.busy}
                number = next(number for number in range(len(numbers) + 1) if number not in numbers)
                lane = self._lane(device, number)
                lane.begin(run, number)
                self._send(lane)
        runs.extendleft(reversed(waiting))

    def wait(self, runs: deque[Run]) -> Iterator[tuple[Run, Outcome]]:
        """Wait for an event or a tick; yield the runs that have ended."""
        sources: dict[Any, Lane] = {}
        for lane in self._lanes:
            for source in (lane.connection, lane.output, lane.process.sentinel):
                sources[source] = lane
        looked = time.monotonic()
        ready = connections.wait(list(sources), _TICK_S)
        for lane in self._lanes:  # as long as all processes were stopped, no lane could report
            lane.heard += max(0.0, time.monotonic() - looked - 2 * _TICK_S)
        for lane in dict.fromkeys(sources[source] for source in ready):
            yield from self._hear(lane, runs)
        yield from self._silent(runs)

    def end(self) -> None:
        """End all lanes: stop their runs, and kill lanes that do not end within seconds."""
        try:
            for lane in self._lanes:
                if lane.run is None:
                    with suppress(OSError):
                        lane.connection.send(None)
                else:
                    lane.process.terminate()
            until = time.monotonic() + _PATIENCE_S
            while (
                alive := [lane for lane in self._lanes if lane.process.is_alive()]
            ) and time.monotonic() < until:
                connections.wait([s for lane in alive for s in (lane.process.sentinel, lane.output)], 0.2)
                for lane in alive:
                    for _ in lane.lines():
                        pass  # read the pipe, so that the lane does not block on a full pipe
        except KeyboardInterrupt:
            self._watch.say("Forced stop.")
            raise
        finally:
            with signals_blocked():
                for lane in self._lanes:
                    lane.process.kill()  # kill all lanes, before a second signal can interrupt
                for lane in self._lanes:
                    lane.close()
                self._lanes.clear()

    def _silent(self, runs: deque[Run]) -> Iterator[tuple[Run, Outcome]]:
        """End the lanes that have sent no report for too long; yield their runs, which count as hung."""
        bind_s = max(self._timeout or 0, _BIND_S)
        for lane in self.busy:
            quiet_s = time.monotonic() - lane.heard
            if lane.is_binding and not lane.is_ready and quiet_s > bind_s:
                lane.kill()
                self._probe_failed(lane, f"no answer for {bind_s:g} s", runs)
                self._remove(lane)
            elif lane.is_ready and self._timeout is not None and quiet_s > self._timeout:
                lane.show_stacks()
                lane.kill()
                outcome = hung(self._timeout, lane.news, lane.log())
                run = self._free(lane)
                self._remove(lane)
                yield run, outcome

    def _lane(self, device: str, number: int) -> Lane:
        """Return an idle lane of a device, or create one; each other device keeps at most one idle lane."""
        idle = [lane for lane in self._lanes if lane.run is None and not lane.is_spent]
        for lane in idle:
            if lane.device == device:
                return lane
        by_device = {lane.device: lane for lane in idle}
        spare = [lane for lane in idle if lane is not by_device[lane.device]]
        if spare and len(self._lanes) >= self._num_lanes:
            self._remove(spare[0])
        with signals_blocked():  # signals must wait, so that `end` knows every process
            self._lanes.append(Lane(number, device, self._context, self._task, self._num_lanes))
        return self._lanes[-1]

    def _send(self, lane: Lane) -> None:
        if lane.is_ready and lane.run is not None:
            self._watch.run_started(lane.run, lane.number, lane.device)
            lane.send()

    def _hear(self, lane: Lane, runs: deque[Run]) -> Iterator[tuple[Run, Outcome]]:
        has_ended = not lane.process.is_alive()  # check before the read: no message comes after the last read
        for message in lane.messages():
            lane.heard = time.monotonic()
            match message:
                case Binding() | Ready():
                    self._came_nearer(lane, is_ready=isinstance(message, Ready))
                case EpochRecord() | BatchProgress() | Question() if lane.run is not None:
                    self._pass_on(lane, lane.run, message)
                case Outcome() if lane.run is not None:
                    self._print(lane)
                    # an error may leave an accelerator in a bad state, until the process ends
                    lane.is_spent |= lane.device != "cpu" and message.status.is_exception
                    yield self._free(lane), message
                case Refused(why):
                    raise GridError([f"train() cannot be loaded by a worker process: {why}"])
                case Raised(error):
                    raise serialize.load_dumped(error)
                case Lost(why, is_full):
                    self._probe_failed(lane, why, runs, is_full=is_full)
        self._print(lane)
        if has_ended or (lane.is_spent and lane.run is None):
            if lane.run is not None:
                log = lane.log()
                status, cause = self._deaths.explain(
                    lane.process.exitcode,
                    whereabouts(lane.news) if lane.is_ready else " before it began",
                    log,
                )
                yield self._free(lane), uncommitted(status, cause, log=log)
            self._remove(lane)

    def _pass_on(self, lane: Lane, run: Run, news: News) -> None:
        """Pass a report of a run to the watch; if it is a question, send the answer to the run."""
        lane.news = news.record if isinstance(news, Question) else news
        answer = self._watch.run_progressed(run, news)
        if isinstance(news, Question):
            lane.answer(answer or "")

    def _came_nearer(self, lane: Lane, *, is_ready: bool) -> None:
        """Record that a lane waits for its device, or is ready for its run."""
        lane.is_binding, lane.is_ready = lane.device != "cpu", is_ready
        if is_ready:
            self._failed_probes.pop(lane.device, None)
            self._send(lane)

    def _print(self, lane: Lane) -> None:
        for line in lane.lines():
            if line.strip():
                self._watch.say(f"[lane {lane.number}] {line}" if self._num_lanes > 1 else line)

    def _free(self, lane: Lane) -> Run:
        run, lane.run = lane.run, None
        assert run is not None
        self._placement.give_back(lane.device)
        if lane.is_ready:
            self._pauses.pop(lane.device, None)  # the device may have free memory now
        return run

    def _remove(self, lane: Lane) -> None:
        """End an idle lane, and remove it."""
        assert lane.run is None
        with suppress(OSError):
            lane.connection.send(None)
        lane.process.join(_PATIENCE_S)
        with signals_blocked():
            self._lanes.remove(lane)
            if not lane.close():
                self._give_up(lane.device, f"stopped answering (process {lane.process.pid} cannot be ended)")

    def _probe_failed(self, lane: Lane, why: str, runs: deque[Run], *, is_full: bool = False) -> None:
        """Requeue the run of a lane that could not bind its device, and pause the device."""
        runs.appendleft(self._free(lane))
        lane.is_spent = True
        device = lane.device
        pause_s = _PAUSE_S
        if not any(other.device == device for other in self.busy):  # else a run of this grid may fill it
            failed = self._failed_probes[device] = self._failed_probes.get(device, 0) + 1
            pause_s = min(_PAUSE_S * 2 ** (failed - 1), _LONGEST_PAUSE_S)
            if failed >= (_MOST_PROBES_OF_FULL if is_full else _MOST_PROBES):
                self._give_up(device, f"{'is full' if is_full else 'stopped answering'} ({why})")
            elif is_full and failed == 1:
                self._watch.say(f"! {device} is full ({why}): its runs wait for memory")
        self._pauses[device] = time.monotonic() + pause_s

    def _give_up(self, device: str, why: str) -> None:
        if device not in self._placement.lost:
            self._placement.lost[device] = f"{device} {why}"
            self._watch.say(f"! {device} {why}: no further run is executed on it")
