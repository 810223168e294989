"""Loaders: `ImageTensors` and `TensorLoader` for tensors in memory, and the sizes of batches."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from runmanager.core.wording import counted
from runmanager.devices.torch_devices import PINNED, pinned, send, undisturbed_random
from runmanager.errors import InvalidArgumentError, is_count

Batch = tuple[torch.Tensor, torch.Tensor]

Measure = Callable[[Any], int]
"""The function of `batch_size=`: batch -> its number of samples."""

_IMAGE_DIMENSIONS = 3  # number of dimensions of one image: channels, height and width


class ImageTensors(Dataset[Batch]):
    """Images and labels in memory, fetched by one index or by a list of indices.

    Args:
        images: ``(N, C, H, W)``, uint8 or float.
        labels: ``(N,)``, int64.
        classes: The names of the labels.

    Raises:
        ValueError: The numbers of labels and images differ.

    Example:
        >>> images = torch.zeros(6, 1, 28, 28, dtype=torch.uint8)
        >>> data = ImageTensors(images, torch.arange(6) % 2, ("cat", "dog"))
        >>> len(data), data[[0, 1, 2]][0].shape
        (6, torch.Size([3, 1, 28, 28]))
    """

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, classes: tuple[str, ...] = ()) -> None:
        if len(images) != len(labels):
            raise ValueError(f"{len(images)} images but {len(labels)} labels: give as many of each")
        self.images = images
        self.labels = labels
        self.classes = classes

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> Batch:
        """Return an image and its label, or the images and labels at a slice, list or array of indices."""
        if isinstance(index, list):
            index = torch.tensor(index, dtype=torch.int64, device="cpu")
        elif isinstance(index, np.ndarray):
            index = torch.from_numpy(index if index.dtype in (bool, np.uint8) else index.astype(np.int64))
        return _samples(self.images, index), _samples(self.labels, index)

    def to(self, device: torch.device | str) -> "ImageTensors":
        """Copy the images and labels to another device.

        Args:
            device: The device, such as ``"cuda:1"``.

        Returns:
            The same data set on that device.

        Example:
            >>> data = ImageTensors(torch.zeros(6, 1, 28, 28), torch.zeros(6, dtype=torch.int64))
            >>> data.to("cpu").images.device
            device(type='cpu')
        """
        return ImageTensors(self.images.to(device), self.labels.to(device), self.classes)

    def first(self, count: int) -> "ImageTensors":
        """Return the first images and labels, without copying.

        Args:
            count: The number of samples; all samples if there are fewer.

        Returns:
            A data set that shares the memory of this data set.

        Example:
            >>> data = ImageTensors(torch.zeros(6, 1, 28, 28), torch.zeros(6, dtype=torch.int64))
            >>> len(data.first(2))
            2
        """
        return ImageTensors(self.images[:count], self.labels[:count], self.classes)


class TensorLoader(DataLoader[Batch]):
    """Load batches of `ImageTensors` with torch's DataLoader, one indexing per batch instead of one per image.

    Batches arrive on `device`, images as floats in 0..1: ``(B, C, H, W)`` float32 and ``(B,)`` int64.
    Worker processes fetch bytes; the device scales the images to floats. A run resumes inside an epoch, by
    `state_dict` and `load_state_dict`.

    Args:
        dataset: Images and labels, in main memory if there are workers.
        batch_size: The number of samples in a batch; the last batch may be smaller.
        device: The device to which the batches are sent.
        shuffle: Whether each epoch has a new order.
        seed: The seed of the orders, as the global random state is not used.
        num_workers: The number of worker processes, 0 for none.

    Example:
        >>> data = ImageTensors(torch.full((6, 1, 28, 28), 255, dtype=torch.uint8), torch.arange(6) % 2)
        >>> for images, labels in TensorLoader(data, batch_size=4):
        ...     print(tuple(images.shape), images.max().item(), tuple(labels.shape))
        (4, 1, 28, 28) 1.0 (4,)
        (2, 1, 28, 28) 1.0 (2,)
    """

    def __init__(
        self,
        dataset: ImageTensors,
        batch_size: int,
        *,
        device: torch.device | str = "cpu",
        shuffle: bool = True,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        self.device: torch.device = torch.device(device)
        generator = torch.Generator().manual_seed(seed)
        self._order = _BatchesOf(dataset, batch_size, generator if shuffle else None)
        super().__init__(
            dataset,
            batch_size=None,
            sampler=self._order,
            num_workers=num_workers,
            generator=generator,
            pin_memory=self.device.type in PINNED and dataset.images.device.type == "cpu",
        )

        self._state: dict[str, Any] = {"batch": 0, "generator": generator.get_state()}
        self._loaded: Mapping[str, Any] | None = None  # a state after whose batch the next pass begins

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the current pass over the loader.

        Returns:
            The last batch of the pass, and the state of the generator at its begin.

        Example:
            >>> loader = TensorLoader(ImageTensors(torch.zeros(6, 1, 8, 8), torch.arange(6)), batch_size=2)
            >>> batch = next(iter(loader))
            >>> loader.state_dict()["batch"]
            1
        """
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next pass over the loader after the batch of a saved position.

        Args:
            state: A position that `state_dict` has returned.

        Example:
            >>> loader = TensorLoader(ImageTensors(torch.zeros(6, 1, 8, 8), torch.arange(6)), batch_size=2)
            >>> batch = next(iter(loader))
            >>> loader.load_state_dict(loader.state_dict())
            >>> len(list(loader))
            2
        """
        self._state = self._loaded = dict(state)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override] # torch declares its own iterator class
        state, self._loaded = self._loaded, None
        return self._batches(state)

    def _batches(self, state: Mapping[str, Any] | None) -> Iterator[Batch]:
        state = state or {"batch": 0, "generator": self.generator.get_state()}
        self.generator.set_state(state["generator"])  # the same order is drawn again
        self._order.after = state["batch"]
        for batch, pair in enumerate(super().__iter__(), state["batch"] + 1):
            self._state = {**state, "batch": batch}
            images, labels = send(pair, self.device)
            yield to_unit(images), labels
        self._state = {"batch": 0, "generator": self.generator.get_state()}  # the next pass is a whole one


class _BatchesOf(BatchSampler):
    """Yield the indices of each batch after the first `after` ones: arrays, or tensors on the device."""

    after = 0

    def __init__(self, dataset: ImageTensors, batch_size: int, generator: torch.Generator | None) -> None:
        super().__init__(SequentialSampler(dataset), batch_size, drop_last=False)
        self._dataset, self._generator = dataset, generator

    def __iter__(self) -> Iterator[Any]:
        images, labels = self._dataset.images, self._dataset.labels
        num, device = len(labels), images.device if labels.device == images.device else torch.device("cpu")
        order = self._drawn(num) if self._generator else torch.arange(num, device="cpu")
        left = torch.split(_on(device, order), self.batch_size)[self.after :] if num else ()
        for batch in left:
            if self._generator and len(batch) < self.batch_size:
                self._drawn(num)  # torch's sampler draws once more at its end: so later orders are the same
            yield batch if device.type != "cpu" else batch.numpy()
        if self._generator and (num % self.batch_size == 0 or not left):
            self._drawn(num)

    def _drawn(self, num: int) -> torch.Tensor:
        return torch.randperm(num, generator=self._generator, device="cpu")


def to_unit(images: torch.Tensor) -> torch.Tensor:
    """Scale uint8 images to floats in 0..1, exactly as torchvision's ToTensor; floats do not change."""
    if images.dtype != torch.uint8:
        return images
    # to divide by a Python number, CUDA multiplies by its reciprocal, and results differ in the last bit
    return images.float().div_(torch.full((), 255.0, device=images.device))


