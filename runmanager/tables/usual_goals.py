"""What decides without a goal, what is shown beside it, and which axes repeat: all by their names."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from runmanager.core.goal import ACCURACY, EVALUATED, Goal, parse_goal, read_metric
from runmanager.errors import InvalidArgumentError


def default_goal(names: Iterable[str]) -> Goal | None:
    """Return the default goal of runs with these metrics, None if no name of a metric implies a goal.

    >>> default_goal(["loss", "accuracy", "val_loss"]), default_goal(["policy_loss", "reward"])
    (Goal(metric='accuracy', sign=1), Goal(metric='reward', sign=1))
    >>> default_goal(["train_loss", "val_loss", "val_acc"])
    Goal(metric='val_acc', sign=1)
    """
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


def companion(metric: str, names: Iterable[str]) -> str:
    """Return the metric to show beside the goal's metric, "" if there is none.

    >>> companion("test_accuracy", ["loss", "test_loss"]), companion("val_f1_macro", ["loss", "val_loss"])
    ('test_loss', 'val_loss')
    >>> companion("test_loss", ["test_accuracy"]), companion("reward", ["policy_loss"])
    ('test_accuracy', 'policy_loss')
    >>> companion("loss", ["reward"])
    ''
    """
    if " " in metric:
        return ""
    others = {name: read_metric(name) for name in names if name != metric and " " not in name}
    of_same_data = [name for name in others if others[name][0] == read_metric(metric)[0]]
    if metric.endswith("loss"):
        candidates = [name for name in of_same_data if others[name][2] and others[name][1][-1] in ACCURACY]
    else:
        candidates = [name for name in (*of_same_data, "loss", *others) if name in others]
        candidates = [name for name in candidates if others[name][1][-1:] == ["loss"]]
        candidates.sort(key=lambda name: others[name][1] != ["loss"])
    return next(iter(candidates), "")


def goal_of_kept(starts: Iterable[Mapping[str, Any]]) -> Goal | None:
    """Return the last metric of `keep=` in the first lines of journals, None if they keep no best weights."""
    goal = None
    for start in starts:
        keep = start.get("keep")
        if isinstance(keep, str) and keep != "last":
            with suppress(InvalidArgumentError):
                goal = parse_goal(keep)
    return goal


def assumption(axes: Sequence[str]) -> str:
    """Return a sentence that the given axes were chosen as repeat axes by name; "" without axes.

    >>> assumption(["seed"])
    'By its name, seed only repeats a setting; repeats=() says that no axis does'
    """
    if not axes:
        return ""
    subject = "By its name," if len(axes) == 1 else "By their names,"
    verb = "repeats" if len(axes) == 1 else "repeat"
    return f"{subject} {' and '.join(axes)} only {verb} a setting; repeats=() says that no axis does"
