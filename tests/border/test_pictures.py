"""What event files draw: images, confusion matrices, histograms and graphs (docs/tensorboard.md)."""

import copy
import math
import re
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from experiments.fashion_grid import make_network as make_tutorials_network
from runmanager import TensorBoard, load_steps
from tests.border.events import LOADER, events_of, make_network, manager_in, pixels_of, train, values_of

RUN = {"lr": 0.1}


def images_of(folder):
    """Read the images that were written: (step, tag) -> image, in order."""
    return {(step, value.tag): value.image for step, value in values_of(folder) if value.HasField("image")}


def log_epoch(network, in_epoch=lambda _: None, **options):
    """Log an epoch in which a network is called as asked, in a folder that goes away; return what was read."""
    with tempfile.TemporaryDirectory() as folder:
        manager = manager_in(Path(folder), **options)
        with manager.run(RUN, network):
            for _ in manager.epochs(1):
                in_epoch(manager)
        events = events_of(Path(folder))
        histograms = {tag: events.Histograms(tag)[0].histogram_value for tag in events.Tags()["histograms"]}
        return histograms, images_of(Path(folder)), [*events.Graph().node] if events.Tags()["graph"] else []


# Images


def test_a_logged_image_or_figure_is_shown_once_per_epoch(tmp_path):
    manager = manager_in(tmp_path, tensorboard=TensorBoard(histogram_every=0))
    figure = Figure(figsize=(1, 2), dpi=50)
    figure.add_subplot().plot([1, 2])

    def log(epoch):
        color = np.zeros((3, 5, 4), np.uint8)
        color[0] = 10 * epoch
        manager.log({"val/mask": torch.eye(4)[:2] > 0, "score": 1.5}, plot=figure, color=color, every=1)
        manager.log(color=np.zeros((3, 5, 4)), every=7)  # the first of the epoch is shown

    train(manager, RUN, 2, at_end=log)

    images = {key: pixels_of(image) for key, image in images_of(tmp_path).items() if "images/" in key[1]}
    assert list(images) == [(n, f"images/{name}") for n in (1, 2) for name in ("val_mask", "plot", "color")]
    assert images[1, "images/val_mask"][:, :, 0].tolist() == [[255, 0, 0, 0], [0, 255, 0, 0]]
    assert images[1, "images/plot"].shape == (100, 50, 4)
    assert [images[n, "images/color"][4, 3].tolist() for n in (1, 2)] == [[10, 0, 0], [20, 0, 0]]
    assert set(load_steps(tmp_path)) == {"run", "epoch", "step", "score", *RUN}


def sheet_of(batch):
    """Return the pixels of the samples that a run shows of a batch, the first of two; None if it shows none."""
    network = nn.Identity()

    def call(_):
        images = batch.clone() if batch.device.type != "meta" and batch.numel() < 10_000 else batch
        network(images)
        if images is not batch:
            images.zero_()  # the samples are as the network saw them
        network(batch)

    _, images, _ = log_epoch(network, call)
    assert not network._forward_pre_hooks
    return pixels_of(images[0, "visuals/samples"]) if images else None


def test_the_samples_are_the_first_input_in_rows_of_eight():
    images = torch.zeros(10, 3, 5, 4)
    images[9, 2] = 1

    pixels = sheet_of(images)

    assert pixels.shape == (2 * 7, 8 * 6, 3)
    expected = np.zeros((14, 48))
    expected[7:12, 6:10] = 255  # the tenth: row 2, column 2
    assert np.array_equal(pixels[:, :, 2], expected)
    assert not pixels[:, :, :2].any()


@pytest.mark.parametrize(
    ("values", "shades"),
    [
        (torch.tensor([-3.0, 1.0, 5.0]), [0, 127, 255]),
        *((torch.tensor([-1.0, value, 1.0]), [0, 127, 255]) for value in (math.nan, math.inf, -math.inf)),
        (torch.full((3,), 7.0), [0, 0, 0]),
        *(
            (torch.tensor([0, 1, 1]).to(dtype), [0, 255, 255])
            for dtype in (torch.uint8, torch.bool, torch.float16, torch.bfloat16, torch.float64)
        ),
    ],
)
def test_the_smallest_value_is_black_and_the_largest_white(values, shades):
    pixels = sheet_of(values.reshape(3, 1, 1, 1))

    assert pixels[0, ::3, 0].tolist() == shades


@pytest.mark.parametrize(("count", "height", "width"), [(70, 512, 512), (70, 1, 512), (9, 300, 2), (1, 1, 1)])
def test_every_sheet_stays_small(count, height, width):
    pixels = sheet_of(torch.zeros(1, 1, 1, 1).expand(count, 3, height, width))

    assert pixels.shape[0] <= 516
    assert pixels.shape[1] <= 516


