"""The first 30 minutes on a GPU: ``python -m benchmarks gpu [check ...] [--device cpu]`` says what held.

Each check is one process of at most ten minutes. ``--device cpu`` tries the checks themselves, on less data.
What only a GPU can show is then listed as not tried.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runmanager import GridOutcome, RunManager
    from runmanager.training.loaders import ImageTensors

LIMIT_S = 600
DEVICE = os.environ.get("RUNMANAGER_GPU_CHECK_DEVICE", "cuda")
GPU = DEVICE != "cpu"
HOME = Path(__file__).parents[1]
CLAIMS = "RUNMANAGER_GPU_CHECK_CLAIMS"
"""The environment variable with the file to which a check adds its claims."""

Claim = tuple[str, bool | None]
"""What a check claims, and whether it held; None where this machine cannot show it."""
HELD, FAILED, NOT_TRIED = "held", "DID NOT HOLD", "not tried"


def data(size: int = 20_000 if GPU else 1000, *, bad: bool = False) -> "ImageTensors":
    """Make images whose brightness tells the class; `bad`: one label is no class, an assert on a GPU."""
    import torch

    from runmanager.training.loaders import ImageTensors

    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 10, (size,), generator=generator)
    noise = torch.randint(0, 80, (size, 1, 28, 28), generator=generator)
    images = (noise + 17 * labels[:, None, None, None]).to(torch.uint8)
    if bad:
        labels[size // 2] = 99
    return ImageTensors(images, labels)


def network(dropout: float = 0.0) -> Any:
    """Make a small convolutional network."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(dropout), nn.Linear(2304, 10)
    )


def train(run: Any, manager: "RunManager") -> None:
    """Train as the run says; `what` names its fault."""
    import torch

    from runmanager import fit
    from runmanager.training.loaders import TensorLoader

    what, get = str(getattr(run, "what", "ok")), partial(getattr, run)
    before = torch.cuda.memory_allocated() >> 20 if GPU and torch.cuda.is_initialized() else 0
    print(f"pid={os.getpid()} what={what} before={before} visible={os.environ.get('CUDA_VISIBLE_DEVICES')}")
    sys.stdout.flush()
    hog = None
    if GPU and what == "out of memory":
        torch.empty(1 << 42, device=run.device)
    if GPU and what == "fill":
        free = torch.cuda.mem_get_info()[0] - (300 << 20)
        hog = torch.empty(free, dtype=torch.uint8, device=run.device)
        time.sleep(15)
    if GPU and what == "illegal":
        torch.zeros(4, device=run.device)[torch.tensor([1 << 40], device=run.device)].sum().item()
    samples = data(bad=what == "assert")
    loader = TensorLoader(samples, get("batch", 500), device=run.device, num_workers=get("workers", 0))
    fit(
        run, network(get("dropout", 0.0)), loader, manager,
        optimizer=partial(torch.optim.Adam, lr=1e-3, fused=get("fused", False)),
        epochs=get("epochs", 2), test_loader=TensorLoader(data(2000), 1000, device=run.device, shuffle=False),
        precision=get("precision", "fp32"), micro_batch=get("micro", None), clip_grad_norm=get("clip", None),
    )  # fmt: skip
    del hog


def grid(name: str, params: dict[str, Any], **options: Any) -> "GridOutcome":
    """Execute a grid in a folder of its own and print its runs."""
    from runmanager import run_grid

    with folder() as root:
        outcome = run_grid(
            {**params, "device": [DEVICE]} | params, train, experiment=name, root=root, **options
        )
        columns = ["run", *params, "status", "error", "accuracy", "micro_batch", "epoch duration"]
        table = outcome.runs
        print(table[[column for column in dict.fromkeys(columns) if column in table]].to_string())
        sys.stdout.flush()
        return outcome


