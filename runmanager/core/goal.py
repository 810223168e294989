"""The goal of an experiment, a metric with a direction, and the x-axis of its curves."""

import functools
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from runmanager.core.outcome import LARGEST, EpochRecord
from runmanager.core.values import COLUMNS, closest
from runmanager.errors import InvalidArgumentError

_LARGER = frozenset((
    "acc", "accuracy", "ap", "auc", "auprc", "auroc", "bleu", "dice", "f1", "iou", "jaccard", "kappa", "map",
    "mcc", "miou", "ndcg", "precision", "psnr", "r2", "recall", "return", "reward", "rouge", "ssim",
))  # fmt: skip
_SMALLER = frozenset((
    "cer", "duration", "ece", "err", "error", "fid", "loss", "mae", "memory", "mse", "nll", "perplexity",
    "rmse", "wer",
))  # fmt: skip
KEPT = "kept "
"""The prefix of the column with the goal's value at the epoch whose weights are kept."""

EVALUATED = ("validation", "val", "valid", "dev", "eval", "evaluation", "test", "holdout")
"""The words that name the data of an evaluation, in the order in which they decide."""
_DATA = (*EVALUATED, "*", "train", "training", "")  # "*" is any other data, "" is no data
# words without a direction, as in f1_macro, error_rate, recall_at_k, acc_epoch
_DETAILS = frozenset((
    *_DATA, "at", "avg", "epoch", "k", "macro", "mean", "micro", "rate", "score", "step", "top", "weighted",
))  # fmt: skip
_NEGATED = frozenset(("inverse", "minus", "neg", "negative"))  # words that reverse the direction, as in neg_mse
ACCURACY = ("acc", "accuracy")
_DIGITS = "0123456789"
EPOCH = "epoch"
_SEEN = {"steps": "steps seen", "samples": "samples seen"}


class Goal(NamedTuple):
    """The metric to optimize."""

    metric: str
    sign: int  # 1 if the largest value is the best, -1 if the smallest value is the best

    def __str__(self) -> str:
        return f"{'max' if self.sign > 0 else 'min'}:{self.metric}"

    @property
    def is_larger_better(self) -> bool:
        """Whether large values are good."""
        return self.sign > 0

    def score(self, metrics: Mapping[str, float]) -> float:
        """Return the score of an epoch: larger is better, minus infinity if the metric is NaN or missing."""
        value = metrics.get(self.metric, math.nan)
        return -math.inf if math.isnan(value) else self.sign * value


def parse_goal(value: object, argument: str = "goal") -> Goal:
    """Parse "max:<metric>", "min:<metric>", or the name of a metric that implies the direction."""
    if isinstance(value, Goal):
        return value
    text = value if isinstance(value, str) else ""
    direction, metric = (part.strip() for part in (text if ":" in text else f"best:{text}").split(":", 1))
    if direction not in ("max", "min", "best") or not metric:
        rule = f"{argument} must be 'max:<metric>', 'min:<metric>', or a metric as 'test_accuracy'"
        close = closest(direction[:3], ("max", "min"))  # of "maximum" and "minimize"
        step = f"; write '{close}:{metric}'" if close and metric else ""
        raise InvalidArgumentError(f"{rule}, got {value!r}{step}")
    is_larger = is_larger_better(metric) if direction == "best" else direction == "max"
    if is_larger is None:
        rule = f"whether {metric!r} should be large or small is not known"
        raise InvalidArgumentError(
            f"{rule}: write {argument}='max:{metric}' or {argument}='min:{metric}', or check its spelling"
        )
    return Goal(metric, 1 if is_larger else -1)


def goal_of_kept(starts: Iterable[Mapping[str, Any]]) -> Goal | None:
    """Return the last metric of `keep=` in the first lines of journals, None if they keep no best weights."""
    goal = None
    for start in starts:
        keep = start.get("keep")
        if isinstance(keep, str) and keep != "last":
            with suppress(InvalidArgumentError):
                goal = parse_goal(keep)
    return goal