@pytest.mark.parametrize(
    "batch",
    [
        torch.zeros(2, 16), torch.zeros(2, 2, 4, 4), torch.zeros(2, 4, 4, 3), torch.zeros(0, 1, 4, 4),
        torch.zeros(2, 1, 4, 513), torch.zeros(2, 1, 4, 4, dtype=torch.complex64),
        torch.zeros(2, 1, 4, 4, device="meta"),
    ],
    ids=lambda batch: str(getattr(batch, "shape", batch)),
)  # fmt: skip
def test_inputs_that_are_no_images_are_not_shown(batch):
    assert sheet_of(batch) is None


# Confusion matrices

PREDICTED, GIVEN = torch.tensor([0, 1, 1, 2, 0]), torch.tensor([0, 1, 2, 2, 1])
OUTLINE = 136  # a grey


class Named(Dataset[Any]):
    """A dataset that names its classes, as those of torchvision."""

    classes: Sequence[str] = ("cat", "dog", "cow")

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return functional.one_hot(torch.tensor(index), 3).float(), index


def scores(predicted, num_classes=3):
    return functional.one_hot(predicted, num_classes).movedim(-1, 1).float()


def confusion_of(loader):
    """Return the picture of a run that evaluates a loader of scores and labels; None without one."""
    _, images, _ = log_epoch(nn.Identity(), lambda manager: manager.evaluate(loader))
    return images.get((1, "visuals/confusion_test"))


def cells_of(image, num_classes):
    """Read the darkness of the cells, from 0 to 1, at their corners, where no number is."""
    pixels = pixels_of(image)[:, :, 0]
    outline = [np.flatnonzero((pixels == OUTLINE).mean(axis=axis) > 0.25) for axis in (1, 0)]
    (top, bottom), (left, right) = ((int(lines[0]) + 1, int(lines[-1])) for lines in outline)
    cell = (right - left) // num_classes
    return 1 - pixels[top + 1 : bottom : cell, left + 1 : right : cell] / 255


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([(scores(PREDICTED), GIVEN)], [[1, 0, 0], [0.5, 0.5, 0], [0, 0.5, 0.5]]),
        ([(scores(PREDICTED), GIVEN), (scores(GIVEN), GIVEN)], [[1, 0, 0], [0.25, 0.75, 0], [0, 0.25, 0.75]]),
        (
            [(scores(PREDICTED.reshape(1, 5, 1)), GIVEN.reshape(1, 5, 1))],
            [[1, 0, 0], [0.5, 0.5, 0], [0, 0.5, 0.5]],
        ),
        ([(scores(PREDICTED), torch.tensor([0, -100, -100, 2, -100]))], [[1, 0, 0], [0, 0, 0], [0, 0, 1]]),
    ],
    ids=["", "two batches", "pixels", "labels that are no class"],
)
def test_rows_are_labels_columns_predictions_and_shades_the_shares_of_a_row(batches, expected):
    assert cells_of(confusion_of(batches), 3) == pytest.approx(np.array(expected), abs=0.05)


@pytest.mark.parametrize("num_classes", [2, 20, 21, 50, 51])
def test_the_picture_is_small_its_diagonal_dark_and_there_up_to_50_classes(num_classes):
    labels = torch.arange(num_classes).repeat(9)

    image = confusion_of([(scores(labels, num_classes), labels)])

    assert (image is None) is (num_classes == 51)
    if image is not None:
        assert cells_of(image, num_classes).tolist() == np.eye(num_classes).tolist()
        assert len(image.encoded_image_string) < 50_000
        assert max(image.width, image.height) < 1600


def test_classes_have_the_names_of_the_dataset_if_it_names_as_many():
    class OfFour(Named):
        classes = (*Named.classes, "pig")

    class Long(Named):
        classes = (200 * "x", "ünï", "cow")

    loaders = [
        DataLoader(Named()), DataLoader(Subset(Subset(Named(), [2, 1, 0]), [0, 1, 2])),
        DataLoader(TensorDataset(torch.eye(3), torch.arange(3))), [(torch.eye(3), torch.arange(3))],
        DataLoader(OfFour()), DataLoader(Long()),
    ]  # fmt: skip
    named, subset, unnamed, batches, of_four, long = map(confusion_of, loaders)

    assert named == subset != unnamed == batches == of_four
    assert max(long.width, long.height) < 1000


def test_each_completed_run_has_the_last_matrix_of_each_evaluation(tmp_path):
    manager, network = manager_in(tmp_path / "completed"), make_network()
    train(manager, RUN, 3, lambda _: manager.evaluate(LOADER, "validation"), network)
    with pytest.raises(ZeroDivisionError):
        train(manager_in(tmp_path / "failed"), RUN, at_end=lambda _: 1 / 0)

    drawn = {key: image for key, image in images_of(tmp_path / "completed").items() if "confusion" in key[1]}
    assert list(drawn) == [(3, "visuals/confusion_test"), (3, "visuals/confusion_validation")]
    expected = np.zeros((3, 3))
    for images, labels in LOADER:
        np.add.at(expected, (labels, network(images).argmax(1)), 1)
    for image in drawn.values():
        assert cells_of(image, 3) == pytest.approx(expected / expected.sum(1, keepdims=True), abs=0.05)
    assert images_of(tmp_path / "failed") == {}


