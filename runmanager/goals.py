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
    """Read "min:<metric>", "max:<metric>", or "best:<metric>" of one whose name tells; None if it is neither.

    >>> goal("best:test_loss"), goal("max:f1"), goal("best:f1")
    (Goal(metric='test_loss', sign=-1), Goal(metric='f1', sign=1), None)
    """
    which, _, metric = text.partition(":")
    is_larger = {"min": False, "max": True, "best": is_larger_better(metric)}.get(which)
    return Goal(metric, 1 if is_larger else -1) if metric and is_larger is not None else None


def is_larger_better(name: str) -> bool | None:
    """Whether large values of a metric are good, None if its name does not tell."""
    if name.endswith(_LARGER):
        return True
    return False if name.endswith(_SMALLER) else None
