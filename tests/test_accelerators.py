import contextlib
import itertools
import json
import os
import subprocess
import sys
import warnings
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from runmanager import RunManager, fit, load_results, load_runs, run_grid
from runmanager.core.loaders import ImageTensors, TensorLoader, to_unit
from runmanager.devices import ranks, torch_devices
from runmanager.devices.torch_devices import process_state, set_back
from runmanager.errors import GridError, RunsWarning
from runmanager.tensorboard import histograms
from tests.accelerators import FULL, WELL, Machine, installed

CUDA = torch.device("cuda:0")
NAME = "a pretended device"


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "devices").mkdir()
    return Machine(tmp_path / "devices")


@pytest.fixture
def here(machine):
    with installed(machine) as here:
        yield here


def data(size=400):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 255, (size, 1, 12, 12), dtype=torch.uint8, generator=generator)
    return ImageTensors(images, torch.arange(size) % 10)


def floats(samples=None):
    samples = samples or data()
    return ImageTensors(to_unit(samples.images), samples.labels)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10))


@pytest.mark.slow(everywhere=True)
def test_a_pretended_device_computes_what_the_cpu_does(here, tmp_path):
    numbers = []
    for device in ("cpu", "cuda:1"):
        manager = RunManager("exp", tmp_path / device.replace(":", ""), display=False)
        fit(
            {"device": device}, network(), TensorLoader(data(), 100, device=device), manager,
            optimizer=partial(torch.optim.Adam, lr=0.01), epochs=2,
            test_loader=TensorLoader(data(), 100, device=device),
        )  # fmt: skip
        table = load_results(tmp_path / device.replace(":", ""))
        numbers.append(table[["loss", "accuracy", "test_loss", "test_accuracy"]].to_numpy())

    assert numbers[0] == pytest.approx(numbers[1], rel=1e-5)  # Adam rounds otherwise on a GPU


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize(
    ("kind", "device"),
    [("mps", "mps"), *(pytest.param("xpu", name, marks=pytest.mark.slow) for name in ("xpu:1", "xpu"))],
)
def test_other_accelerators_train_save_and_resume(machine, tmp_path, kind, device):
    tables = []
    for name, root in ((device, tmp_path / "a"), ("cpu", tmp_path / "b")):
        with installed(Machine(machine.folder, 2, kind)) as here:
            for num_epochs in (1, 3):
                fit(
                    {"device": name}, network(), TensorLoader(data(), 100, device=name),
                    RunManager("exp", root, display=False), optimizer=partial(torch.optim.Adam, lr=0.01),
                    epochs=num_epochs, test_loader=TensorLoader(data(), 100, device=name),
                )  # fmt: skip
            assert name == "cpu" or here.machine.starts(int(name.endswith("1")))
        tables.append(load_results(root)[["loss", "accuracy", "test_loss"]].to_numpy())

    assert len(tables[0]) == 3
    assert tables[0] == pytest.approx(tables[1], rel=1e-5)


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
@pytest.mark.parametrize("kind", ["mps", pytest.param("xpu", marks=pytest.mark.slow)])
def test_other_accelerators_do_all_of_a_loop_and_resume_it_inside_an_epoch(machine, tmp_path, kind):
    tables = []
    for device, stops in (("cpu", [None]), (kind, [None]), (kind, [2, None])):
        root = tmp_path / f"{device}{len(stops)}"
        with installed(Machine(machine.folder, 1, kind)), warnings.catch_warnings():
            warnings.simplefilter("error", RunsWarning)
            for stop in stops:
                torch.manual_seed(0)
                with contextlib.suppress(KeyboardInterrupt):
                    with_everything(RunManager("exp", root, display=False), device, stop=stop)
        assert load_runs(root)["status"].tolist() == ["completed"]
        (path, *_) = root.rglob("attempt-*.jsonl")
        assert (json.loads(path.read_text().splitlines()[0])["device_name"] == NAME) is (device == kind)
        tables.append(load_results(root)[["loss", "accuracy", "norm", "top", "test_loss", "test_accuracy"]])

    on_cpu, on_device, resumed_on_device = tables
    assert resumed_on_device.equals(on_device)
    assert on_device.to_numpy() == pytest.approx(on_cpu.to_numpy(), rel=1e-4)


