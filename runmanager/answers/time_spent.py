"""The time spent by a grid, broken down by the journals and the clocks of the lanes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runmanager.hyperparameters import counted
from runmanager.outcome import EpochRecord, Status
from runmanager.wording import duration, percents

_LITTLE = 0.01  # smaller fractions are not listed


class RunTime(NamedTuple):
    """A run that a grid has executed."""

    seconds: float  # time from the start in a lane to the end, summed over all attempts
    epochs: Sequence[EpochRecord]  # the epochs committed in this time
    before: float  # the run's duration (s) before these epochs
    status: Status


@dataclass(frozen=True)
class TimeSpent:
    """The time of one launch of a grid, in seconds; all parts except `total` are summed over the lanes."""

    total: float  # wall-clock time
    lanes: int
    starting: float  # time before the first run began, to start processes and load data and code
    training: float
    data: float  # the part of `training` spent waiting for batches
    evaluation: float
    between: float  # remaining time of the runs up to the end of their last epoch, for checkpoints and logs
    setup: float  # remaining time of the successful runs, before and after their epochs
    failed: float  # remaining time of the failed runs, before and after their epochs
    interrupted: float  # remaining time of all other runs, before and after their epochs

    @classmethod
    def of(cls, total: float, lanes: int, starting: float, runs: Sequence[RunTime]) -> "TimeSpent":
        """Add up the times of the runs of a launch."""
        records = [record for run in runs for record in run.epochs]
        training = sum(record.metrics.get("epoch duration", 0.0) for record in records)
        data = sum(record.times.get("phase_data_s", 0.0) for record in records)
        evaluation = sum(record.times.get("phase_eval_s", 0.0) for record in records)
        begun = setup = failed = interrupted = 0.0
        for run in runs:
            seconds = run.epochs[-1].metrics.get("run duration", run.before) - run.before if run.epochs else 0.0
            begun += seconds
            rest = max(run.seconds - seconds, 0.0)
            setup += rest if run.status.is_success else 0.0
            failed += rest if run.status.is_lost else 0.0
            interrupted += 0.0 if run.status.is_success or run.status.is_lost else rest
        between = max(begun - training - evaluation, 0.0)
        of_lanes = max(lanes, 1)
        return cls(
            total,
            of_lanes,
            of_lanes * starting,
            training,
            data,
            evaluation,
            between,
            setup,
            failed,
            interrupted,
        )

    def __str__(self) -> str:
        """Say how long the grid took, and how this time was spent, in percent.

        >>> print(TimeSpent(60.0, 1, 6.0, 45.0, 9.0, 6.0, 0.3, 1.5, 0.0, 0.0))
        1 min: 75 % training (of it 20 % waiting for batches), 10 % evaluation, 10 % start, 5 % other
        """
        whole = self.total * self.lanes
        if not whole or not self.training + self.setup + self.failed + self.interrupted:
            return duration(self.total)
        waiting = self.data / self.training if self.training else 0.0
        of_it = f" (of it {percents([waiting])[0]} waiting for batches)" if waiting >= _LITTLE else ""
        parts = {
            f"training{of_it}": self.training,
            "evaluation": self.evaluation,
            "between epochs (checkpoints, logs)": self.between,
            "runs that failed": self.failed,
            "interrupted runs": self.interrupted,
            "setup of runs": self.setup,
            "start": self.starting,
        }
        parts["between runs (tables, idle lanes)"] = max(whole - sum(parts.values()), 0.0)
        listed = {what: seconds for what, seconds in parts.items() if seconds >= 5 * _LITTLE * whole}
        listed = dict(sorted(listed.items(), key=lambda part: -part[1]))
        listed["other"] = max(whole - sum(listed.values()), 0.0)
        listed = {what: seconds for what, seconds in listed.items() if seconds >= _LITTLE * whole}
        of_whole = percents([seconds / whole for seconds in listed.values()])
        shares = [f"{share} {what}" for share, what in zip(of_whole, listed, strict=True)]
        lanes = f" in {counted(self.lanes, 'lane')}" if self.lanes > 1 else ""
        return f"{duration(self.total)}{lanes}: {', '.join(shares)}"
