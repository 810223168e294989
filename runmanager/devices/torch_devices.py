"""Where a device needs care: exists, send, wait, warm, memory, random state, warnings."""

import os
import random
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from runmanager.errors import DeviceError

_turn = threading.RLock()  # of `quiet`: the filters of warnings belong to the process, so threads take turns


def available_devices() -> list[str]:
    """List the devices of this machine, as in ``['cpu', 'cuda:0', 'cuda:1']``."""
    accelerator = _accelerator()
    if accelerator is None:
        return ["cpu"]
    if accelerator == "mps":
        return ["cpu", "mps"]
    return ["cpu", *(f"{accelerator}:{i}" for i in range(torch.accelerator.device_count()))]


def num_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_gpus() -> int:
    """Count the CUDA devices of this machine."""
    return torch.cuda.device_count()


def try_gpu(i: int = 0) -> torch.device:
    """Return CUDA device `i` if it is there, else the cpu."""
    return torch.device(f"cuda:{i}") if 0 <= i < num_gpus() else torch.device("cpu")


def try_all_gpus() -> list[torch.device]:
    """Return all CUDA devices, or the cpu alone where there is none."""
    return [torch.device(f"cuda:{i}") for i in range(num_gpus())] or [torch.device("cpu")]


def is_available(device: str | torch.device) -> bool:
    """Whether a device can compute here; ``cuda`` is any CUDA device, ``meta`` is always there."""
    device = torch.device(device)
    if device.type in ("cpu", "meta"):
        return True
    return device.type == _accelerator() and (device.index or 0) < torch.accelerator.device_count()


def require(device: str | torch.device) -> torch.device:
    """Return a device that is there.

    Raises:
        DeviceError: It is not; the message names those that are.
    """
    if not is_available(device):
        raise DeviceError(missing(device))
    return torch.device(device)


def missing(device: str | torch.device) -> str:
    """Say that a device is not there and which ones are."""
    return f"device {str(device)!r} is not there; this machine has: {', '.join(available_devices())}"


def device_name(device: torch.device) -> str:
    """Name the hardware behind a device, or its type where torch does not know it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else device.type


def wait_for(device: torch.device) -> None:
    """Return when the device has finished all its work, so that a clock may be read."""
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)


def warm(device: torch.device) -> None:
    """Pay the first-use costs of a device: its context, libraries and thread pool.

    Uses constants and leaves random states alone; about a millisecond once the device is warm.
    """
    if device.type == "meta":
        return
    with torch.inference_mode(mode=False), torch.enable_grad():
        images = torch.ones(2, 1, 8, 8, device=device, requires_grad=True)
        weights = torch.ones(2, 1, 3, 3, device=device, requires_grad=True)
        features = torch.nn.functional.conv2d(images, weights).flatten(1)  # (2, 72)
        loss = (features @ features.t()).sum()
        torch.autograd.grad(loss, (images, weights))
    wait_for(device)


def reset_peak(device: torch.device) -> None:
    """Forget how much memory tensors took on an accelerator at most so far."""
    if counter := _memory_counter(device):
        counter.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int | None:
    """Return how many bytes tensors took on an accelerator at most, since `reset_peak`; None on the cpu."""
    counter = _memory_counter(device)
    return int(counter.max_memory_allocated(device)) if counter else None


def send(batch: Any, device: torch.device) -> Any:
    """Move every tensor in a batch to a device: tensors, and tuples, lists and mappings of them."""
    if isinstance(batch, torch.Tensor):
        # what is copied to the cpu is read at once, without waiting
        return batch if batch.device == device else batch.to(device, non_blocking=device.type != "cpu")
    if hasattr(batch, "to") and callable(batch.to):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: send(item, device) for name, item in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(send(item, device) for item in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)([send(item, device) for item in batch])
    return batch


def devices_of(network: nn.Module) -> set[torch.device]:
    """Return the devices on which the parameters and buffers of a network are."""
    return {tensor.device for tensor in (*network.parameters(), *network.buffers())}


def device_of(network: nn.Module | None) -> torch.device:
    """Return the one device on which a network is; the cpu if it is on none or on several."""
    devices = devices_of(network) if network is not None else set()
    return devices.pop() if len(devices) == 1 else torch.device("cpu")


@contextmanager
def undisturbed_random(device: torch.device) -> Iterator[None]:
    """Give Python's, NumPy's, torch's and the device's random state back as it was."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the users' state
    forked = [device] if device.type not in ("cpu", "meta", "mps") else []
    kind = forked[0].type if forked else "cuda"
    with torch.random.fork_rng(devices=forked, device_type=kind):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002 - the users' state


@contextmanager
def quiet() -> Iterator[None]:
    """Ignore warnings while the block runs, one thread at a time."""
    with _turn, warnings.catch_warnings(action="ignore"):
        yield


def _renew_turn() -> None:
    global _turn  # noqa: PLW0603 - the thread that had the turn is not in a process that was forked
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_turn)


def _memory_counter(device: torch.device) -> Any:
    """Return what counts the memory of an accelerator, None for the cpu and where nothing does, as on mps."""
    if device.type in ("cpu", "meta"):
        return None
    module = torch.get_device_module(device)
    return module if hasattr(module, "max_memory_allocated") else None


def _accelerator() -> str | None:
    if not torch.accelerator.is_available():
        return None
    accelerator = torch.accelerator.current_accelerator()
    return accelerator.type if accelerator else None
