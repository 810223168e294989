"""The goal of an experiment: a metric and its direction."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from runmanager.errors import InvalidArgumentError

_LARGER = frozenset((
    "acc", "accuracy", "ap", "auc", "auprc", "auroc", "bleu", "dice", "f1", "iou", "jaccard", "kappa", "map",
    "mcc", "miou", "ndcg", "precision", "psnr", "r2", "recall", "return", "reward", "rouge", "ssim",
))  # fmt: skip
_SMALLER = frozenset((
    "cer", "duration", "ece", "err", "error", "fid", "loss", "mae", "memory", "mse", "nll", "perplexity",
    "rmse", "wer",
))  # fmt: skip
EVALUATED = ("validation", "val", "valid", "dev", "eval", "evaluation", "test", "holdout")
"""The words that name the data of an evaluation, in the order in which they decide."""
_DATA = (*EVALUATED, "train", "training")
# words without a direction, as in f1_macro, error_rate, recall_at_k, acc_epoch
_DETAILS = frozenset((
    *_DATA, "at", "avg", "epoch", "k", "macro", "mean", "micro", "rate", "score", "step", "top", "weighted",
))  # fmt: skip
_NEGATED = frozenset(("inverse", "minus", "neg", "negative"))  # words that reverse the direction, as in neg_mse
_DIGITS = "0123456789"
_DIRECTIONS = ("max", "min", "best")


class Goal(NamedTuple):
    """The metric to optimize.

    Attributes:
        metric: The name of the metric.
        sign: 1 if the largest value is the best, -1 if the smallest value is the best.
    """

    metric: str
    sign: int

    def __str__(self) -> str:
        return f"{'max' if self.is_larger_better else 'min'}:{self.metric}"

    @property
    def is_larger_better(self) -> bool:
        """Whether large values are good."""
        return self.sign > 0

    @property
    def extreme(self) -> str:
        """The word for the best values, "highest" or "lowest"."""
        return "highest" if self.is_larger_better else "lowest"

    def score(self, metrics: Mapping[str, float]) -> float:
        """Return the score of an epoch: larger is better, minus infinity if the metric is NaN or missing."""
        value = metrics.get(self.metric, math.nan)
        return -math.inf if math.isnan(value) else self.sign * value


def parse_goal(value: object, argument: str = "goal") -> Goal:
    """Parse "max:<metric>", "min:<metric>", or the name of a metric that implies the direction.

    >>> parse_goal("max:reward"), parse_goal("val_loss")
    (Goal(metric='reward', sign=1), Goal(metric='val_loss', sign=-1))
    """
    if isinstance(value, Goal):
        return value
    text = value if isinstance(value, str) else ""
    direction, metric = (part.strip() for part in (text if ":" in text else f"best:{text}").split(":", 1))
    is_writable = metric == metric.encode("utf-8", "ignore").decode()  # the name has no half surrogate pairs
    if direction not in _DIRECTIONS or not metric or not is_writable:
        rule = f"{argument} must be 'max:<metric>', 'min:<metric>', or a metric as 'test_accuracy'"
        raise InvalidArgumentError([f"{rule}, got {value!r}"])
    is_larger = is_larger_better(metric) if direction == "best" else direction == "max"
    if is_larger is None:
        rule = f"whether large values of {metric!r} are good is not known"
        raise InvalidArgumentError([f"{rule}: write {argument}='max:{metric}' or {argument}='min:{metric}'"])
    return Goal(metric, 1 if is_larger else -1)


def is_larger_better(name: str) -> bool | None:
    """Whether large values of a metric are good, None if its name does not imply it.

    >>> is_larger_better("test_accuracy"), is_larger_better("val/mIoU"), is_larger_better("policy_loss")
    (True, True, False)
    >>> is_larger_better("entropy"), is_larger_better("neg_mse"), is_larger_better("top1_error")
    (None, None, False)
    """
    last = _essence(name)[-1:]
    if not last or not _NEGATED.isdisjoint(_words(name)) or name.lstrip().startswith("1-"):
        return None
    return True if last[0] in _LARGER else False if last[0] in _SMALLER else None


def default_goal(names: Iterable[str]) -> Goal | None:
    """Return the default goal of runs with these metrics, None if no name of a metric implies a goal.

    >>> default_goal(["loss", "accuracy", "val_loss"]), default_goal(["policy_loss", "reward"])
    (Goal(metric='accuracy', sign=1), Goal(metric='reward', sign=1))
    >>> default_goal(["train_loss", "val_loss", "val_acc"])
    Goal(metric='val_acc', sign=1)
    """
    names = [name for name in names if " " not in name and is_larger_better(name) is not None]
    names = [name for name in names if _essence(name)[-1] not in ("duration", "memory")]
    parts = [name for name in names if _essence(name)[-1] == "loss" and name != "loss"]

    def order(name: str) -> tuple[float, ...]:
        rank, words = _rank(name), _essence(name)
        is_evaluated = rank < len(EVALUATED) and "loss" not in words[1:]  # kl_loss is a part
        number = float((re.findall(r"\d+", name) or [1])[0])  # top 1 comes before top 5
        kind = (
            words != ["loss"] if is_evaluated else 3 + (name in parts) if name != "loss" else 5 if parts else 2
        )
        return (not _is_accuracy(name), kind, rank, len(words), number)

    return parse_goal(min(names, key=order)) if names else None


def companion(metric: str, names: Iterable[str]) -> str:
    """Return the metric to show beside the goal's metric, "" if there is none.

    >>> companion("test_accuracy", ["loss", "test_loss"]), companion("val_f1_macro", ["loss", "val_loss"])
    ('test_loss', 'val_loss')
    >>> companion("test_loss", ["test_accuracy"]), companion("reward", ["policy_loss"])
    ('test_accuracy', 'policy_loss')
    >>> companion("loss", ["reward"])
    ''
    """
    names = [name for name in names if name != metric and " " not in name]
    if " " in metric:
        return ""
    of_same_data = [name for name in names if _rank(name) == _rank(metric)]
    if metric.endswith("loss"):
        return next(filter(_is_accuracy, of_same_data), "")
    losses = [name for name in (*of_same_data, "loss", *names) if _essence(name)[-1:] == ["loss"]]
    losses.sort(key=lambda name: _essence(name) != ["loss"])
    return next((name for name in losses if name in names), "")


def _words(name: str) -> list[str]:
    """Split a name into lower-case words.

    >>> _words("val/mIoU@50")
    ['val', 'miou', '50']
    """
    return [word for word in re.split(r"[\W_]+", name.lower()) if word]


def _essence(name: str) -> list[str]:
    """Return the words of a metric without its data, averaging and numbers.

    >>> _essence("val_f1_macro"), _essence("acc1/top5")
    (['f1'], ['acc'])
    """
    words = [word if word in _LARGER else word.rstrip(_DIGITS) for word in _words(name)]
    return [word for word in words if word and word not in _DETAILS]


def _rank(name: str) -> int:
    """Return the rank of a metric by its data: evaluations, other data, training, then plain names."""
    words = _words(name)
    if data := next((data for data in _DATA if data in words), None):
        return EVALUATED.index(data) if data in EVALUATED else len(_DATA)
    return len(EVALUATED) if len(_essence(name)) > 1 else len(_DATA) + 1


def _is_accuracy(name: str) -> bool:
    return bool(is_larger_better(name)) and _essence(name)[-1] in ("acc", "accuracy")
