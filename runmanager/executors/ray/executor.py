"""The executor of runs on a Ray cluster, one task per run."""

import contextlib
import importlib.util
import math
import os
import secrets
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path

from runmanager.errors import DeviceError, GridError, MissingExtraError
from runmanager.executors.base import Executor, Task, Watch
from runmanager.executors.ray import cluster, tasks
from runmanager.executors.ray.cluster import Needs, Node
from runmanager.executors.serialize import dump
from runmanager.outcome import Outcome
from runmanager.run import Run
from runmanager.storage import durable, paths


class RayExecutor(Executor):
    """Execute runs on a Ray cluster, as many at once as its resources allow.

    A run whose node is lost resumes on another node after its last committed epoch. The experiment's folder
    must be on storage shared by all nodes. Nodes without this folder, or with another version of torch, are not
    used.

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
            raise MissingExtraError(["RayExecutor needs ray: pip install 'torch-runmanager[ray]'"])
        gpu = math.floor(1e4 / runs_per_device) / 1e4  # Ray's precision is 1e-4
        self._needs: dict[str, Needs] = {"cpu": {"CPU": 1}, "meta": {"CPU": 1}, "cuda": {"GPU": gpu}}
        self._needs.update(resources or {})
        self._address = address
        self._nodes: list[Node] | None = None
        self._folder: Path | None = None

    def prepare(self, train: Callable[..., object], folder: Path) -> None:
        """Check that `train` can be sent and no other grid uses Ray; store the folder that nodes must share.

        Raises:
            GridError: `train` cannot be sent; the message names the part that cannot be sent.
            DeviceError: Another grid of this process uses Ray.
        """
        dump(train)
        if cluster.in_use.locked():
            rule = "another grid of this process uses Ray"
            raise DeviceError(f"{rule}: wait for its end, or use another process")
        self._folder = folder

    def num_lanes(self, runs: Sequence[Run]) -> int:
        """Return the maximum number of concurrent runs."""
        if isinstance(self._jobs, int):
            return max(1, min(self._jobs, len(runs)))
        rooms = (node.room_for(needs) for node in self._cluster_nodes() for needs in self._needs.values())
        return max(1, min(sum(rooms), len(runs)))

    def missing(self, device: str) -> str:
        """Return the reason why a run on this device cannot be executed, "" if it can.

        Raises:
            GridError: The device has an index.
            DeviceError: No cluster answers.
        """
        kind, colon, _ = device.partition(":")
        needs = self._needs.get(device)
        if needs is None and colon:
            raise GridError([f"Ray chooses which {kind} device a run gets, got {device!r}: write {kind!r}"])
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
        import ray

        from runmanager.executors.ray.execution import RayExecution

        sent = dump(task)
        if self._address is not None and not ray.is_initialized():
            watch.say(f"Ray at {self._address}: everyone who reaches it can run code as you")
        with (
            cluster.in_use,
            cluster.connected(self._address),
            cluster.death_notices() as notices,
            _probe_in(self._folder) as (folder, token),
        ):
            jobs = self._jobs if isinstance(self._jobs, int) else None
            version = tasks.torch_version()
            driver = tasks.DriverInfo(folder, token, str(Path.cwd()), version, jobs, self._timeout)
            execution = RayExecution(runs, watch, driver, sent, self._needs, notices)
            try:
                yield from execution.outcomes()
            except KeyboardInterrupt:
                watch.stopping()
                raise
            finally:
                execution.stop()

    def _cluster_nodes(self) -> list[Node]:
        if self._nodes is None:
            import ray

            if self._address is None and not ray.is_initialized():
                import torch

                resources = {"CPU": os.cpu_count() or 1, "GPU": torch.cuda.device_count()}  # as Ray counts them
                self._nodes = [Node("", "this machine", resources)]
            else:
                with cluster.in_use, cluster.connected(self._address):
                    self._nodes = cluster.nodes()
        return self._nodes


@contextlib.contextmanager
def _probe_in(folder: Path | None) -> Iterator[tuple[Path | None, str]]:
    """Write a probe file with a token into a folder; nodes that can read it share the folder."""
    token = secrets.token_hex(16)
    if folder is None:
        yield None, token
        return
    durable.write_file(folder / paths.PROBE, token.encode())
    try:
        yield folder.absolute(), token
    finally:
        (folder / paths.PROBE).unlink(missing_ok=True)


def _listed(resources: Needs) -> str:
    counts = {name: n for name, n in resources.items() if "memory" not in name and "node:" not in name}
    return ", ".join(f"{name} {number:g}" for name, number in counts.items()) or "nothing"
