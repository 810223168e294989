"""A Ray cluster, as far as executing runs has to know it."""

import contextlib
import logging
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runmanager.errors import GridError
from runmanager.executors.signals import signals_wait

_ANSWER_S = 3  # until a cluster has to answer: ray.init() waits for 40 s and ends the process then

in_use = threading.Lock()
"""Whoever is connected to Ray has it."""

Needs = Mapping[str, float]
"""Ray's resources -> how much of each."""


@dataclass(frozen=True)
class Node:
    """A node that is alive.

    Attributes:
        id: Ray's name of it.
        name: Its host, and the beginning of its id.
        resources: What it has in all, busy or not.
    """

    id: str
    name: str
    resources: Mapping[str, float] = field(hash=False)

    def room_for(self, needs: Needs) -> int:
        """Count the runs with these needs that fit on it when nothing else is there."""
        return min(int(self.resources.get(name, 0) / number + 1e-6) for name, number in needs.items())


def check_alone() -> None:
    """Make sure that Ray has no grid of another thread: a process has one connection, which ends with its grid.

    Raises:
        GridError: It has.
    """
    if in_use.locked():
        raise GridError(["a grid of this process is on Ray already: wait for its end, or use another process"])


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect this process to a cluster for the length of a block.

    A connection that the process has already is used, and stays.

    Args:
        address: "auto" or host:port; None starts a cluster on this machine, and ends it with the block.

    Raises:
        GridError: No cluster answers there.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    with contextlib.ExitStack() as after:
        if address is None:
            folder = tempfile.TemporaryDirectory(prefix="ray-", dir=_short(), ignore_cleanup_errors=True)
            where = after.enter_context(folder)
            options: dict[str, Any] = {"address": "local", "include_dashboard": False, "_temp_dir": where}
        else:
            options = {"address": _answering(address)}
        after.callback(_shut_down)
        with _own_signals(), _quiet(), _on_loop_back(only=address is None):
            try:
                ray.init(**options, log_to_driver=False, configure_logging=False)
            except ConnectionError as error:
                raise GridError([_no_answer(address)]) from error
        yield


def nodes() -> list[Node]:
    """List the nodes that are alive."""
    import ray

    return [
        Node(found["NodeID"], f"{found['NodeManagerHostname']} ({found['NodeID'][:6]})", found["Resources"])
        for found in ray.nodes()
        if found["Alive"]
    ]


def task_options(needs: Needs, avoid: Sequence[str]) -> dict[str, Any]:
    """Write down what a run needs as Ray wants it said.

    Args:
        needs: Ray's resources.
        avoid: The ids of nodes that may not be used.
    """
    own = {name: number for name, number in needs.items() if name not in ("CPU", "GPU")}
    options: dict[str, Any] = {
        "num_cpus": needs.get("CPU", 0),
        "num_gpus": needs.get("GPU", 0),
        "resources": own,
    }
    if avoid:
        options["label_selector"] = {"ray.io/node-id": f"!in({','.join(avoid)})"}
    return options


def on_node(node: str) -> dict[str, Any]:
    """Write down, as Ray wants it said, that something small is executed on a node, busy or not."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


@contextlib.contextmanager
def words_kept() -> Iterator[list[str]]:
    """Keep what Ray says about processes and nodes that died, which it prints otherwise."""
    import ray._private.worker as place

    words: list[str] = []

    def keep(data: Mapping[str, Any], *_: object, **__: object) -> None:
        words.extend(map(str, data.get("lines", ())))

    printing = getattr(place, "print_to_stdstream", None)
    place.print_to_stdstream = keep
    try:
        yield words
    finally:
        place.print_to_stdstream = printing


@contextlib.contextmanager
def _on_loop_back(*, only: bool) -> Iterator[None]:
    """Let a cluster that is started listen on the loop-back only, as Ray has it on Windows and macOS."""
    from ray._private import ray_constants

    before = getattr(ray_constants, "ENABLE_RAY_CLUSTER", True)
    ray_constants.ENABLE_RAY_CLUSTER = before and not only
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Let Ray say errors only."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Give signals their handlers back, of which Ray takes SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _shut_down() -> None:
    """Shut Ray down and let a signal that comes meanwhile wait, unless it comes again.

    Ray that is half shut down ends the process, with exit code 1 and without a word, as soon as any of its
    objects is touched.
    """
    import ray

    with signals_wait():
        ray.shutdown()


def _answering(address: str) -> str:
    """Return the address, with what "auto" means, if somebody answers there."""
    wanted = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    host, colon, port = wanted.rpartition(":")
    if wanted == "auto":
        return wanted
    if "://" in wanted or not colon or not port.isdigit():
        rule = "the address of a Ray cluster is 'auto' or host:port, as printed by `ray start --head`"
        raise GridError([f"{rule}, got {wanted!r}"])
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
    except OSError as error:
        raise GridError([_no_answer(wanted)]) from error
    return wanted


def _no_answer(address: str | None) -> str:
    return f"no Ray cluster answers at {address!r}: start one with `ray start --head`, or leave the address out"


def _short() -> str | None:
    """Where sockets may be: their paths have 103 characters at most."""
    return "/tmp" if Path("/tmp").is_dir() else None  # noqa: S108 - what is made in there has a random name