def _samples(samples: torch.Tensor, index: Any) -> torch.Tensor:
    """Return the samples at an index."""
    index = _on(samples.device, index) if isinstance(index, torch.Tensor) else index
    if not samples.is_cpu or not samples.is_contiguous() or not isinstance(index, torch.Tensor):
        return samples[index]
    if index.dtype != torch.int64 or index.ndim != 1 or (index < 0).any():
        return samples[index]
    return samples.index_select(0, index)  # ten times as fast as the brackets, on a cpu


def _on(device: torch.device, index: torch.Tensor) -> torch.Tensor:
    """Send an index to the device of the data; otherwise, indexing waits for a synchronous copy."""
    return index if device.type == "cpu" else send(pinned(index, device), device)


def size_of_batch(loader: Any, number: int) -> int | None:
    """Return the number of samples of batch `number` (from 1) of an epoch, None if unknown."""
    size = getattr(loader, "batch_size", None)
    sampler = getattr(loader, "sampler", None)
    if size is None and isinstance(sampler, BatchSampler):
        size, sampler = sampler.batch_size, sampler.sampler
    try:
        total = len(sampler)  # type: ignore[arg-type]  # a sampler without a length raises any exception
    except Exception:  # noqa: BLE001 - of a user's sampler
        return None
    if not isinstance(size, int):
        return None
    left = total - (number - 1) * size
    return min(size, left) if left > 0 else None


def is_collated(loader: Any) -> bool:
    """Whether a loader joins samples as torch does, so that a list is a batch's parts, not its samples."""
    return getattr(loader, "collate_fn", None) is default_collate


