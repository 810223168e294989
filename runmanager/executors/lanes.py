"""Runs in warm worker processes of this machine, each bound to one device."""

import multiprocessing
import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from multiprocessing import connection as connections
from pathlib import Path
from typing import Any

from runmanager.errors import GridError
from runmanager.executors import sending
from runmanager.executors.base import Executor, Step, Watch, Work, uncommitted
from runmanager.executors.placing import Placing
from runmanager.executors.starting import signals_wait, without_main
from runmanager.grid import Run, device_of
from runmanager.storage.journal import EpochRecord, Outcome, Status

_PRELOADED = [
    "runmanager.executors.worker",
    "runmanager.manager",
    "runmanager.board.contents",
    "torch._dynamo",  # which torch imports when the first optimizer is made
]
_TICK_S = 1.0
_PATIENCE_S = 5.0  # until a lane that is asked to end is killed
_MOST_PROBES = 2  # of a device that does not answer
_LONGEST_LINE = 1 << 16  # bytes, from where on it is broken
_MOST_READ = 1 << 20  # bytes at a time
_MOST_LINES = 1000  # of a run's last words
_GIB = 2**30
_HARMLESS = (Status.COMPLETED, Status.DIVERGED)


class LanesExecutor(Executor):
    """Execute runs in worker processes that stay warm from run to run.

    A process that dies, hangs, or meets an error of its device harms only its run, and is replaced. ``cuda`` in
    a run means any CUDA device that is free, ``cuda:1`` that one; runs on the cpu share the cores.
    """

    def __init__(self, *, jobs: int | str = 1, runs_per_device: int = 1, timeout: float | None = None) -> None:
        super().__init__(jobs=jobs, runs_per_device=runs_per_device, timeout=timeout)
        self._context = multiprocessing.get_context(_start_method())

    def num_lanes(self, runs: Sequence[Run]) -> int:
        """Return how many of the runs are executed at the same time, at most."""
        return self._placing().reachable([device_of(run) for run in runs])

    def check(self, train: Callable[..., object]) -> None:
        """Make sure that the workers can get a training function; their common ancestor begins to import torch.

        Raises:
            GridError: They cannot; the message names what cannot be sent.
        """
        self._preload()
        sending.dump(train)

    def execute(self, runs: deque[Run], work: Work, watch: Watch) -> Generator[tuple[Run, Outcome]]:
        """Execute the runs and yield each with its outcome as it ends."""
        self._preload()
        placing = self._placing()
        num_lanes = placing.reachable([device_of(run) for run in runs])
        pool = _Pool(self._context, sending.dump(work), placing, num_lanes, watch, self._timeout)
        try:
            while runs or pool.busy:
                yield from pool.begin(runs)
                yield from pool.wait(runs)
        except KeyboardInterrupt:
            watch.stopping()
            raise
        finally:
            pool.end()

    def _preload(self) -> None:
        """Start the process that all lanes are forked from, which imports torch once for all of them."""
        if self._context.get_start_method() == "forkserver":
            from multiprocessing import forkserver, resource_tracker

            resource_tracker.ensure_running()  # or the next would do it, and let signals in
            forkserver.set_forkserver_preload(_PRELOADED)
            with signals_wait(), without_main():
                forkserver.ensure_running()

    def _placing(self) -> Placing:
        from runmanager import devices

        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return Placing(self._jobs, self._runs_per_device, devices.available_devices(), cores)