# Histograms

FLOATS = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
BINS = 30


def histogram_of(values):
    """Return the histogram of a parameter; None if it has none."""
    network = nn.Module()
    network.register_parameter("x", nn.Parameter(values))
    return log_epoch(network)[0].get("weights/x")


@pytest.mark.slow(everywhere=True)
@given(st.lists(FLOATS, max_size=60), st.lists(st.sampled_from([math.nan, math.inf, -math.inf]), max_size=3))
@example([0.25] * 7, [])
@example([-1.0, 0.25, 29.0], [math.nan])
@example([], [math.inf])
def test_a_histogram_counts_every_finite_value_once_as_numpy_does(values, others):
    low, high = min(values, default=0), max(values, default=0)
    assume(low == high or high - low > 1e-30)
    places = [(value - low) / (high - low) * BINS if high > low else 0 for value in values]
    # of a value on the border of two buckets, rounding decides
    inside = [v for v, p in zip(values, places, strict=True) if abs(p - round(p)) > 1e-3 or v in (low, high)]

    histogram = histogram_of(torch.tensor((inside + others) * 32))

    if not inside:
        assert histogram is None
        return
    low, high, bins = (low, high, BINS) if low < high else (low - 0.5, high + 0.5, 1)
    assert (histogram.num, histogram.min, histogram.max) == (32 * len(inside), low, high)
    assert histogram.sum == pytest.approx(32 * math.fsum(inside), abs=1e-3)
    assert histogram.sum_squares == pytest.approx(32 * math.fsum(v * v for v in inside))
    assert list(histogram.bucket_limit) == pytest.approx(np.linspace(low, high, bins + 1)[1:].tolist())
    counts = np.histogram(inside, bins, (low, high))[0] * 32
    assert list(histogram.bucket) == counts.tolist()


@pytest.mark.parametrize(
    ("values", "total", "squares"),
    [
        ([1e8, 1.0, 1.0, -1e8], 2.0, 2e16 + 2),  # in double precision
        (torch.tensor([-6e4, 6e4, 6e4], dtype=torch.float16), 6e4, 10.8e9),
        ([-1e30, 1e30, 0.5e30], 0.5e30, 2.25e60),
        *((torch.arange(31).to(dtype), 465, 9455) for dtype in (torch.bfloat16, torch.float64)),
    ],
)
def test_large_values_and_every_float_type_are_summed(values, total, squares):
    histogram = histogram_of(torch.as_tensor(values).repeat(32))

    assert (histogram.sum, histogram.sum_squares) == pytest.approx((32 * total, 32 * squares))
    assert sum(histogram.bucket) == histogram.num


@pytest.mark.parametrize("every", [2, 3, 9, 0])
def test_histograms_come_as_often_as_asked_and_of_the_last_epoch(tmp_path, every):
    train(manager_in(tmp_path, tensorboard=TensorBoard(histogram_every=every)), RUN, 5)

    drawn = {tag: [step for step, value in values_of(tmp_path) if value.tag == tag] for tag in (
        "weights/1.weight", "weights:grad/1.weight",
    )}  # fmt: skip
    steps = {2: [1, 3, 5], 3: [1, 4, 5], 9: [1, 5], 0: []}[every]
    assert list(drawn.values()) == [steps, steps]


def test_what_cannot_be_drawn_is_left_out():
    odd = {
        "empty": torch.empty(0), "meta": torch.ones(99, device="meta"), "few": torch.ones(31),
        "complex": torch.ones(99, dtype=torch.complex64), "integer": torch.ones(99, dtype=torch.int64),
    }  # fmt: skip
    network: Any = nn.ModuleDict(
        {"fc": nn.Linear(16, 3), "frozen": nn.Linear(16, 3), "sparse": nn.Embedding(4, 8, sparse=True)}
    )
    network["frozen"].requires_grad_(False)
    for name, values in odd.items():
        network.register_parameter(name, nn.Parameter(values, requires_grad=values.is_floating_point()))
    network.register_parameter("lazy", nn.UninitializedParameter())
    network.register_buffer("nothing", None)
    network["tied"] = network["fc"]
    (network["fc"](torch.ones(1, 16)).sum() + network["sparse"](torch.tensor([1])).sum()).backward()
    before = copy.deepcopy(network.state_dict(keep_vars=True)["fc.weight"].grad)

    histograms, _, _ = log_epoch(network)

    fc = "fc.weight"
    assert set(histograms) == {
        f"weights/{fc}", f"weights:grad/{fc}", "weights/frozen.weight", "weights/sparse.weight",
    }  # fmt: skip
    assert torch.equal(network["fc"].weight.grad, before)