def is_larger_better(name: str) -> bool | None:
    """Whether large values of a metric are good, None if its name does not imply it.

    >>> is_larger_better("test_accuracy"), is_larger_better("val/mIoU"), is_larger_better("policy_loss")
    (True, True, False)
    >>> is_larger_better("entropy"), is_larger_better("neg_mse"), is_larger_better("top1_error")
    (None, None, False)
    """
    return read_metric(name)[2]


@functools.cache  # all epochs and tables ask for the same names
def read_metric(name: str) -> tuple[int, list[str], bool | None]:
    """Return a metric's rank (evaluations first), its words without data and numbers, and its direction."""
    words = [word for word in re.split(r"[\W_]+", name.lower()) if word]
    essence = [word if word in _LARGER else word.rstrip(_DIGITS) for word in words]
    essence = [word for word in essence if word and word not in _DETAILS]
    data = next((word for word in _DATA if word in words), "*" if len(essence) > 1 else "")
    last = essence[-1] if essence else ""
    is_negated = not _NEGATED.isdisjoint(words) or name.lstrip().startswith("1-")
    is_larger = True if last in _LARGER else False if last in _SMALLER else None
    return _DATA.index(data), essence, None if is_negated else is_larger


def default_goal(names: Iterable[str]) -> Goal | None:
    """Return the default goal of runs with these metrics, None if no name of a metric implies a goal."""
    metrics: dict[str, tuple[int, list[str], bool]] = {}
    for name in names:
        rank, words, is_larger = read_metric(name)
        if " " not in name and is_larger is not None and words[-1] not in ("duration", "memory"):
            metrics[name] = rank, words, is_larger
    has_parts = any(words[-1] == "loss" and name != "loss" for name, (_, words, _) in metrics.items())
    orders: dict[str, tuple[float, ...]] = {}
    for name, (rank, words, _) in metrics.items():
        if rank < len(EVALUATED) and "loss" not in words[1:]:  # val_kl_loss is a part
            kind = int(words != ["loss"])
        elif name == "loss":
            kind = 5 if has_parts else 2
        else:
            kind = 4 if words[-1] == "loss" else 3
        number = float((re.findall(r"\d+", name) or [1])[0])  # top 1 comes before top 5
        orders[name] = (words[-1] not in ACCURACY, kind, rank, len(words), number)
    best = min(orders, key=orders.__getitem__, default=None)
    return None if best is None else Goal(best, 1 if metrics[best][2] else -1)


def check_x_axis(x_axis: object, hyperparameters: Iterable[str] = ()) -> str:
    """Validate the x-axis of curves."""
    reserved = {*COLUMNS, *hyperparameters} - {EPOCH}
    if isinstance(x_axis, str) and x_axis.isidentifier() and x_axis not in reserved:
        return x_axis
    raise InvalidArgumentError(
        f"x_axis must be 'epoch', 'steps', 'samples' or a tracked metric, as 'env_steps', got {x_axis!r:.60}"
    )


def x_column(x_axis: str | None) -> str:
    """Return the column of an x-axis."""
    return EPOCH if x_axis is None else _SEEN.get(x_axis, x_axis)


def x_of(record: EpochRecord, x_axis: str | None) -> int:
    """Return the x value of an epoch; without an x value, the number of the epoch."""
    value = x_value(record, x_axis)
    return record.epoch if value is None else value


def x_value(record: EpochRecord, x_axis: str | None) -> int | None:
    """Return the x value of an epoch, rounded down; None without an x value."""
    if x_axis in (None, EPOCH):
        return record.epoch
    value = record.metrics.get(x_column(x_axis), math.nan)
    return int(value) if 0 <= value <= LARGEST else None


def seen(
    x_axis: str | None, earlier: Iterable[EpochRecord], num_steps: int, num_samples: float
) -> dict[str, float]:
    """Return the column of steps or samples seen, if the x-axis is one of these."""
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
