"""Fashion-MNIST as tensors, from torchvision's folder, verified."""

import gzip
import hashlib
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
import torch

from runmanager.errors import InvalidArgumentError, RunManagerError
from runmanager.training.loaders import ImageTensors

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


@dataclass(frozen=True)
class _File:
    """One of the four original files."""

    name: str  # the name without .gz
    packed: int  # size of the .gz file in bytes
    sha256: str  # checksum of the .gz file
    shape: tuple[int, ...]  # shape of the array in the file


_TRAIN = (
    _File("train-images-idx3-ubyte", 26_421_880,
          "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", (60_000, 28, 28)),
    _File("train-labels-idx1-ubyte", 29_515,
          "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", (60_000,)),
)  # fmt: skip
_TEST = (
    _File("t10k-images-idx3-ubyte", 4_422_102,
          "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", (10_000, 28, 28)),
    _File("t10k-labels-idx1-ubyte", 5_148,
          "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", (10_000,)),
)  # fmt: skip


def fashion_mnist(
    root: str | PathLike[str] = "data", *, train: bool = True, size: int | None = None
) -> ImageTensors:
    """Load Fashion-MNIST as tensors.

    The files are the files of ``torchvision.datasets.FashionMNIST(root)``. Every file is verified;
    torchvision downloads missing or damaged files.

    Source: Xiao, Rasul and Vollgraf (2017), https://github.com/zalandoresearch/fashion-mnist, MIT licence.

    Args:
        root: The folder that holds ``FashionMNIST/raw``.
        train: Whether to load the training set; otherwise the test set.
        size: The number of images to load, beginning with the first image; None for all images.

    Returns:
        Images ``(60000, 1, 28, 28)`` uint8 and labels ``(60000,)`` int64; 10,000 of both for the test set.

    Raises:
        RunManagerError: A file is missing or damaged and could not be downloaded.
        InvalidArgumentError: `size` is out of range.

    Example:
        >>> images, labels = fashion_mnist("data", train=False, size=3)[:]
        >>> tuple(images.shape), labels.tolist()
        ((3, 1, 28, 28), [9, 2, 1])
    """
    images_file, labels_file = files = _TRAIN if train else _TEST
    most = labels_file.shape[0]
    if size is not None and not 1 <= size <= most:
        raise InvalidArgumentError(
            f"the {'training' if train else 'test'} set has 1 to {most} images, got {size}"
        )
    raw = Path(root) / "FashionMNIST" / "raw"
    problems = [problem for file in files if (problem := _packed_problem(raw, file))]
    if problems:
        _download(Path(root), raw, files, problems)
    images, labels = (torch.from_numpy(_unpacked(raw, file)) for file in files)
    images = images.reshape(images_file.shape).unsqueeze(1)  # shape (N, 1, 28, 28)
    return ImageTensors(images, labels.long(), CLASSES).first(size or most)


def _packed_problem(raw: Path, file: _File) -> str | None:
    path = raw / f"{file.name}.gz"
    try:
        size = path.stat().st_size
        if size != file.packed:
            return f"{path} is damaged ({file.packed:,} bytes expected, {size:,} found)"
        with path.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    return None if digest == file.sha256 else f"{path} is damaged (its SHA-256 is {digest[:12]}...)"


def _download(root: Path, raw: Path, files: tuple[_File, ...], problems: list[str]) -> None:
    try:
        from torchvision.datasets import FashionMNIST

        for file in files:
            if _packed_problem(raw, file):
                # torchvision does nothing if an unpacked file exists
                (raw / file.name).unlink(missing_ok=True)
        FashionMNIST(str(root), download=True)
        left = [problem for file in files if (problem := _packed_problem(raw, file))]
    except Exception as error:
        raise RunManagerError(_advice(raw, problems, f"it could not be downloaded ({error})")) from error
    if left:
        raise RunManagerError(_advice(raw, left, "it was downloaded and is still wrong"))


def _advice(raw: Path, problems: list[str], then: str) -> str:
    sums = [f"  {file.name}.gz  SHA-256 {file.sha256}" for file in (*_TRAIN, *_TEST)]
    return "\n".join([*problems, f"{then}; put the four original files into {raw}:", *sums])


def _unpacked(raw: Path, file: _File) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    """Read the bytes of a file's array from its verified ``.gz`` file."""
    content = gzip.decompress((raw / f"{file.name}.gz").read_bytes())
    return np.frombuffer(bytearray(content[4 + 4 * len(file.shape) :]), dtype=np.uint8)  # after the IDX header