def test_images_on_a_device_are_those_of_the_cpu_to_the_last_bit(here):
    values = torch.arange(256, dtype=torch.uint8)

    assert torch.equal(to_unit(values.to(CUDA)).cpu(), to_unit(values))
    assert torch.equal(to_unit(values), values.float() / 255)


LOADERS = {
    "pinned": lambda: TensorLoader(data(), 100, device=CUDA),
    "on the device": lambda: TensorLoader(data().to(CUDA), 100, device=CUDA),
    "labels on the cpu": lambda: TensorLoader(
        ImageTensors(data().images.to(CUDA), data().labels), 100, device=CUDA
    ),
    "of torch": lambda: DataLoader(floats(), batch_size=100),
    "of torch, pinned": lambda: DataLoader(floats(), batch_size=100, pin_memory=True),
}


def waits_of(here, loader, step):
    """Return what waits for the device in the batches of an epoch, after the first batch."""
    model, manager = network(), RunManager("exp", here.machine.folder, tensorboard=False, display=False)
    with manager.run({"device": "cuda:0"}, model, loader):
        optimizer = torch.optim.Adam(model.parameters())
        for _ in manager.epochs(1):
            here.waits.calls.clear()
            for inputs, labels in manager.batches():
                preds = model(inputs)
                loss = nn.functional.cross_entropy(preds, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step(manager, loss, preds, labels)
            calls = list(here.waits.calls)
    return calls


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("name", LOADERS)
def test_no_loader_waits_for_the_device(here, name):
    loader = LOADERS[name]()
    here.waits.staged = 0

    assert waits_of(here, loader, lambda *_: None) == []
    # some systems wait for copies from memory that is not pinned
    assert here.waits.staged == {"of torch": 8, "labels on the cpu": 4}.get(name, 0)


TRACKS = {
    "loss of a number of samples": lambda manager, loss, _, __: manager.track_loss(loss, 100),
    "several at once": lambda manager, loss, preds, _: manager.track(loss_again=loss, top=preds.max(), lr=0.1),
    "loss": lambda manager, loss, _, labels: manager.track_loss(loss, labels),
    "loss alone": lambda manager, loss, *_: manager.track_loss(loss),
    "correct": lambda manager, _, preds, labels: manager.track_num_correct(preds, labels),
    "one-hot": lambda manager, _, preds, __: manager.track_num_correct(preds, preds),
    "mean": lambda manager, _, preds, __: manager.track(margin=preds.max()),
}


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("name", TRACKS)
def test_no_hook_waits_for_the_device(here, name):
    assert waits_of(here, LOADERS["on the device"](), TRACKS[name]) == []


def waits_per_batch(here, work):
    """Return what waits for the device in each batch: five batches more wait five times as often for it."""
    counts = []
    for num_batches in (1, 5, 10):  # the first begins with warming
        here.waits.calls.clear()
        work(data(20 * num_batches))
        counts.append(Counter(here.waits.calls))
    _, few, many = counts
    return {name: (many[name] - few[name]) / 5 for name in many if many[name] != few[name]}


@pytest.fixture
def reduced(monkeypatch):
    """Let the device have reduced precisions: autocast leaves pretended tensors alone, the scaler does not."""
    monkeypatch.setattr("runmanager.front.fit.usable_precisions", lambda _: ["fp32", "bf16", "fp16"])


def fitted(here, **options):
    """Train an epoch by `fit`, in batches of 20 images."""
    number, fused = itertools.count(), options.pop("fused", False)

    def work(samples):
        fit(
            {"device": "cuda:0", "number": next(number)}, network(), TensorLoader(samples, 20, device=CUDA),
            RunManager("exp", here.machine.folder, tensorboard=False, display=False), epochs=1,
            optimizer=partial(torch.optim.Adam, fused=fused), **options,
        )  # fmt: skip

    return waits_per_batch(here, work)


FITS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "fused": {"fused": True},
    "clipped": {"clip_grad_norm": 1.0},
    "in pieces": {"micro_batch": 7},
    "in pieces as memory allows": {"micro_batch": "auto"},
    "sizes counted by the user": {"batch_size": lambda batch: len(batch[1])},
    "with a test set": {"test_loader": TensorLoader(data(40), 20, device=CUDA)},
}


