"""The executor "lanes": warm worker processes of this machine, each bound to one device."""

import multiprocessing
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from runmanager.core.outcome import Outcome
from runmanager.core.run import Run, device_of
from runmanager.executors import serialize
from runmanager.executors.base import Executor, Task, Watch
from runmanager.executors.placement import Placement
from runmanager.executors.pool import Pool
from runmanager.executors.process_start import signals_blocked, without_main

_PRELOADED = [
    "runmanager.executors.forkserver_preload",
    "runmanager.front.manager",
    "runmanager.tensorboard.run_log",
    "torch._dynamo",  # torch imports this module when the first optimizer is created
]


class LanesExecutor(Executor):
    """Execute runs in worker processes that stay warm from run to run.

    A process that dies, hangs, or gets a device error affects only its run, and is replaced. ``cuda`` in a run
    stands for any free CUDA device, ``cuda:1`` for the device with this index; runs on the cpu share the cores.

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
        num_lanes = self._placement().reachable([device_of(run) for run in runs])
        self._most_lanes = max(self._most_lanes, num_lanes)
        return num_lanes

    def prepare(self, train: Callable[..., object], folder: Path) -> None:
        """Import torch in the ancestor process that lanes are forked from; check that `train` can be sent.

        Raises:
            GridError: `train` cannot be sent; the message has the reason.
        """
        self._most_lanes = 1
        _preload(self._context)
        serialize.dump(train)

    def execute(self, runs: deque[Run], task: Task, watch: Watch) -> Generator[tuple[Run, Outcome]]:
        """Execute the runs; yield each run with its outcome when the run ends."""
        _preload(self._context)
        # the tables of the grid need pandas: import it here, while the ancestor may still import torch
        from runmanager.tables import columns as tables  # noqa: F401

        placement = self._placement()
        self.num_lanes(runs)
        pool = Pool(self._context, serialize.dump(task), placement, self._most_lanes, watch, self._timeout)
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
    """Return a process that has imported torch and nothing of the user's, to be started and joined."""
    context: Any = multiprocessing.get_context(_start_method())
    _preload(context)
    return context.Process(target=target, args=arguments)


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
