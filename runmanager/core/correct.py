"""The number of correct predictions of classes."""

import torch

from runmanager.errors import InvalidArgumentError


def are_classes(preds: torch.Tensor, labels: torch.Tensor) -> bool:
    """Whether predictions are scores ``(N, C, ...)`` and labels class numbers ``(N, ...)``."""
    shape = preds.shape
    return preds.ndim > 1 and labels.shape == shape[:1] + shape[2:]


def num_correct(preds: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Count the samples whose label has the largest score, on the device, for `RunManager.track_num_correct`.

    Raises:
        InvalidArgumentError: As `are_correct`.
    """
    return are_correct(preds, labels).count_nonzero()


def are_correct(preds: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return whether the label of each sample has the largest score, on the device.

    Raises:
        InvalidArgumentError: The shapes do not match, so that broadcasting would compare every sample with
            every other sample.
    """
    shape = preds.shape
    if labels.shape == shape and len(shape) > 1:
        labels = labels.argmax(dim=1)  # the labels are one-hot
    if not are_classes(preds, labels):
        raise InvalidArgumentError(
            "preds must have the shape (N, number of classes) and labels (N,), got "
            f"{tuple(preds.shape)} and {tuple(labels.shape)}"
        )
    return preds.detach().argmax(dim=1) == labels


def has_no_classes(preds: torch.Tensor, labels: torch.Tensor) -> bool:
    """Whether predictions have one number per sample, as in regression and binary classification."""
    has_one_number = preds.ndim > 0 and preds.shape[1:] in ((), (1,))
    return has_one_number and labels.shape in (preds.shape, preds.shape[:1])