OFTEN = ["fp32", "in pieces"]


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in FITS]
)
def test_fit_waits_for_the_device_in_no_batch(here, reduced, name):
    assert fitted(here, **FITS[name]) == {}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"clip_grad_norm": 1.0}, {"micro_batch": 7}, {"fused": True}], ids=str)
def test_fit_in_fp16_waits_once_a_batch_as_torchs_scaler_does(here, reduced, options):
    step = {} if "fused" in options else {"_local_scalar_dense.default": 1}  # GradScaler._maybe_opt_step

    assert fitted(here, precision="fp16", **options) == step


EVALUATED = {
    "pinned": lambda samples: TensorLoader(samples, 20, device=CUDA),
    "on the device": lambda samples: TensorLoader(samples.to(CUDA), 20, device=CUDA),
    "of torch": lambda samples: DataLoader(floats(samples), batch_size=20),
}


def clip(manager, model, _scheduler):
    manager.track(norm=nn.utils.clip_grad_norm_(model.parameters(), 1.0))


def log(manager, model, scheduler):
    manager.log(weight=model[0].weight[0, 0, 0, 0], lr=scheduler.get_last_lr()[0])


LOOPS: dict[str, Any] = {"plain": lambda *_: None, "clipped": clip, "steps logged": log}


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize(
    ("name", "pieces"), [("clipped", 1), *(pytest.param(name, 4, marks=pytest.mark.slow) for name in LOOPS)]
)
def test_a_loop_waits_for_the_device_in_no_batch(here, name, pieces):
    assert looped(here, name, pieces) == {}


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 5])
def test_a_checkpoint_inside_an_epoch_reads_no_sums_beside_what_it_saves(here, every):
    assert looped(here, "plain", 1, checkpoint_every=every) == {}


def looped(here, name, pieces, **options):
    """Return what waits for the device in each batch of a loop."""
    number = itertools.count()

    def work(samples):
        model, loader = network(), TensorLoader(samples, 20, device=CUDA)
        manager = RunManager("exp", here.machine.folder, display=False)
        with manager.run({"device": "cuda:0", "number": next(number)}, model, loader):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)
            for _ in manager.epochs(1, checkpoint={"network": model}, **options):
                for batch, (inputs, labels) in enumerate(manager.batches(), 1):
                    preds = model(inputs)
                    loss = nn.functional.cross_entropy(preds, labels)
                    (loss / pieces).backward()
                    if batch % pieces == 0:
                        LOOPS[name](manager, model, scheduler)
                        optimizer.step()
                        scheduler.step()
                        optimizer.zero_grad()
                    manager.track_loss(loss, labels)
                    manager.track_num_correct(preds, labels)

    return waits_per_batch(here, work)


def evaluating(here, loader_of, *, tensorboard=False, metrics=None):
    """Return a function that evaluates a network on samples, each time in another run."""
    number = itertools.count()

    def work(samples):
        manager = RunManager("exp", here.machine.folder, tensorboard=tensorboard, display=False)
        with manager.run({"device": "cuda:0", "number": next(number)}, network()):
            for _ in manager.epochs(1):
                manager.track_loss(0.5, 1)
                manager.evaluate(loader_of(samples), metrics=metrics)

    return work


@pytest.mark.slow
def test_metrics_of_torchmetrics_wait_where_torch_counts_in_bins(here):
    classification = pytest.importorskip("torchmetrics.classification")
    metrics = {
        "top1": classification.MulticlassAccuracy(10, validate_args=False),
        "auroc": classification.MulticlassAUROC(10, thresholds=None, validate_args=False),
    }
    loader_of = partial(TensorLoader, batch_size=20, device=CUDA)

    waits = waits_per_batch(here, evaluating(here, loader_of, metrics=metrics))

    assert waits == {"bincount.default": 2}  # of the accuracy, on CUDA


