"""The verification of a run: the recorded first epoch is compared with a new execution in another folder."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runmanager.executors.signals import Stop
from runmanager.run import Run
from runmanager.session.task import RunTask
from runmanager.storage.fingerprint_changes import changes_between
from runmanager.storage.run_state import RunResult, read_run

TIMES = ("epoch duration", "run duration")
"""Metrics that differ between executions."""


@dataclass(frozen=True)
class Verification:
    """The metrics of a run's first epoch, from the record and from a new execution."""

    before: Mapping[str, float]
    again: Mapping[str, float]  # metrics of the new execution; empty if the epoch did not end
    changed: Sequence[str]  # changes of code and versions since the recorded execution
    error: str = ""  # the reason why the epoch did not end

    @property
    def differing(self) -> list[str]:
        """The metrics that differ in any bit, or are missing in one of the two executions."""
        names = [name for name in {**self.before, **self.again} if name not in TIMES]
        return [name for name in names if not _same(self.before.get(name), self.again.get(name))]

    @property
    def is_identical(self) -> bool:
        """Whether all metrics are bit-identical."""
        return not self.error and not self.differing


def execute_first_epoch(run: Run, task: RunTask, recorded: RunResult, stop: Stop) -> Verification:
    """Execute the first epoch of a run in this process, and compare it with the recorded epoch.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    import torch

    from runmanager.session.trial import Cut, OneEpoch

    threads = torch.get_num_threads()
    # the order of sums depends on the number of threads
    torch.set_num_threads(recorded.threads or max(1, threads // recorded.jobs))
    task = replace(task, train=Cut(task.train), listeners=[OneEpoch(leaves=True)])
    try:
        with stop.at_once():
            outcome = task(run, lambda _: None)
    finally:
        torch.set_num_threads(threads)
    (folder,) = task.experiment.runs.values()
    again = first_epoch(read_run(folder))
    error = "" if again else outcome.error or "train() ended before the first epoch"
    # the arguments of a functools.partial are not available here
    begun_with = recorded.start.get("fingerprint", {})
    changed = [str(one) for one in changes_between(begun_with, task.fingerprint, only_common=True)]
    return Verification(first_epoch(recorded), again, changed, error)


def first_epoch(result: RunResult) -> Mapping[str, float]:
    """Return the metrics of a run's first epoch, empty if it has not ended."""
    return next((record.metrics for record in result.epochs if record.epoch == 1), {})


def _same(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return bool(one == other) or (math.isnan(one) and math.isnan(other))
