"""The time spent by a grid, broken down by the journals and the clocks of the lanes."""

from collections.abc import Sequence
from itertools import takewhile
from operator import eq

from runmanager.answers.sentences import percents
from runmanager.core.state import RunResult
from runmanager.core.wording import counted
from runmanager.tables.cells import duration

_LITTLE = 0.01  # smaller fractions are not listed


def time_spent(
    total: float, lanes: int, starting: float, runs: Sequence[tuple[RunResult, RunResult, float]]
) -> str:
    """Say how long a grid took, and how this time was spent, in percent.

    Args:
        total: The wall-clock time (s).
        lanes: The number of lanes.
        starting: The time (s) before the first run began, to start processes and load data and code.
        runs: The executed runs: each before and after, and the time (s) that it was in a lane.
    """
    lanes = max(lanes, 1)
    whole = total * lanes
    training = data = evaluation = begun = 0.0
    rests = dict.fromkeys(("runs that failed", "interrupted runs", "setup of runs"), 0.0)
    for before, now, seconds in runs:
        # epochs of earlier attempts have the durations that they had before
        durations, ends = ([each.metrics.get("run duration") for each in run.epochs] for run in (before, now))
        number = sum(takewhile(bool, map(eq, durations, ends)))
        begin = (number and durations[number - 1]) or 0.0
        in_epochs = (ends[-1] or begin) - begin if number < len(ends) else 0.0
        begun += in_epochs
        for record in now.epochs[number:]:
            training += record.metrics.get("epoch duration", 0.0)
            data += record.times.get("phase_data_s", 0.0)
            evaluation += record.times.get("phase_eval_s", 0.0)
        failed = "runs that failed" if now.status.is_lost else "interrupted runs"
        rests["setup of runs" if now.status.is_success else failed] += max(seconds - in_epochs, 0.0)
    if not whole or not training + sum(rests.values()):
        return duration(total)
    waiting = data / training if training else 0.0
    of_it = f" (of it {percents([waiting])[0]} waiting for batches)" if waiting >= _LITTLE else ""
    parts = {
        f"training{of_it}": training,
        "evaluation": evaluation,
        "between epochs (checkpoints, logs)": max(begun - training - evaluation, 0.0),
        **rests,
        "start": lanes * starting,
    }
    parts["between runs (tables, idle lanes)"] = max(whole - sum(parts.values()), 0.0)
    large = [part for part in parts.items() if part[1] >= 5 * _LITTLE * whole]
    large.sort(key=lambda part: -part[1])
    other = whole - sum(seconds for _, seconds in large)
    large += [("other", other)] if other >= _LITTLE * whole else []
    of_whole = percents([seconds / whole for _, seconds in large])
    shares = [f"{share} {what}" for share, (what, _) in zip(of_whole, large, strict=True)]
    in_lanes = f" in {counted(lanes, 'lane')}" if lanes > 1 else ""
    return f"{duration(total)}{in_lanes}: {', '.join(shares)}"
