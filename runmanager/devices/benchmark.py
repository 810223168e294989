"""How fast devices are, timed as it should be: warm, and when the device is done.

Most comparisons of a GPU with a cpu time its first use, or read the clock while the GPU is still computing.
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
from runmanager.errors import RunsWarning

if TYPE_CHECKING:
    import pandas as pd

_REPEATS = 7
_SHORTEST = 0.05  # seconds between two readings of the clock, at least
_SIZE = 2048  # rows and columns of a matrix
_BATCH = 1000  # images in a training step

Step = Callable[[], object]


@dataclass(frozen=True)
class Work:
    """Something that every device can do.

    Attributes:
        name: What it is.
        amount: How much one step does, in units of `unit` times seconds.
        unit: What its rate is measured in.
        prepare: Puts everything on a device and returns the step.
        precision: What the device has to support.
    """

    name: str
    amount: float
    unit: str
    prepare: Callable[[torch.device], Step]
    precision: str = "fp32"


def benchmark_devices(names: Sequence[str] | None = None) -> "pd.DataFrame":
    """Time a matrix product and a training step on devices, one row for each; takes seconds per device.

    The step is that of a small convolutional network of 32,998 parameters on 1000 images of 28 x 28 that are on
    the device already. fp32 is as torch is set: on CUDA, convolutions use TF32 unless told otherwise. Random
    states are left alone.

    Args:
        names: The devices that are timed beside the cpu; None for all.

    Returns:
        Median, least and most of the rates, and how many times the cpu's median the median is.

    Raises:
        DeviceError: A device is not there.
    """
    import pandas as pd

    wanted = torch_devices.available_devices() if names is None else names
    places = dict.fromkeys(torch_devices.require(name) for name in ("cpu", *wanted))
    rows = [row for device in places for row in _rows(device)]
    on_cpu = {row["work"]: row["median"] for row in rows if row["device"] == "cpu"}
    return pd.DataFrame(
        [{**row, "times the cpu": _ratio(row["median"], on_cpu.get(row["work"]))} for row in rows]
    )


def works() -> list[Work]:
    """Return what is timed."""
    flops = 2 * _SIZE**3
    return [
        Work(f"{_SIZE} x {_SIZE} product, fp32", flops / 1e9, "GFLOP/s", lambda d: _product(d, torch.float32)),
        Work(
            f"{_SIZE} x {_SIZE} product, bf16", flops / 1e9, "GFLOP/s",
            lambda d: _product(d, torch.bfloat16), "bf16",
        ),
        Work(f"training step of {_BATCH}, fp32", _BATCH, "images/s", _training),
        Work(
            f"training step of {_BATCH}, bf16", _BATCH, "images/s",
            lambda d: _training(d, torch.bfloat16), "bf16",
        ),
    ]  # fmt: skip


def seconds_of(step: Step, device: torch.device) -> list[float]:
    """Time a step once it is warm: seconds per step, several times."""
    num_steps = 1
    taken = _timed(step, device, 2)  # first use: libraries, memory, choice of algorithms
    while (taken := _timed(step, device, num_steps)) < _SHORTEST:
        num_steps = max(2 * num_steps, math.ceil(1.2 * num_steps * _SHORTEST / max(taken, 1e-9)))
    return [_timed(step, device, num_steps) / num_steps for _ in range(_REPEATS)]


def _timed(step: Step, device: torch.device, num_steps: int) -> float:
    torch_devices.wait_for(device)
    before = time.perf_counter()
    for _ in range(num_steps):
        step()
    torch_devices.wait_for(device)
    return time.perf_counter() - before


def _rows(device: torch.device) -> Iterator[dict[str, object]]:
    supported = describe.native_precisions(device)
    for work in works():
        if work.precision not in supported:
            continue
        try:
            with (
                torch_devices.undisturbed_random(device),
                torch.inference_mode(mode=False),
                torch.enable_grad(),
            ):
                taken = seconds_of(work.prepare(device), device)
        except RuntimeError as error:
            problem = str(error).partition("\n")[0]
            warnings.warn(f"{device}: {work.name} could not be timed ({problem})", RunsWarning, stacklevel=3)
            continue
        rates = [work.amount / seconds for seconds in taken]
        yield {
            "device": str(device), "work": work.name, "unit": work.unit,
            "median": statistics.median(rates), "least": min(rates), "most": max(rates),
        }  # fmt: skip


def _ratio(rate: object, on_cpu: object) -> float:
    return rate / on_cpu if isinstance(rate, float) and isinstance(on_cpu, float) else math.nan


def _product(device: torch.device, dtype: torch.dtype) -> Step:
    left, right = (torch.randn(_SIZE, _SIZE, dtype=dtype, device=device) for _ in range(2))
    return lambda: left @ right


def _training(device: torch.device, reduced: torch.dtype | None = None) -> Step:
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
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2),  # (N, 6, 12, 12)
        nn.Conv2d(6, 12, 5), nn.ReLU(), nn.MaxPool2d(2),  # (N, 12, 4, 4)
        nn.Flatten(),
        nn.Linear(192, 120), nn.ReLU(),
        nn.Linear(120, 60), nn.ReLU(),
        nn.Linear(60, 10),
    )  # fmt: skip
