"""The executor "lanes": warm worker processes of this machine, each bound to one device."""

import multiprocessing
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection as connections
from pathlib import Path
from typing import Any

from runmanager.core.contracts import Executor, Task, Watch, uncommitted
from runmanager.core.outcome import BatchProgress, EpochRecord, Outcome, Question, Status
from runmanager.core.run import Run, device_of
from runmanager.executors import serialize
from runmanager.executors.deaths import Deaths, hung, whereabouts
from runmanager.executors.hidden import is_imported_by_torch
from runmanager.executors.lane import Lane, without_main
from runmanager.executors.placement import Placement
from runmanager.executors.signals import signals_blocked
from runmanager.executors.worker import Lost, Message, Raised, Stage

_PRELOADED = [
    "runmanager.executors.forkserver_preload",
    "runmanager.front.manager",
    "runmanager.tensorboard.run_log",
    "torch._dynamo",  # torch imports this module when the first optimizer is created
]
_TICK_S = 1.0
_PATIENCE_S = 5.0  # grace period before a lane is killed
_MOST_PROBES, _MOST_PROBES_OF_FULL = 2, 8  # of a failed device, of one filled by other processes
_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 60.0  # time before the next probe, doubled after each probe
_BIND_S = 120.0  # timeout for a lane to bind its device


class LanesExecutor(Executor):
    """Execute runs in worker processes that stay warm from run to run.

    A process whose run fails, hangs or dies is replaced, and affects only its run. ``cuda`` in a run stands for
    any free CUDA device, ``cuda:1`` for the device with this index; runs on the cpu share the cores.

    Args:
        jobs: The maximum number of concurrent runs; "auto": as many as the devices allow.
        runs_per_device: The maximum number of runs that share an accelerator.
        timeout: Seconds without a batch or an epoch after which a run counts as hung; None for no limit.

    Raises:
        InvalidArgumentError: An argument is invalid; the message lists all problems.

    Example:
        >>> from runmanager import RunBuilder
        >>> executor = LanesExecutor(jobs=2, timeout=60)  # for run_grid(..., executor=executor)
        >>> executor.num_lanes(RunBuilder.get_runs({"device": ["cpu"]}))
        1
    """

    def __init__(self, *, jobs: int | str = 1, runs_per_device: int = 1, timeout: float | None = None) -> None:
        super().__init__(jobs=jobs, runs_per_device=runs_per_device, timeout=timeout)
        self._context = multiprocessing.get_context(_start_method())
        self._most_lanes = 1  # number of lanes for the whole grid, which share the cores

    def num_lanes(self, runs: Sequence[Run]) -> int:
        """Return the maximum number of concurrent runs."""
        num_lanes = self._placement().reachable(map(device_of, runs))
        self._most_lanes = max(self._most_lanes, num_lanes)
        return num_lanes

    def prepare(self, train: Callable[..., object], folder: Path) -> None:
        """Import torch in the ancestor process that lanes are forked from; check that `train` can be sent."""
        self._most_lanes = 1
        if is_imported_by_torch():  # else the ancestors of lanes would start each other
            raise ImportError("torch imports this script")
        _preload(self._context)
        serialize.dump(train)

    def execute(self, runs: deque[Run], task: Task, watch: Watch) -> Generator[tuple[Run, Outcome]]:
        """Execute the runs; yield each run with its outcome when the run ends."""
        _preload(self._context)
        self.num_lanes(runs)
        sent = serialize.dump(task)
        pool = _Pool(self._context, sent, self._placement(), self._most_lanes, watch, self._timeout)
        try:
            while runs or pool.busy:
                yield from pool.begin(runs)
                yield from pool.wait(runs)
        except KeyboardInterrupt:
            watch.stopping()
            raise
        finally:
            pool.end()

    def _placement(self) -> Placement:
        from runmanager.devices import torch_devices

        devices, cores = torch_devices.available_devices(), torch_devices.num_cores()
        return Placement(self._jobs, self._runs_per_device, devices, cores)


def fresh_process(target: Callable[..., object], *arguments: object) -> Any:
    """Return a started process that has imported torch and nothing of the user's."""
    context: Any = multiprocessing.get_context(_start_method())
    _preload(context)
    process = context.Process(target=target, args=arguments)
    with without_main():
        process.start()
    return process


