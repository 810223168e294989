"""The time spent by a grid, broken down by the journals and the clocks of the lanes."""

from collections import defaultdict
from collections.abc import Sequence
from operator import eq

from runmanager.answers.sentences import percents
from runmanager.core.state import RunResult
from runmanager.tables.cells import duration

_LITTLE = 0.01  # the smallest fraction of waiting that is named; parts of the whole have five times as much


def time_spent(
    total: float, lanes: int, starting: float, runs: Sequence[tuple[RunResult, RunResult, float]]
) -> str:
    """Say how the time of a grid (s) was spent; `runs`: each before and after, and its time in a lane (s)."""
    whole = total * lanes
    waiting = between_epochs = 0.0
    spent: dict[str, float] = defaultdict(float)
    for before, now, seconds in runs:
        # epochs of earlier attempts have the durations that they had before
        durations, ends = (
            [epoch.metrics.get("run duration", 0.0) for epoch in run.epochs] for run in (before, now)
        )
        number = sum(map(eq, durations, ends))
        in_epochs = [0.0, *ends][-1] - [0.0, *ends][number]
        outside = "setup of runs" if now.status.is_success else "runs that did not complete"
        spent[outside] += max(seconds - in_epochs, 0.0)
        between_epochs += in_epochs
        for record in now.epochs[number:]:
            waiting += record.times.get("phase_data_s", 0.0)
            spent["training"] += record.metrics.get("epoch duration", 0.0)
            spent["evaluation"] += record.times.get("phase_eval_s", 0.0)
    between_epochs -= spent["training"] + spent["evaluation"]
    spent["between epochs (checkpoints, logs)"] = max(between_epochs, 0.0)
    spent["start"] = starting * lanes
    spent["between runs or idle"] = max(whole - sum(spent.values()), 0.0)
    if waiting >= _LITTLE * spent["training"] > 0:
        share = percents([waiting / spent["training"]])[0]
        spent[f"training (of it {share} waiting for batches)"] = spent.pop("training")
    parts = sorted(spent.items(), key=lambda part: -part[1])
    named = {what: seconds for what, seconds in parts if seconds >= 5 * _LITTLE * whole}
    if (other := whole - sum(named.values())) >= _LITTLE * whole:
        named["other"] = other
    shares = percents([seconds / sum(named.values()) for seconds in named.values()])
    texts = map(" ".join, zip(shares, named, strict=True))
    return f"{duration(total)}{f' in {lanes} lanes' if lanes > 1 else ''}: {', '.join(texts)}"
