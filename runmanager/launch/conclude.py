"""The end of a grid: its tables, and what is said of its runs."""

from dataclasses import replace
from pathlib import Path

from runmanager.devices import ranks
from runmanager.errors import StorageError
from runmanager.launch import grid_outcome
from runmanager.launch.announce import Say
from runmanager.launch.commit import export
from runmanager.launch.execute import COMPLETED, STORAGE_FAILED, Execution
from runmanager.launch.grid_outcome import GridOutcome


def conclude(
    execution: Execution, exit_code: int, path: Path, began: float, *, has_events: bool
) -> GridOutcome:
    """Read what became of the runs, and say it."""
    outcome = ranks.from_main(
        lambda: grid_outcome.read(execution.asked_for(), exit_code, path, is_over=execution.is_over)
    )
    panel = ranks.from_main(
        lambda: grid_outcome.make_panel(outcome, execution.plan, execution, began, has_events=has_events)
    )
    for conclusion in execution.conclusions([ended for _, ended in outcome.outcomes]):
        execution.progress.say(conclusion)
    execution.progress.conclude(panel)
    return replace(outcome, panel=panel)


def export_tables(experiment: Path, say: Say) -> int:
    """Write the tables at the end of a grid; return the exit code."""
    try:
        export(experiment)
    except StorageError as error:
        say(f"✗ {error}")
        return STORAGE_FAILED
    return COMPLETED