@dataclass(eq=False)
class _Pool:
    """The lanes of a grid: assigns runs to lanes, and replaces lanes that die, hang or lose their device."""

    _context: Any
    _task: bytes
    _placement: Placement
    _num_lanes: int
    _watch: Watch
    _timeout: float | None
    _lanes: list[Lane] = field(default_factory=list)
    _failed_probes: dict[str, int] = field(default_factory=dict)
    _pauses: dict[str, float] = field(default_factory=dict)  # device -> end of its pause (time.monotonic)
    _deaths: Deaths = field(default_factory=Deaths)

    @property
    def busy(self) -> list[Lane]:
        """The lanes that are executing a run."""
        return [lane for lane in self._lanes if lane.run is not None]

    def begin(self, runs: deque[Run]) -> Iterator[tuple[Run, Outcome]]:
        """Assign runs to lanes while devices are free; yield runs that can never get a device."""
        waiting: list[Run] = []
        now = time.monotonic()
        resting = [device for device, until in self._pauses.items() if until > now]
        while runs and len(busy := self.busy) < self._placement.most:
            run = runs.popleft()
            taken = [lane.device for lane in busy]
            why = self._placement.why_never(device_of(run))
            if why:
                yield run, uncommitted(Status.UNAVAILABLE, why)
            elif (device := self._placement.free_device(device_of(run), taken, resting)) is None:
                waiting.append(run)
            else:
                number = min({*range(len(busy) + 1)} - {lane.number for lane in busy})
                lane = self._lane(device, number)
                lane.begin(run, number)
                if lane.is_ready:
                    self._send(lane, run)
        runs.extendleft(reversed(waiting))

    def wait(self, runs: deque[Run]) -> Iterator[tuple[Run, Outcome]]:
        """Wait for an event or a tick; yield the runs that have ended."""
        sources: dict[Any, Lane] = {}
        for lane in self._lanes:
            for source in (lane.connection, lane.output, lane.process.sentinel):
                sources[source] = lane
        before = time.monotonic()
        ready = connections.wait(list(sources), _TICK_S)
        for lane in self._lanes:  # as long as all processes were stopped, no lane could report
            lane.heard += max(0.0, time.monotonic() - before - 2 * _TICK_S)
        for lane in dict.fromkeys(sources[source] for source in ready):
            yield from self._hear(lane, runs)
        bind_s = max(self._timeout or 0, _BIND_S)
        for lane in self.busy:  # after all reports: a busy parent must not blame runs
            quiet_s = time.monotonic() - lane.heard
            if lane.is_binding and quiet_s > bind_s:
                lane.kill()
                self._probe_failed(lane, f"no answer for {bind_s:g} s", runs)
                self._remove(lane)
            elif lane.is_ready and self._timeout is not None and quiet_s > self._timeout:
                lane.show_stacks()
                lane.kill()
                outcome = hung(self._timeout, lane.news, self._log(lane))
                run = self._free(lane)
                self._remove(lane)
                yield run, outcome

    def end(self) -> None:
        """End all lanes: stop their runs, and kill lanes that do not end within seconds."""
        try:
            for lane in self._lanes:
                if lane.run is None:
                    lane.send(None)
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

    def _lane(self, device: str, number: int) -> Lane:
        """Return an idle lane of a device, or create one; each other device keeps at most one idle lane."""
        kept: set[str] = set()
        spare: list[Lane] = []
        for lane in reversed(self._lanes):
            if lane.run is not None or lane.is_spent:
                continue
            if lane.device == device:
                return lane
            if lane.device in kept:
                spare.append(lane)
            kept.add(lane.device)
        if spare and len(self._lanes) >= self._num_lanes:
            self._remove(spare[-1])
        with signals_blocked():  # signals must wait, so that `end` ends every process
            self._lanes.append(Lane(number, device, self._context, self._task, self._num_lanes))
        return self._lanes[-1]

    def _send(self, lane: Lane, run: Run) -> None:
        self._watch.run_started(run, lane.number, lane.device)
        lane.send(serialize.dump(run))  # the classes of values may be in the user's script

    def _hear(self, lane: Lane, runs: deque[Run]) -> Iterator[tuple[Run, Outcome]]:
        has_ended = not lane.process.is_alive()  # check before the read: no message comes after the last read
        for message in lane.messages():
            lane.heard = time.monotonic()
            if isinstance(message, Outcome) and lane.run is not None:
                self._print(lane, is_ended=True)
                yield self._free(lane), message
            else:
                self._follow(lane, message, runs)
        self._print(lane, is_ended=has_ended)
        if has_ended or (lane.is_spent and lane.run is None):
            if lane.run is not None:
                where, log = whereabouts(lane.news) if lane.is_ready else " before it began", self._log(lane)
                status, cause = self._deaths.explain(lane.process.exitcode, where, log)
                yield self._free(lane), uncommitted(status, cause, log=log)
            self._remove(lane)

    def _follow(self, lane: Lane, message: Message, runs: deque[Run]) -> None:
        match message:
            case Stage.BINDING:
                lane.is_binding = lane.device != "cpu"
            case Stage.READY:
                lane.is_binding, lane.is_ready = False, True
                self._failed_probes.pop(lane.device, None)
                if lane.run is not None:
                    self._send(lane, lane.run)
            case Stage.SPENT:
                lane.is_spent = True
            case EpochRecord() | BatchProgress() if lane.run is not None:
                lane.news = message
                self._watch.run_progressed(lane.run, message)
            case Question(record) if lane.run is not None:
                lane.news = record
                lane.send(self._watch.run_progressed(lane.run, message) or "")
            case Raised(error):
                raise serialize.load_dumped(error)
            case Lost(why, is_full):
                self._probe_failed(lane, why, runs, is_full=is_full)

    def _print(self, lane: Lane, *, is_ended: bool) -> None:
        for line in filter(str.strip, lane.lines(is_ended=is_ended)):
            if lane.run is None:
                self._watch.say(line)
            else:
                self._watch.run_printed(lane.run, line)

    def _log(self, lane: Lane) -> str:
        """Return the last output of a lane's run, and the stacks of its threads."""
        assert lane.run is not None
        return f"{self._watch.last_output(lane.run)}\n{lane.stacks()}".strip()

    def _free(self, lane: Lane) -> Run:
        run, lane.run = lane.run, None
        assert run is not None
        if lane.is_ready:
            self._pauses.pop(lane.device, None)  # the device may have free memory now
        return run

    def _remove(self, lane: Lane) -> None:
        """End an idle lane, and remove it."""
        assert lane.run is None
        lane.send(None)
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


def _preload(context: Any) -> None:
    """Start the common ancestor of all lanes, which imports torch once."""
    if context.get_start_method() == "forkserver":
        from multiprocessing import forkserver, resource_tracker

        resource_tracker.ensure_running()  # else a lane would start the tracker, without blocked signals
        forkserver.set_forkserver_preload(_PRELOADED)
        with signals_blocked(), without_main():
            forkserver.ensure_running()


def _start_method() -> str:
    methods = multiprocessing.get_all_start_methods()
    return "forkserver" if "forkserver" in methods and sys.platform != "darwin" else "spawn"