class _Lane:
    """One worker process, as its parent sees it.

    Attributes:
        number: From 0.
        device: What it is bound to.
        run: What it executes, None if it waits for work.
        is_ready: Whether its device is warm.
        is_spent: Whether it gets no more runs: its device met an error, or does not answer.
        news: The last that was heard of its run.
        quiet_s: For how long nothing was heard, in seconds in which this process was awake.
        memory: The most memory (bytes) it was seen to have.
    """

    def __init__(self, number: int, device: str, context: Any, work: bytes, num_lanes: int) -> None:
        from runmanager.executors import worker

        self.number = number
        self.device = device
        self.run: Run | None = None
        self.is_ready = False
        self.is_spent = False
        self.news: EpochRecord | Step | None = None
        self.quiet_s = 0.0
        self.memory = 0
        self._said = b""
        self._log: deque[str] = deque(maxlen=_MOST_LINES)
        self.connection, its_connection = context.Pipe()
        self.output: Any
        self.output, its_output = context.Pipe(duplex=False) if os.name == "posix" else (None, None)
        self.faults, its_faults = context.Pipe(duplex=False)
        place = worker.Place(device, num_lanes, multiprocessing.get_start_method())
        arguments = (its_connection, its_output, its_faults, place, work)
        self.process = context.Process(target=worker.main, args=arguments, name=f"lane {number}: {device}")
        with signals_wait(), without_main():
            self.process.start()
        for end in (its_connection, its_output, its_faults):
            if end is not None:
                end.close()

    def begin(self, run: Run) -> None:
        """Take a run; it is sent once the lane is ready."""
        self.run, self.news, self.quiet_s = run, None, 0.0
        self._log.clear()

    def send(self) -> None:
        """Send the run. A lane that has died meanwhile is noticed by its end."""
        with suppress(OSError):
            self.connection.send(self.run)

    def messages(self) -> Iterator[tuple[str, Any]]:
        """Yield what has come, without waiting."""
        with suppress(EOFError, OSError):
            while self.connection.poll():
                yield self.connection.recv()

    def lines(self) -> Iterator[str]:
        """Yield the lines that have been printed, without waiting."""
        *lines, self._said = (self._said + _pending(self.output)).split(b"\n")
        if len(self._said) > _LONGEST_LINE:
            lines, self._said = [*lines, self._said], b""
        for line in lines:
            text = line.decode("utf-8", "replace").rpartition("\r")[2]
            self._log.append(text)
            yield text

    def log(self) -> str:
        """Return the last words of the run: what it printed, and where its threads were if that is known."""
        stacks = _pending(self.faults).decode("utf-8", "replace")
        return "\n".join([*self._log, self._said.decode("utf-8", "replace"), stacks]).strip()

    def measure(self) -> None:
        """Look how much memory the process has had: once it is dead nobody knows."""
        with suppress(OSError, ValueError, StopIteration):
            status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines()
            peak = next(line for line in status if line.startswith("VmHWM"))
            self.memory = int(peak.split()[1]) * 1024

    def show_stacks(self) -> None:
        """Ask the process for the stacks of its threads."""
        if hasattr(signal, "SIGUSR1") and self.process.is_alive():
            os.kill(self.process.pid, signal.SIGUSR1)
            if self.faults.poll(1.0):
                time.sleep(0.1)  # until all are written

    def kill(self) -> None:
        """End the process and those that it started, at once."""
        self.process.kill()
        self.process.join()
        if hasattr(os, "killpg") and self.process.pid:
            with suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Forget a process that has ended."""
        self.kill()
        for end in (self.connection, self.output, self.faults):
            if end is not None:
                end.close()
        self.process.close()


class _Pool:
    """The lanes of a grid."""

    def __init__(
        self, context: Any, work: bytes, placing: Placing, num_lanes: int, watch: Watch, timeout: float | None
    ) -> None:
        self._context = context
        self._work = work
        self._placing = placing
        self._num_lanes = num_lanes
        self._watch = watch
        self._timeout = timeout
        self._lanes: list[_Lane] = []
        self._failed_probes: dict[str, int] = {}
        self._num_oom_kills = _num_oom_kills()
        self._looked = time.monotonic()
        self._since_measured = 0.0

    @property
    def busy(self) -> list[_Lane]:
        """The lanes that execute something."""
        return [lane for lane in self._lanes if lane.run is not None]

    def begin(self, runs: deque[Run]) -> Iterator[tuple[Run, Outcome]]:
        """Give runs to lanes as long as there are places; yield those that can never get one."""
        waiting: list[Run] = []
        while runs and len(self.busy) < self._placing.most:
            run = runs.popleft()
            wanted = device_of(run)
            why = self._placing.why_never(wanted)
            if why:
                yield run, uncommitted(Status.UNAVAILABLE, why)
            elif (device := self._placing.take(wanted)) is None:
                waiting.append(run)
            else:
                lane = self._lane(device)
                lane.begin(run)
                self._send(lane)
        runs.extendleft(reversed(waiting))

    def wait(self, runs: deque[Run]) -> Iterator[tuple[Run, Outcome]]:
        """Wait until something happens, or a tick; yield the runs that have ended."""
        sources: dict[Any, _Lane] = {}
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
        for lane in {id(sources[source]): sources[source] for source in ready}.values():
            yield from self._hear(lane, runs)
        self._since_measured += awake_s
        is_measured = self._since_measured >= _TICK_S
        if is_measured:
            self._since_measured = 0.0
        for lane in self.busy:
            if is_measured:
                lane.measure()
            if self._timeout is not None and lane.quiet_s > self._timeout:
                yield self._hung(lane)

    def end(self) -> None:
        """End all lanes: those that execute something stop, and those that do not within seconds are killed."""
        try:
            for lane in self._lanes:
                if lane.run is None:
                    with suppress(OSError):
                        lane.connection.send(None)
                else:
                    lane.process.terminate()
            until = time.monotonic() + _PATIENCE_S
            while self._lanes and time.monotonic() < until:
                waited = [lane for lane in self._lanes if lane.process.is_alive()]
                if not waited:
                    break
                connections.wait([s for lane in waited for s in (lane.process.sentinel, lane.output) if s], 0.2)
                for lane in waited:
                    for _ in lane.lines():
                        pass  # so that it does not wait for a reader
        except KeyboardInterrupt:
            self._watch.say("Forced stop.")
            raise
        finally:
            with signals_wait():
                for lane in self._lanes:
                    lane.close()
                self._lanes.clear()

    def _lane(self, device: str) -> _Lane:
        """Return an idle lane of a device, or make one in the place of an idle one of another."""
        idle = [lane for lane in self._lanes if lane.run is None and not lane.is_spent]
        for lane in idle:
            if lane.device == device:
                return lane
        if idle and len(self._lanes) >= self._num_lanes:
            self._remove(idle[0])
        numbers = {lane.number for lane in self._lanes}
        number = next(number for number in range(len(numbers) + 1) if number not in numbers)
        self._lanes.append(_Lane(number, device, self._context, self._work, self._num_lanes))
        return self._lanes[-1]

    def _send(self, lane: _Lane) -> None:
        if lane.is_ready and lane.run is not None:
            self._watch.run_started(lane.run, lane.number, lane.device)
            lane.send()

    def _hear(self, lane: _Lane, runs: deque[Run]) -> Iterator[tuple[Run, Outcome]]:
        has_ended = not lane.process.is_alive()  # first, so that no message comes after the last look
        for kind, content in lane.messages():
            lane.quiet_s = 0.0
            match kind:
                case "ready":
                    lane.is_ready = True
                    self._failed_probes.pop(lane.device, None)
                    self._send(lane)
                case "news" if lane.run is not None:
                    lane.news = content
                    self._watch.run_progressed(lane.run, content)
                case "ended" if lane.run is not None:
                    self._print(lane)
                    # what an error has left on an accelerator goes with the process
                    lane.is_spent = lane.device != "cpu" and content.status not in _HARMLESS
                    yield self._free(lane), content
                case "raised":
                    raise content
                case "refused":
                    raise GridError([f"train() cannot be loaded by a worker process: {content}"])
                case "lost":
                    self._probe_failed(lane, content, runs)
        self._print(lane)
        if has_ended or (lane.is_spent and lane.run is None):
            if lane.run is not None:
                yield self._died(lane)
            self._remove(lane)

    def _print(self, lane: _Lane) -> None:
        for line in lane.lines():
            if line.strip():
                self._watch.say(f"[lane {lane.number}] {line}" if self._num_lanes > 1 else line)

    def _free(self, lane: _Lane) -> Run:
        run, lane.run = lane.run, None
        assert run is not None
        self._placing.give_back(lane.device)
        return run

    def _remove(self, lane: _Lane) -> None:
        """Let a lane without a run end, and forget it."""
        assert lane.run is None
        with suppress(OSError):
            lane.connection.send(None)
        lane.process.join(_PATIENCE_S)
        self._lanes.remove(lane)
        lane.close()

    def _probe_failed(self, lane: _Lane, why: str, runs: deque[Run]) -> None:
        runs.appendleft(self._free(lane))
        lane.is_spent = True
        failed = self._failed_probes[lane.device] = self._failed_probes.get(lane.device, 0) + 1
        if failed >= _MOST_PROBES:
            self._placing.lost[lane.device] = f"{lane.device} stopped answering ({why})"
            self._watch.say(f"! {lane.device} stopped answering ({why}): it gets no more runs")

    def _died(self, lane: _Lane) -> tuple[Run, Outcome]:
        code = lane.process.exitcode
        where = _where(lane.news) if lane.is_ready else " before it began"
        out_of_memory = code == -signal.SIGKILL and _num_oom_kills() > self._num_oom_kills
        self._num_oom_kills = _num_oom_kills()
        status = Status.OUT_OF_MEMORY if out_of_memory else Status.KILLED
        if code is None or code >= 0:
            cause = f"its process ended itself with exit code {code}{where}"
        elif code == -signal.SIGKILL:
            who = "the system ran out of memory and killed" if out_of_memory else "somebody killed"
            often = "" if out_of_memory else ": often the system ran out of memory"
            cause = f"{who} its process (signal 9){where}{often}{_peak(lane.memory)}"
        else:
            cause = f"its process crashed ({_signal_name(-code)}){where}"
        return self._free(lane), uncommitted(status, cause, log=lane.log())

    def _hung(self, lane: _Lane) -> tuple[Run, Outcome]:
        lane.show_stacks()
        lane.kill()
        cause = f"no progress for {self._timeout:g} s{_where(lane.news)}, so it was stopped"
        outcome = uncommitted(Status.HUNG, cause, log=lane.log())
        run = self._free(lane)
        self._remove(lane)
        return run, outcome


def _start_method() -> str:
    methods = multiprocessing.get_all_start_methods()
    return "forkserver" if "forkserver" in methods and sys.platform != "darwin" else "spawn"


def _where(news: EpochRecord | Step | None) -> str:
    match news:
        case Step(epoch, step):
            return f" in epoch {epoch}, step {step}"
        case EpochRecord(epoch=epoch):
            return f" after epoch {epoch}"
    return ""


def _peak(memory: int) -> str:
    if not memory:
        return ""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f" (it had {memory / _GIB:.1f} of {total / _GIB:.1f} GiB)"


def _num_oom_kills() -> int:
    """Count the processes that Linux has killed because memory ran out, 0 elsewhere."""
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("oom_kill ")).split()[1])
    return 0


def _signal_name(number: int) -> str:
    names = {signal.SIGSEGV: "segmentation fault", signal.SIGABRT: "aborted", signal.SIGFPE: "arithmetic error"}
    with suppress(ValueError):
        known = signal.Signals(number)
        return f"{names.get(known, known.name)}, signal {number}"
    return f"signal {number}"


def _pending(source: Any) -> bytes:
    """Read what is in a pipe, without waiting."""
    content = b""
    if source is None or os.name != "posix":
        return content
    while (
        len(content) < _MOST_READ
        and select.select([source], [], [], 0)[0]
        and (part := os.read(source.fileno(), 1 << 16))
    ):
        content += part
    return content
