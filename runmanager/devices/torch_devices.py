"""What torch has in this process: devices, their memory, random states, and settings that change numbers."""

import gc
import os
import random
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

PINNED = ("cuda", "xpu")
"""Accelerators that copy asynchronously from pinned memory."""

# CUDNN_STATUS_NOT_SUPPORTED is left out: the operation does not exist, however much memory is free
_OUT_OF_MEMORY = re.compile(
    r"\b(CUDA|Cuda|HIP|XPU|MPS)\b.{0,20}out of memory|OUT_OF_(DEVICE_MEMORY|RESOURCES)|_ALLOC_FAILED"
    r"|NVML_SUCCESS == r INTERNAL ASSERT FAILED"  # message on a slice of a GPU (MIG), accelerate#3803
)
_warmed: set[str] = set()  # accelerators load kernels once per process
_turn = threading.RLock()  # the lock of `quiet`: warning filters are global, so threads take turns

State = Mapping[str, object]
"""Name of a setting of this process -> its value."""

_UNREADABLE = "unreadable"


def available_devices() -> list[str]:
    """List the devices of this machine.

    Returns:
        The names of the devices, the cpu first, for example ``["cpu", "cuda:0", "cuda:1"]``.

    Example:
        >>> available_devices()[0]
        'cpu'
    """
    accelerator = _accelerator()
    if accelerator is None:
        return ["cpu"]
    if accelerator == "mps":
        return ["cpu", "mps"]
    return ["cpu", *(f"{accelerator}:{i}" for i in range(torch.accelerator.device_count()))]


def num_cores() -> int:
    """Count the cores that are available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_gpus() -> int:
    """Return the number of CUDA devices of this machine.

    Returns:
        The number of CUDA devices, 0 without CUDA.

    Example:
        >>> num_gpus() == len([name for name in available_devices() if name.startswith("cuda")])
        True
    """
    return torch.cuda.device_count()


def try_gpu(i: int = 0) -> torch.device:
    """Return a CUDA device if it exists, else the cpu.

    Args:
        i: The number of the device, from 0.

    Returns:
        The device.

    Example:
        >>> try_gpu(99)
        device(type='cpu')
    """
    return torch.device(f"cuda:{i}") if 0 <= i < num_gpus() else torch.device("cpu")


def try_all_gpus() -> list[torch.device]:
    """Return all CUDA devices, or the cpu if there are no CUDA devices.

    Returns:
        The devices, at least one.

    Example:
        >>> len(try_all_gpus()) == max(num_gpus(), 1)
        True
    """
    return [torch.device(f"cuda:{i}") for i in range(num_gpus())] or [torch.device("cpu")]


def missing(device: str | torch.device) -> str:
    """Return a message if a device cannot compute here, else ""; ``cuda`` is any CUDA device."""
    device = torch.device(device)
    if device.type in ("cpu", "meta"):
        return ""
    if device.type == _accelerator() and (device.index or 0) < torch.accelerator.device_count():
        return ""
    return f"device {str(device)!r} is not there, this machine has {', '.join(available_devices())}"


def device_name(device: torch.device) -> str:
    """Return the name of a device's hardware, or its type if torch does not report one."""
    if device.type in ("cuda", "xpu"):
        return str(torch.get_device_module(device).get_device_name(device))
    if device.type == "mps":
        return str(torch.backends.mps.get_name())
    return torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else device.type


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished all its work, so that a clock can be read."""
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)


def warm(device: torch.device) -> None:
    """Warm a device: create its context and thread pool, and load its libraries and kernels."""
    np.random.get_state()  # noqa: NPY002 - numpy imports this module on first use
    if device.type == "meta":
        return
    if device.type != "cpu" and str(device) not in _warmed:
        with undisturbed_random(device), quiet():
            _train(device)
        _warmed.add(str(device))
    with torch.inference_mode(mode=False), torch.enable_grad():
        images = torch.ones(2, 1, 8, 8, device=device, requires_grad=True)
        weights = torch.ones(2, 1, 3, 3, device=device, requires_grad=True)
        features = nn.functional.conv2d(images, weights).flatten(1)  # shape (2, 72)
        torch.autograd.grad((features @ features.t()).sum(), (images, weights))
    wait_for(device)


@torch.inference_mode(mode=False)
@torch.enable_grad()
def _train(device: torch.device) -> None:
    """Execute training steps of a small network, in full and in reduced precision, with two optimizers."""
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(),
        nn.Flatten(), nn.Linear(72, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 10),
    ).to(device)  # fmt: skip
    images = send(pinned(torch.ones(8, 1, 8, 8), device), device)
    labels = send(pinned(torch.zeros(8, dtype=torch.int64), device), device)
    adam, sgd = torch.optim.Adam(network.parameters()), torch.optim.SGD(network.parameters(), momentum=0.9)
    for optimizer in (adam, sgd):
        for precision in (None, torch.bfloat16, torch.float16):
            # an unsupported reduced precision needs no warming
            with suppress(RuntimeError) if precision else nullcontext():
                with torch.autocast(device.type, precision, enabled=precision is not None):
                    loss = nn.functional.cross_entropy(network(images), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()


def pinned(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a cpu tensor, in pinned memory if the device copies asynchronously from pinned memory."""
    return tensor.pin_memory() if device.type in PINNED and tensor.is_cpu else tensor