@pytest.mark.slow
@pytest.mark.parametrize("is_shown", [False, True], ids=["", "confusion"])
@pytest.mark.parametrize("name", EVALUATED)
def test_evaluations_wait_for_the_device_in_no_batch(here, name, is_shown):
    assert waits_per_batch(here, evaluating(here, EVALUATED[name], tensorboard=is_shown)) == {}


class Part:
    """A part of a checkpoint that asks for something when it is saved."""

    def __init__(self, ask):
        self.ask = ask

    def state_dict(self):
        self.ask()
        return {}

    def load_state_dict(self, state):
        """Load nothing."""


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
        parts = {"network": model, "part": Part(partial(need, "checkpoint"))}
        for epoch in manager.epochs(2, checkpoint=parts):  # noqa: B007 - need() reads it
            for inputs, labels in manager.batches():
                need("forward")
                preds = model(inputs)
                preds.register_hook(partial(need, "backward"))
                loss = nn.functional.cross_entropy(preds, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.track_loss(loss, labels)
            manager.evaluate(loader, loss=checked_loss)


WHERE = {
    "forward": "epoch 2, step 1", "backward": "epoch 2, step 1", "optimizer": "epoch 2, step 1",
    "evaluation": "epoch 2, evaluate(..., 'test')", "checkpoint": "epoch 2, tests",
}  # fmt: skip


@pytest.mark.slow(everywhere=True)
def test_a_run_without_memory_says_where_and_the_next_one_is_well(here, tmp_path):
    names = [name for where in WHERE for name in (where, "")]

    outcome = run_grid(
        {("number", "where"): list(enumerate(names)), "device": ["cuda:0"]}, short_of_memory,
        experiment="exp", root=tmp_path, executor="inline", tensorboard=False, display=False,
    )  # fmt: skip

    rows = outcome.runs[["status", "error"]].to_numpy().tolist()
    sentence = "out of GPU memory on cuda:0 in "
    assert [
        (status, error[: len(sentence + where)])
        for where, (status, error) in zip(WHERE.values(), rows[::2], strict=True)
    ] == [("out of memory", sentence + where) for where in WHERE.values()]
    assert rows[1::2] == [["completed", ""]] * len(WHERE)


@pytest.mark.slow(everywhere=True)
def test_histograms_without_memory_cost_the_run_nothing(here, tmp_path, monkeypatch):
    def needs_more(_):
        torch.empty(9 * 2**30, dtype=torch.uint8, device=CUDA)

    monkeypatch.setattr(histograms, "_rows", needs_more)
    manager = RunManager("exp", tmp_path, display=False)

    def train():
        with manager.run({"device": "cuda:0"}, network()):
            for _ in manager.epochs(2):
                manager.track_loss(0.5, 1)

    with pytest.warns(RunsWarning, match="TensorBoard lacks some content .*CUDA out of memory"):
        train()

    assert load_runs(tmp_path)["status"].tolist() == ["completed"]


@pytest.mark.slow(everywhere=True)
def test_what_waits_is_counted(here):
    calls = waits_of(here, LOADERS["pinned"](), lambda manager, loss, *_: manager.track_loss(loss.item(), 100))

    assert calls == ["_local_scalar_dense.default"] * 4


@pytest.mark.slow(everywhere=True)
def test_the_tutorials_own_counting_waits_as_it_says(here):
    calls = waits_of(
        here, LOADERS["pinned"](), lambda manager, _, preds, labels: manager.get_num_correct(preds, labels)
    )

    assert calls == ["_local_scalar_dense.default"] * 4


def test_the_device_of_a_run_is_the_current_one_until_the_run_ends(here, tmp_path):
    manager = RunManager("exp", tmp_path, display=False)

    with manager.run({"device": "cuda:1"}, network()):
        during = torch.accelerator.current_device_index()

    assert (during, torch.accelerator.current_device_index()) == (1, 0)
    assert not here.machine.starts(0)


@pytest.mark.parametrize("fails", ["begin", "train"])
def test_the_device_of_a_run_that_fails_is_given_back(here, tmp_path, fails):
    here.machine.set(1, FULL if fails == "begin" else WELL)
    manager = RunManager("exp", tmp_path, display=False)

    with (
        pytest.raises((torch.OutOfMemoryError, ZeroDivisionError)),
        manager.run({"device": "cuda:1"}, network()),
    ):
        raise ZeroDivisionError

    assert torch.accelerator.current_device_index() == 0


@pytest.mark.slow(everywhere=True)
def test_the_first_epoch_of_a_process_on_a_device_is_marked_in_its_row(here, tmp_path):
    for number, device in enumerate(("cuda:0", "cuda:0", "cuda:1", "cpu")):
        manager = RunManager("exp", tmp_path, display=False)
        with manager.run({"device": device, "number": number}):
            for _ in manager.epochs(2):
                manager.track_loss(0.5, 1)

    table = load_results(tmp_path)
    assert table["cold start"].tolist()[:6] == [True, False, False, False, True, False]
    assert table["cold start"].dtype == bool
    assert "cold start" not in load_runs(tmp_path)


@pytest.mark.slow(everywhere=True)
def test_an_epoch_needs_no_kernel_that_was_not_warmed(here, tmp_path):
    manager, model = RunManager("exp", tmp_path, display=False), network()
    with manager.run({"device": "cuda:0"}, model, LOADERS["pinned"]()):
        optimizer = torch.optim.Adam(model.parameters())
        warmed = set(here.kernels)
        for _ in manager.epochs(1):
            for inputs, labels in manager.batches():
                preds = model(inputs)
                loss = nn.functional.cross_entropy(preds, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.track_loss(loss, labels)
                manager.track_num_correct(preds, labels)
            new = here.kernels - warmed

    # scaling bytes to 0..1 is of the loader alone
    assert {name.removeprefix("aten.") for name in new} <= {"div_.Tensor", "full.default", "_to_copy.default"}


def test_looking_for_devices_does_not_begin_cuda(monkeypatch):
    def begin():
        raise AssertionError("after cudaGetDeviceCount() no forked process can use CUDA")

    monkeypatch.setattr(torch.accelerator, "is_available", begin)
    monkeypatch.setattr(torch.cuda, "is_available", begin)

    assert torch_devices.available_devices()[0] == "cpu"
    assert torch_devices.missing("cuda:99")


@pytest.mark.slow(everywhere=True)
def test_data_time_is_the_loaders_alone(here, tmp_path, monkeypatch):
    clock = iter(range(10_000))
    send = torch_devices.send

    def slow_send(batch, device):
        for _ in range(100):
            next(clock)  # a copy from pageable memory waits for the device
        return send(batch, device)

    monkeypatch.setattr(torch_devices, "send", slow_send)
    monkeypatch.setattr("runmanager.core.epoch.perf_counter", lambda: float(next(clock)))
    manager = RunManager("exp", tmp_path, display=False)
    with manager.run({"device": "cuda:0"}, network(), LOADERS["of torch"]()):
        for _ in manager.epochs(1):
            assert manager._current is not None
            assert manager._current.epoch is not None
            epoch = manager._current.epoch
            for _ in manager.batches():
                manager.track_loss(0.5, 100)

    assert epoch._times["phase_data_s"] == 6  # the loader's beginning, four batches and its end
    assert epoch._times["phase_train_s"] > 400


def test_histograms_of_a_large_tensor_take_little_memory(here, monkeypatch):
    monkeypatch.setattr(histograms, "_AT_ONCE", 1 << 16)
    values = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))
    on_device = values.to(CUDA)
    torch.accelerator.reset_peak_memory_stats()
    before = here.allocated[0]

    (row,) = histograms.statistics({"table": on_device}).values()

    assert here.peak[0] - before < 40 * (1 << 16)
    (low, high, total, square, *counts) = row
    assert (low, high) == (values.min().item(), values.max().item())
    assert total == pytest.approx(values.double().sum().item())
    assert square == pytest.approx(values.double().square().sum().item())
    assert sum(counts) == 1 << 20