# Graphs


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return functional.relu(self.norm(self.fc(x))) * self.scale + x


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x, y):
        return {"scores": self.fc(x) + y, "best": torch.max(x, 1)[1]}


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def nodes_of(network):
    """Return the nodes of the graph of a run; none if it has no graph."""
    return log_epoch(network, lambda manager: manager.track_loss(1.0, 1))[2]


def test_the_tutorials_network_is_drawn_layer_by_layer():
    nodes = nodes_of(make_tutorials_network())

    assert [(node.name, node.op) for node in nodes[1:]] == [
        ("conv1", "Conv2d"), ("pool1", "MaxPool2d"), ("relu1", "ReLU"), ("conv2", "Conv2d"),
        ("pool2", "MaxPool2d"), ("relu2", "ReLU"), ("flatten", "Flatten"), ("fc1", "Linear"), ("relu3", "ReLU"),
        ("fc2", "Linear"), ("relu4", "ReLU"), ("out", "Linear"), ("output", "output"),
    ]  # fmt: skip
    assert nodes[0].op == "placeholder"
    assert [list(node.input) for node in nodes] == [[], *([node.name] for node in nodes[:-1])]
    assert nodes[1].attr["settings"].s == b"1, 6, kernel_size=(5, 5), stride=(1, 1)"


@pytest.mark.parametrize("times", [1, 3, 12])
def test_nested_modules_are_scopes_and_a_module_called_again_has_another_name_in_its_own(times):
    nodes = nodes_of(nn.Sequential(nn.Identity(), nn.Sequential(*[Block()] * times)))

    names = [node.name for node in nodes if node.op not in ("placeholder", "output", "Identity")]
    assert len(set(names)) == 5 * times + 1
    assert {name.rpartition("/")[0] for name in names} == {"1/0"}
    ops = [node.op for node in nodes if node.name.startswith("1/0/")]
    assert ops[:6] == ["Linear", "BatchNorm1d", "relu", "get_attr", "mul", "add"]
    linear = [node.name for node in nodes if node.op == "Linear"]
    assert len(linear) == times
    assert all(re.fullmatch(r"1/0/fc(_\d+)?", name) for name in linear)
    assert {source for node in nodes for source in node.input} < {node.name for node in nodes}


def test_several_inputs_and_outputs_are_drawn_and_a_branch_gives_no_graph_in_silence(capfd):
    nodes = nodes_of(TwoInputs())

    assert [node.op for node in nodes] == ["placeholder"] * 2 + ["Linear", "add", "max", "getitem", "output"]
    assert list(nodes[-1].input) == ["add", "getitem"]
    assert nodes_of(Branching()) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_compiled_network_is_drawn_as_what_was_compiled():
    network = make_tutorials_network()

    assert nodes_of(torch.compile(network)) == nodes_of(network)


def test_tracing_leaves_the_network_as_it_was():
    calls: list[str] = []
    network: Any = nn.Sequential(Block(), Block())
    network[0].fc.register_forward_hook(lambda *_: calls.append("hook"))
    network[1].register_forward_pre_hook(lambda *_: calls.append("hook"))
    network[1].eval()
    before = copy.deepcopy(network.state_dict())
    tensors = [*network.parameters(), *network.buffers()]
    modes = [module.training for module in network.modules()]

    assert nodes_of(network)

    assert calls == []
    assert modes == [module.training for module in network.modules()]
    assert [id(tensor) for tensor in (*network.parameters(), *network.buffers())] == [*map(id, tensors)]
    assert {tensor.device.type for tensor in tensors} == {"cpu"}
    assert all(torch.equal(values, before[name]) for name, values in network.state_dict().items())
    network(torch.ones(4, 3))
    assert len(calls) == 2  # the hooks are still there


def test_other_threads_compute_while_a_network_is_traced_and_with_what_was_patched_afterwards():
    """`torch.compile` in another thread may take fx's patches away, and put them back after the trace."""
    other, inputs, computed = Block().eval(), torch.ones(4, 3), []
    kept: list[Any] = []
    expected, called = other(inputs), nn.Module.__call__

    class Traced(Block):
        def forward(self, x):
            thread = threading.Thread(target=lambda: computed.append(other(inputs)))
            thread.start()
            thread.join()
            kept.extend([nn.Module.__call__, nn.Module.__getattr__])
            return super().forward(x)

    assert nodes_of(Traced())

    call, get = kept
    assert nn.Module.__call__ is called is not call
    assert torch.equal(computed[0], expected)
    assert torch.equal(call(other, inputs), expected)
    assert get(other, "scale") is other.scale
