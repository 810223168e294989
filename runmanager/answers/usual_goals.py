"""What is shown beside a goal, and the sentence on assumed repeat axes."""

from collections.abc import Iterable, Sequence

from runmanager.core.goal import ACCURACY, read_metric


def companion(metric: str, names: Iterable[str]) -> str:
    """Return the metric to show beside the goal's metric, "" if there is none."""
    if " " in metric:
        return ""
    others = {name: read_metric(name) for name in names if name != metric and " " not in name}
    of_same_data = [name for name in others if others[name][0] == read_metric(metric)[0]]
    if metric.endswith("loss"):
        candidates = [name for name in of_same_data if others[name][2] and others[name][1][-1] in ACCURACY]
    else:
        candidates = [name for name in (*of_same_data, *others) if others[name][1][-1:] == ["loss"]]
        candidates.sort(key=lambda name: others[name][1] != ["loss"])
    return next(iter(candidates), "")


def assumption(axes: Sequence[str]) -> str:
    """Return a sentence that the given axes were chosen as repeat axes by name; "" without axes."""
    return f"Repeats by name: {' and '.join(axes)}; repeats=() takes none" if axes else ""
