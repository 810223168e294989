"""The speed on a GPU: ``python -m benchmarks gpu --speed``, the most telling parts first.

Goals: an epoch of `fit` takes at most 1.1 x a bare loop over tensors on the device; the tutorial's loop takes
at least 100 x as long as `fit` at batch 10,000.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.gpu_checks import DEVICE, GPU, HOME, IS_SMALL, Claim, data, folder, network, of_gpu
from benchmarks.measuring import spread

SIZE, ROUNDS = (2000, 1) if IS_SMALL else (60_000, 5)
BATCH_SIZES = (1000, 10_000, 100, 20_000)
OF_BARE, OF_TUTORIAL, OF_EAGER = 1.1, 100, 1.3
MEDIANS = HOME / "runs" / "gpu-speed.txt"


def captured() -> Iterator[Claim]:
    """Record a step as a CUDA graph in several ways; compare losses and times with those of eager steps."""
    from benchmarks.captured import WAYS, first_losses, trainers

    images = fashion()
    for batch_size in (1000, 100, 10_000):
        taken = in_turn({way: epoch for way, epoch in trainers(images, batch_size).items() if way != WAYS[1]})
        steps = -(-SIZE // batch_size)
        for way, values in taken.items():
            print(f"batch {batch_size}, {way:<20} a step {spread(values, 'µs', 1e6 / steps)}", flush=True)
        for way in WAYS[2:]:
            ratio = statistics.median(taken["eager"]) / statistics.median(taken[way])
            yield of_gpu(f"batch {batch_size}, {way}: {ratio:.2f}x eager of {OF_EAGER}x", ratio >= OF_EAGER)
    samples = data().to(DEVICE)
    expected, _ = first_losses(network, samples, "eager")
    for way in (*WAYS[2:], WAYS[1]):  # the one that may break the process comes last
        losses, error = first_losses(network, samples, way)
        apart = max(abs(one - other) / other for one, other in zip(losses, expected, strict=True))
        print(f"{way}: ten losses at most {apart:.2g} apart from eager ones; {error or 'recorded'}", flush=True)
        if way != WAYS[1]:
            yield of_gpu(f"{way}: the step is recorded", not error)
            yield of_gpu(f"{way}: the losses are those of eager steps ({apart:.2g})", apart < 1e-5)  # noqa: PLR2004


def ours() -> Iterator[Claim]:
    """Time an epoch of `fit` and its whole run, in ways, beside a bare loop over tensors on the device."""
    from benchmarks.captured import trainers

    images = fashion()
    for batch_size in BATCH_SIZES:
        bare = trainers(images, batch_size, ("eager",))["eager"]
        sides: dict[str, Callable[[], object]] = {
            "bare": bare,
            "fit, data in main memory": partial(fitted, images.to("cpu"), batch_size),
            "fit": partial(fitted, images, batch_size),
            "fit, eager": partial(fitted, images, batch_size, eager_batches=10**9),
            "fit, one epoch": partial(fitted, images, batch_size, epochs=1),
        }
        epochs: dict[str, list[float]] = {name: [] for name in sides}
        runs = in_turn(sides, epochs)
        for name, values in epochs.items():
            run = f"; run {spread(runs[name], 'ms', 1e3)}" if name != "bare" else ""
            print(f"batch {batch_size}, {name:<26} epoch {spread(values or runs[name], 'ms', 1e3)}{run}")
        note(f"{batch_size} {statistics.median(epochs['fit'])} {statistics.median(runs['fit, one epoch'])}")
        ratio = statistics.median(epochs["fit"]) / statistics.median(runs["bare"])
        yield of_gpu(
            f"batch {batch_size}: an epoch of fit takes {ratio:.2f}x bare of {OF_BARE}x", ratio <= OF_BARE
        )


def published() -> Iterator[Claim]:
    """Time the tutorial's loop as published, with 0, 1 and 8 workers, beside the medians of `ours`."""
    from torch.utils.data import Subset
    from torchvision import datasets, transforms

    every = datasets.FashionMNIST("data", download=True, transform=transforms.ToTensor())
    files = Subset(every, range(SIZE))
    fits = dict(map(of_note, MEDIANS.read_text().splitlines())) if MEDIANS.exists() else {}
    for batch_size in (10_000, 1000, 100, 20_000):
        medians = {}
        for num_workers in (min(8, os.cpu_count() or 1), 0, 1):
            rounds = 1 if num_workers == 1 else ROUNDS if batch_size == 10_000 else min(ROUNDS, 3)  # noqa: PLR2004
            taken = [of_tutorial(files, batch_size, num_workers) for _ in range(rounds)]
            epochs, runs = zip(*taken, strict=True)
            medians[num_workers] = statistics.median(epochs), statistics.median(runs)
            print(
                f"batch {batch_size}, num_workers={num_workers}: epoch {spread(epochs)}; run {spread(runs)}",
                flush=True,
            )
        if batch_size not in fits:
            yield f"batch {batch_size}: there are no medians of `ours`", None
            continue
        for name, fit, (plain, *others) in zip(
            ("epoch", "run"), fits[batch_size], zip(medians[0], *medians.values(), strict=True), strict=True
        ):
            print(f"batch {batch_size}: {name} {plain / fit:.0f}x, at best {min(others) / fit:.0f}x fit")
        if batch_size == 10_000:  # noqa: PLR2004 - the goal's
            ratio = medians[0][0] / fits[batch_size][0]
            yield of_gpu(f"batch {batch_size}: {ratio:.0f}x of {OF_TUTORIAL}x", ratio >= OF_TUTORIAL)


