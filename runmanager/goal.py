"""Which value of a metric is the best one."""

from typing import NamedTuple

_LARGER = ("accuracy",)
_SMALLER = ("loss", "duration", "memory")


class Goal(NamedTuple):
    """What is wanted of a metric.

    Attributes:
        metric: Its name.
        sign: 1 where the largest value is the best one, -1 where the least is.
    """

    metric: str
    sign: int


def goal(text: str) -> Goal | None:
    """Read "best:<metric>" of a loss or an accuracy, "min:<metric>" or "max:<metric>"; None if it is neither.

    >>> goal("best:test_loss"), goal("max:f1"), goal("best:f1")
    (Goal(metric='test_loss', sign=-1), Goal(metric='f1', sign=1), None)
    """
    which, _, metric = text.partition(":")
    is_known = which in ("min", "max") or (which == "best" and metric.endswith(("loss", "accuracy")))
    if not is_known or not metric:
        return None
    is_larger = which == "max" or (which == "best" and is_larger_better(metric))
    return Goal(metric, 1 if is_larger else -1)


def is_larger_better(name: str) -> bool | None:
    """Whether large values of a metric are good, None if its name does not tell."""
    if name.endswith(_LARGER):
        return True
    return False if name.endswith(_SMALLER) else None
