"""The speed of each device of this machine: a matrix product and a training step, warm and synchronised."""

import pandas as pd
import torch
from torch import nn
from torch.utils.benchmark import Timer

from runmanager import available_devices

SIZE = 2048  # rows and columns of a matrix
BATCH = 1000  # images in a training step
SECONDS = 0.4  # of each measurement

PRODUCT = ("left @ right", f"{SIZE} x {SIZE} product", 2 * SIZE**3 / 1e9, "GFLOP/s")
STEP = (
    "optimizer.zero_grad(); nn.functional.cross_entropy(network(images), labels).backward(); optimizer.step()",
    f"training step of {BATCH}", BATCH, "images/s",
)  # fmt: skip


def table() -> pd.DataFrame:
    """Return one row per device and computation: the median of its rate, and the ratio to that of the cpu."""
    rows = []
    for device in available_devices():
        network = nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 24 * 24, 10)).to(
            device
        )
        content = {
            "nn": nn,
            "left": torch.randn(SIZE, SIZE, device=device),
            "right": torch.randn(SIZE, SIZE, device=device),
            "network": network,
            "optimizer": torch.optim.Adam(network.parameters()),
            "images": torch.rand(BATCH, 1, 28, 28, device=device),
            "labels": torch.randint(0, 10, (BATCH,), device=device),
        }
        for statement, name, amount, unit in (PRODUCT, STEP):
            timer = Timer(statement, globals=content, num_threads=torch.get_num_threads())
            rate = amount / timer.blocked_autorange(min_run_time=SECONDS).median
            rows.append({"device": device, "work": name, "median": rate, "unit": unit})
    timings = pd.DataFrame(rows)
    on_cpu = timings[timings["device"] == "cpu"].set_index("work")["median"]
    return timings.assign(**{"times the cpu": timings["median"] / timings["work"].map(on_cpu)})


def main() -> None:
    """Print the table."""
    print(table().to_string(index=False))


if __name__ == "__main__":
    main()