def of_tutorial(files: Any, batch_size: int, num_workers: int) -> tuple[float, float]:
    """Execute a run of one epoch by the tutorial's code; return the seconds of the epoch and of the run."""
    import torch
    from torch.utils.tensorboard import SummaryWriter
    from torchvision.utils import make_grid

    from benchmarks.tutorial import train_epoch
    from experiments.fashion_grid import make_network

    before = time.perf_counter()
    net = make_network().to(DEVICE)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(files, batch_size, num_workers=num_workers)
    with folder() as root, SummaryWriter(str(root)) as writer:
        images, _ = next(iter(loader))
        writer.add_image("images", make_grid(images))
        writer.add_graph(net, images.to(DEVICE))
        start = time.perf_counter()
        batches = ((images.to(DEVICE), labels.to(DEVICE)) for images, labels in loader)
        total, correct = train_epoch(net, batches, optimizer, batch_size)
        epoch = time.perf_counter() - start
        writer.add_scalar("Loss", total / SIZE, 1)
        writer.add_scalar("Accuracy", correct / SIZE, 1)
        for name, parameter in net.named_parameters():
            writer.add_histogram(name, parameter, 1)
            writer.add_histogram(f"{name}.grad", parameter.grad, 1)
    return epoch, time.perf_counter() - before


def profile() -> Iterator[Claim]:
    """Say where the time of 20 steps of `fit` at batch 1000 goes: kernels, copies and gaps."""
    from torch.profiler import ProfilerActivity, profile

    images = fashion().first(20_000)
    fitted(images, 1000)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if GPU else [])]
    for name, samples in (("on the device", images), ("in main memory", images.to("cpu"))):
        with profile(activities=activities) as profiler:
            epoch, _ = fitted(samples, 1000)
        averages = profiler.key_averages()
        column = "self_device_time_total" if GPU else "self_cpu_time_total"
        print(averages.table(sort_by=column, row_limit=14, max_name_column_width=60))
        print(averages.table(sort_by="self_cpu_time_total", row_limit=20, max_name_column_width=60))
        # annotations count kernels a second time
        of_device = [row for row in averages if str(row.device_type).endswith("CUDA")]
        of_device = [row for row in of_device if not getattr(row, "is_user_annotation", False)]
        copies = sum(
            row.self_device_time_total for row in of_device if row.key.startswith(("Memcpy", "Memset"))
        )
        kernels = sum(row.self_device_time_total for row in of_device) - copies
        print(f"data {name}: epoch {epoch * 1e3:.1f} ms under the profiler; in the whole run of 40 steps")
        print(f"{kernels / 1e3:.2f} ms of kernels, {copies / 1e3:.2f} ms of copies", flush=True)
    yield of_gpu("kernels are seen", kernels > 0)


def readme() -> Iterator[Claim]:
    """Execute README's grid with both devices; print its panel and its table."""
    small = ["--train-size", "2000"] if IS_SMALL else []
    with folder() as root:
        command = [sys.executable, "experiments/fashion_grid.py", "--root", str(root), *small]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(HOME), os.environ.get("PYTHONPATH", "")])
        }
        done = subprocess.run(command, cwd=HOME, env=environment, check=False)  # noqa: S603 - our own
        yield "README's grid", done.returncode == 0
        if done.returncode:
            return
        from runmanager import compare, load_results, load_runs

        columns = ["run", "batch_size", "num_workers", "device", "accuracy", "epoch duration", "run duration"]
        print(load_results(root)[columns].to_string())
        print(compare(load_runs(root), "device").to_string())


def fashion() -> Any:
    """Return the first images of Fashion-MNIST, on the device."""
    from runmanager.datasets import fashion_mnist

    return fashion_mnist("data", size=SIZE).to(DEVICE)


def fitted(samples: Any, batch_size: int, *, eager_batches: int = 10, epochs: int = 2) -> tuple[float, float]:
    """Train by `fit` with everything logged; return the duration (s) of the last epoch, and of the run."""
    import torch

    from experiments.fashion_grid import make_network
    from runmanager import RunManager, TensorLoader, fit
    from runmanager.front import recorded_passes

    torch.manual_seed(0)
    recorded_passes.EAGER_BATCHES = eager_batches
    with tempfile.TemporaryDirectory() as root:
        manager = RunManager("speed", root, display=False)
        before = time.perf_counter()
        fit(
            {"device": DEVICE}, make_network().to(memory_format=torch.channels_last),
            TensorLoader(samples, batch_size, device=DEVICE), manager,
            optimizer=partial(torch.optim.Adam, lr=0.01, fused=True), epochs=epochs,
        )  # fmt: skip
        run = time.perf_counter() - before
    # the second epoch: the first of a process is cold, and a recording belongs to the first
    return float(manager.run_data[-1]["epoch duration"]), run


def in_turn(
    sides: dict[str, Callable[[], object]], epochs: dict[str, list[float]] | None = None
) -> dict[str, list[float]]:
    """Return the seconds of each side, in turn after a warm round; gather the epochs that sides return."""
    import torch

    from runmanager.devices.torch_devices import wait_for

    taken: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(1 + ROUNDS):
        for name, side in sides.items():
            wait_for(torch.device(DEVICE))
            before = time.perf_counter()
            result = side()
            if number:
                taken[name].append(time.perf_counter() - before)
                if epochs is not None and isinstance(result, tuple):
                    epochs[name].append(result[0])
    return taken


def note(line: str) -> None:
    """Keep a line for a later check."""
    MEDIANS.parent.mkdir(exist_ok=True)
    with MEDIANS.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def of_note(line: str) -> tuple[int, tuple[float, float]]:
    """Read a line of `note`."""
    batch_size, epoch, run = line.split()
    return int(batch_size), (float(epoch), float(run))


CHECKS: dict[Callable[[], Iterator[Claim]], int] = {
    captured: 40, ours: 40, profile: 30, readme: 60, published: 150,
}  # fmt: skip
