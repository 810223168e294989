"""The goal: which metric decides, and which of its values is the best one."""

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
_COSTS = ("duration", "memory")  # they never decide unless asked for
_QUALIFIERS = frozenset(("macro", "mean", "micro", "rate", "score", "weighted"))  # as in f1_macro, error_rate
_NEGATED = frozenset(("neg", "negative"))  # as in neg_mse
EVALUATED = ("validation", "val", "eval", "test")
"""What names of metrics begin with that are of an evaluation."""
_KINDS = ("accuracy", "loss")


class Goal(NamedTuple):
    """The metric that decides.

    Attributes:
        metric: Its name.
        sign: 1 where the largest value is the best one, -1 where the least is.
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
        """Return how good an epoch is: larger is better; minus infinity if its metric is NaN or missing."""
        value = metrics.get(self.metric, math.nan)
        return -math.inf if math.isnan(value) else self.sign * value


def parse_goal(given: object, argument: str = "goal") -> Goal:
    """Read "max:<metric>", "min:<metric>", or the name of a metric whose direction is known by its name.

    "best:<metric>" is such a name too. `argument` is what messages call it.

    Raises:
        InvalidArgumentError: It is neither, or the direction is not known; the message shows what to write.

    >>> parse_goal("max:reward"), parse_goal("val_loss")
    (Goal(metric='reward', sign=1), Goal(metric='val_loss', sign=-1))
    """
    if isinstance(given, Goal):
        return given
    text = given if isinstance(given, str) else ""
    which, metric = (part.strip() for part in (text if ":" in text else f"best:{text}").split(":", 1))
    is_writable = metric == metric.encode("utf-8", "ignore").decode()  # half a surrogate pair names no column
    if which not in ("max", "min", "best") or not metric or not is_writable:
        rule = f"{argument} must be 'max:<metric>', 'min:<metric>', or a metric as 'test_accuracy'"
        raise InvalidArgumentError([f"{rule}, got {given!r}"])
    is_larger = is_larger_better(metric) if which == "best" else which == "max"
    if is_larger is None:
        rule = f"whether large values of {metric!r} are good is not known"
        raise InvalidArgumentError([f"{rule}: write {argument}='max:{metric}' or {argument}='min:{metric}'"])
    return Goal(metric, 1 if is_larger else -1)


def is_larger_better(name: str) -> bool | None:
    """Whether large values of a metric are good, None if its name does not tell.

    Its last word tells, in front of which anything may stand.

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
    """Return the goal of runs that have these metrics where none is given, None if no name tells.

    That is the accuracy of the validation, else of the test set, else of training, else the loss in the same
    order. A loss with another name in front, as `policy_loss`, is a part: any metric of the field is before it.

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
    """Return the metric to look at beside the one that decides, "" if there is none.

    Beside a loss, it is the accuracy of the same data. Beside any other metric, it is the loss of the same
    data, else that of training, else the first one. Beside a value of another epoch, as "best loss", is none.

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
    return next((name for name in (*(f"{each}_loss" for each in data), "loss", *losses) if name in losses), "")
