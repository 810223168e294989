"""Runs on accelerators that are pretended: their numbers, what waits for them, their memory and their names."""

import contextlib
import gc
import itertools
import json
import math
import os
import subprocess
import sys
import time
import warnings
import weakref
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from runmanager import (
    ImageTensors,
    RunsWarning,
    TensorLoader,
    available_devices,
    fit,
    load_results,
    load_runs,
    run_grid,
)
from tests.accelerators import FULL, WELL, Machine, installed
from tests.border.events import manager_in, scalars_of
from tests.border.experiments import QUIET
from tests.border.work import learn

CUDA = torch.device("cuda:0")
NAME = "a pretended device"


@pytest.fixture
def here(machine):
    with installed(machine) as here:
        yield here


@pytest.fixture
def several(machine):
    """A machine with devices that no other test has used in this process."""
    with installed(Machine(machine.folder, 8)) as here:
        yield here


def data(size=400):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 255, (size, 1, 12, 12), dtype=torch.uint8, generator=generator)
    return ImageTensors(images, torch.arange(size) % 10)


def floats(samples):
    return ImageTensors(samples.images.float() / 255, samples.labels)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10))


# Numbers


def with_everything(manager, device, *, stop=None):
    """Train with every hook of a loop; end the process' work after `stop` batches of the second epoch."""
    model, loader = network(), TensorLoader(data(), 100, device=device)
    with manager.run({"device": device}, model, loader):
        optimizer = torch.optim.Adam(model.parameters())
        parts = {"network": model, "optimizer": optimizer}
        for epoch in manager.epochs(3, checkpoint=parts, checkpoint_every=1, keep="min:test_loss"):
            for batch, (inputs, labels) in enumerate(manager.batches(), 1):
                preds = model(inputs + 0.01 * torch.rand(len(labels), 1, 1, 1).to(inputs.device))
                loss = nn.functional.cross_entropy(preds, labels)
                optimizer.zero_grad()
                loss.backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                manager.track_loss(loss, labels)
                manager.track_num_correct(preds, labels)
                manager.track(norm=norm, top=preds.max())
                manager.log(step_loss=loss, first=preds[0, 0])
                if (epoch, batch) == (2, stop):
                    raise KeyboardInterrupt
            manager.evaluate(loader)


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize(
    "device", ["mps", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cuda:1", "xpu:1", "xpu"))]
)
def test_an_accelerator_does_all_of_a_loop_as_the_cpu_and_resumes_it_inside_an_epoch(machine, tmp_path, device):
    kind, tables = device.split(":")[0], []
    ways: list[tuple[str, list[int | None]]] = [("cpu", [None]), (device, [None]), (device, [2, None])]
    for number, (name, stops) in enumerate(ways):
        root = tmp_path / f"{number}"
        with installed(Machine(machine.folder, 2, kind)) as here, warnings.catch_warnings():
            warnings.simplefilter("error", RunsWarning)
            for stop in stops:
                torch.manual_seed(0)
                with contextlib.suppress(KeyboardInterrupt):
                    with_everything(manager_in(root), name, stop=stop)
            assert name == "cpu" or here.machine.starts(int(name.endswith("1")))
        assert load_runs(root)["status"].tolist() == ["completed"]
        (path, *_) = root.rglob("attempt-*.jsonl")
        assert (json.loads(path.read_text().splitlines()[0])["device_name"] == NAME) is (name == device)
        tables.append(load_results(root)[["loss", "accuracy", "norm", "top", "test_loss", "test_accuracy"]])

    on_cpu, on_device, resumed_on_device = tables
    assert resumed_on_device.equals(on_device)
    assert on_device.to_numpy() == pytest.approx(on_cpu.to_numpy(), rel=1e-4)  # Adam rounds otherwise on a GPU


@pytest.mark.usefixtures("here")
def test_images_on_a_device_are_those_of_the_cpu_to_the_last_bit():
    samples = ImageTensors(torch.arange(256, dtype=torch.uint8).reshape(4, 1, 8, 8), torch.zeros(4))

    loader: Any = TensorLoader(samples, 4, device=CUDA, shuffle=False)
    ((images, _),) = loader

    assert torch.equal(images.cpu(), samples.images.float() / 255)


# Waiting


def waits_per_batch(here, work):
    """Return what waits for the device in each batch: five batches more wait five times as often for it.

    Some systems wait for copies from memory that is not pinned too: "staged".
    """
    counts = []
    for num_batches in (1, 5, 10):  # the first begins with warming
        here.waits.calls.clear()
        here.waits.staged = 0
        work(data(20 * num_batches))
        counts.append(Counter({**Counter(here.waits.calls), "staged": here.waits.staged}))
    _, few, many = counts
    return {name: (many[name] - few[name]) / 5 for name in many if many[name] != few[name]}


def pinned(samples):
    return TensorLoader(samples, 20, device=CUDA)


def on_the_device(samples):
    return TensorLoader(samples.to(CUDA), 20, device=CUDA)


def of_torch(samples, **options):
    return DataLoader(floats(samples), batch_size=20, **options)


def labels_on_the_cpu(samples):
    return TensorLoader(ImageTensors(samples.images.to(CUDA), samples.labels), 20, device=CUDA)


def log(manager, loss, _preds, _labels):
    manager.log(step_loss=loss, lr=0.1)


READ = {"_local_scalar_dense.default": 1}
HOOKS: dict[str, Any] = {
    "loss of a number of samples": lambda manager, loss, _, __: manager.track_loss(loss, 20),
    "several at once": lambda manager, loss, preds, _: manager.track(loss_again=loss, top=preds.max(), lr=0.1),
    "loss": lambda manager, loss, _, labels: manager.track_loss(loss, labels),
    "loss alone": lambda manager, loss, *_: manager.track_loss(loss),
    "correct": lambda manager, _, preds, labels: manager.track_num_correct(preds, labels),
    "one-hot": lambda manager, _, preds, __: manager.track_num_correct(preds, preds),
    "log": log,
    "a number": lambda manager, loss, *_: manager.track_loss(loss.item(), 20),
    "the tutorial's": lambda manager, _, preds, labels: manager.get_num_correct(preds, labels),
}
LOOPS: dict[str, dict[str, Any]] = {
    "pinned": {"loader": pinned}, "labels on the cpu": {"loader": labels_on_the_cpu, "waits": {"staged": 1}},
    "of torch": {"loader": of_torch, "waits": {"staged": 2}},
    "of torch, pinned": {"loader": partial(of_torch, pin_memory=True)},
    **{name: {"hook": hook} for name, hook in HOOKS.items()},
    **{name: {"hook": HOOKS[name], "waits": READ} for name in ("a number", "the tutorial's")},
    "in pieces": {"pieces": 4, "hook": log}, "saved after each": {"loader": pinned, "checkpoint_every": 1},
    "saved after five": {"loader": pinned, "checkpoint_every": 5},
}  # fmt: skip


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_waits_for_the_device_in_no_batch_but_where_a_hook_says_so(here, name):
    options, number = dict(LOOPS[name]), itertools.count()
    make_loader, hook = options.pop("loader", on_the_device), options.pop("hook", HOOKS["loss"])
    pieces, waits = options.pop("pieces", 1), options.pop("waits", {})

    def work(samples):
        model, loader = network(), make_loader(samples)
        manager = manager_in(here.machine.folder)
        with manager.run({"device": "cuda:0", "number": next(number)}, model, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)
            for _ in manager.epochs(1, checkpoint={"network": model}, **options):
                for batch, (inputs, labels) in enumerate(manager.batches(), 1):
                    preds = model(inputs)
                    loss = nn.functional.cross_entropy(preds, labels)
                    (loss / pieces).backward()
                    if batch % pieces == 0:
                        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                        if not options:
                            manager.track(norm=norm)
                        optimizer.step()
                        scheduler.step()
                        optimizer.zero_grad()
                    hook(manager, loss, preds, labels)

    assert waits_per_batch(here, work) == waits


FITS: dict[str, dict[str, Any]] = {
    "fp32": {}, "bf16": {"precision": "bf16"}, "fused": {"fused": True}, "clipped": {"clip_grad_norm": 1.0},
    "in pieces": {"micro_batch": 7}, "in pieces as memory allows": {"micro_batch": "auto"},
    "sizes counted by the user": {"batch_size": lambda batch: len(batch[1])},
    "with a test set": {"test_loader": TensorLoader(data(40), 20, device=CUDA)},
}  # fmt: skip
for _name in ("fp32", "clipped", "in pieces", "fused"):
    FITS[f"fp16 {_name}"] = {**FITS[_name], "precision": "fp16"}


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize(
    "name",
    [name if name in ("fp32", "in pieces") else pytest.param(name, marks=pytest.mark.slow) for name in FITS],
)
def test_fit_waits_for_the_device_in_no_batch_but_with_torchs_scaler(here, name):
    number, options = itertools.count(), dict(FITS[name])
    optimizer = partial(torch.optim.Adam, fused=options.pop("fused", False))

    def work(samples):
        fit(
            {"device": "cuda:0", "number": next(number)}, network(), TensorLoader(samples, 20, device=CUDA),
            manager_in(here.machine.folder, tensorboard=False), epochs=1, optimizer=optimizer, **options,
        )  # fmt: skip

    is_scaled = name.startswith("fp16") and "fused" not in name
    assert waits_per_batch(here, work) == ({"_local_scalar_dense.default": 1} if is_scaled else {})


@pytest.mark.slow
@pytest.mark.parametrize("tensorboard", [False, True], ids=["", "confusion"])
@pytest.mark.parametrize(
    ("make_loader", "waits"), [(pinned, {}), (on_the_device, {}), (of_torch, {"staged": 2})]
)
def test_evaluations_wait_for_the_device_in_no_batch(here, make_loader, waits, tensorboard):
    number = itertools.count()

    def work(samples):
        manager = manager_in(here.machine.folder, tensorboard=tensorboard)
        with manager.run({"device": "cuda:0", "number": next(number)}, network()):
            for _ in manager.epochs(1):
                manager.track_loss(0.5, 1)
                manager.evaluate(make_loader(samples))

    assert waits_per_batch(here, work) == waits


@pytest.mark.slow(everywhere=True)
def test_an_epoch_needs_no_kernel_that_was_not_warmed_and_the_first_is_marked_in_its_row(several, tmp_path):
    for number, device in enumerate(("cuda:6", "cuda:6", "cuda:7", "cpu")):
        manager, model = manager_in(tmp_path), network()
        with manager.run({"device": device, "number": number}, model, TensorLoader(data(), 100, device=device)):
            optimizer = torch.optim.Adam(model.parameters())
            warmed = set(several.kernels)
            for epoch in manager.epochs(2):
                for inputs, labels in manager.batches():
                    preds, loss = learn(model, optimizer, inputs, labels)
                    manager.track_loss(loss, labels)
                    manager.track_num_correct(preds, labels)
                if epoch > 1:
                    continue
                new = {kernel.removeprefix("aten.") for kernel in several.kernels - warmed}
                # scaling bytes to 0..1 is of the loader alone
                assert new <= {"div_.Tensor", "full.default", "_to_copy.default"}

    table = load_results(tmp_path)
    assert table["cold start"].tolist()[:6] == [True, False, False, False, True, False]
    assert table["cold start"].dtype == bool
    assert "cold start" not in load_runs(tmp_path)


class SlowBatch:
    """A batch that moves itself, slowly, as a copy from pageable memory does."""

    def to(self, *_, **__):
        time.sleep(0.2)
        return self


@pytest.mark.slow(everywhere=True)
def test_data_time_is_the_loaders_alone(here, tmp_path):
    manager = manager_in(tmp_path)
    with manager.run({"device": "cuda:0"}, network(), [SlowBatch()] * 3):
        for _ in manager.epochs(1):
            for _ in manager.batches():
                manager.track_loss(0.5, 100)

    scalars = scalars_of(tmp_path)
    assert scalars["time/phase_train_s"][0][1] > 0.55
    assert scalars["time/phase_data_s"][0][1] < 0.3


# Memory


def short_of_memory(run, manager):
    """Train, and need more memory than there is in a part of the second epoch."""

    epoch = 0

    def need(where, _=None):
        if run.where == where and epoch == 2:
            torch.empty(9 * 2**30, dtype=torch.uint8, device=CUDA)

    def checked_loss(preds, labels):
        need("evaluation")
        return nn.functional.cross_entropy(preds, labels)

    model, loader = network(), TensorLoader(data(40), 20, device=CUDA)
    with manager.run(run, model, loader):
        optimizer = torch.optim.Adam(model.parameters())
        optimizer.register_step_pre_hook(lambda *_: need("optimizer"))
        part = SimpleNamespace(state_dict=lambda: need("checkpoint") or {}, load_state_dict=list)
        for epoch in manager.epochs(2, checkpoint={"network": model, "part": part}):  # noqa: B007 - for need()
            for inputs, labels in manager.batches():
                need("forward")
                preds = model(inputs)
                preds.register_hook(partial(need, "backward"))
                loss = nn.functional.cross_entropy(preds, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.track_loss(loss * math.nan if run.where == "loss" else loss, labels)
            manager.evaluate(loader, loss=checked_loss)


WHERE = {
    "forward": "epoch 2, step 1", "backward": "epoch 2, step 1", "optimizer": "epoch 2, step 1",
    "evaluation": "epoch 2, evaluate(..., 'test')", "checkpoint": "epoch 2, tests",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_run_without_memory_says_where_and_those_after_it_begin_well(tmp_path):
    names = [*WHERE, "", "loss"]

    grid = {("number", "where"): list(enumerate(names)), "device": ["cuda:0"]}
    outcome = run_grid(grid, short_of_memory, experiment="exp", root=tmp_path, **QUIET)

    rows = outcome.runs[["status", "error"]].to_numpy().tolist()
    for where, (status, error) in zip(WHERE.values(), rows[:-2], strict=True):
        assert (status, error.partition(" (asked for ")[0]) == ("out of memory", "out of GPU memory on cuda:0")
        assert f" free) in {where}" in error
    assert rows[-2:] == [["completed", ""], ["diverged", "loss became nan in epoch 1, step 1"]]


def train_large(root, size, more):
    """Train a network with a parameter of so many bytes; take more of them in each epoch."""
    manager, model = manager_in(root), nn.Module()
    model.register_parameter("x", nn.Parameter(torch.linspace(0, 1, size // 4)))
    with manager.run({"device": "cuda:0"}, model.to(CUDA)):
        for _ in manager.epochs(2):
            torch.empty(more, dtype=torch.uint8, device=CUDA)
            manager.track_loss(0.5, 1)
    return load_runs(root)


def test_histograms_without_memory_cost_the_run_nothing(machine, tmp_path):
    warned = pytest.warns(RunsWarning, match="TensorBoard lacks some content .*CUDA out of memory")
    with installed(Machine(machine.folder, memory=60 * 2**20)), warned:
        runs = train_large(tmp_path, 2**24, 0)

    assert runs["status"].tolist() == ["completed"]


@pytest.mark.slow(everywhere=True)
def test_the_peak_is_that_of_training_and_drawing_a_large_tensor_takes_little_more(here, tmp_path):
    runs = train_large(tmp_path, 2**26, 2**26)

    assert 128 <= runs["peak memory"].item() < 200  # MiB
    assert here.peak[0] < 2**29  # drawing takes parts of 32 MiB, in some copies


@pytest.mark.parametrize("state", [WELL, FULL])
def test_the_device_of_a_run_is_the_current_one_until_the_run_ends_or_fails(several, tmp_path, state):
    several.machine.set(5, state)

    manager, errors = manager_in(tmp_path), (torch.OutOfMemoryError, ZeroDivisionError)
    with contextlib.suppress(*errors), manager.run({"device": "cuda:5"}, network()):
        assert (state, torch.accelerator.current_device_index()) == (WELL, 5)
        raise ZeroDivisionError

    assert torch.accelerator.current_device_index() == 0
    assert not several.machine.starts(0)


LEFT: dict[str, "weakref.ref[Any]"] = {}  # of the last run of this process


def leave(manager, model, optimizer, tensor):
    parts = {"network": model, "optimizer": optimizer, "tensor": tensor, "manager": manager}
    LEFT.update({name: weakref.ref(part) for name, part in parts.items()})


def plain(run, manager, loader):
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    with manager.run(run, model, loader):
        for _ in manager.epochs(1, checkpoint={"network": model, "optimizer": optimizer}, keep="last"):
            for inputs, labels in manager.batches():
                _, loss = learn(model, optimizer, inputs, labels)
                manager.track_loss(loss, labels)
                manager.log(step_loss=loss)
            manager.evaluate(loader)
            leave(manager, model, optimizer, loss)


def failing(run, manager, loader):
    model = network()
    with manager.run(run, model, loader):
        for _ in manager.epochs(1):
            leave(manager, model, model[0], model[0].weight)
            torch.empty(9 * 2**30, dtype=torch.uint8, device=run.device)


def fitted(run, manager, loader):
    model, adam = network(), torch.optim.Adam
    fit(run, model, loader, manager, optimizer=adam, epochs=1, test_loader=loader, micro_batch="auto")
    leave(manager, model, model[0], model[0].weight)


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("loop", [plain, fitted, failing])
def test_a_run_leaves_no_network_nor_optimizer_to_the_next(here, tmp_path, loop):
    left: list[list[str]] = []

    def look():
        gc.collect()
        left.append([name for name, part in LEFT.items() if part() is not None])
        LEFT.clear()

    def train(run, manager):
        look()
        run.loop(run, manager, TensorLoader(data(60), 20, device=run.device))

    grid = {"number": [0, 1], "loop": [loop], "device": ["cuda:1"]}
    outcome = run_grid(grid, train, experiment="exp", root=tmp_path, **{**QUIET, "tensorboard": True})
    look()

    status = "out of memory" if loop is failing else "completed"
    assert outcome.runs["status"].tolist() == [status] * 2
    assert left == [[], [], []]
    assert here.allocated[1] == 0


# Names


def test_the_names_of_devices_that_have_no_number(machine):
    for count, kind, names in ((1, "mps", ["mps"]), (2, "xpu", ["xpu:0", "xpu:1"])):
        with installed(Machine(machine.folder, count, kind)):
            assert available_devices() == ["cpu", *names]


# Settings of numbers


def resumed(root, before=lambda: None, precision="fp32"):
    """Interrupt a run after its second epoch, and resume it after `before`; return its row."""

    def factor(epoch):
        if epoch == stop:
            raise KeyboardInterrupt
        return 1.0

    for stop in (2, None):  # noqa: B007 - factor() reads it
        with contextlib.suppress(KeyboardInterrupt):
            fit(
                {"device": "cuda:0"}, network(), TensorLoader(data(), 100, device=CUDA), manager_in(root),
                optimizer=torch.optim.Adam, epochs=3, precision=precision,
                scheduler=partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=factor),
            )  # fmt: skip
        before()
    return load_runs(root).iloc[0]


SETTINGS = {
    "deterministic algorithms": lambda _: torch.use_deterministic_algorithms(mode=True),
    "cudnn.deterministic": lambda patch: patch.setattr(torch.backends.cudnn, "deterministic", True),
    "cudnn.allow_tf32": lambda patch: patch.setattr(torch.backends.cudnn, "allow_tf32", False),
    "the precision of float32": lambda _: torch.set_float32_matmul_precision("high"),
    "CUBLAS_WORKSPACE_CONFIG": lambda patch: patch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "name",
    [
        name if "float32" in name else pytest.param(name, marks=pytest.mark.slow(everywhere=True))
        for name in SETTINGS
    ],
)
def test_a_run_resumed_with_other_settings_of_its_device_is_mixed_and_its_journal_has_them(
    tmp_path, monkeypatch, name
):
    before = torch.get_float32_matmul_precision()
    try:
        with pytest.warns(RunsWarning, match=f"marked as mixed: .*began with other values of .*{name}"):
            row = resumed(tmp_path, lambda: SETTINGS[name](monkeypatch))
    finally:
        torch.set_float32_matmul_precision(before)
        torch.use_deterministic_algorithms(mode=False)

    assert row["mixed"]
    journals = [path.read_text().splitlines()[0] for path in sorted(tmp_path.rglob("attempt-*.jsonl"))]
    kept = [json.loads(line)["settings"]["the precision of float32"] for line in journals]
    assert kept == ["highest", "high" if "float32" in name else "highest"]


@pytest.mark.slow(everywhere=True)
@pytest.mark.usefixtures("here")
def test_a_resumed_run_continues_with_the_scale_of_its_gradients(tmp_path, monkeypatch):
    scalers = []

    class Growing(torch.amp.GradScaler):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options | {"growth_interval": 3})
            scalers.append(self)

    monkeypatch.setattr(torch.amp, "GradScaler", Growing)

    resumed(tmp_path, precision="fp16")

    assert [scaler.get_scale() for scaler in scalers] == [2.0**18, 2.0**20]  # after 8 and 12 steps


# The driver

LOOKING = """
import torch
torch.cuda._device_count_nvml = lambda: 1  # as where there is a GPU; without one, the driver is asked
from runmanager import LanesExecutor, RunManager, available_devices, run_grid
available_devices()
print(torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="another way to load libraries")
def test_looking_for_devices_loads_no_driver_that_a_fork_could_not_use(tmp_path):
    environment = {**os.environ, "LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(tmp_path / "loaded")}
    # Lightning sets it; is_available() then asks no driver
    environment.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    (tmp_path / "main.py").write_text(LOOKING)

    command = [sys.executable, tmp_path / "main.py"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)

    lines = [
        line for path in tmp_path.glob("loaded*") for line in path.read_text(errors="replace").splitlines()
    ]
    of_driver = [
        line for line in lines if "file=libcuda.so" in line and "libcudart" in line.partition("by ")[2]
    ]
    assert lines
    assert of_driver == []
    assert done.stdout == "False False\n"