@contextmanager
def folder() -> Iterator[Path]:
    """Make a folder for the length of a block."""
    path = Path(tempfile.mkdtemp(prefix="runmanager-gpu-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def of_gpu(claim: str, held: bool) -> Claim:
    """Claim what only a GPU can show."""
    return claim, held if GPU else None


def statuses(outcome: "GridOutcome") -> list[str]:
    """Return how the runs ended."""
    return [str(status) for status in outcome.runs["status"]]


def machine() -> Iterator[Claim]:
    """Show the driver, torch and what the devices can do."""
    import torch

    from runmanager import benchmark_devices, describe_devices

    if GPU and (tool := shutil.which("nvidia-smi")):
        subprocess.run([tool], check=False)  # noqa: S603 - found above
    print(describe_devices().to_string())
    table = benchmark_devices()
    print(table.to_string())
    yield of_gpu("torch finds the device", torch.cuda.is_available())
    yield (
        "every workload of the device was timed",
        DEVICE in {name.partition(":")[0] for name in table["device"]},
    )


def marked() -> Iterator[Claim]:
    """Execute the tests that need a GPU, but for those that execute these checks."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "-rs", "--ignore=tests/test_cuda.py"]
    done = subprocess.run(command, cwd=HOME, check=False)  # noqa: S603 - our own
    yield of_gpu("all tests with the mark cuda pass", done.returncode == 0)
    if not GPU:
        yield "they are collected, and skipped for want of a GPU", done.returncode == 0


def images() -> Iterator[Claim]:
    """Scale all bytes on the device and on the cpu."""
    import torch

    from runmanager.training.loaders import to_unit

    values = torch.arange(256, dtype=torch.uint8)
    differing = int((to_unit(values.to(DEVICE)).cpu() != to_unit(values)).sum())
    yield of_gpu(f"images are those of the cpu ({differing} of 256 values differ)", differing == 0)


def faults() -> Iterator[Claim]:
    """Let an assert, an illegal access and too large tensors happen between healthy runs."""
    outcome = grid("faults", {"what": ["ok", "assert", "ok 2", "out of memory", "ok 3", "illegal", "ok 4"]})
    ended = dict(zip(outcome.runs["what"], statuses(outcome), strict=True))
    errors = dict(zip(outcome.runs["what"], outcome.runs["error"], strict=True))
    yield (
        "healthy runs after faults complete",
        all(ended[f"ok{n}"] == "completed" for n in ("", " 2", " 3", " 4")),
    )
    yield of_gpu("an assert is a GPU error", str(errors["assert"]).startswith("GPU error"))
    yield of_gpu("an illegal access is a GPU error", str(errors["illegal"]).startswith("GPU error"))
    yield of_gpu("a tensor too large is out of memory", ended["out of memory"] == "out of memory")


def shared() -> Iterator[Claim]:
    """Let a run fill the device that others share."""
    outcome = grid("shared", {"what": ["fill", "a", "b", "c"]}, jobs=2, runs_per_device=2)
    yield "all runs complete", set(statuses(outcome)) == {"completed"}
    yield of_gpu("no run is unavailable while another fills the device", "unavailable" not in statuses(outcome))


def alternate() -> Iterator[Claim]:
    """Let devices alternate, as in the tutorial's grid."""
    devices = list(dict.fromkeys([DEVICE, "cpu"]))
    done = own_process("alternating", devices)
    yield f"one process for each of {' and '.join(devices)} ({len(done)} processes)", len(done) == len(devices)


def own_process(name: str, devices: list[str], **options: Any) -> set[str]:
    """Execute a grid and return the processes of its runs, as they printed them."""
    params = {"what": ["a", "b", "c"], "device": devices}
    program = f"from benchmarks import gpu; gpu.grid({name!r}, {params!r}, **{options!r})"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    print(done.stdout)
    return {word for word in done.stdout.split() if word.startswith("pid=")}


def memory() -> Iterator[Claim]:
    """Execute runs in this process and look at what the ones before have left on the device."""
    import torch

    left: list[int] = []
    for number in range(4):
        grid("inline", {"what": [str(number)]}, executor="inline", display=False)
        left.append(torch.cuda.memory_allocated() if GPU else 0)
    print(f"bytes on the device after each run: {left}")
    yield of_gpu("nothing is left on the device from run to run", left[-1] <= left[0])


def syncs() -> Iterator[Claim]:
    """Count what waits for the device in the batches of an epoch, for each loader and hook, and for `fit`."""
    from runmanager.training.loaders import TensorLoader, to_unit

    samples = data(5000 if GPU else 1000)
    plain = [
        (to_unit(samples.images[i : i + 500]), samples.labels[i : i + 500]) for i in range(0, len(samples), 500)
    ]
    loaders: dict[str, Any] = {
        "pinned": TensorLoader(samples, 500, device=DEVICE),
        "workers": TensorLoader(samples, 500, device=DEVICE, num_workers=2),
        "on the device": TensorLoader(samples.to(DEVICE), 500, device=DEVICE),
        "pageable": plain,
    }
    for name, loader in loaders.items():
        lines = waits(loader)
        print(f"{name}: {sorted(lines) or 'nothing'}")
        yield of_gpu(f"{name}: {len(lines)} calls of 10 batches and their hooks wait, 0 expected", not lines)
    modes: dict[str, dict[str, Any]] = {
        "fit": {}, "fit, bf16": {"precision": "bf16"}, "fit, fp16": {"precision": "fp16"},
        "fit, clipped": {"clip_grad_norm": 1.0}, "fit, in pieces": {"micro_batch": 100},
    }  # fmt: skip
    for name, options in modes.items():
        per_batch = (waits_of_fit(20, **options) - waits_of_fit(10, **options)) / 10
        expected = (
            1 if options.get("precision") == "fp16" else 0
        )  # the scaler reads whether gradients are finite
        yield of_gpu(f"{name}: {per_batch:g} calls a batch wait, {expected} expected", per_batch == expected)


def waits(loader: Any) -> list[str]:
    """Return the lines that torch reports as waiting for the device, in the second epoch."""
    import torch
    from torch.nn import functional

    from runmanager import RunManager

    model, lines = network(), list[str]()
    with (
        folder() as root,
        RunManager("e", root, display=False).run({"device": DEVICE}, model, loader) as manager,
    ):
        optimizer = torch.optim.Adam(model.parameters())
        for epoch in manager.epochs(2):
            with waits_noted() as noted:
                for inputs, labels in manager.batches():
                    preds = model(inputs)
                    loss = functional.cross_entropy(preds, labels)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    manager.track_loss(loss, labels)
                    manager.track_num_correct(preds, labels)
                    manager.track(margin=preds.max())
                    manager.log(step_loss=loss)
            if epoch > 1:
                lines = noted
    return lines


def waits_of_fit(num_batches: int, **options: Any) -> int:
    """Count what waits for the device in a whole run of `fit`."""
    import torch

    from runmanager import RunManager, fit
    from runmanager.training.loaders import TensorLoader

    if not GPU and options.get("precision") == "fp16":
        return 0
    samples = data(100 * num_batches)
    with folder() as root, waits_noted() as noted:
        fit(
            {"device": DEVICE}, network(), TensorLoader(samples, 100, device=DEVICE),
            RunManager("e", root, display=False), optimizer=torch.optim.Adam, epochs=1,
            test_loader=TensorLoader(samples, 100, device=DEVICE, shuffle=False), **options,
        )  # fmt: skip
    return len(noted)


@contextmanager
def waits_noted() -> Iterator[list[str]]:
    """Let torch report what waits for the device during a block; yield the lines, which are there after it."""
    import torch

    lines: list[str] = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if GPU:
            torch.cuda.set_sync_debug_mode("warn")
        yield lines
        if GPU:
            torch.cuda.set_sync_debug_mode("default")
    lines += [f"{Path(one.filename).name}:{one.lineno}" for one in seen if "synchronizing" in str(one.message)]


def clocks() -> Iterator[Claim]:
    """Compare the first run of a process with the next ones."""
    outcome = grid("clocks", {"what": list("abcde"), "epochs": [3]})
    epochs = outcome.results
    first, *later = epochs[epochs["epoch"] == 1]["epoch duration"].tolist()
    print(f"first epochs of five runs: {[round(seconds, 3) for seconds in (first, *later)]} s")
    yield of_gpu("the first epoch of the first run takes no longer than later ones", first < 1.3 * max(later))
    yield of_gpu(
        "it is marked in its row",
        "cold start" in epochs and epochs["cold start"].tolist() == [True] + [False] * 14,
    )


def modes() -> Iterator[Claim]:
    """Train in every precision, with and without workers, fused, clipped and in pieces."""
    precisions = ["fp32", "bf16", "fp16"] if GPU else ["fp32", "bf16"]
    fused, clip = ([False, True], [None, 1.0]) if GPU else ([False], [1.0])
    axes = {"precision": precisions, "workers": [0, 2], "fused": fused, "clip": clip, "micro": [None, 100]}
    outcome = grid("modes", axes)
    table = outcome.runs[outcome.runs["status"] == "completed"]
    yield "all complete", len(table) == len(outcome.runs)
    spread = table["accuracy"].max() - table["accuracy"].min()
    yield f"their accuracies are within 0.05 of each other ({spread:.3f})", spread < 0.05  # noqa: PLR2004


def resume() -> Iterator[Claim]:
    """Interrupt a run with dropout, and with a gradient scaler, and compare weights bit by bit."""
    import torch

    torch.use_deterministic_algorithms(mode=True)
    for precision in ("fp32", "fp16") if GPU else ("fp32",):
        with folder() as one, folder() as other:
            whole = weights_after(one, precision, stops=[None])
            parts = weights_after(other, precision, stops=[2, None])
        yield f"{precision}: resumed equals uninterrupted", all(map(torch.equal, whole, parts))


def weights_after(root: Path, precision: str, stops: list[int | None]) -> list[Any]:
    """Train four epochs in attempts of which each but the last is interrupted after `stops`."""
    import torch

    from runmanager import RunManager, fit
    from runmanager.training.loaders import TensorLoader

    for stop in stops:
        torch.manual_seed(7)
        model = network(0.5)

        def factor(epoch: int, stop: int | None = stop) -> float:
            if stop is not None and epoch == stop:
                raise KeyboardInterrupt
            return 1.0

        try:
            fit(
                {"device": DEVICE}, model, TensorLoader(data(5000 if GPU else 1000), 500, device=DEVICE),
                RunManager("r", root, display=False), optimizer=partial(torch.optim.Adam, fused=GPU), epochs=4,
                precision=precision, scheduler=partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=factor),
            )  # fmt: skip
        except KeyboardInterrupt:
            print(f"interrupted after epoch {stop}")
    return [parameter.detach().cpu() for parameter in model.parameters()]


def auto() -> Iterator[Claim]:
    """Let ``micro_batch="auto"`` halve its pieces on a device with little memory, however that is allocated."""
    for allocator in ("expandable_segments:False", "expandable_segments:True"):
        environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": allocator}
        command = [sys.executable, "-c", "from benchmarks import gpu; gpu.in_pieces()"]
        done = subprocess.run(command, env=environment, check=False)  # noqa: S603 - our own
        yield of_gpu(f"a batch that is too large is computed in pieces, {allocator}", done.returncode == 0)
        if not GPU:
            yield "a run that may be computed in pieces completes", done.returncode == 0


def in_pieces() -> None:
    """Train with batches for which a device has too little memory; end with 0 if it was done in pieces."""
    import torch

    size = 20_000 if GPU else 500  # of a batch: 2 GiB
    if GPU:
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, 2**30 / total))
    outcome = grid("auto", {"micro": ["auto"], "batch": [size]}, executor="inline")
    run = outcome.runs.iloc[0]
    was_cut = not GPU or run.get("micro_batch", size) < size
    sys.exit(0 if run["status"] == "completed" and was_cut else 1)


