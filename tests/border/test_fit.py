"""fit: the standard loop in one call, with the numbers of a plain loop."""

import functools
import math
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, TensorDataset

from runmanager import DeviceError, ImageTensors, RunManager, TensorLoader, fit, load_results, load_runs
from tests.border import reading
from tests.border.work import announce, meet, start, trained

LABELS = torch.arange(58) % 3
IMAGES = LABELS.float().reshape(-1, 1, 1, 1) + torch.randn(
    58, 1, 6, 6, generator=torch.Generator().manual_seed(7)
)
DATA, TEST = ImageTensors(IMAGES[:48], LABELS[:48]), ImageTensors(IMAGES[48:], LABELS[48:])
RUN = {"lr": 0.1}
OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


def make_network(norm=nn.Identity, dropout=0.0):
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), norm(4), nn.ReLU(), nn.Flatten(), nn.Dropout(dropout), nn.Linear(64, 3)
    )


def loader():
    return TensorLoader(DATA, 10, seed=2)


def left(manager, network):
    rows = [{name: value for name, value in row.items() if "duration" not in name} for row in manager.run_data]
    weights = {name: value.tolist() for name, value in network.state_dict().items()}
    return rows, weights, torch.get_rng_state().tolist()


def by_fit(folder, network=None, *, run=RUN, **options):
    network = network or make_network()
    manager = RunManager("fitted", folder, display=False, tensorboard=False)
    options = {"optimizer": functools.partial(SGD, lr=0.1, momentum=0.9), "epochs": 3, **options}
    fit(run, network, loader(), manager, **options)
    return left(manager, network)


def by_plain_loop(folder, network, make_optimizer, scheduler=None, clip=None):
    manager = RunManager("plain", folder, display=False, tensorboard=False)
    optimizer = make_optimizer(network.parameters())
    scheduler = scheduler and scheduler(optimizer)
    with manager.run(RUN, network, loader()):
        for _ in manager.epochs(3):
            for images, labels in manager.batches():
                preds = network(images)
                loss = functional.cross_entropy(preds, labels)
                optimizer.zero_grad()
                loss.backward()
                if clip:
                    nn.utils.clip_grad_norm_(network.parameters(), clip)
                optimizer.step()
                manager.track_loss(loss, images)
                manager.track_num_correct(preds, labels)
            if scheduler:
                scheduler.step()
            manager.evaluate(TensorLoader(TEST, 4), "test")
    return left(manager, network)


@pytest.mark.parametrize(
    "make_optimizer",
    [functools.partial(SGD, lr=0.1, nesterov=True, momentum=0.9), functools.partial(Adam, lr=0.01)],
)
def test_rows_weights_and_random_state_are_those_of_a_plain_loop_bit_for_bit(tmp_path, make_optimizer):
    scheduler = functools.partial(ExponentialLR, gamma=0.5)
    network = functools.partial(make_network, nn.BatchNorm2d, dropout=0.3)
    plain = by_plain_loop(tmp_path, network(), make_optimizer, scheduler, clip=0.1)

    fitted = by_fit(
        tmp_path, network(), optimizer=make_optimizer, test_loader=TensorLoader(TEST, 4), scheduler=scheduler,
        clip_grad_norm=0.1,
    )  # fmt: skip

    assert fitted == plain
    assert fitted[0][-1].keys() > {"loss", "accuracy", "test_loss", "test_accuracy"}


@pytest.mark.parametrize("size", [3, 10, "auto"])
def test_micro_batches_make_the_same_steps(tmp_path, size):
    whole, _, _ = by_fit(tmp_path / "whole")
    pieces, _, _ = by_fit(tmp_path / "pieces", micro_batch=size)

    for row, expected in zip(pieces, whole, strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert row["accuracy"] == expected["accuracy"]


def test_a_batch_that_memory_does_not_suffice_for_is_repeated_in_halves(tmp_path):
    asked: list[int] = []

    def loss(preds, labels):
        asked.append(len(labels))
        if len(labels) > 4:
            raise OUT_OF_MEMORY
        return functional.cross_entropy(preds, labels)

    rows, weights, _ = by_fit(tmp_path / "auto", micro_batch="auto", loss=loss)

    assert asked[:7] == [10, 5, 3, 3, 3, 1, 3]
    assert weights == by_fit(tmp_path / "pieces", micro_batch=3)[1]
    assert [row["micro_batch"] for row in rows] == [3, 3, 3]


def test_memory_that_does_not_suffice_for_one_sample_ends_the_run(tmp_path):
    def loss(preds, labels):
        raise OUT_OF_MEMORY

    with pytest.raises(torch.OutOfMemoryError):
        by_fit(tmp_path, micro_batch="auto", loss=loss)

    assert load_runs(tmp_path)["status"].tolist() == ["out of memory"]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_reduced_precision_trains_and_evaluates_in_it(tmp_path, precision):
    kinds = []
    network = make_network()
    network.register_forward_hook(lambda _, __, output: kinds.append(output.dtype))

    rows, _, _ = by_fit(
        tmp_path, network, epochs=1, precision=precision, test_loader=TensorLoader(TEST, 4),
    )  # fmt: skip

    assert set(kinds) == {{"bf16": torch.bfloat16, "fp16": torch.float16}[precision]}
    assert math.isfinite(rows[0]["test_loss"])


ALL: dict[str, dict[str, Any]] = {
    "fp32": {"clip_grad_norm": 0.5, "scheduler_every": "step"},
    "fp16": {"precision": "fp16", "micro_batch": 4},
    "auto": {"micro_batch": "auto"},
}


def killed(run, manager):
    def loss(preds, labels):
        if run.how == "auto" and torch.is_grad_enabled() and len(labels) > 6:
            raise OUT_OF_MEMORY
        return functional.cross_entropy(preds, labels)

    network = make_network(dropout=0.3)
    network.register_forward_pre_hook(lambda *_: meet(run, manager.epoch_count))
    fit(
        run, network, loader(), manager, optimizer=functools.partial(Adam, lr=0.01), epochs=4, loss=loss,
        scheduler=lambda optimizer: ExponentialLR(optimizer, 0.9), keep="best:test_loss",
        test_loader=TensorLoader(TEST, 4), **ALL[run.how],
    )  # fmt: skip


@pytest.mark.usefixtures("own_folder")
@pytest.mark.parametrize(
    "how", ["fp32", *(pytest.param(n, marks=pytest.mark.slow(everywhere=True)) for n in ("fp16", "auto"))]
)
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(how):
    grid = {"lr": [0.1], "how": [how]}
    for root in ("whole", "runs"):
        if root == "runs":
            announce("stop", 0.1, 3)
            start(grid, killed)
            trained()
        start(grid, killed, root=root)

    assert {epoch for _, epoch in trained()} == {3, 4}
    whole, resumed = (
        load_results(root).drop(columns=["epoch duration", "run duration"]) for root in ("whole", "runs")
    )
    assert whole.equals(resumed)
    contents = [torch.load(reading.run_folder(f"{root}/exp") / "weights.pt") for root in ("whole", "runs")]
    assert all(torch.equal(contents[0][name], contents[1][name]) for name in contents[0])


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"epochs": -1}, "epochs"), ({"precision": "fp64"}, "'bf16'"), ({"micro_batch": 0}, "micro_batch"),
    ({"clip_grad_norm": 0}, "clip_grad_norm"), ({"optimizer": "adam"}, "torch.optim"),
    ({"optimizer": SGD(make_network().parameters())}, "network.parameters()"),
    ({"scheduler": "step"}, "scheduler"),
    ({"micro_batch": 5, "network": make_network(nn.BatchNorm2d)}, "batch_norm_per_piece=True"),
    ({"batch_size": 10}, "batch_size"), ({"metrics": {"mae": None}}, "test_loader="),
]  # fmt: skip