@pytest.mark.slow(everywhere=True)
def test_the_peak_is_that_of_training_not_of_what_is_drawn(here, tmp_path, monkeypatch):
    def drawn(_):
        torch.empty(1 << 28, dtype=torch.uint8, device=CUDA)
        return {}

    monkeypatch.setattr(histograms, "statistics", drawn)
    manager = RunManager("exp", tmp_path, display=False)
    with manager.run({"device": "cuda:0"}, network()):
        for _ in manager.epochs(2):
            torch.empty(1 << 26, dtype=torch.uint8, device=CUDA)
            manager.track_loss(0.5, 1)

    assert 64 <= load_runs(tmp_path)["peak memory"].item() < 74


@pytest.fixture
def second_of_two_ranks(monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("count", "expected"), [(1, "cuda:0"), (2, "cuda:1"), (4, "cuda:1")])
def test_a_rank_that_sees_one_device_uses_it(machine, second_of_two_ranks, count, expected):
    with installed(Machine(machine.folder, count)):
        assert ranks.device_of_rank("cuda") == torch.device(expected)


@pytest.mark.parametrize(
    ("config", "chosen", "expected"),
    [("cuda:nccl", 0, 1), ("cuda:nccl", 3, 3), ("cpu:gloo,cuda:nccl", 0, 0)],
)
def test_messages_over_a_group_of_gpus_alone_go_through_the_ranks_own(
    machine, second_of_two_ranks, monkeypatch, config, chosen, expected
):
    from torch.distributed import distributed_c10d

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(ranks, "num_ranks", lambda: 2)
    monkeypatch.setattr(ranks, "rank", lambda: 1)
    monkeypatch.setattr(distributed_c10d, "get_backend_config", lambda: config)
    with installed(Machine(machine.folder, 4)) as here:
        here.current = chosen

        ranks.join_group()

        assert here.current == expected


