"""A table of this machine's devices: memory, cores and precisions."""

import math
import platform
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from runmanager.devices import torch_devices

if TYPE_CHECKING:
    import pandas as pd

_GIB = 2**30
T = TypeVar("T")


def describe_devices() -> "pd.DataFrame":
    """List the devices of this machine with their memory, cores and precisions.

    Querying a GPU's free memory allocates some memory on it for this process.

    Returns:
        One row per device. `memory_gib` and `free_gib` (GiB) are the memory of the device, or of the machine
        for the cpu; NaN if torch cannot report it. `cores` are the cores available to this process, or a GPU's
        multiprocessors; `threads` is torch's number of threads.

    Example:
        >>> describe_devices().columns.tolist()
        ['device', 'name', 'memory_gib', 'free_gib', 'cores', 'threads', 'precisions']
    """
    import pandas as pd

    return pd.DataFrame([_row(torch.device(device)) for device in torch_devices.available_devices()])


def native_precisions(device: torch.device) -> list[str]:
    """List the precisions that a device computes natively, according to torch; fp32 is always in the list."""
    supported = _or_none(lambda: _supported(device)) or {}
    return ["fp32", *(name for name, is_supported in supported.items() if is_supported)]


def _supported(device: torch.device) -> dict[str, bool]:
    if device.type == "cpu":
        # torch has no public query; on a cpu, torch slowly emulates precisions that the cpu lacks
        mkldnn = torch.ops.mkldnn
        return {"bf16": mkldnn._is_mkldnn_bf16_supported(), "fp16": mkldnn._is_mkldnn_fp16_supported()}  # noqa: SLF001
    if device.type == "cuda":
        with torch.cuda.device(device):
            bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
            return {"tf32": torch.cuda.is_tf32_supported(), "bf16": bf16, "fp16": True}
    types = torch.accelerator.get_device_capability(device)["supported_dtypes"]
    return {"bf16": torch.bfloat16 in types, "fp16": torch.float16 in types}


def _row(device: torch.device) -> dict[str, object]:
    is_cpu = device.type == "cpu"
    if is_cpu:
        free, total = _main_memory("MemAvailable:"), _main_memory("MemTotal:")
    else:
        memory = _or_none(lambda: torch.accelerator.get_memory_info(device)) or (math.nan, math.nan)
        free, total = memory[0] / _GIB, memory[1] / _GIB
    cores: float = torch_devices.num_cores() if is_cpu else math.nan
    if device.type == "cuda":
        cores = _or_none(lambda: torch.cuda.get_device_properties(device).multi_processor_count) or math.nan
    return {
        "device": str(device),
        "name": _cpu_name() if is_cpu else _or_none(lambda: torch_devices.device_name(device)) or device.type,
        "memory_gib": total,
        "free_gib": free,
        "cores": cores,
        "threads": torch.get_num_threads() if is_cpu else math.nan,
        "precisions": ", ".join(native_precisions(device)),
    }


def _main_memory(field: str) -> float:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024 / _GIB
    except (OSError, StopIteration):
        return math.nan


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {torch_devices.device_name(torch.device('cpu'))}"


def _or_none(ask: Callable[[], T]) -> T | None:
    """Query torch; None if the device is in a bad state or the build does not support the query."""
    try:
        return ask()
    except (AttributeError, NotImplementedError, RuntimeError, ValueError):
        return None
