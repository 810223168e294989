"""A table of this machine's devices: memory, cores and precisions."""

import math
import platform
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from runmanager.devices import torch_devices

if TYPE_CHECKING:
    import pandas as pd

_GIB = 2**30


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

    cpu, *accelerators = map(torch.device, torch_devices.available_devices())
    return pd.DataFrame([_row_of_cpu(cpu), *map(_row_of_accelerator, accelerators)])


def _row_of_cpu(device: torch.device) -> dict[str, object]:
    facts: dict[str, str] = {}
    for file in ("/proc/meminfo", "/proc/cpuinfo"):
        with suppress(OSError):  # only Linux has these files
            for line in Path(file).read_text(encoding="utf-8", errors="replace").splitlines():
                name, _, value = line.partition(":")
                facts.setdefault(name.strip(), value.strip())
    total, free = (
        int(facts[name].split()[0]) * 1024 / _GIB if name in facts else math.nan
        for name in ("MemTotal", "MemAvailable")
    )
    bf16 = fp16 = False
    # torch has no public query; on a cpu, torch slowly emulates precisions that the cpu lacks
    with suppress(AttributeError, RuntimeError):
        bf16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # noqa: SLF001
        fp16 = torch.ops.mkldnn._is_mkldnn_fp16_supported()  # noqa: SLF001
    model = facts.get("model name") or platform.processor() or platform.machine()
    return {
        "device": str(device),
        "name": f"{model}, {torch_devices.device_name(device)}",
        "memory_gib": total,
        "free_gib": free,
        "cores": float(torch_devices.num_cores()),
        "threads": torch.get_num_threads(),
        "precisions": _precisions(bf16=bf16, fp16=fp16),
    }


def _row_of_accelerator(device: torch.device) -> dict[str, object]:
    row: dict[str, object] = {
        "device": str(device), "name": device.type, "memory_gib": math.nan, "free_gib": math.nan,
        "cores": math.nan, "threads": math.nan, "precisions": _precisions(),
    }  # fmt: skip
    # a device in a bad state fails at once; a build may lack the last queries
    with suppress(AttributeError, NotImplementedError, RuntimeError, ValueError):
        row["name"] = torch_devices.device_name(device)
        if device.type == "cuda":
            row["cores"] = torch.cuda.get_device_properties(device).multi_processor_count
            with torch.cuda.device(device):
                bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
                row["precisions"] = _precisions(tf32=torch.cuda.is_tf32_supported(), bf16=bf16, fp16=True)
        else:
            types = torch.accelerator.get_device_capability(device)["supported_dtypes"]
            row["precisions"] = _precisions(bf16=torch.bfloat16 in types, fp16=torch.float16 in types)
        free, total = torch.accelerator.get_memory_info(device)
        row |= {"memory_gib": total / _GIB, "free_gib": free / _GIB}
    return row


def _precisions(**supported: bool) -> str:
    """List the precisions that a device computes natively, according to torch."""
    return ", ".join(["fp32", *(name for name, is_supported in supported.items() if is_supported)])
