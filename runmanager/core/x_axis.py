"""The x-axis of curves: epochs, steps, samples seen, or a tracked column."""

import math
from collections.abc import Iterable

from runmanager.core.outcome import LARGEST, EpochRecord
from runmanager.core.values import COLUMNS
from runmanager.errors import InvalidArgumentError

EPOCH = "epoch"
_SEEN = {"steps": "steps seen", "samples": "samples seen"}


def check_x_axis(x_axis: object, hyperparameters: Iterable[str] = ()) -> str:
    """Validate the x-axis of curves.

    >>> check_x_axis("samples"), check_x_axis("env_steps")
    ('samples', 'env_steps')
    """
    reserved = {*COLUMNS, *hyperparameters} - {EPOCH}
    if isinstance(x_axis, str) and x_axis.isidentifier() and x_axis not in reserved:
        return x_axis
    rule = "x_axis must be 'epoch', 'steps', 'samples' or a metric that is tracked, as 'env_steps'"
    raise InvalidArgumentError([f"{rule}, got {x_axis!r:.60}"])


def x_column(x_axis: str | None) -> str:
    """Return the column of an x-axis.

    >>> x_column("samples"), x_column("env_steps"), x_column(None)
    ('samples seen', 'env_steps', 'epoch')
    """
    return EPOCH if x_axis is None else _SEEN.get(x_axis, x_axis)


def x_of(record: EpochRecord, x_axis: str | None) -> int:
    """Return the x value of an epoch; without an x value, the number of the epoch."""
    value = x_value(record, x_axis)
    return record.epoch if value is None else value


def x_value(record: EpochRecord, x_axis: str | None) -> int | None:
    """Return the x value of an epoch, rounded down; None without an x value.

    >>> x_value(EpochRecord(2, {"samples seen": 120_000.0}), "samples")
    120000
    """
    if x_axis in (None, EPOCH):
        return record.epoch
    value = record.metrics.get(x_column(x_axis), math.nan)
    return int(value) if 0 <= value <= LARGEST else None


def seen(
    x_axis: str | None, earlier: Iterable[EpochRecord], num_steps: int, num_samples: float
) -> dict[str, float]:
    """Return the column of steps or samples seen, if the x-axis is one of these.

    The samples of an earlier epoch without the column follow from its throughput.
    """
    if x_axis == "steps":
        return {_SEEN[x_axis]: float(num_steps + sum(record.steps for record in earlier))}
    if x_axis != "samples":
        return {}
    total = 0.0
    for record in earlier:
        per_second = record.times.get("throughput_images_per_s", 0.0)
        total += round(per_second * record.metrics.get("epoch duration", 0.0))
        total = record.metrics.get(_SEEN[x_axis], total)
    return {_SEEN[x_axis]: total + num_samples}