def visible() -> Iterator[Claim]:
    """Look what CUDA_VISIBLE_DEVICES makes of the devices."""
    import torch

    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}" if GPU else "GPU-0"
    program = (
        "import torch; from runmanager import available_devices as a\n"
        "for device in a(): torch.zeros(1, device=device)\nprint(a())"
    )
    for value in ("", "0", "-1", "7", "0,0", uuid, uuid[:12]) if GPU else ("", "0"):
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": value}
        command = [sys.executable, "-c", program]
        done = subprocess.run(  # noqa: S603 - our own
            command, env=environment, capture_output=True, text=True, check=False
        )
        print(f"{value!r}: {done.stdout.strip() or done.stderr.strip()[-200:]}")
        yield f"CUDA_VISIBLE_DEVICES={value!r}", done.returncode == 0


def ray() -> Iterator[Claim]:
    """Execute runs on Ray, one of them with an assert."""
    outcome = grid("ray", {"what": ["ok", "assert", "ok 2", "ok 3"]}, executor="ray")
    ended = dict(zip(outcome.runs["what"], statuses(outcome), strict=True))
    yield "healthy runs complete", {ended["ok"], ended["ok 2"], ended["ok 3"]} == {"completed"}
    pids = own_process("ray alone", [DEVICE], executor="ray")
    print(sorted(pids))
    yield of_gpu("each run on a GPU has a process of its own", len(pids) == 3)  # noqa: PLR2004 - runs