def take_peak(device: torch.device, before: int | None = None) -> int | None:
    """Return the peak memory of tensors on an accelerator since the last call, in bytes, at least `before`."""
    if device.type not in ("cpu", "meta"):
        with suppress(AttributeError, RuntimeError):  # mps has no counter; a device in a bad state fails
            module = torch.get_device_module(device)
            before = max(int(module.max_memory_allocated(device)), before or 0)
            module.reset_peak_memory_stats(device)
    return before


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that an accelerator has too little free memory."""
    is_of_torch = isinstance(error, RuntimeError) and bool(_OUT_OF_MEMORY.search(str(error)))
    return is_of_torch or isinstance(error, torch.OutOfMemoryError)


def free_memory(device: torch.device) -> None:
    """Release the unused memory of an accelerator to other processes; ignore a failed accelerator."""
    if device.type not in ("cpu", "meta"):
        gc.collect()
        with suppress(RuntimeError):
            torch.accelerator.empty_cache()


def send(batch: Any, device: torch.device) -> Any:
    """Move every tensor in a batch to a device; a batch is a tensor, or a tuple, list or mapping of batches."""
    if isinstance(batch, torch.Tensor):
        # the caller may read a copy on the cpu at once, so a copy to the cpu must be synchronous
        return batch if batch.device == device else batch.to(device, non_blocking=device.type != "cpu")
    if callable(getattr(batch, "to", None)):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: send(item, device) for name, item in batch.items()}
    if isinstance(batch, (tuple, list)):
        parts = [send(item, device) for item in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


def devices_of(network: nn.Module | None) -> set[torch.device]:
    """Return the devices of a network's parameters and buffers."""
    if network is None:
        return set()
    return {tensor.device for tensor in (*network.parameters(), *network.buffers())}


@contextmanager
def undisturbed_random(device: torch.device) -> Iterator[None]:
    """Restore the random states of Python, NumPy, torch and the device after a block."""
    states = random_states(device)
    try:
        yield
    finally:
        restore_random(states, device)


def random_states(device: torch.device) -> dict[str, Any]:
    """Return the random states of Python, NumPy, torch and the device, as tensors and numbers."""
    version, words, gauss = random.getstate()
    name, keys, *rest = np.random.get_state()  # noqa: NPY002 - the users' state
    states: dict[str, Any] = {
        "python": (version, torch.tensor(words), gauss),  # 625 separate numbers take a millisecond to save
        # torch pickles no uint32 between ranks
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
    }
    if device.type not in ("cpu", "meta"):  # the state of the cpu is torch's global state
        module = torch.get_device_module(device)
        states["device"] = module.get_rng_state(*([] if device.type == "mps" else [device]))
    return states


