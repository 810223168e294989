"""Fashion-MNIST as tensors, from torchvision's folder, verified."""

import gzip
import hashlib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import numpy as np
import torch

from runmanager.core.loaders import ImageTensors
from runmanager.errors import InvalidArgumentError, RunManagerError

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


# file without .gz -> SHA-256 of the .gz file; images before labels
_TRAIN = {
    "train-images-idx3-ubyte": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
}
_TEST = {
    "t10k-images-idx3-ubyte": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}


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
    files, most = (_TRAIN, 60_000) if train else (_TEST, 10_000)
    if size is not None and not 1 <= size <= most:
        raise InvalidArgumentError(
            f"the {'training' if train else 'test'} set has 1 to {most} images, got {size}"
        )
    raw = Path(root) / "FashionMNIST" / "raw"
    if damaged := _damaged(raw, files):
        try:
            from torchvision.datasets import FashionMNIST

            for name in damaged:  # torchvision does nothing if an unpacked file exists
                (raw / name).unlink(missing_ok=True)
            FashionMNIST(str(root), download=True)
        except Exception as error:
            raise RunManagerError(f"{_advice(raw, damaged)} ({error})") from error
        if damaged := _damaged(raw, files):
            raise RunManagerError(_advice(raw, damaged))
    contents = [gzip.decompress((raw / f"{name}.gz").read_bytes()) for name in files]
    # the headers have 16 and 8 bytes
    images, labels = (
        torch.from_numpy(np.frombuffer(bytearray(content[header:]), dtype=np.uint8))
        for content, header in zip(contents, (16, 8), strict=True)
    )
    images = images.reshape(most, 1, 28, 28)
    return ImageTensors(images, labels.long(), CLASSES).first(size or most)


def _damaged(raw: Path, files: Mapping[str, str]) -> list[str]:
    """Return the names of files that are not the original ones."""
    damaged = []
    for name, checksum in files.items():
        try:
            content = (raw / f"{name}.gz").read_bytes()
        except OSError:
            content = b""
        if hashlib.sha256(content).hexdigest() != checksum:
            damaged.append(name)
    return damaged


def _advice(raw: Path, damaged: list[str]) -> str:
    names = ", ".join(f"{name}.gz" for name in damaged)
    return f"missing or damaged: {names}; the download failed: put the four original files into {raw}"
