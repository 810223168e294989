"""The time spent by a grid, broken down by the journals and the clocks of the lanes."""

from collections.abc import Sequence
from itertools import takewhile
from operator import eq
from typing import NamedTuple, Self

from runmanager.answers.sentences import percents
from runmanager.core.outcome import EpochRecord, Status
from runmanager.core.state import RunResult
from runmanager.core.wording import counted
from runmanager.tables.cells import duration

_LITTLE = 0.01  # smaller fractions are not listed


class RunTime(NamedTuple):
    """A run that a grid has executed."""

    seconds: float  # time from the start in a lane to the end, summed over all attempts
    epochs: Sequence[EpochRecord]  # the epochs committed in this time
    before: float  # the run's duration (s) before these epochs
    status: Status

    @classmethod
    def since(cls, before: RunResult, now: RunResult, seconds: float) -> Self:
        """Return the time of a run that has occupied a lane for some seconds since its state `before`."""
        # epochs of earlier attempts have the durations that they had before
        durations, ends = ([each.metrics.get("run duration") for each in run.epochs] for run in (before, now))
        number = sum(takewhile(bool, map(eq, durations, ends)))
        return cls(seconds, now.epochs[number:], (number and durations[number - 1]) or 0.0, now.status)


def time_spent(total: float, lanes: int, starting: float, runs: Sequence[RunTime]) -> str:
    """Say how long a grid took, and how this time was spent, in percent.

    Args:
        total: The wall-clock time (s).
        lanes: The number of lanes.
        starting: The time (s) before the first run began, to start processes and load data and code.
        runs: The executed runs.

    >>> time_spent(60.0, 1, 6.0, [RunTime(54.0, [], 0.0, Status.COMPLETED)])
    '1 min: 90 % setup of runs, 10 % start'
    """
    lanes = max(lanes, 1)
    whole = total * lanes
    records = [record for run in runs for record in run.epochs]
    training = sum(record.metrics.get("epoch duration", 0.0) for record in records)
    data = sum(record.times.get("phase_data_s", 0.0) for record in records)
    evaluation = sum(record.times.get("phase_eval_s", 0.0) for record in records)
    begun = 0.0
    rests = dict.fromkeys(("runs that failed", "interrupted runs", "setup of runs"), 0.0)
    for run in runs:
        seconds = run.epochs[-1].metrics.get("run duration", run.before) - run.before if run.epochs else 0.0
        begun += seconds
        failed = "runs that failed" if run.status.is_lost else "interrupted runs"
        rests["setup of runs" if run.status.is_success else failed] += max(run.seconds - seconds, 0.0)
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
    listed = {what: seconds for what, seconds in parts.items() if seconds >= 5 * _LITTLE * whole}
    listed = dict(sorted(listed.items(), key=lambda part: -part[1]))
    listed["other"] = max(whole - sum(listed.values()), 0.0)
    listed = {what: seconds for what, seconds in listed.items() if seconds >= _LITTLE * whole}
    of_whole = percents([seconds / whole for seconds in listed.values()])
    shares = [f"{share} {what}" for share, what in zip(of_whole, listed, strict=True)]
    in_lanes = f" in {counted(lanes, 'lane')}" if lanes > 1 else ""
    return f"{duration(total)}{in_lanes}: {', '.join(shares)}"
