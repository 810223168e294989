"""A benchmark of devices that are warm; the clock is read after the device has finished.

Many comparisons of a GPU with a cpu include the first use of the GPU, or read the clock while it is still
computing.
"""

import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from runmanager.devices import describe, torch_devices
from runmanager.errors import RunsWarning, first_line
from runmanager.user_frames import user_level

if TYPE_CHECKING:
    import pandas as pd

_REPEATS = 7
_SHORTEST = 0.05  # minimum time between two readings of the clock (s)
_SIZE = 2048  # number of rows and of columns of a matrix
_BATCH = 1000  # number of images in a training step

Operation = Callable[[], object]


@dataclass(frozen=True)
class Workload:
    """A computation to time on every device."""

    name: str
    amount: float  # work of one operation, in units of `unit` times seconds
    unit: str  # unit of the rate
    prepare: Callable[[torch.device], Operation]  # puts all data on a device
    precision: str = "fp32"  # a precision that the device must support


def benchmark_devices(names: Sequence[str] | None = None) -> "pd.DataFrame":
    """Time a matrix product and a training step on devices, in seconds per device.

    The product is of two matrices of 2048 x 2048, which takes 2 x 2048^3 operations. The step trains a small
    convolutional network of 32,998 parameters on 1000 images of 28 x 28 that are already on the device. fp32
    follows torch's settings: on CUDA, convolutions use TF32 by default. Random states do not change.

    Args:
        names: The devices to time in addition to the cpu; None for all devices.

    Returns:
        One row per device and operation: the `median`, `least` and `most` of the rates, in the unit of the
        column `unit`, and `times the cpu`, the ratio of the median to the median of the cpu.

    Raises:
        DeviceError: This machine lacks a device.

    Example:
        >>> timings = benchmark_devices(["cpu"])
        >>> timings["times the cpu"].unique().tolist()
        [1.0]
    """
    import pandas as pd

    others = torch_devices.available_devices() if names is None else names
    devices = dict.fromkeys(torch_devices.require(name) for name in ("cpu", *others))
    rows = [row for device in devices for row in _rows(device)]
    on_cpu = {row["work"]: row["median"] for row in rows if row["device"] == "cpu"}
    return pd.DataFrame(
        [{**row, "times the cpu": _ratio(row["median"], on_cpu.get(row["work"]))} for row in rows]
    )


def workloads() -> list[Workload]:
    """Return the computations to time."""
    gflops, bf16 = 2 * _SIZE**3 / 1e9, torch.bfloat16
    return [
        Workload(f"{_SIZE} x {_SIZE} product, fp32", gflops, "GFLOP/s", lambda d: _product(d, torch.float32)),
        Workload(f"{_SIZE} x {_SIZE} product, bf16", gflops, "GFLOP/s", lambda d: _product(d, bf16), "bf16"),
        Workload(f"training step of {_BATCH}, fp32", _BATCH, "images/s", _training),
        Workload(f"training step of {_BATCH}, bf16", _BATCH, "images/s", lambda d: _training(d, bf16), "bf16"),
    ]


def seconds_of(operation: Operation, device: torch.device) -> list[float]:
    """Time a warm operation several times; return the seconds of each call."""
    number = 1
    # the first use loads libraries, allocates memory and chooses algorithms
    taken = _timed(operation, device, 2)
    while (taken := _timed(operation, device, number)) < _SHORTEST:
        number = max(2 * number, math.ceil(1.2 * number * _SHORTEST / max(taken, 1e-9)))
    return [_timed(operation, device, number) / number for _ in range(_REPEATS)]


def _timed(operation: Operation, device: torch.device, number: int) -> float:
    torch_devices.wait_for(device)
    before = time.perf_counter()
    for _ in range(number):
        operation()
    torch_devices.wait_for(device)
    return time.perf_counter() - before


def _rows(device: torch.device) -> Iterator[dict[str, object]]:
    supported = describe.native_precisions(device)
    for workload in workloads():
        if workload.precision not in supported:
            continue
        try:
            with (
                torch_devices.undisturbed_random(device),
                torch.inference_mode(mode=False),
                torch.enable_grad(),
            ):
                taken = seconds_of(workload.prepare(device), device)
        except RuntimeError as error:
            reason = first_line(error)
            message = f"{device}: {workload.name} could not be timed ({reason})"
            warnings.warn(message, RunsWarning, stacklevel=user_level())
            continue
        rates = [workload.amount / seconds for seconds in taken]
        yield {
            "device": str(device), "work": workload.name, "unit": workload.unit,
            "median": statistics.median(rates), "least": min(rates), "most": max(rates),
        }  # fmt: skip


def _ratio(rate: object, on_cpu: object) -> float:
    return rate / on_cpu if isinstance(rate, float) and isinstance(on_cpu, float) else math.nan


def _product(device: torch.device, dtype: torch.dtype) -> Operation:
    left, right = (torch.randn(_SIZE, _SIZE, dtype=dtype, device=device) for _ in range(2))
    return lambda: left @ right


def _training(device: torch.device, reduced: torch.dtype | None = None) -> Operation:
    network = _network().to(device)
    optimizer = torch.optim.Adam(network.parameters(), fused=device.type in ("cpu", "cuda"))
    images = torch.rand(_BATCH, 1, 28, 28, device=device)
    labels = torch.randint(0, 10, (_BATCH,), device=device)

    def step() -> None:
        with torch.autocast(device.type, reduced) if reduced else nullcontext():
            loss = functional.cross_entropy(network(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2),  # output (N, 6, 12, 12)
        nn.Conv2d(6, 12, 5), nn.ReLU(), nn.MaxPool2d(2),  # output (N, 12, 4, 4)
        nn.Flatten(),
        nn.Linear(192, 120), nn.ReLU(),
        nn.Linear(120, 60), nn.ReLU(),
        nn.Linear(60, 10),
    )  # fmt: skip
