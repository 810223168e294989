"""The checks of ``python -m benchmarks gpu``: each yields what it claims, and whether that held."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runmanager import GridOutcome, RunManager
    from runmanager.core.loaders import ImageTensors

DEVICE = os.environ.get("RUNMANAGER_GPU_CHECK_DEVICE", "cuda")
GPU = DEVICE != "cpu"
IS_SMALL = not GPU or "RUNMANAGER_GPU_CHECK_SMALL" in os.environ  # little data, to try the checks themselves
HOME = Path(__file__).parents[1]

Claim = tuple[str, bool | None]
"""What a check claims, and whether it held; None where this machine cannot show it."""


def data(size: int = 1000 if IS_SMALL else 20_000, *, bad: bool = False) -> "ImageTensors":
    """Make images whose brightness tells the class; `bad`: one label is no class, an assert on a GPU."""
    import torch

    from runmanager.core.loaders import ImageTensors

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
    from runmanager.core.loaders import TensorLoader

    what, get = str(getattr(run, "what", "ok")), partial(getattr, run)
    before = torch.cuda.memory_allocated() >> 20 if GPU and torch.cuda.is_initialized() else 0
    print(f"pid={os.getpid()} what={what} before={before} visible={os.environ.get('CUDA_VISIBLE_DEVICES')}")
    sys.stdout.flush()
    hog = None
    if GPU and what == "out of memory":
        need_too_much(run.device)
    if GPU and what == "fill":
        free = torch.cuda.mem_get_info()[0] - (300 << 20)
        hog = torch.empty(free, dtype=torch.uint8, device=run.device)
        time.sleep(15)
    if GPU and what == "illegal":
        torch.zeros(4, device=run.device)[torch.tensor([1 << 40], device=run.device)].sum().item()
    set_flags(what)
    samples = data(bad=what == "assert")
    loader = TensorLoader(samples, get("batch", 500), device=run.device, num_workers=get("workers", 0))
    model = network(get("dropout", 0.0))
    if get("compiled", False):
        model.compile()
    fit(
        run, model, loader, manager,
        optimizer=partial(torch.optim.Adam, lr=1e-3, fused=get("fused", False)),
        epochs=get("epochs", 2), test_loader=TensorLoader(data(2000), 200, device=run.device, shuffle=False),
        precision=get("precision", "fp32"), micro_batch=get("micro", None), clip_grad_norm=get("clip", None),
    )  # fmt: skip
    del hog


def need_too_much(device: str) -> None:
    """Ask for twice the memory that the device has."""
    import torch

    torch.empty(2 * torch.cuda.mem_get_info()[1], dtype=torch.uint8, device=device)


def set_flags(what: str) -> None:
    """Change what `what` names in the process; a run that changes nothing must find nothing changed."""
    import torch

    if "deterministic" in what:
        torch.use_deterministic_algorithms(mode=True)
    elif what == "tf32":
        torch.set_float32_matmul_precision("high")
    elif torch.are_deterministic_algorithms_enabled() or torch.get_float32_matmul_precision() != "highest":
        raise RuntimeError("the run before has left its flags")


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

    from benchmarks import devices
    from runmanager import describe_devices

    if GPU and (tool := shutil.which("nvidia-smi")):
        subprocess.run([tool], check=False)  # noqa: S603 - found above
    print(describe_devices().to_string())
    table = devices.table()
    print(table.to_string())
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, Python {sys.version.split()[0]}")
    yield of_gpu("torch finds the device", torch.cuda.is_available())
    yield (
        "every workload of the device was timed",
        DEVICE in {name.partition(":")[0] for name in table["device"]},
    )


def numbers() -> Iterator[Claim]:
    """Train one run on the device and one on the cpu; compare their numbers, and our clocks with its."""
    from runmanager import load_results, load_runs

    tables, between, wall = {}, [0.0], 0.0
    for device in dict.fromkeys(["cpu", DEVICE]):
        with folder() as root:
            before = time.perf_counter()
            between = in_a_loop(device, root)
            wall = time.perf_counter() - before
            tables[device] = load_results(root)
            row = load_runs(root).iloc[0]
    print("\n".join(f"{device}\n{table.to_string()}" for device, table in tables.items()))
    ours, of_cpu = tables[DEVICE], tables["cpu"]
    apart = float(((ours["loss"] - of_cpu["loss"]).abs() / of_cpu["loss"]).max())
    yield f"a run on {row['device']} completes", row["status"] == "completed"
    yield f"its losses are those of the cpu (at most {apart:.2g} of the loss apart)", apart < 0.02  # noqa: PLR2004
    epochs = ours["epoch duration"].tolist()
    late = max(abs(ours - other) / other for ours, other in zip(epochs[1:], between[1:], strict=True))
    yield f"epochs take as long as between events of the device (at most {late:.2%} apart)", late < 0.02  # noqa: PLR2004
    yield f"epochs of {sum(epochs):.2f} s lie within {wall:.2f} s of the whole run", sum(epochs) < wall
    yield of_gpu("the peak of memory is told", row.get("peak memory", 0) > 0)


def in_a_loop(device: str, root: Path) -> list[float]:
    """Train in a plain loop; return the seconds of each epoch as the device counts them."""
    import torch
    from torch.nn import functional

    from runmanager import RunManager
    from runmanager.core.loaders import TensorLoader

    is_gpu = device != "cpu"
    now = partial(torch.cuda.Event, enable_timing=True) if is_gpu else time.perf_counter
    marks: list[Any] = []

    def mark() -> None:
        marks.append(now())
        if is_gpu:
            marks[-1].record()

    model, loader = network(), TensorLoader(data(), 20, device=device, seed=0)
    with RunManager("numbers", root, display=False).run({"device": device}, model, loader) as manager:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in manager.epochs(3):
            mark()
            for inputs, labels in manager.batches():
                preds = model(inputs)
                loss = functional.cross_entropy(preds, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.track_loss(loss, labels)
                manager.track_num_correct(preds, labels)
            mark()
    pairs = zip(marks[::2], marks[1::2], strict=True)
    return [one.elapsed_time(other) / 1e3 if is_gpu else other - one for one, other in pairs]


def images() -> Iterator[Claim]:
    """Scale all bytes on the device and on the cpu."""
    import torch

    from runmanager.core.loaders import to_unit

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
    # a batch in pinned memory that is freed meanwhile lets C++ abort the process
    is_told = ended["assert"] == "failed" and "device-side assert triggered" in str(errors["assert"])
    yield of_gpu("an assert is told as such", is_told)
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
    program = f"from benchmarks import gpu_checks; gpu_checks.grid({name!r}, {params!r}, **{options!r})"
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
    from runmanager.core.loaders import TensorLoader, to_unit

    samples = data(1000 if IS_SMALL else 5000)
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
    from runmanager.core.loaders import TensorLoader

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
    late = first - max(later)
    yield of_gpu(f"the first epoch of the first run takes at most 0.2 s longer ({late:.3f} s)", late < 0.2)  # noqa: PLR2004
    yield of_gpu(
        "it is marked in its row",
        "cold start" in epochs and epochs["cold start"].tolist() == [True] + [False] * 14,
    )


def modes() -> Iterator[Claim]:
    """Train in every precision, with and without workers, fused, clipped and in pieces."""
    precisions = ["fp32", "bf16", "fp16"] if GPU else ["fp32", "bf16"]
    fused, clip = ([GPU], [1.0]) if IS_SMALL else ([False, True], [None, 1.0])
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
    from runmanager.core.loaders import TensorLoader

    for stop in stops:
        torch.manual_seed(7)
        model = network(0.5)

        def factor(epoch: int, stop: int | None = stop) -> float:
            if stop is not None and epoch == stop:
                raise KeyboardInterrupt
            return 1.0

        try:
            fit(
                {"device": DEVICE}, model, TensorLoader(data(1000 if IS_SMALL else 5000), 500, device=DEVICE),
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
        command = [sys.executable, "-c", "from benchmarks import gpu_checks; gpu_checks.in_pieces()"]
        done = subprocess.run(command, env=environment, check=False)  # noqa: S603 - our own
        yield of_gpu(f"a batch that is too large is computed in pieces, {allocator}", done.returncode == 0)
        if not GPU:
            yield "a run that may be computed in pieces completes", done.returncode == 0


def in_pieces() -> None:
    """Train with batches for which a device has too little memory; end with 0 if it was done in pieces."""
    import torch

    size = 500 if IS_SMALL else 20_000  # of a batch: 2 GiB
    if GPU:
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, (2**25 if IS_SMALL else 2**30) / total))
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


def short() -> Iterator[Claim]:
    """Let memory run out in each place of a run; the run after each is well."""
    from runmanager import run_grid

    wheres = ("forward", "backward", "optimizer", "evaluation", "checkpoint")
    names = [name for where in wheres for name in (where, "")]
    params = {("number", "where"): list(enumerate(names)), "device": [DEVICE]}
    for executor in ("lanes", "inline"):
        with folder() as root:
            outcome = run_grid(params, train_short, experiment="short", root=root, executor=executor)
            ended, errors = statuses(outcome), outcome.runs["error"].tolist()
        print("\n".join(map(str, zip(names, ended, errors, strict=True))))
        yield f"{executor}: runs after it complete", set(ended[1::2]) == {"completed"}
        for where, status in zip(wheres, ended[::2], strict=True):
            yield of_gpu(f"{executor}: no memory in {where} is out of memory", status == "out of memory")


class Part:
    """A part of a checkpoint that asks for something when it is saved."""

    def __init__(self, ask: Callable[[], None]) -> None:
        self.ask = ask

    def state_dict(self) -> dict[str, Any]:
        """Ask, and have no state."""
        self.ask()
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load nothing."""


