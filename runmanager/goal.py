"""The goal of an experiment: a metric and its direction."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from runmanager.close_names import closest
from runmanager.errors import InvalidArgumentError

_LARGER = frozenset((
    "acc", "accuracy", "ami", "ap", "ari", "auc", "aucpr", "aucroc", "aupr", "auprc", "auroc", "bacc",
    "bertscore", "bleu", "chrf", "cider", "dice", "dicecoefficient", "exactmatch", "explainedvariance",
    "f1", "f2", "fbeta", "fmeasure", "fscore", "hits", "hota", "idf1", "iou", "jaccard", "jaccardindex",
    "kappa", "kendall", "kendalltau", "map", "matthewscorrelation", "mcc", "meteor", "miou", "mota", "mrr",
    "msssim", "ndcg", "nmi", "pck", "pearson", "pearsoncorrelation", "pearsonr", "pesq", "precision",
    "psnr", "r2", "recall", "return", "returns", "rew", "reward", "rewards", "rocauc", "rouge", "rougel",
    "rougelsum", "rsquared", "sacrebleu", "sdr", "sensitivity", "silhouette", "sisdr", "snr", "spearman",
    "spearmancorrelation", "spearmanr", "specificity", "ssim", "stoi", "success", "throughput", "tnr",
    "tpr", "truepositive", "winrate",
))  # fmt: skip
_SMALLER = frozenset((
    "ade", "bce", "bpc", "bpd", "brier", "cer", "chamfer", "crossentropy", "crps", "der", "duration", "ece",
    "eer", "epe", "err", "error", "errors", "falsealarm", "falsepositive", "fde", "fid", "fnr", "fpr",
    "hausdorff", "huber", "kid", "latency", "loss", "lpips", "mae", "mape", "memory", "mpjpe", "mse",
    "msle", "nll", "nrmse", "perplexity", "ppl", "regret", "rmse", "rmsle", "smape", "ter", "wer",
))  # fmt: skip
_COSTS = frozenset(("duration", "latency", "memory", "throughput"))  # words of metrics that are no default goal
_QUALIFIERS = frozenset((  # words without a direction, as in f1_macro, error_rate, recall_at_k, acc_epoch
    "at", "average", "avg", "best", "cut", "ema", "epoch", "k", "macro", "max", "mean", "median", "micro",
    "min", "pct", "percent", "rate", "score", "step", "weighted",
))  # fmt: skip
_NEGATED = frozenset(("inverse", "minus", "neg", "negative"))  # words that reverse the direction, as in neg_mse
EVALUATED = ("validation", "val", "valid", "dev", "eval", "evaluation", "test", "holdout")
"""The words that name the data of an evaluation, in the order in which they decide."""
_DATA = (*EVALUATED, "train", "training")
_TOP = re.compile(r"top\d+")
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

    "best:<metric>" is accepted for a name that implies the direction. `argument` names the argument in
    messages.

    Raises:
        InvalidArgumentError: The text has none of these forms, or the direction is unknown; the message has the
            correct form.

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
        close = "" if direction in _DIRECTIONS or not metric else closest(direction[:4], _DIRECTIONS)
        hint = f"; did you mean {f'{close}:{metric}'!r}?" if close else ""
        raise InvalidArgumentError([f"{rule}, got {value!r}{hint}"])
    is_larger = is_larger_better(metric) if direction == "best" else direction == "max"
    if is_larger is None:
        rule = f"whether large values of {metric!r} are good is not known"
        raise InvalidArgumentError([f"{rule}: write {argument}='max:{metric}' or {argument}='min:{metric}'"])
    return Goal(metric, 1 if is_larger else -1)


def is_larger_better(name: str) -> bool | None:
    """Whether large values of a metric are good, None if its name does not imply it.

    The last word of the name counts, without the data, the averaging, and the number of results, as in
    `acc_top5`.

    >>> is_larger_better("test_accuracy"), is_larger_better("val/mIoU"), is_larger_better("policy_loss")
    (True, True, False)
    >>> is_larger_better("entropy"), is_larger_better("neg_mse"), is_larger_better("top1_error")
    (None, None, False)
    """
    words = _words(name)
    if not _NEGATED.isdisjoint(words) or name.lstrip().startswith("1-"):
        return None
    is_top = False
    for before, word in reversed(list(zip(["", *words], words, strict=False))):
        for metric in (f"{before}{word}", word):  # first two joined words, as in cross_entropy, then one
            if (direction := _direction(metric)) is not None:
                return direction
        is_top |= any(map(_TOP.fullmatch, (f"{before}{word}", word)))
        if not _is_detail(word):
            return None
    return is_top or None


def default_goal(names: Iterable[str]) -> Goal | None:
    """Return the default goal of runs with these metrics, None if no name of a metric implies a goal.

    The default is the accuracy of the validation set, else of the test set, else of training; else the loss of
    the validation or test set, else another metric of these sets, else the loss. A loss with a prefix, such as
    `policy_loss`, is only a part of the loss, and comes after all other metrics.

    >>> default_goal(["loss", "accuracy", "val_loss"]), default_goal(["policy_loss", "reward"])
    (Goal(metric='accuracy', sign=1), Goal(metric='reward', sign=1))
    >>> default_goal(["train_loss", "val_loss", "val_acc"])
    Goal(metric='val_acc', sign=1)
    """
    names = [name for name in names if " " not in name and is_larger_better(name) is not None]
    names = [name for name in names if _COSTS.isdisjoint(_words(name))]
    accuracies = sorted(filter(_is_accuracy, names), key=_by_data)
    losses = [name for name in names if _essence(name)[-1:] == ["loss"]]
    evaluated = sorted(
        (name for name in losses if _essence(name) == ["loss"] and _is_evaluated(name)), key=_by_data
    )
    parts = [name for name in losses if name not in ("loss", *evaluated)]
    measures = [name for name in names if name not in (*accuracies, *losses)]
    evaluated += sorted(filter(_is_evaluated, measures), key=_by_data)
    last = [*measures, *parts, "loss"] if parts else ["loss", *measures]
    first = next((name for name in (*accuracies, *evaluated, *last) if name in names), None)
    return None if first is None else parse_goal(first)


def companion(metric: str, names: Iterable[str]) -> str:
    """Return the metric to show beside the goal's metric, "" if there is none.

    Beside a loss, this metric is the accuracy on the same data. Beside any other metric, it is the loss on the
    same data, else the training loss, else the first loss. A value of another epoch, such as "best loss", has
    no such metric.

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
    of_same_data = [name for name in names if _data(name) == _data(metric)]
    if metric.endswith("loss"):
        accuracy = f"{metric.removesuffix('loss')}accuracy"
        others = filter(_is_accuracy, of_same_data if _essence(metric) == ["loss"] else ())
        return accuracy if accuracy in names else min(others, key=_by_data, default="")
    words = metric.split("_")
    data = ["_".join(words[:number]) for number in range(len(words), 0, -1)]
    losses = [name for name in names if name.endswith("loss") and " " not in name]
    of_data = [name for name in of_same_data if _essence(name) == ["loss"]]
    order = (*(f"{part}_loss" for part in data), *of_data, "loss", *losses)
    return next((name for name in order if name in (*losses, *of_data)), "")


