import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from runmanager import RunManager, RunsWarning, load_runs
from runmanager.tensorboard import pictures
from runmanager.tensorboard.pictures import MOST, Confusion, class_names, draw
from tests.board.reading import LABELS, LOADER, event_files, make_network, train, values_in

PREDICTED = torch.tensor([0, 1, 1, 2, 0])
OUTLINE = 136  # a grey
GIVEN = torch.tensor([0, 1, 2, 2, 1])


def scores(predicted: torch.Tensor, num_classes: int = 3) -> torch.Tensor:
    """Make scores whose largest is that of the given classes."""
    return functional.one_hot(predicted, num_classes).movedim(-1, 1).float()


def drawn(folder: Path) -> list[tuple[int, str]]:
    return [(step, v.tag) for step, v in values_in(folder) if v.tag.startswith("visuals/confusion")]


class Named(Dataset[Any]):
    """A dataset that names its classes, as those of torchvision."""

    classes = ("cat", "dog", "cow")

    def __len__(self) -> int:
        return 8

    def __getitem__(self, _: int) -> Any:
        raise NotImplementedError


def test_rows_are_labels_and_columns_predictions():
    counted = Confusion()

    counted.add(scores(PREDICTED), GIVEN)
    counted.add(scores(PREDICTED[:1]), GIVEN[:1])

    assert counted.table() == [[2, 0, 0], [1, 1, 0], [0, 1, 1]]


def test_pixels_count_each():
    counted = Confusion()

    counted.add(scores(PREDICTED.reshape(1, 5, 1)), GIVEN.reshape(1, 5, 1))

    assert counted.table() == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]


def test_labels_that_are_no_class_are_left_out():
    counted = Confusion()

    counted.add(scores(PREDICTED), torch.tensor([0, -100, 255, 2, 3], dtype=torch.int16))

    assert counted.table() == [[1, 0, 0], [0, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize("num_classes", [1, MOST + 1])
def test_what_cannot_be_read_is_not_counted(num_classes):
    counted = Confusion()

    counted.add(torch.zeros(2, num_classes), torch.zeros(2, dtype=torch.int64))

    assert counted.table() == []
    assert counted.problem == ""


@pytest.mark.parametrize("num_classes", [2, 4])
def test_batches_with_other_classes_are_a_problem_and_not_counted_among_these(num_classes):
    counted = Confusion()

    counted.add(scores(PREDICTED), GIVEN)
    counted.add(torch.zeros(2, num_classes), torch.tensor([0, num_classes - 1]))

    assert counted.problem == f"confusion: batches have scores of 3 and of {num_classes} classes"
    assert counted.table() == []


def test_what_cannot_be_counted_is_a_problem_and_no_error():
    counted = Confusion()

    counted.add(torch.zeros(2, 3), torch.zeros(5, dtype=torch.int64))

    assert counted.table() == []
    assert counted.problem.startswith("confusion: RuntimeError")


@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        (DataLoader(Named()), ["cat", "dog", "cow"]),
        (DataLoader(Subset(Subset(Named(), [1, 2]), [0])), ["cat", "dog", "cow"]),
        (DataLoader(TensorDataset(LABELS)), ["0", "1", "2"]),
        (LOADER, ["0", "1", "2"]),
    ],
    ids=["dataset", "subset", "no names", "list"],
)
def test_classes_have_the_names_of_the_dataset(loader, expected):
    assert class_names(loader, 3) == expected


def test_names_that_are_not_those_of_the_scores_are_not_taken():
    assert class_names(DataLoader(Named()), 4) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("num_classes", [2, 10, 20, 21, MOST])
def test_the_picture_is_small_and_its_diagonal_dark(num_classes):
    rows = [[999 * (row == column) for column in range(num_classes)] for row in range(num_classes)]

    image = draw(rows, [f"class {n}" for n in range(num_classes)])
    png, width, height, channels = image.encoded_image_string, image.width, image.height, image.colorspace

    with Image.open(io.BytesIO(png)) as image:
        assert (image.size, image.mode, channels) == ((width, height), "RGB", 3)
        pixels = np.array(image)[:, :, 0]
    outline = [np.flatnonzero((pixels == OUTLINE).mean(axis=axis) > 0.25) for axis in (1, 0)]
    (top, bottom), (left, right) = ((int(lines[0]) + 1, int(lines[-1])) for lines in outline)
    cell = (right - left) // num_classes
    corners = pixels[top + 1 : bottom : cell, left + 1 : right : cell]  # of cells, where no number is
    assert corners.tolist() == np.where(np.eye(num_classes), 0, 255).tolist()
    assert len(png) < 50_000
    assert max(width, height) < 1600


def test_long_names_and_large_counts_fit():
    image = draw([[10**9, 1], [0, 0]], [200 * "x", "ünï"])
    png, width, height = image.encoded_image_string, image.width, image.height

    assert len(png) < 20_000
    assert max(width, height) < 1000


def test_a_run_has_the_confusion_of_its_last_evaluation_once(tmp_path):
    network = make_network()
    manager = RunManager("e", tmp_path, display=False)

    train(manager, {"lr": 0.1}, 3, network)

    assert drawn(tmp_path) == [(3, "visuals/confusion_test")]
    expected = Confusion()
    with torch.no_grad():
        for images, labels in LOADER:
            expected.add(network(images), labels)
    (png,) = [v.image.encoded_image_string for _, v in values_in(tmp_path) if v.tag == "visuals/confusion_test"]
    assert png == draw(expected.table(), ["0", "1", "2"]).encoded_image_string


def test_each_evaluation_has_its_own(tmp_path):
    manager = RunManager("e", tmp_path, display=False)

    train(manager, {"lr": 0.1}, at_end=lambda _: manager.evaluate(LOADER, "validation"))

    assert drawn(tmp_path) == [(1, "visuals/confusion_test"), (1, "visuals/confusion_validation")]


def test_a_run_that_fails_has_none(tmp_path):
    manager = RunManager("e", tmp_path, display=False)

    def fail(_: int) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        train(manager, {"lr": 0.1}, at_end=fail)

    assert drawn(tmp_path) == []


def test_a_confusion_that_cannot_be_drawn_is_one_warning(tmp_path, monkeypatch):
    def fail(*_: Any) -> None:
        raise ValueError("cannot be drawn")

    monkeypatch.setattr(pictures, "draw", fail)

    with pytest.warns(RunsWarning, match="ValueError: cannot be drawn") as caught:
        train(RunManager("e", tmp_path, display=False), {"lr": 0.1})

    assert len(caught) == 1
    assert [v.tag for _, v in values_in(tmp_path)][-1] == "_hparams_/session_end_info"
    assert load_runs(tmp_path)["status"].tolist() == ["completed"]


def test_without_tensorboard_nothing_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(Confusion, "add", pytest.fail)

    train(RunManager("e", tmp_path, display=False, tensorboard=False), {"lr": 0.1})

    assert event_files(tmp_path) == []
