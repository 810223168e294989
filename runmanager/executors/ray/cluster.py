"""The connection to a Ray cluster, its nodes and their resources."""

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

from runmanager.errors import DeviceError, InvalidArgumentError
from runmanager.executors.signals import signals_wait

_ANSWER_S = 3  # timeout for a cluster: ray.init() would wait for 40 s and then end the process

in_use = threading.Lock()
"""The lock held while this process is connected to Ray: a process can have only one connection."""

Needs = Mapping[str, float]
"""Name of a Ray resource -> amount."""


@dataclass(frozen=True)
class Node:
    """A living node."""

    id: str  # Ray's id of the node
    name: str  # the name of the node's host, and a prefix of the node's id
    resources: Mapping[str, float] = field(hash=False)  # total resources, both free and used

    def room_for(self, needs: Needs) -> int:
        """Return the number of runs with these needs that fit on the node when it is idle."""
        return min(int(self.resources.get(name, 0) / number + 1e-6) for name, number in needs.items())


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Connect this process to the cluster at "auto" or host:port during a block.

    None starts a cluster on this machine, and ends it with the block. An existing connection of the process is
    used, and not closed afterwards.

    Raises:
        InvalidArgumentError: The address is not valid.
        DeviceError: No cluster answers there.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    with contextlib.ExitStack() as after:
        if address is None:
            # the folder has sockets, and the path of a socket is limited to 103 characters
            parent = "/tmp" if Path("/tmp").is_dir() else None  # noqa: S108 - the folder has a random name
            folder = tempfile.TemporaryDirectory(prefix="ray-", dir=parent, ignore_cleanup_errors=True)
            options: dict[str, Any] = {"address": "local", "include_dashboard": False}
            options["_temp_dir"] = after.enter_context(folder)
        else:
            options = {"address": _answering(address)}
        after.enter_context(_restored_environment())
        after.callback(_shut_down)
        with _restrained(on_loop_back=address is None):
            try:
                ray.init(**options, log_to_driver=False, configure_logging=False)
            except ConnectionError as error:
                raise _no_answer(address) from error
        yield


def nodes() -> list[Node]:
    """Return the living nodes."""
    import ray

    return [
        Node(node["NodeID"], f"{node['NodeManagerHostname']} ({node['NodeID'][:6]})", node["Resources"])
        for node in ray.nodes()
        if node["Alive"]
    ]


def task_options(needs: Needs, avoid: Sequence[str]) -> dict[str, Any]:
    """Return the options of a Ray task that needs these resources and avoids these nodes (ids)."""
    options: dict[str, Any] = {
        "num_cpus": needs.get("CPU", 0),
        "num_gpus": needs.get("GPU", 0),
        "resources": {name: number for name, number in needs.items() if name not in ("CPU", "GPU")},
    }
    if avoid:
        options["label_selector"] = {"ray.io/node-id": f"!in({','.join(avoid)})"}
    return options


def on_node(node: str) -> dict[str, Any]:
    """Return the options of a small task that runs on a node even if the node is busy."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


@contextlib.contextmanager
def death_notices() -> Iterator[list[str]]:
    """Collect the lines about dead processes and nodes that Ray would print."""
    from ray._private import worker as ray_worker  # this module prints the lines, and Ray has no public hook

    lines: list[str] = []

    def keep(data: Mapping[str, Any], *_: object, **__: object) -> None:
        lines.extend(map(str, data.get("lines", ())))

    with _replaced(ray_worker, "print_to_stdstream", keep):
        yield lines


@contextlib.contextmanager
def _restrained(*, on_loop_back: bool) -> Iterator[None]:
    """Let Ray log only errors and leave signal handlers unchanged when it starts in the block.

    With `on_loop_back`, a new cluster listens only on the loopback interface, as on Windows and macOS.
    """
    from ray._private import ray_constants

    is_main = threading.current_thread() is threading.main_thread()
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)} if is_main else {}
    logger = logging.getLogger("ray")
    level = logger.level
    is_cluster = getattr(ray_constants, "ENABLE_RAY_CLUSTER", True) and not on_loop_back
    logger.setLevel(logging.ERROR)
    try:
        with _replaced(ray_constants, "ENABLE_RAY_CLUSTER", is_cluster):
            yield
    finally:
        logger.setLevel(level)
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _restored_environment() -> Iterator[None]:
    """Restore the variables that Ray sets; one of these variables makes `breakpoint()` look for a cluster."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.update(before)
        for name in os.environ.keys() - before:
            del os.environ[name]


@contextlib.contextmanager
def _replaced(module: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name, None)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _shut_down() -> None:
    """Shut Ray down; signals are deferred meanwhile, except a repeated signal.

    An interrupted shutdown is dangerous: if one of Ray's objects is used afterwards, Ray ends the process with
    exit code 1 and no message.
    """
    import ray

    with signals_wait():
        ray.shutdown()


def _answering(address: str) -> str:
    """Return the address of a cluster that answers; "auto" is resolved."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", address)
    host, colon, port = address.rpartition(":")
    if address == "auto":
        return address
    if "://" in address or not colon or not port.isdigit():
        rule = "the address of a Ray cluster is 'auto' or host:port, as printed by `ray start --head`"
        raise InvalidArgumentError([f"{rule}, got {address!r}"])
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
    except OSError as error:
        raise _no_answer(address) from error
    return address


def _no_answer(address: str | None) -> DeviceError:
    remedy = "start one with `ray start --head`, or leave the address out"
    return DeviceError(f"no Ray cluster answers at {address!r}: {remedy}")