def test_the_names_of_devices_that_have_no_number(machine):
    with installed(Machine(machine.folder, 1, "mps")):
        assert torch_devices.available_devices() == ["cpu", "mps"]
        assert not torch_devices.missing("mps:0")
    with installed(Machine(machine.folder, 2, "xpu")):
        assert torch_devices.available_devices() == ["cpu", "xpu:0", "xpu:1"]


GPUS = {
    "1,0": 2, "0": 1, "1": 1, "": 0, "-1": 0, "7": 0, "0,7,1": 1, "0,0": 0, "MIG-6b1c1a6e-77": 1,
    "GPU-6b1c1a6e,GPU-77aa": 2, "MIG-GPU-6b1c1a6e/1/0": 1,
}  # fmt: skip


def once(run, manager):
    with manager.run(run, network()):
        for _ in manager.epochs(1):
            manager.track_loss(torch.ones((), device=run.device), 1)


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("value", GPUS)
def test_runs_are_executed_on_the_gpus_that_the_environment_shows(machine, tmp_path, monkeypatch, value):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    devices = ["cpu", "cuda:0", "cuda:1"]
    with installed(machine):
        there = torch_devices.available_devices()
        outcome = run_grid(
            {"device": devices}, once, experiment="exp", root=tmp_path, executor="inline",
            tensorboard=False, display=False,
        )  # fmt: skip

    num_there = 1 + GPUS[value]
    assert there == devices[:num_there]
    assert outcome.runs["status"].tolist() == ["completed"] * num_there + ["unavailable"] * (3 - num_there)


HINTS = {
    "MIG-6b1c1a6e-77": "write one of: cpu, cuda, mps, xpu",
    "GPU-6b1c1a6e": "write one of: cpu, cuda, mps, xpu",
    "cuda:MIG-6b1c1a6e": "did you mean 'cuda'?",
}


