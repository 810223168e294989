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
    if num_ranks() == 1:
        return 0
    from torch import distributed

    return distributed.get_rank() if distributed.is_initialized() else int(os.environ["RANK"])


def num_ranks() -> int:
    """Return the number of processes that execute this run: of its group, or as torchrun has started them."""
    numbers = (os.getenv("RANK", ""), os.getenv("WORLD_SIZE", ""))
    is_started = all(map(str.isdecimal, numbers)) and "MASTER_ADDR" in os.environ
    if not is_started and "torch.distributed" not in sys.modules:
        return 1  # torch.distributed is not imported here, which takes a second
    from torch import distributed

    if not distributed.is_available():
        return 1
    if distributed.is_initialized():
        return distributed.get_world_size()
    return int(numbers[1]) if is_started else 1


def is_main() -> bool:
    """Whether this process writes files: rank 0, or the only process."""
    return num_ranks() == 1 or rank() == 0


def join_group() -> None:
    """Create the process group unless it exists: gloo for messages, and for example nccl for tensors of GPUs.

    A user's group without a cpu backend sends messages through the current accelerator, so this rank's
    accelerator is made the current one, unless the user has chosen one.
    """
    if num_ranks() == 1:
        return
    import torch
    from torch import distributed

    from runmanager.devices import torch_devices

    if not distributed.is_initialized():
        kind = torch_devices.available_devices()[-1].partition(":")[0]
        backends = "gloo"
        if kind != "cpu":  # by default, torch chooses only the backend of the accelerator
            backend = distributed.get_default_backend_for_device(kind)
            backends = f"cpu:gloo,{kind}:{backend if distributed.is_backend_available(backend) else 'gloo'}"
        with _explained():
            distributed.init_process_group(backends)
    elif "cpu" not in distributed.distributed_c10d.get_backend_config():
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is not None and torch.accelerator.current_device_index() == 0:
            index = device_of_rank(accelerator.type).index
            if index and index < torch.accelerator.device_count():
                torch.accelerator.set_device_index(index)


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


def from_main(make: Callable[[], T]) -> T:
    """Call a function on rank 0 alone, and return its value on all ranks."""
    if num_ranks() == 1:
        return make()
    from torch import distributed

    values = [make() if rank() == 0 else None]
    join_group()
    with _explained():
        distributed.broadcast_object_list(values)
    return values[0]  # type: ignore[return-value] # rank 0 has made it


def environment_of_new_group() -> dict[str, str]:
    """Return environment variables for a further process of each rank, which form a group of their own."""
    if num_ranks() == 1:
        return {}
    with socket.create_server(("", 0)) as server:  # a free port; that of rank 0 counts
        port = server.getsockname()[1]
    address, port = from_main(lambda: (os.getenv("MASTER_ADDR", "localhost"), port))
    return {
        "RANK": str(rank()),
        "WORLD_SIZE": str(num_ranks()),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
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


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RunManagerError(f"rank {rank()} has lost another rank, which says why: {error}") from error