@pytest.mark.parametrize(("options", "named"), INVALID)
def test_settings_that_cannot_be_used_are_refused_before_anything_is_written(tmp_path, options, named):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - what it names is asserted
        by_fit(tmp_path, **options)

    assert named in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_batch_size_that_does_not_count_its_argument_gives_pieces_no_wrong_weights(tmp_path):
    with pytest.raises(ValueError, match="counts 8 samples in a batch, but 32 in its micro-batches"):
        by_fit(tmp_path, micro_batch=3, batch_size=lambda *_: 8)


def test_all_problems_of_settings_are_named_at_once(tmp_path):
    with pytest.raises(ValueError, match=r"(?s)epochs.*precision.*clip_grad_norm.*scheduler"):
        by_fit(tmp_path, epochs=-1, precision="fp64", clip_grad_norm=0, scheduler="step")


def test_a_device_that_is_not_here_is_named_before_anything_is_written(tmp_path):
    with pytest.raises(DeviceError, match="xpu:99"):
        by_fit(tmp_path, run={"device": "xpu:99"})

    assert list(tmp_path.iterdir()) == []


def reconstruct(network, batch):
    (inputs,) = batch
    return functional.mse_loss(network(inputs), inputs)


def test_any_batch_is_trained_by_a_step_of_ones_own_with_patience(tmp_path):
    images = torch.rand(60, 8, generator=torch.Generator().manual_seed(0))
    manager = RunManager("auto", tmp_path, display=False, tensorboard=False)
    network = nn.Linear(8, 8)

    fit(
        RUN, network, DataLoader(TensorDataset(images[:40]), batch_size=20), manager,
        optimizer=functools.partial(SGD, lr=0.0), epochs=50, step=reconstruct,
        test_loader={"validation": DataLoader(TensorDataset(images[40:]), batch_size=10)},
        scheduler=lambda optimizer: ExponentialLR(optimizer, 0.9), scheduler_every="step",
        keep="best:validation_loss", patience=2,
    )  # fmt: skip

    table = load_results(tmp_path)
    assert table["epoch"].tolist() == [1, 2, 3]
    expected = functional.mse_loss(network(images[40:]), images[40:]).item()
    assert table["validation_loss"].tolist() == pytest.approx([expected] * 3)
    assert table["accuracy"].isna().all()


def test_samples_are_counted_as_asked_for(tmp_path):
    rows, _, _ = by_fit(
        tmp_path, batch_size=lambda batch: 1 if len(batch[1]) < 10 else 2, epochs=1,
        loss=lambda preds, _: preds.sum() * 0 + len(preds),
    )  # fmt: skip

    assert rows[0]["loss"] == pytest.approx(
        (4 * 2 * 10 + 8) / 9
    )  # 48 images: four batches of ten, one of eight


def test_fits_of_two_threads_leave_the_warnings_of_the_process_as_they_were(tmp_path, monkeypatch):
    by_fit(tmp_path / "before")  # what it imports may add filters
    before, autocast = list(warnings.filters), torch.autocast
    first, second = threading.Event(), threading.Event()

    def slow(*args):
        if not first.is_set():
            first.set()
            second.wait(1)
        elif not second.is_set():
            second.set()
            time.sleep(0.3)  # the first thread goes on meanwhile
        return autocast(*args)

    monkeypatch.setattr(torch, "autocast", slow)
    with ThreadPoolExecutor(2) as pool:
        fits = [pool.submit(by_fit, tmp_path / "first")]
        assert first.wait(30)
        fits.append(pool.submit(by_fit, tmp_path / "second"))
        for fit_of_thread in fits:
            fit_of_thread.result()

    assert second.is_set()
    assert warnings.filters == before