def _words(name: str) -> list[str]:
    """Split a name into lower-case words; a capital letter begins a word too.

    >>> _words("val/mIoU@50"), _words("MulticlassF1Score"), _words("testAcc1")
    (['val', 'miou', '50'], ['multiclass', 'f1', 'score'], ['test', 'acc1'])
    """
    words: list[str] = []
    for piece in re.split(r"[\W_]+", name.replace("IoU", "Iou")):
        is_word = piece.islower() or _direction(piece.lower()) is not None
        parts = [piece] if is_word else re.split(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", piece)
        words += [part.lower() for part in parts if part]
    return words


def _direction(word: str) -> bool | None:
    """Whether large values are good, according to one word or two joined words.

    Digits at the end do not count.
    """
    for text in (word, word.rstrip(_DIGITS)):
        if text in _LARGER or text.endswith("accuracy"):
            return True
        if text in _SMALLER or text.endswith("loss"):
            return False
    return None


def _is_detail(word: str) -> bool:
    return word in _QUALIFIERS or word in _DATA or word.isdigit() or word.rstrip(_DIGITS) == "top"


def _essence(name: str) -> list[str]:
    """Return the words of a metric without its data, averaging and numbers."""
    return [word.rstrip(_DIGITS) for word in _words(name) if not _is_detail(word)]


def _data(name: str) -> str:
    """Return the word of a metric's data, "" if there is none."""
    words = _words(name)
    return next((data for data in _DATA if data in words), "")


def _is_evaluated(name: str) -> bool:
    return _data(name) in EVALUATED


def _is_accuracy(name: str) -> bool:
    words = _essence(name)
    return bool(is_larger_better(name)) and (not words or words[-1] == "acc" or words[-1].endswith("accuracy"))


def _by_data(name: str) -> tuple[int, int, int]:
    """Return the sort key of metrics of one kind: by data, then plain metrics first, top 1 before top 5."""
    data, words = _data(name), _essence(name)
    is_plain = not data and len(words) < 2  # noqa: PLR2004 - that of training, as `accuracy`
    rank = EVALUATED.index(data) if data in EVALUATED else len(EVALUATED) + (2 if is_plain else bool(data))
    return rank, len(words), int(next(iter(re.findall(r"\d+", name)), 1))