def ranks() -> Iterator[Claim]:
    """Execute a run in two ranks under torchrun, on two devices or on the cpu."""
    import torch

    is_on_gpus = GPU and torch.cuda.device_count() > 1
    device = "cuda" if is_on_gpus else "cpu"
    program = f"from benchmarks import gpu; gpu.grid('ranks', {{'device': [{device!r}]}}, executor='inline')"
    with folder() as root:
        script = root / "ranks.py"
        script.write_text(program.replace("gpu.grid(", "gpu.in_ranks(") + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(script), str(root)]
        environment = {**os.environ, "PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, check=False)  # noqa: S603 - our own
    yield "two ranks on two GPUs", done.returncode == 0 if is_on_gpus else None
    if not is_on_gpus:
        yield "two ranks on the cpu", done.returncode == 0


def in_ranks(name: str, params: dict[str, Any], **options: Any) -> None:
    """Execute a grid in the folder that all ranks have."""
    from runmanager import run_grid

    outcome = run_grid(params, train, experiment=name, root=sys.argv[1], **options)
    sys.exit(outcome.exit_code)


def tutorial() -> Iterator[Claim]:
    """Execute the tutorial's grid, with both devices and with the GPU alone."""
    for flags in (["--device", DEVICE], []) if GPU else (["--device", "cpu", "--train-size", "2000"],):
        with folder() as root:
            command = [sys.executable, "experiments/fashion_grid.py", "--root", str(root), *flags]
            done = subprocess.run(command, cwd=HOME, check=False)  # noqa: S603 - our own
        yield f"fashion_grid.py {' '.join(flags)}", done.returncode == 0


CHECKS: tuple[Callable[[], Iterator[Claim]], ...] = (
    machine, marked, images, faults, shared, alternate, memory, syncs, clocks, modes, resume, auto, visible,
    ray, ranks, tutorial,
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Execute checks, each in a process of its own, and print what held; return how many did not."""
    names = [check.__name__ for check in CHECKS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__)
    parser.add_argument("checks", nargs="*", metavar="check", help=f"of {', '.join(names)}; default: all")
    parser.add_argument(
        "--device", default="cuda", choices=["cuda", "cpu"], help="cpu tries the checks (default: cuda)"
    )
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.checks if name not in names]:
        parser.error(f"no check {', '.join(unknown)}; there are: {', '.join(names)}")
    from runmanager.devices import torch_devices

    if not torch_devices.is_available(given.device):
        why = torch_devices.missing(given.device)
        print("\n".join(f"{name:<10} {NOT_TRIED}: {why}" for name in given.checks or names))
        print("\nnothing was tried; --device cpu tries the checks themselves")
        return len(given.checks or names)
    ended = {name: execute(name, given.device) for name in given.checks or names}
    print()
    for name, (lines, seconds) in ended.items():
        print(f"{name:<10} {summary(lines)}, {seconds:.0f} s")
        for line in lines:
            if not line.startswith(HELD):
                print(f"{'':<10}   {line}")
    failed = [name for name, (lines, _) in ended.items() if has_failed(lines)]
    everything = summary([line for lines, _ in ended.values() for line in lines])
    print(f"\n{'all':<10} {everything}" + (f": {', '.join(failed)}" if failed else ""))
    return len(failed)


def execute(name: str, device: str) -> tuple[list[str], float]:
    """Execute a check in a process of its own; return its claims, each with its verdict, and the seconds."""
    print(f"\n== {name}", flush=True)
    before = time.monotonic()
    with folder() as claims:
        environment = {
            **os.environ,
            "RUNMANAGER_GPU_CHECK_DEVICE": device,
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            CLAIMS: str(claims / "claims"),
        }
        (claims / "claims").touch()
        command = [sys.executable, "-c", f"from benchmarks import gpu; gpu.check({name!r})"]
        try:
            done = subprocess.run(command, env=environment, timeout=LIMIT_S, check=False)  # noqa: S603 - our own
            end = f"it ended with exit code {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            end = f"it did not end within {LIMIT_S} s"
        lines = (claims / "claims").read_text(encoding="utf-8").splitlines()
    if end and not has_failed(lines):
        lines.append(f"{FAILED}: {end}")
    return lines, time.monotonic() - before


def has_failed(lines: list[str]) -> bool:
    """Whether a claim did not hold."""
    return any(line.startswith(FAILED) for line in lines)


def summary(lines: list[str]) -> str:
    """Count verdicts.

    >>> summary(["held: a", "held: b", "not tried: c"])
    '2 held, 1 not tried'
    """
    counts = {verdict: sum(line.startswith(verdict) for line in lines) for verdict in (HELD, NOT_TRIED, FAILED)}
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count) or "claimed nothing"


def check(name: str) -> None:
    """Execute a check in this process, print what it claims, and end with 1 if something did not hold."""
    lines: list[str] = []

    def note(claim: str, held: bool | None) -> None:
        lines.append(f"{NOT_TRIED if held is None else HELD if held else FAILED}: {claim}")
        print(lines[-1], flush=True)
        if path := os.environ.get(CLAIMS):
            with Path(path).open("a", encoding="utf-8") as file:
                print(lines[-1], file=file)

    try:
        for claim, held in next(check for check in CHECKS if check.__name__ == name)():
            note(claim, held)
    except Exception as error:  # noqa: BLE001 - a check that breaks off is one that did not hold
        traceback.print_exc()
        note(f"it broke off by {type(error).__name__}: {str(error).partition(chr(10))[0]}", held=False)
    sys.exit(1 if has_failed(lines) else 0)
