"""The goal of an experiment: a metric and its direction."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from runmanager.errors import InvalidArgumentError

_LARGER = frozenset((
    "accuracy", "acc", "auc", "auroc", "bleu", "dice", "f1", "iou", "map", "miou", "precision", "psnr", "r2",
    "recall", "reward", "rouge", "ssim",
))  # fmt: skip
_SMALLER = frozenset((
    "cer", "duration", "error", "loss", "mae", "mape", "memory", "mse", "nll", "perplexity", "ppl", "rmse",
    "wer",
))  # fmt: skip
_COSTS = ("duration", "memory")  # never a goal by default
_QUALIFIERS = frozenset(("macro", "mean", "micro", "rate", "score", "weighted"))  # as in f1_macro, error_rate
_NEGATED = frozenset(("neg", "negative"))  # as in neg_mse
EVALUATED = ("validation", "val", "eval", "test")
"""The prefixes of metrics of an evaluation."""
_KINDS = ("accuracy", "loss")


class Goal(NamedTuple):
    """The metric to optimize.

    Attributes:
        metric: The name of the metric.
        sign: 1 if the largest value is the best, -1 if the smallest is.
    """

    metric: str
    sign: int

    def __str__(self) -> str:
        return f"{'max' if self.is_larger_better else 'min'}:{self.metric}"

    @property
    def is_larger_better(self) -> bool:
        """Whether large values are good."""
        return self.sign > 0

    def score(self, metrics: Mapping[str, float]) -> float:
        """Return the score of an epoch: larger is better, minus infinity if the metric is NaN or missing."""
        value = metrics.get(self.metric, math.nan)
        return -math.inf if math.isnan(value) else self.sign * value


def parse_goal(value: object, argument: str = "goal") -> Goal:
    """Parse "max:<metric>", "min:<metric>", or the name of a metric that implies the direction.

    "best:<metric>" is accepted for such a name too. `argument` is its name in messages.

    Raises:
        InvalidArgumentError: It is none of these, or the direction is unknown; the message has the correct
            form.

    >>> parse_goal("max:reward"), parse_goal("val_loss")
    (Goal(metric='reward', sign=1), Goal(metric='val_loss', sign=-1))
    """
    if isinstance(value, Goal):
        return value
    text = value if isinstance(value, str) else ""
    direction, metric = (part.strip() for part in (text if ":" in text else f"best:{text}").split(":", 1))
    is_writable = metric == metric.encode("utf-8", "ignore").decode()  # no half surrogate pairs
    if direction not in ("max", "min", "best") or not metric or not is_writable:
        rule = f"{argument} must be 'max:<metric>', 'min:<metric>', or a metric as 'test_accuracy'"
        raise InvalidArgumentError([f"{rule}, got {value!r}"])
    is_larger = is_larger_better(metric) if direction == "best" else direction == "max"
    if is_larger is None:
        rule = f"whether large values of {metric!r} are good is not known"
        raise InvalidArgumentError([f"{rule}: write {argument}='max:{metric}' or {argument}='min:{metric}'"])
    return Goal(metric, 1 if is_larger else -1)


def is_larger_better(name: str) -> bool | None:
    """Whether large values of a metric are good, None if its name does not imply it.

    The last word of the name counts, with any prefix.

    >>> is_larger_better("test_accuracy"), is_larger_better("val_f1_macro"), is_larger_better("policy_loss")
    (True, True, False)
    >>> is_larger_better("entropy"), is_larger_better("neg_mse")
    (None, None)
    """
    words = [word for word in re.split(r"[\W_]+", name.lower()) if word]
    while len(words) > 1 and words[-1] in _QUALIFIERS:
        words.pop()
    if not words or not _NEGATED.isdisjoint(words):
        return None
    if words[-1] in _LARGER or words[-1].endswith("accuracy"):
        return True
    return False if words[-1] in _SMALLER or words[-1].endswith("loss") else None


def default_goal(names: Iterable[str]) -> Goal | None:
    """Return the default goal of runs with these metrics, None if no name implies one.

    It is the accuracy of the validation, else of the test set, else of training, else the loss in the same
    order. A loss with a prefix, as `policy_loss`, is only a part, and comes after all other metrics.

    >>> default_goal(["loss", "accuracy", "val_loss"]), default_goal(["policy_loss", "reward"])
    (Goal(metric='accuracy', sign=1), Goal(metric='reward', sign=1))
    """
    names = [name for name in names if " " not in name]  # as in "best accuracy" and "accuracy mean"
    accuracy, loss = (
        [*(f"{data}_{kind}" for data in EVALUATED), *(name for name in names if name.endswith(f"_{kind}"))]
        for kind in _KINDS
    )
    parts = loss[len(EVALUATED) :]
    measures = [
        name for name in names if is_larger_better(name) is not None and not name.endswith((*_KINDS, *_COSTS))
    ]
    evaluated = [name for data in EVALUATED for name in measures if name.startswith(f"{data}_")]
    last = [*evaluated, *measures, *parts, "loss"] if parts else ["loss", *evaluated, *measures]
    for name in (*accuracy, "accuracy", *loss[: len(EVALUATED)], *last):
        if name in names:
            return parse_goal(name)
    return None


def companion(metric: str, names: Iterable[str]) -> str:
    """Return the metric to show beside the goal's, "" if there is none.

    For a loss, it is the accuracy of the same data. For any other metric, it is the loss of the same data, else
    the training loss, else the first loss. A value of another epoch, as "best loss", has none.

    >>> companion("test_accuracy", ["loss", "test_loss"]), companion("val_f1_macro", ["loss", "val_loss"])
    ('test_loss', 'val_loss')
    >>> companion("test_loss", ["test_accuracy"]), companion("reward", ["policy_loss"])
    ('test_accuracy', 'policy_loss')
    >>> companion("loss", ["reward"])
    ''
    """
    names = [name for name in names if name != metric]
    if " " in metric:
        return ""
    if metric.endswith("loss"):
        accuracy = f"{metric.removesuffix('loss')}accuracy"
        return accuracy if accuracy in names else ""
    words = metric.split("_")
    data = ["_".join(words[:number]) for number in range(len(words), 0, -1)]
    losses = [name for name in names if name.endswith("loss") and " " not in name]
    return next((name for name in (*(f"{part}_loss" for part in data), "loss", *losses) if name in losses), "")