def restore_random(states: Mapping[str, Any], device: torch.device) -> None:
    """Restore random states; an accelerator's state only if both the saved and this device have one."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002 - the users' state
    torch.set_rng_state(states["torch"])
    if "device" in states and device.type not in ("cpu", "meta"):
        module = torch.get_device_module(device)
        module.set_rng_state(states["device"], *([] if device.type == "mps" else [device]))


@contextmanager
def quiet() -> Iterator[None]:
    """Ignore warnings in a block, one thread at a time."""
    with _turn, warnings.catch_warnings(action="ignore"):
        yield


def _renew_turn() -> None:
    global _turn  # noqa: PLW0603 - the thread that had the turn is not in a process that was forked
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_turn)


def process_state() -> State:
    """Read the settings of this process."""
    state: dict[str, object] = {}
    for name, (read, _) in _SETTINGS.items():
        try:
            state[name] = read()
        except (OSError, RuntimeError):
            # the working directory was removed, or torch refuses the old name of what `fp32_precision` has set
            state[name] = _UNREADABLE
    return state


def settings_of_numbers() -> dict[str, str]:
    """Return the settings of an accelerator that change the last bits of its results, as text."""
    prefixes = "cudnn.", "deterministic", "the precision"
    settings = {name: str(value) for name, value in process_state().items() if name.startswith(prefixes)}
    return settings | {"CUBLAS_WORKSPACE_CONFIG": os.getenv("CUBLAS_WORKSPACE_CONFIG", "")}


def set_back(before: State) -> list[str]:
    """Restore the settings of this process; return the names of the settings that had changed."""
    now = process_state()
    changed = [name for name in now if before[name] != now[name]]
    for name in changed:
        if before[name] != _UNREADABLE:
            with suppress(OSError, RuntimeError):
                _SETTINGS[name][1](before[name])
    return changed


@contextmanager
def as_before(before: State) -> Iterator[None]:
    """Apply earlier settings during a block; restore the current settings afterwards."""
    now = process_state()
    set_back(before)
    try:
        yield
    finally:
        set_back(now)


@contextmanager
def as_many_threads(number: int | None) -> Iterator[str]:
    """Compute with the number of threads of a run's first attempt during a block; None changes nothing.

    The order of floating-point sums depends on the number of threads. Yields the reason why the number cannot
    be set, or "".
    """
    before = torch.get_num_threads()
    most = max(num_cores(), before)
    if number is None or number > most:
        # with more threads than cores, steps of a small network would take 50 times as long
        why = f"it began with {number} threads and continues with {before}: there are {most} cores"
        yield why if number else ""
        return
    torch.set_num_threads(number)
    try:
        yield ""
    finally:
        if torch.get_num_threads() == number:  # the run has set no other number
            torch.set_num_threads(before)


def _accelerator() -> str | None:
    # is_available() would initialize CUDA, and an initialized CUDA fails in forked processes
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.device_count() else None
    return accelerator.type if accelerator else None


_SETTINGS: Mapping[str, tuple[Callable[[], object], Callable[[Any], object]]] = {
    "the working directory": (os.getcwd, os.chdir),
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the default device": (
        torch.get_default_device,
        # the value None has no overhead
        lambda device: torch.set_default_device(None if device.type == "cpu" else device),
    ),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic algorithms": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    **{
        f"cudnn.{name}": (
            partial(getattr, torch.backends.cudnn, name),
            partial(setattr, torch.backends.cudnn, name),
        )
        for name in ("benchmark", "deterministic", "allow_tf32")
    },
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "the precision of float32": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
}
"""Name -> functions that read and write a setting."""