@pytest.mark.parametrize("name", HINTS)
def test_a_gpu_has_no_other_name_than_its_number(here, tmp_path, name):
    with pytest.raises(GridError) as caught:
        run_grid({"device": [name]}, once, experiment="exp", root=tmp_path, executor="inline", display=False)

    assert HINTS[name] in str(caught.value)


def resumed(root, device="cuda:0", *, before=lambda: None, precision="fp32"):
    """Interrupt a run after its second epoch, and resume it after `before`; return its row."""

    def factor(epoch):
        if epoch == stop:
            raise KeyboardInterrupt
        return 1.0

    for stop in (2, None):  # noqa: B007 - factor() reads it
        with contextlib.suppress(KeyboardInterrupt):
            fit(
                {"device": device}, network(), TensorLoader(data(), 100, device=device),
                RunManager("exp", root, display=False), optimizer=torch.optim.Adam, epochs=3,
                precision=precision, scheduler=partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=factor),
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


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_run_resumed_with_other_settings_of_its_device_is_mixed(here, tmp_path, monkeypatch, name):
    process = process_state()

    try:
        with pytest.warns(RunsWarning, match=f"marked as mixed: .*began with other values of .*{name}"):
            row = resumed(tmp_path, before=lambda: SETTINGS[name](monkeypatch))
    finally:
        set_back(process)

    assert row["mixed"]


@pytest.mark.slow(everywhere=True)
def test_a_run_resumed_with_its_settings_is_not_mixed_and_its_journal_has_them(here, tmp_path, monkeypatch):
    process = process_state()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_float32_matmul_precision("high")

    try:
        row = resumed(tmp_path)
    finally:
        set_back(process)

    starts = [
        json.loads(path.read_text().splitlines()[0]) for path in sorted(tmp_path.rglob("attempt-*.jsonl"))
    ]
    assert not row["mixed"]
    assert [start["settings"]["the precision of float32"] for start in starts] == ["high", "high"]
    assert starts[0]["settings"]["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.slow(everywhere=True)
def test_a_resumed_run_continues_with_the_scale_of_its_gradients(here, reduced, tmp_path, monkeypatch):
    scalers = []

    class Growing(torch.amp.GradScaler):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options | {"growth_interval": 3})
            scalers.append(self)

    monkeypatch.setattr(torch.amp, "GradScaler", Growing)

    resumed(tmp_path, precision="fp16")

    assert [scaler.get_scale() for scaler in scalers] == [2.0**18, 2.0**20]  # after 8 and 12 steps


@pytest.mark.slow
def test_importing_and_looking_leaves_cuda_alone_in_a_new_process():
    program = (
        "import torch; from runmanager.devices import torch_devices as d; d.available_devices();"
        "print(torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork())"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "False False\n"


ANCESTOR = """
import importlib
from runmanager.executors import lanes
for name in lanes._PRELOADED:
    importlib.import_module(name)
import torch
torch.cuda._device_count_nvml = lambda: 1  # as where there is a GPU; without one, the driver is asked
from runmanager import available_devices
from runmanager.devices.torch_devices import process_state
available_devices()
process_state()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or not torch.version.cuda, reason="torch has no CUDA to begin")
@pytest.mark.parametrize("end", ["", "torch.cuda.is_available()\n"], ids=["", "asked"])
def test_the_ancestor_of_lanes_does_not_load_the_driver(tmp_path, end):
    environment = {**os.environ, "LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(tmp_path / "loaded")}
    environment.pop(
        "PYTORCH_NVML_BASED_CUDA_CHECK", None
    )  # Lightning sets it; is_available() then asks no driver

    subprocess.run([sys.executable, "-c", ANCESTOR + end], env=environment, check=True, capture_output=True)

    lines = [
        line for path in tmp_path.glob("loaded*") for line in path.read_text(errors="replace").splitlines()
    ]
    of_driver = [
        line for line in lines if "file=libcuda.so" in line and "libcudart" in line.partition("by ")[2]
    ]
    assert bool(of_driver) is bool(end)
