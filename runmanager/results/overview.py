"""One line per experiment: its runs by status, what is best, when it was last written, and its size."""

import contextlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runmanager.errors import InvalidArgumentError
from runmanager.goal import Goal
from runmanager.outcome import Status
from runmanager.results.loading import name_of
from runmanager.results.ranking import rank
from runmanager.results.tables import runs_table
from runmanager.storage.folders import Experiment
from runmanager.storage.run_state import RunResult


@dataclass(frozen=True)
class Overview:
    """What there is to know about an experiment at first sight."""

    folder: Path
    statuses: dict[Status, int]  # how many runs have each, in the order of `Status`
    goal: Goal | None  # what decides, None if no run has a metric that could
    best: float  # its mean in the best setting, NaN if there is none
    last_written: float  # of its journals, as seconds since 1970; 0 if there are none
    run_seconds: float  # that all runs took together
    num_bytes: int  # of its files
    note: str  # why it was executed, "" if nobody has said it


def overview(folder: Path, runs: Sequence[RunResult]) -> Overview:
    """Sum up an experiment."""
    goal, best = None, math.nan
    with contextlib.suppress(InvalidArgumentError):  # no metric decides
        ranking = rank(runs_table(name_of(folder.name), runs))
        goal = ranking.goal
        best = ranking.settings[0].mean if ranking.settings else math.nan
    counts = Counter(run.status for run in runs)
    written = [version[2] / 1e9 for run in runs for version in run.journals.values()]
    durations = [run.epochs[-1].metrics.get("run duration", 0.0) for run in runs if run.epochs]
    return Overview(
        folder,
        {status: counts[status] for status in Status if counts[status]},
        goal,
        best,
        max(written, default=0.0),
        math.fsum(seconds for seconds in durations if math.isfinite(seconds)),
        size_of(folder),
        Experiment(folder).design.note or "",
    )


def size_of(folder: Path) -> int:
    """Return how many bytes the files below a folder have; links are not followed."""
    total = 0
    with contextlib.suppress(OSError):  # it may be removed meanwhile
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):
                total += 0 if path.is_dir() else path.lstat().st_size
    return total
