"""The optimizer's step of a batch: whole or in micro-batches, in full or reduced precision."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from runmanager.core.evaluate import BatchStep, Computed, Loss, has_classes, of_step
from runmanager.core.failure import failure_of
from runmanager.core.loaders import Measure, batch_size, may_be_images
from runmanager.core.outcome import Status
from runmanager.devices.torch_devices import quiet
from runmanager.errors import InvalidArgumentError
from runmanager.front.recorded_passes import RecordedPasses

_REDUCED = {"bf16": torch.bfloat16, "fp16": torch.float16}


def piece_of(item: Any, size: int, piece: slice) -> Any:
    """Cut samples from a batch of `size` samples, or a part of such a batch: tensors, in any containers."""
    if isinstance(item, Mapping):
        return {name: piece_of(part, size, piece) for name, part in item.items()}
    shape = getattr(item, "shape", None)
    is_list = isinstance(item, list)
    # each item of a list may be one sample, unless all are tensors of the batch, or lists of them
    may_have_samples = is_list and (
        (len(item) == size and may_be_images(item))
        or not all(hasattr(part, "shape") or isinstance(part, list) for part in item)
    )
    if may_have_samples or (shape and shape[0] != size):
        description = f"a part of shape {tuple(shape)}" if shape else f"a {type(item).__name__}"
        raise InvalidArgumentError(
            f"micro_batch cannot cut {description} in a batch of {size} samples: leave it out"
        )
    if is_list or isinstance(item, tuple):
        parts = [piece_of(part, size, piece) for part in item]
        return type(item)(*parts) if hasattr(item, "_fields") else type(item)(parts)
    return item[piece] if shape else item


@dataclass(eq=False)
class OptimizerStep:
    """The optimizer's step of a batch.

    The micro-batch size that "auto" has chosen is saved in checkpoints, as rounding depends on this size.
    """

    network: nn.Module
    optimizer: Optimizer
    device: torch.device
    loss: Loss
    step: BatchStep | None
    precision: str
    micro_batch: int | str | None
    clip_grad_norm: float | None
    batch_size: Measure | None
    are_parts: bool  # see `batch_size`
    recorded: RecordedPasses | None  # the passes of whole batches, if they may be recorded

    def __post_init__(self) -> None:
        self.autocast = _autocast(self.device, self.precision)
        self._scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")
        self._is_auto = self.micro_batch == "auto"
        # the maximum number of samples per forward pass, None for whole batches
        self.size = self.micro_batch if isinstance(self.micro_batch, int) else None
        self.norm: torch.Tensor | None = None  # of the last gradients before they were clipped

    def __call__(self, batch: Any) -> Computed:
        """Make one step for a batch; return the loss, scores and targets of the whole batch."""
        computed = self._gradients_within_memory(batch)
        if self.clip_grad_norm is not None:
            self._scaler.unscale_(self.optimizer)
            self.norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.clip_grad_norm)
        self._scaler.step(self.optimizer)  # without loss scaling, the scaler makes a plain step
        self._scaler.update()
        return computed

    def parts(self) -> dict[str, Any]:
        """Return the parts that a checkpoint needs for bit-identical further steps."""
        parts: dict[str, Any] = {"network": self.network, "optimizer": self.optimizer}
        if self._scaler.is_enabled():
            parts["scaler"] = self._scaler
        if self._is_auto:
            parts["micro_batch"] = self
        return parts

    def state_dict(self) -> dict[str, int | None]:
        """Return the micro-batch size."""
        return {"size": self.size}

    def load_state_dict(self, state: dict[str, int | None]) -> None:
        """Continue with the micro-batch size of an earlier attempt."""
        self.size = state["size"]

    def _gradients_within_memory(self, batch: Any) -> Computed:
        """Compute a batch's gradients; "auto" retries with smaller micro-batches until they fit into memory."""
        while True:
            # a forward pass may change the buffers
            buffers = self.network.buffers() if self._is_auto else ()
            before = [(buffer, buffer.clone()) for buffer in buffers]
            try:
                return self._gradients(batch)
            except (RuntimeError, MemoryError) as error:
                if not self._is_auto or failure_of(error)[0] is not Status.OUT_OF_MEMORY:
                    raise
                num = self._num_samples(batch)
                size = min(self.size or num, num)
                if size == 1:
                    raise
            # restore after the except clause: the clause holds the exception, whose frames hold tensors
            for buffer, value in before:
                buffer.copy_(value)
            self.size = (size + 1) // 2

    def _gradients(self, batch: Any) -> Computed:
        if self.recorded and (computed := self.recorded(batch, self._backward)):
            return computed
        self.optimizer.zero_grad()
        if not self.size or self.size >= (num := self._num_samples(batch)):
            return self._backward(batch)
        pieces = [piece_of(batch, num, slice(start, start + self.size)) for start in range(0, num, self.size)]
        whole, *sizes = [
            batch_size(part, self.batch_size, are_parts=self.are_parts) for part in (batch, *pieces)
        ]
        if sum(sizes) != whole:
            raise InvalidArgumentError(
                f"batch_size counts {whole} samples in a batch, but {sum(sizes)} in its micro-batches: "
                "count the samples of its argument"
            )
        parts = [self._backward(piece, size / whole) for piece, size in zip(pieces, sizes, strict=True)]
        values, outputs, targets = zip(*parts, strict=True)
        return torch.stack(values).sum(), _joined(outputs), _joined(targets)

    def _num_samples(self, batch: Any) -> int:
        """Return the number of samples of a batch that can be cut."""
        try:
            return batch_size(batch, are_parts=self.are_parts)
        except InvalidArgumentError:
            raise InvalidArgumentError(
                f"micro_batch cannot cut a {type(batch).__name__} whose parts have different lengths, or none: "
                "leave it out, or let the loader yield tensors of one length"
            ) from None

    def _backward(self, batch: Any, share: float = 1.0) -> Computed:
        """Accumulate the gradients of a part of a batch; the scores ``(N, C, ...)`` are those of classes."""
        with self.autocast:
            if self.step is None:
                inputs, targets = batch
                outputs = self.network(inputs)
                value: Any = self.loss(outputs, targets)
            else:
                value, outputs, targets = of_step(self.step(self.network, batch))
                if not (isinstance(value, torch.Tensor) and value.numel() == 1 and value.requires_grad):
                    raise InvalidArgumentError(
                        f"step= must return one loss with a gradient, got a {type(value).__name__}"
                    )
            value = value if share == 1 else value * share
        self._scaler.scale(value).backward()
        return value.detach(), outputs.detach() if has_classes(outputs, targets, self.step) else None, targets


def _joined(parts: tuple[Any, ...]) -> torch.Tensor | None:
    """Concatenate the outputs or targets of the micro-batches, if they are tensors ``(n, ...)`` of samples."""
    are_samples = all(isinstance(part, torch.Tensor) and part.ndim for part in parts)
    return torch.cat(parts) if are_samples else None


def usable_precisions(device: torch.device) -> list[str]:
    """List the precisions in which a device can train, by trying each."""
    names = ["fp32"]
    for name, dtype in _REDUCED.items():
        with suppress(RuntimeError), quiet(), _autocast(device, name):  # torch warns that it has no effect
            ones = torch.ones(2, 2, device=device)
            if (ones @ ones).dtype == dtype:
                names.append(name)
    return names


def _autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    return torch.autocast(device.type, _REDUCED[precision]) if precision in _REDUCED else nullcontext()
