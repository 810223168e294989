"""The executor "ray": runs on a Ray cluster."""

import contextlib
import importlib.util
import logging
import math
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.core.contracts import Executor, Task, Watch
from runmanager.core.outcome import Outcome
from runmanager.core.run import Run
from runmanager.errors import DeviceError, GridError, InvalidArgumentError, MissingExtraError
from runmanager.executors.serialize import dump
from runmanager.executors.signals import signals_wait

if TYPE_CHECKING:
    from runmanager.executors.ray_runs import Node

_ANSWER_S = 3  # timeout for a cluster: ray.init() would wait for 40 s and then end the process

_in_use = threading.Lock()  # a process has one connection to Ray

Needs = Mapping[str, float]
"""Name of a Ray resource -> amount."""


class RayExecutor(Executor):
    """Execute runs on a `Ray <https://docs.ray.io>`_ cluster; Ray chooses the node and device of each run.

    A run whose node is lost resumes on another node after its last committed epoch. The experiment's folder
    must be on storage shared by all nodes.

    Args:
        address: "auto" for the cluster of this machine, or host:port. None uses the current connection of this
            process, or else starts a cluster on this machine, which ends with the grid.
        jobs: The maximum number of concurrent runs; "auto": as many as the cluster allows.
        runs_per_device: The maximum number of runs that share a GPU.
        timeout: Seconds without progress after which a run counts as hung; None for no limit.
        resources: Device -> Ray resources that a run on this device needs. The defaults are ``{"CPU": 1}`` for
            "cpu" and ``{"GPU": 1 / runs_per_device}`` for "cuda".

    Raises:
        InvalidArgumentError: An argument cannot be used.
        MissingExtraError: ray is not installed.

    Example:
        >>> from runmanager import run_grid
        >>> def train(run, manager):
        ...     with manager.run(run):
        ...         for epoch in manager.epochs(1):
        ...             manager.track_loss(run.lr, 1)
        >>> executor = RayExecutor(jobs=2, resources={"cpu": {"CPU": 0.5}})  # starts a cluster on this machine
        >>> outcome = run_grid({"lr": [0.1]}, train, experiment="on_ray", executor=executor, display=False)
        >>> outcome.exit_code
        0
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        jobs: int | str = 1,
        runs_per_device: int = 1,
        timeout: float | None = None,
        resources: Mapping[str, Needs] | None = None,
    ) -> None:
        super().__init__(jobs=jobs, runs_per_device=runs_per_device, timeout=timeout)
        if importlib.util.find_spec("ray") is None:
            raise MissingExtraError("RayExecutor needs ray: pip install 'torch-runmanager[ray]'")
        gpu = math.floor(1e4 / runs_per_device) / 1e4  # Ray's precision is 1e-4
        self._needs: dict[str, Needs] = {"cpu": {"CPU": 1}, "meta": {"CPU": 1}, "cuda": {"GPU": gpu}}
        self._needs.update(resources or {})
        self._address = address
        self._nodes: list[Node] | None = None
        self._folder = Path()

    def prepare(self, train: Callable[..., object], folder: Path) -> None:
        """Check that `train` can be sent and no other grid uses Ray; store the folder that nodes must share."""
        if _in_use.locked():
            raise DeviceError("another grid of this process uses Ray: wait for its end, or use another process")
        dump(train)
        self._folder = folder.absolute()

    def num_lanes(self, runs: Sequence[Run]) -> int:
        """Return the maximum number of concurrent runs."""
        if isinstance(self._jobs, int):
            return max(1, min(self._jobs, len(runs)))
        rooms = (node.room_for(needs) for node in self._cluster_nodes() for needs in self._needs.values())
        return max(1, min(sum(rooms), len(runs)))

    def missing(self, device: str) -> str:
        """Return the reason why a run on this device cannot be executed, "" if it can."""
        kind, colon, _ = device.partition(":")
        needs = self._needs.get(device)
        if needs is None and colon:
            raise GridError(f"Ray chooses which {kind} device a run gets, got {device!r}: write {kind!r}")
        if needs is None:
            return f"unknown device {device!r}: map it with RayExecutor(resources={{{device!r}: ...}})"
        if any(node.room_for(needs) for node in self._cluster_nodes()):
            return ""
        there = "; ".join(f"{node.name}: {_listed(node.resources)}" for node in self._cluster_nodes())
        return f"device {device!r} is not there: no node of the Ray cluster has {_listed(needs)} ({there})"

    def execute(self, runs: deque[Run], task: Task, watch: Watch) -> Generator[tuple[Run, Outcome]]:
        """Execute the runs, and yield each run with its outcome."""
        if not runs:
            return
        sent = dump(task)
        with _in_use, connected(self._address):
            from runmanager.executors.ray_runs import RayRuns

            share = self._jobs if isinstance(self._jobs, int) else None
            execution = RayRuns(runs, watch, sent, self._needs, share, self._timeout, self._folder)
            try:
                yield from execution.outcomes()
            except KeyboardInterrupt:
                watch.stopping()
                raise
            finally:
                execution.stop()

    def _cluster_nodes(self) -> "list[Node]":
        if self._nodes is None:
            import ray

            from runmanager.executors.ray_runs import Node, living_nodes

            if self._address is None and not ray.is_initialized():
                import torch

                resources = {"CPU": os.cpu_count() or 1, "GPU": torch.cuda.device_count()}  # as Ray counts them
                self._nodes = [Node("this machine", resources)]
            else:
                with _in_use, connected(self._address):
                    self._nodes = living_nodes()
        return self._nodes


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect this process to the cluster at "auto" or host:port during a block.

    Ray's start and end change nothing else: neither variables, one of which makes `breakpoint()` look for a
    cluster, nor signal handlers nor its logger.
    """
    import ray
    from ray._private import ray_constants, worker

    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"address": "local", "include_dashboard": False}
    if address is not None:
        options = {"address": _answering(address)}
    is_main, logger = threading.current_thread() is threading.main_thread(), logging.getLogger("ray")
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)} if is_main else {}
    before, level, is_cluster = dict(os.environ), logger.level, ray_constants.ENABLE_RAY_CLUSTER
    # Ray has no public switch for what it prints about a dead node
    print_of_ray, worker.print_to_stdstream = worker.print_to_stdstream, lambda *_, **__: None
    logger.setLevel(logging.ERROR)
    ray_constants.ENABLE_RAY_CLUSTER = is_cluster and address is not None
    try:
        try:
            ray.init(**options, log_to_driver=False, configure_logging=False)
        except ConnectionError as error:
            raise _no_answer(address) from error
        finally:
            ray_constants.ENABLE_RAY_CLUSTER = is_cluster
            logger.setLevel(level)
            for number, handler in handlers.items():
                signal.signal(number, handler)
        yield
    finally:
        with signals_wait():  # after an interrupted shutdown, Ray ends the process without a message
            try:
                ray.shutdown()
            finally:
                worker.print_to_stdstream = print_of_ray
                os.environ.clear()
                os.environ.update(before)


def _answering(address: str) -> str:
    """Return the address of a cluster that answers; "auto" is resolved."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", address)
    host, colon, port = address.rpartition(":")
    if address == "auto":
        return address
    if "://" in address or not colon or not port.isdigit():
        raise InvalidArgumentError(
            "the address of a Ray cluster is 'auto' or host:port, as printed by `ray start --head`, "
            f"got {address!r}"
        )
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
    except OSError as error:
        raise _no_answer(address) from error
    return address


def _no_answer(address: str | None) -> DeviceError:
    return DeviceError(
        f"no Ray cluster answers at {address!r}: start one with `ray start --head`, or leave the address out"
    )


def _listed(resources: Needs) -> str:
    counts = (f"{name} {n:g}" for name, n in resources.items() if "memory" not in name and "node:" not in name)
    return ", ".join(counts)
