import gzip
import shutil
import sys
from pathlib import Path

import pytest
import torch
import torchvision

from runmanager import RunManagerError
from runmanager.datasets import CLASSES, fashion_mnist
from tests.border.reading import flip

ORIGINALS = Path(__file__).parents[1] / "data" / "FashionMNIST" / "raw"
IMAGES, LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
TRAIN = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"]


@pytest.fixture(autouse=True)
def downloads(monkeypatch):
    """The roots that torchvision was asked to download to; every download fails."""
    roots: list[str] = []

    def refuse(root, *, download):
        assert download
        roots.append(root)
        raise OSError("no network")

    monkeypatch.setattr(torchvision.datasets, "FashionMNIST", refuse)
    return roots


@pytest.fixture
def root(tmp_path):
    """A folder with the four original files: those of the test set are copies, to be damaged."""
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for name in TRAIN:
        (raw / f"{name}.gz").symlink_to(ORIGINALS / f"{name}.gz")
    for name in (IMAGES, LABELS):
        shutil.copy(ORIGINALS / f"{name}.gz", raw)
    return tmp_path


@pytest.fixture
def raw(root):
    return root / "FashionMNIST" / "raw"


def unpacked(name):
    return gzip.decompress((ORIGINALS / f"{name}.gz").read_bytes())


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def test_the_test_set_is_ten_thousand_images_of_ten_classes(root, raw, downloads):
    dataset = fashion_mnist(root, train=False)

    assert (dataset.images.shape, dataset.images.dtype) == ((10_000, 1, 28, 28), torch.uint8)
    assert (dataset.labels.shape, dataset.labels.dtype) == ((10_000,), torch.int64)
    assert dataset.images.numpy().tobytes() == unpacked(IMAGES)[16:]
    assert torch.bincount(dataset.labels).tolist() == [1000] * 10
    assert (len(CLASSES), dataset.classes) == (10, CLASSES)
    assert downloads == []


def test_the_first_images_can_be_asked_for_and_damaged_training_files_do_not_matter(root, raw):
    for name in TRAIN:
        (raw / f"{name}.gz").unlink()
    whole = fashion_mnist(root, train=False)

    part = fashion_mnist(root, train=False, size=3)

    assert (len(part), len(whole), len(fashion_mnist(root, train=False, size=10_000))) == (3, 10_000, 10_000)
    assert torch.equal(part.images, whole.images[:3])
    assert torch.equal(part.labels, whole.labels[:3])


@pytest.mark.parametrize(("train", "size"), [(True, 0), (True, 60_001), (False, -1), (False, 60_000)])
def test_a_size_out_of_range_is_refused(tmp_path, train, size):
    with pytest.raises(RunManagerError, match=f"1 to {60_000 if train else 10_000} images, got {size}"):
        fashion_mnist(tmp_path, train=train, size=size)


@pytest.mark.parametrize(("name", "damage"), [(LABELS, truncate), (IMAGES, flip)], ids=["cut", "flipped"])
def test_a_damaged_gz_that_cannot_be_downloaded_is_named(root, raw, downloads, name, damage):
    damage(raw / f"{name}.gz")

    with pytest.raises(RunManagerError, match=f"^missing or damaged: {name}.gz;") as caught:
        fashion_mnist(root, train=False)

    assert f"put the four original files into {raw} (no network)" in str(caught.value)
    assert downloads == [str(root)]


def test_without_a_torchvision_that_fits_the_files_are_read_and_a_download_says_why_it_cannot_be(
    root, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "torchvision", None)

    assert len(fashion_mnist(root, train=False, size=3)) == 3
    with pytest.raises(RunManagerError, match=r"put the four original files into .*torchvision"):
        fashion_mnist(tmp_path / "empty")


def test_unpacked_files_are_read_if_they_are_the_original_ones(root, raw, downloads):
    (raw / IMAGES).write_bytes(unpacked(IMAGES))
    (raw / f"{IMAGES}.gz").unlink()
    (raw / LABELS).write_bytes(unpacked(LABELS))
    flip(raw / LABELS)

    dataset = fashion_mnist(root, train=False)

    assert dataset.images.numpy().tobytes() == unpacked(IMAGES)[16:]
    assert dataset.labels.to(torch.uint8).numpy().tobytes() == unpacked(LABELS)[8:]
    assert downloads == []


def test_a_damaged_gz_is_downloaded_again(root, raw, monkeypatch):
    def download(root, *, download):
        assert not (raw / LABELS).exists()  # or torchvision would see nothing to do
        shutil.copy(ORIGINALS / f"{LABELS}.gz", raw)

    fashion_mnist(root, train=False)
    flip(raw / f"{LABELS}.gz")
    monkeypatch.setattr(torchvision.datasets, "FashionMNIST", download)

    dataset = fashion_mnist(root, train=False)

    assert dataset.labels.to(torch.uint8).numpy().tobytes() == unpacked(LABELS)[8:]
