"""The end of a grid: the outcomes of its runs, its tables, and its panel."""

import html
import itertools
import operator
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.core import files
from runmanager.core.folders import Experiment, read_runs
from runmanager.core.outcome import Outcome, Status
from runmanager.core.run import Run
from runmanager.core.state import read_run
from runmanager.core.wording import printable
from runmanager.devices import ranks
from runmanager.errors import StorageError
from runmanager.session.announce import Say
from runmanager.session.execute import COMPLETED, SOME_FAILED, STORAGE_FAILED, Execution
from runmanager.session.exports import write_tables
from runmanager.session.plan import Plan

if TYPE_CHECKING:
    import pandas as pd

    from runmanager.answers.conclusion import Conclusion

_DURATION = "run duration"


@dataclass(frozen=True, repr=False)
class GridOutcome:
    """The outcome of a grid. A changed run counts from its first attempt since the change.

    Attributes:
        outcomes: Each run of the grid with its outcome, in the order of the grid.
        results: One row per epoch of these runs, as from `load_results`.
        runs: One row per run, as from `load_runs`.
        exit_code: 0 if all runs are done, or done but for unavailable ones, 1 if some runs failed or were not
            executed, or if all are unavailable, 74 after a storage failure, 129 after SIGHUP, 130 after Ctrl-C,
            143 after SIGTERM.
        folder: The experiment's folder.
        panel: The panel shown at the end, which a notebook draws; None if the grid was only planned.

    Example:
        >>> from runmanager import run_grid
        >>> train = lambda run, manager: manager.begin_run(run)
        >>> outcome = run_grid({"lr": [0.1]}, train, experiment="example", executor="inline", display=False)
        >>> outcome.exit_code, outcome.runs["status"].tolist()
        (0, ['completed'])
    """

    outcomes: Sequence[tuple[Run, Outcome]]
    results: "pd.DataFrame"
    runs: "pd.DataFrame"
    exit_code: int
    folder: Path
    panel: Any = field(default=None, compare=False)

    def __repr__(self) -> str:
        counts = Counter(str(outcome.status) for _, outcome in self.outcomes)
        runs = ", ".join(f"{number:,} {status}" for status, number in counts.items()) or "no runs"
        return f"<GridOutcome of {printable(str(self.folder))}: {runs}; exit code {self.exit_code}>"

    def _repr_html_(self) -> str:
        return self.panel._repr_html_() if self.panel else f"<pre>{html.escape(repr(self))}</pre>"


def read_outcome(plan: Plan, exit_code: int, experiment: Path, *, is_over: bool) -> GridOutcome:
    """Read the outcomes of the runs."""
    from runmanager.tables import columns as tables

    results = [read_run(planned.folder) for planned in plan.runs]
    outcomes = [(planned.run, result.outcome) for planned, result in zip(plan.runs, results, strict=True)]
    statuses = {outcome.status for _, outcome in outcomes} - ({Status.PENDING} if is_over else set())
    nothing_ran = is_over and statuses == {Status.UNAVAILABLE}
    if exit_code == COMPLETED and (nothing_ran or any(status.exit_code for status in statuses)):
        exit_code = SOME_FAILED
    epochs = tables.epochs_table(tables.by_column(results))
    tables.with_design(epochs, experiment.name, Experiment(experiment).design)
    summary = tables.runs_table(experiment.name, results)
    return GridOutcome(outcomes, epochs, summary, exit_code, files.for_people(experiment))


def conclude_grid(
    execution: Execution, exit_code: int, path: Path, began: float, *, has_events: bool
) -> GridOutcome:
    """Read the outcomes of the runs, and show the conclusion."""
    outcome = ranks.from_main(
        lambda: read_outcome(execution.asked_for(), exit_code, path, is_over=execution.is_over)
    )
    content = ranks.from_main(lambda: _conclusion(outcome, execution, began, has_events=has_events))
    for conclusion in execution.conclusions([ended for _, ended in outcome.outcomes]):
        execution.display.say(conclusion)
    return replace(outcome, panel=execution.display.conclude(content))


def export_tables(experiment: Path, say: Say) -> int:
    """Write the tables at the end of a grid; return the exit code."""
    try:
        write_tables(experiment)
    except StorageError as error:
        say(f"✗ {error}")
        return STORAGE_FAILED
    return COMPLETED


def _conclusion(outcome: GridOutcome, execution: Execution, began: float, *, has_events: bool) -> "Conclusion":
    """Return the conclusion from the results of the grid that began at `began` (time.monotonic, s)."""
    from runmanager.answers.conclusion import conclude
    from runmanager.tables.columns import runs_table

    path = execution.experiment
    planned = {each.folder.id: each.folder for each in execution.plan.runs}
    results = [read_run(planned.get(folder.id, folder)) for folder in read_runs(path)]
    return conclude(
        outcome.runs, outcome.folder, is_over=execution.is_over, has_events=has_events, more=execution.num_more,
        is_broken_off=outcome.exit_code not in (COMPLETED, SOME_FAILED),
        time=_time_spent(execution, began),
        all_runs=runs_table(path.name, results) if len(results) > len(outcome.runs) else None,
        # changed runs without an epoch since the change: tables have their earlier epochs
        num_changed=sum(
            bool(folder.since and not read_run(folder).epochs and read_run(replace(folder, since=0)).epochs)
            for folder in planned.values()
        ),
        stoppers=execution.stoppers,
    )  # fmt: skip


def _time_spent(execution: Execution, began: float) -> str | None:
    """Say how this launch spent its time, None if no run was executed."""
    from runmanager.answers.time_spent import RunTime, time_spent

    stopwatch = execution.stopwatch
    if stopwatch.first is None:
        return None
    runs: list[RunTime] = []
    for planned in execution.plan.runs:
        if planned.folder.id in stopwatch.seconds:
            result = read_run(planned.folder)
            # epochs of earlier attempts have the durations that they had before
            ends = [[each.metrics.get(_DURATION) for each in run.epochs] for run in (planned.before, result)]
            num_before = sum(itertools.takewhile(bool, map(operator.eq, *ends)))
            before = ends[0][num_before - 1] or 0.0 if num_before else 0.0
            seconds = stopwatch.seconds[planned.folder.id]
            runs.append(RunTime(seconds, result.epochs[num_before:], before, result.status))
    total = time.monotonic() - began
    return time_spent(total, execution.num_lanes, stopwatch.first - began, runs)
