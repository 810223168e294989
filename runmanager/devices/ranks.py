"""Data-parallel runs under torchrun: the rank of this process, and messages between ranks.

Every rank calls the same functions in the same order. Without torchrun there is one rank, and each function
returns at once.
"""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from runmanager.errors import RunManagerError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


def rank() -> int:
    """Return the rank of this process within its run, from 0."""
    if _has_group():
        from torch import distributed

        return distributed.get_rank()
    return int(os.environ["RANK"]) if _is_started() else 0


def num_ranks() -> int:
    """Return the number of processes that execute this run."""
    if _has_group():
        from torch import distributed

        return distributed.get_world_size()
    return int(os.environ["WORLD_SIZE"]) if _is_started() else 1


def is_main() -> bool:
    """Whether this process writes files: rank 0, or the only process."""
    return rank() == 0


def join_group() -> None:
    """Create the process group unless it exists: gloo for messages, and for example nccl for tensors of GPUs.

    A user's group without a cpu backend sends messages through the current accelerator, so this rank's
    accelerator is made the current one.
    """
    if num_ranks() == 1:
        return
    from torch import distributed

    if not _has_group():
        with _explained():
            distributed.init_process_group(_backends())
    elif "cpu" not in distributed.distributed_c10d.get_backend_config():
        _use_accelerator_of_rank()


def gather(value: T) -> list[T]:
    """Return the values of all ranks, in the order of the ranks."""
    if num_ranks() == 1:
        return [value]
    from torch import distributed

    join_group()
    values: list[T | None] = [None] * num_ranks()
    with _explained():
        distributed.all_gather_object(values, value)
    return values  # type: ignore[return-value] # all are given


def broadcast(value: T) -> T:
    """Return the value of rank 0; the arguments of other ranks are ignored."""
    if num_ranks() == 1:
        return value
    from torch import distributed

    join_group()
    values = [value]
    with _explained():
        distributed.broadcast_object_list(values)
    return values[0]


def from_main(make: Callable[[], T]) -> T:
    """Call a function on rank 0 alone, and return its value on all ranks."""
    return broadcast(make() if is_main() else None)  # type: ignore[return-value] # rank 0 has made it


def environment_of_new_group() -> dict[str, str]:
    """Return environment variables for a further process of each rank, which form a group of their own."""
    if num_ranks() == 1:
        return {}
    address = from_main(lambda: os.getenv("MASTER_ADDR", "localhost"))
    return {
        "RANK": str(rank()),
        "WORLD_SIZE": str(num_ranks()),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(from_main(_free_port)),
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # torchrun's own store serves its own processes only
    }


def device_of_rank(device: "str | torch.device") -> "torch.device":
    """Return the device of this rank: ``cuda`` becomes the GPU with its local rank as index."""
    import torch

    device = torch.device(device)
    if num_ranks() == 1 or ":" in str(device) or device.type in ("cpu", "meta", "mps"):
        return device
    is_only_one = torch.get_device_module(device).device_count() == 1
    return torch.device(device.type, 0 if is_only_one else int(os.getenv("LOCAL_RANK", str(rank()))))


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


def _backends() -> str:
    """Return the backends of the group; by default, torch chooses only the backend of the accelerator."""
    from torch import distributed

    from runmanager.devices import torch_devices

    kind = torch_devices.available_devices()[-1].partition(":")[0]
    if kind == "cpu":
        return "gloo"
    backend = distributed.get_default_backend_for_device(kind)
    return f"cpu:gloo,{kind}:{backend if distributed.is_backend_available(backend) else 'gloo'}"


def _use_accelerator_of_rank() -> None:
    """Make the accelerator of this rank the current one, unless the user has chosen one."""
    import torch

    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and torch.accelerator.current_device_index() == 0:
        index = device_of_rank(accelerator.type).index
        if index and index < torch.accelerator.device_count():
            torch.accelerator.set_device_index(index)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RunManagerError(f"rank {rank()} has lost another rank, which says why: {error}") from error


def _has_group() -> bool:
    if "torch.distributed" not in sys.modules:  # do not import the module here, which takes a second
        return False
    from torch import distributed

    return distributed.is_available() and distributed.is_initialized()


def _is_started() -> bool:
    """Whether torchrun started this process, as one of several processes or as the only one."""
    numbers = (os.getenv(name, "") for name in ("RANK", "WORLD_SIZE"))
    if not all(map(str.isdecimal, numbers)) or "MASTER_ADDR" not in os.environ:
        return False
    from torch import distributed

    return distributed.is_available()