def batch_size(
    batch: Any, measure: Measure | None = None, loader: Any = None, number: int = 1, *, are_parts: bool = False
) -> int:
    """Return the number of samples of a batch, which is the `number`-th of its epoch, from 1."""
    if type(batch) is int:
        return batch
    if measure is not None:
        size = measure(batch)
        if not is_count(size, 1):
            raise InvalidArgumentError(f"batch_size must return a whole number, 1 or more, got {size!r}")
        return size
    if isinstance(batch, torch.Tensor) and batch.ndim:
        return batch.shape[0]
    parts = _sizes_of(batch, is_part=False)
    common = set.intersection(*parts) if parts else set()
    sizes = common or set().union(*parts)
    # a tuple has parts, unless the loader says otherwise
    may_have_samples = isinstance(batch, list) or (isinstance(batch, tuple) and loader is not None)
    has_samples = bool(sizes) and may_have_samples and may_be_samples(batch)
    loaded = size_of_batch(loader, number) if has_samples or len(sizes) > 1 else None
    if has_samples and (isinstance(batch, list) or len(batch) == loaded not in sizes):
        sizes = sizes | {len(batch)}
    if len(sizes) == 1:
        return sizes.pop()
    if loaded in sizes:
        return loaded
    is_single = isinstance(batch, list) and [*map(type, batch)] == [torch.Tensor] and not may_be_images(batch)
    if (are_parts or is_single or is_collated(loader)) and len(common) == 1:
        return common.pop()
    step = "pass their number, as in track_loss(loss, len(labels)), or give batch_size=lambda batch: ..."
    if sizes:
        several = " or ".join(counted(size, "sample") for size in sorted(sizes)[:4])
        raise InvalidArgumentError(f"the batch has {several}, depending on which part is counted: {step}")
    raise InvalidArgumentError(f"cannot count the samples of a {type(batch).__name__}: {step}")


def _sizes_of(item: Any, *, is_part: bool = True, has_fields: bool = True) -> list[set[int]]:
    """Return the possible sizes of each part of a batch, without parts that have no size, such as numbers."""
    if (shape := getattr(item, "shape", None)) is not None and not callable(shape):
        return [{int(shape[0])}] if len(shape) else []
    if isinstance(item, PackedSequence):
        return [{int(item.batch_sizes[0])}]
    if not isinstance(item, Mapping | tuple | list):
        return []
    sizes: list[set[int]] = []
    parts = [*(item.values() if isinstance(item, Mapping) else item)]
    # beside a tensor, a tuple such as (224, 224) is no field of samples
    has_tensor = any(isinstance(part, torch.Tensor) and part.ndim for part in parts)
    for part in parts:
        sizes += _sizes_of(part, has_fields=not has_tensor)
    if not is_part:
        return sizes
    is_field = isinstance(item, tuple) and (may_be_samples(item) if sizes else has_fields)
    if isinstance(item, list) or is_field:
        return [{len(item)}.union(set.intersection(*sizes) if sizes else ())]
    return sizes


def may_be_samples(items: Sequence[Any]) -> bool:
    """Whether the items of a list may be samples, as with ``collate_fn=list``, instead of parts of a batch."""
    if len({*map(type, items)}) != 1:
        return False
    first: Any = items[0]
    if hasattr(first, "shape"):
        return len({(item.shape, item.dtype) for item in items}) == 1 or may_be_images(items)
    if isinstance(first, Mapping):
        return all(item.keys() == first.keys() for item in items)
    return isinstance(first, tuple | list) and all(len(item) == len(first) for item in items)


def may_be_images(items: Sequence[Any]) -> bool:
    """Whether the items of a list may be images, instead of the parts of a batch."""
    return bool(items) and all(
        isinstance(item, torch.Tensor) and item.ndim == _IMAGE_DIMENSIONS and item.dtype == items[0].dtype
        for item in items
    )


def generators(loader: Any) -> Iterator[tuple[str, torch.Generator]]:
    """Yield the generators of a loader and its samplers, without duplicates."""
    samplers = [loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    samplers += [getattr(sampler, "sampler", None) for sampler in samplers[1:]]
    seen: set[int] = set()
    for number, sampler in enumerate(samplers):
        generator = getattr(sampler, "generator", None)
        if isinstance(generator, torch.Generator) and id(generator) not in seen:
            seen.add(id(generator))
            yield f"loader.{number}", generator


@contextmanager
def undisturbed(network: nn.Module | None, loader: Any, device: torch.device) -> Iterator[None]:
    """Restore the modes of a network, the random states and the loader's generators after the block."""
    # the mode of each module, as a part of a network may be in eval mode during training
    modes = [(module, module.training) for module in network.modules()] if network is not None else []
    states = [(generator, generator.get_state()) for _, generator in generators(loader)]
    with undisturbed_random(device):
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training
            for generator, state in states:
                generator.set_state(state)


def draws_in_workers(loader: Any) -> bool:
    """Whether the worker processes of a loader may draw random numbers."""
    collate = getattr(loader, "collate_fn", None)
    is_plain = type(getattr(loader, "dataset", None)) in (ImageTensors, TensorDataset)
    is_plain = is_plain and getattr(collate, "__module__", "").startswith("torch.")
    return bool(getattr(loader, "num_workers", 0)) and not is_plain
