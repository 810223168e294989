"""Fashion-MNIST as tensors, from torchvision's folder, verified."""

import gzip
import hashlib
import zlib
from collections.abc import Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path

import torch

from runmanager.core.loaders import ImageTensors
from runmanager.errors import InvalidArgumentError, RunManagerError

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


# file -> SHA-256 of its unpacked content; images before labels
_TRAIN = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
}
_TEST = {
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}


def fashion_mnist(
    root: str | PathLike[str] = "data", *, train: bool = True, size: int | None = None
) -> ImageTensors:
    """Load Fashion-MNIST as tensors.

    The files are the files of ``torchvision.datasets.FashionMNIST(root)``, unpacked or as ``.gz``. Every file
    is verified; torchvision downloads missing or damaged files.

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
    contents = _intact(raw, files)
    if damaged := [name for name in files if name not in contents]:
        try:
            from torchvision.datasets import FashionMNIST

            for name in damaged:  # torchvision does nothing if an unpacked file exists
                (raw / name).unlink(missing_ok=True)
            FashionMNIST(str(root), download=True)
        except Exception as error:
            raise RunManagerError(f"{_advice(raw, damaged)} ({error})") from error
        contents = _intact(raw, files)
        if damaged := [name for name in files if name not in contents]:
            raise RunManagerError(_advice(raw, damaged))
    # the headers have 16 and 8 bytes
    images, labels = (
        torch.frombuffer(contents[name], dtype=torch.uint8, offset=header)
        for name, header in zip(files, (16, 8), strict=True)
    )
    images = images.reshape(most, 1, 28, 28)
    return ImageTensors(images, labels.long(), CLASSES).first(size or most)


def _intact(raw: Path, files: Mapping[str, str]) -> dict[str, bytearray]:
    """Return the contents of the files that are the original ones, each from itself or else its .gz file."""
    contents: dict[str, bytearray] = {}
    for name, checksum in files.items():
        for path in (raw / name, raw / f"{name}.gz"):
            with suppress(OSError, EOFError, zlib.error):
                content = path.read_bytes() if path.name == name else gzip.decompress(path.read_bytes())
                if hashlib.sha256(content).hexdigest() == checksum:
                    contents[name] = bytearray(content)
                    break
    return contents


def _advice(raw: Path, damaged: list[str]) -> str:
    names = ", ".join(f"{name}.gz" for name in damaged)
    return f"missing or damaged: {names}; the download failed: put the four original files into {raw}"