def train_short(run: Any, manager: "RunManager") -> None:
    """Train; in the second epoch, need more memory than there is in the place that the run names."""
    import torch
    from torch.nn import functional

    from runmanager.core.loaders import TensorLoader

    epoch = 0

    def need(where: str, _: Any = None) -> None:
        if GPU and run.where == where and epoch > 1:
            need_too_much(run.device)

    def checked_loss(preds: Any, labels: Any) -> torch.Tensor:
        need("evaluation")
        return functional.cross_entropy(preds, labels)

    model, loader = network(), TensorLoader(data(1000), 500, device=run.device)
    with manager.run(run, model, loader):
        optimizer = torch.optim.Adam(model.parameters())
        optimizer.register_step_pre_hook(lambda *_: need("optimizer"))
        parts = {"network": model, "part": Part(partial(need, "checkpoint"))}
        for epoch in manager.epochs(2, checkpoint=parts):  # noqa: B007 - need() reads it
            for inputs, labels in manager.batches():
                need("forward")
                preds = model(inputs)
                preds.register_hook(partial(need, "backward"))
                loss = functional.cross_entropy(preds, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.track_loss(loss, labels)
            manager.evaluate(loader, loss=checked_loss)


def flags() -> Iterator[Claim]:
    """Repeat a run with deterministic algorithms, and one with TF32; the run after each finds nothing set."""
    outcome = grid("flags", {"what": ["deterministic", "plain", "tf32", "plain 2", "deterministic 2"]})
    losses = outcome.results.groupby("run")["loss"].last().tolist()
    apart = abs(losses[2] - losses[1]) / losses[1]
    yield "all runs complete, so none finds the flags of another", set(statuses(outcome)) == {"completed"}
    yield "deterministic runs have the same loss to the last bit", losses[0] == losses[4]
    yield f"TF32 changes the loss by little ({apart:.2g} of it)", apart < 0.01  # noqa: PLR2004


def loaders() -> Iterator[Claim]:
    """Train over the same batches from each kind of loader."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from runmanager import RunManager, fit
    from runmanager.core.loaders import ImageTensors, TensorLoader, to_unit

    samples = data(2000)
    mixed = ImageTensors(samples.images.to(DEVICE), samples.labels)
    floats = TensorDataset(to_unit(samples.images), samples.labels)
    ours = partial(TensorLoader, batch_size=100, device=DEVICE, shuffle=False)
    made: dict[str, Any] = {
        "pinned": ours(samples), "with workers": ours(samples, num_workers=2),
        "on the device": ours(samples.to(DEVICE)), "labels on the cpu": ours(mixed),
        "of torch": DataLoader(floats, 100), "of torch, pinned": DataLoader(floats, 100, pin_memory=GPU),
        "of torch, pinned, workers": DataLoader(floats, 100, pin_memory=GPU, num_workers=2),
    }  # fmt: skip
    losses = {}
    for name, loader in made.items():
        with folder() as root:
            manager = RunManager("loaders", root, display=False)
            fit({"device": DEVICE}, network(), loader, manager, optimizer=torch.optim.Adam, epochs=2)
        losses[name] = manager.run_data[-1]["loss"]
        print(f"{name:<28}{losses[name]:.6f}, epoch of {manager.run_data[-1]['epoch duration']:.3f} s")
    apart = max(losses.values()) / min(losses.values()) - 1
    yield f"all have the same loss (at most {apart:.2g} of it apart)", apart < 1e-4  # noqa: PLR2004


def compiled() -> Iterator[Claim]:
    """Train a compiled network in two runs of one process."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))) or (GPU and not find_spec("triton")):
        yield "torch.compile finds its compilers", None
        return
    outcome = grid("compiled", {"what": ["plain", "a", "b"], "compiled": [False, True], "epochs": [3]})
    print(outcome.results.to_string())
    losses = outcome.results.groupby("run")["loss"].last()
    yield "all runs complete", set(statuses(outcome)) == {"completed"}
    apart = losses.max() / losses.min() - 1
    yield f"their losses are near each other (at most {apart:.2g} apart)", apart < 0.05  # noqa: PLR2004


def ray() -> Iterator[Claim]:
    """Execute runs on Ray, one of them with an assert."""
    if not find_spec("ray"):
        yield "ray is not installed", None
        return
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
    params = {"device": [device]}
    program = f"from benchmarks import gpu_checks; gpu_checks.in_ranks({params!r})\n"
    with folder() as root:
        script = root / "ranks.py"
        script.write_text(program, encoding="utf-8")
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(script), str(root)]
        path = os.pathsep.join([str(HOME), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, check=False)  # noqa: S603 - our own
    yield "two ranks on two GPUs", done.returncode == 0 if is_on_gpus else None
    if not is_on_gpus:
        yield "two ranks on the cpu", done.returncode == 0


def in_ranks(params: dict[str, Any]) -> None:
    """Execute a grid in the folder that all ranks have."""
    from runmanager import run_grid

    outcome = run_grid(params, train, experiment="ranks", root=sys.argv[1], executor="inline")
    sys.exit(outcome.exit_code)


def tutorial() -> Iterator[Claim]:
    """Execute the tutorial's grid, with both devices and with the GPU alone."""
    small = ["--train-size", "2000"] if IS_SMALL else []
    for flags in (["--device", DEVICE, *small], small) if GPU else (["--device", "cpu", *small],):
        with folder() as root:
            command = [sys.executable, "experiments/fashion_grid.py", "--root", str(root), *flags]
            done = subprocess.run(command, cwd=HOME, check=False)  # noqa: S603 - our own
        yield f"fashion_grid.py {' '.join(flags)}", done.returncode == 0


def marked() -> Iterator[Claim]:
    """Execute the tests that need a GPU, but for those that execute these checks."""
    options = ["-m", "cuda", "--ignore=tests/test_cuda.py", "-o", "filterwarnings=default"]
    options += ["--continue-on-collection-errors"]  # packages that are missing there
    yield from tests("all tests with the mark cuda pass", *options)


def suite() -> Iterator[Claim]:
    """Execute the whole default suite on this machine."""
    parallel = ["-n", "8", "--dist", "worksteal"] if GPU and find_spec("xdist") else []
    chosen = ["tests/border/test_goal.py"] if IS_SMALL else []
    yield from tests("the default suite passes beside a GPU", *parallel, *chosen)


def tests(claim: str, *options: str) -> Iterator[Claim]:
    """Execute tests with pytest, if it is installed."""
    if not find_spec("pytest"):
        yield "pytest is not installed", None
        return
    command = [sys.executable, "-m", "pytest", "-q", "-rs", *options]
    done = subprocess.run(command, cwd=HOME, check=False)  # noqa: S603 - our own
    yield of_gpu(claim, done.returncode == 0)
    if not GPU:
        yield "they are collected, and skipped for want of a GPU", done.returncode == 0


CHECKS: dict[Callable[[], Iterator[Claim]], int] = {
    machine: 15, numbers: 30, alternate: 30, faults: 60, shared: 60, resume: 30, short: 20, flags: 30,
    loaders: 30, syncs: 40, clocks: 20, memory: 20, images: 10, modes: 150, compiled: 120, auto: 40,
    visible: 60, ranks: 40, ray: 60, tutorial: 180, marked: 200, suite: 400,
}  # fmt: skip
"""The checks, the most telling first, each with the seconds that it is expected to take on a GPU."""
