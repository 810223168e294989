"""What a loop without a grid gets beside its runs: lines, tables, and the end of runs open at the exit."""

import atexit
import json
import os
import sys
import warnings
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.core import files
from runmanager.core.contracts import RunListener
from runmanager.core.experiment import RunFolder
from runmanager.core.goal import Goal
from runmanager.core.manager import LEFT_OPEN, Manager
from runmanager.core.outcome import LEADING, EpochRecord, Outcome
from runmanager.core.state import end_if_running, read_experiment, read_run
from runmanager.core.values import text
from runmanager.core.wording import counted, printable
from runmanager.devices import ranks
from runmanager.drawing.console import choose_screen
from runmanager.errors import RunsWarning, StorageError
from runmanager.tables.cells import durations, join, steady
from runmanager.tables.results_files import write_results
from runmanager.user_code import caller

if TYPE_CHECKING:
    import pandas as pd


class LoopOutput(RunListener):
    """Shows the lines and tables of a loop, writes its results.csv, and ends a run that is open at the exit."""

    _folder: RunFolder  # of the last run

    def __init__(self, manager: Manager, goal: Goal | None, *, show: bool) -> None:
        # a weak reference, so that a manager without references and its network are freed at once
        self._manager_of, self._goal = weakref.ref(manager), goal
        self._screen = choose_screen(show=show)
        self._is_shown = show

    def _manager(self) -> Manager:
        manager = self._manager_of()
        assert manager
        return manager

    def run_began(self, run: Any, network: Any, loader: Any) -> None:
        """Register the run for the exit of the program."""
        opened = self._manager()._open_run("begin_run()")
        self._folder, self._attempt, self._begun_at = opened.folder, opened.attempt, caller()
        # an uncaught exception may have come before, as in a failed test or at a prompt
        self._process, self._had_error = os.getpid(), hasattr(sys, "last_value")
        atexit.unregister(self.end_at_exit)
        atexit.register(self.end_at_exit)  # the handler is registered last, so that it is called first

    def epoch_ended(self, record: EpochRecord, network: Any) -> None:
        """Show the line or the table for an epoch."""
        if ranks.is_main():
            manager, folder = self._manager(), self._folder
            num_epochs = manager._open_run("end_epoch()").num_epochs
            self._screen.epoch_ended(
                lambda: table_of(manager.run_data),
                lambda width: epoch_line(folder.number, folder.params, record, num_epochs, width, self._goal),
            )

    def run_ended(self, outcome: Outcome) -> None:
        """Write the tables, and show the results."""
        manager, path = self._manager(), self._folder.path.parent
        atexit.unregister(self.end_at_exit)
        if not ranks.is_main():
            return
        write_results(read_experiment(path), path)
        if self._is_shown:
            self._screen.run_ended(table_of(manager.run_data))

    def end_at_exit(self) -> None:
        """End the open run when the program exits, by the exception that ends the program if there is one."""
        manager, experiment = self._manager_of(), self._folder.path.parent
        has_ended = manager is not None and not manager._is_open  # the disk was full
        is_ours = self._process == os.getpid() and ranks.is_main()
        if has_ended or not is_ours or not self._folder.path.exists():  # a temporary folder may be removed
            return
        # at a prompt, also of IPython, an exception ends a line or a cell, not the program
        error = None if self._had_error or hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        with suppress(StorageError):
            if manager and error:
                manager._end_by(error, manager.run_params)
                return
            if manager:
                manager._end_left_open()
            else:  # it was garbage-collected
                end_if_running(self._folder, self._attempt, LEFT_OPEN)
                write_results(read_experiment(experiment), experiment)
            state = read_run(self._folder)
            problem = (
                f"run {self._folder.number} was not ended: it is recorded as {state.status}, with "
                f"{counted(len(state.epochs), 'epoch')} in {files.for_people(experiment / files.RESULTS_CSV)}; "
                "call end_run() after its last epoch"
            )
            warnings.warn_explicit(problem, RunsWarning, *self._begun_at)


def epoch_line(
    number: int,
    params: Mapping[str, Any],
    record: EpochRecord,
    num_epochs: int | None,
    width: int,
    goal: Goal | None = None,
) -> str:
    """Write an epoch as one line, cut at `width`; the goal's metric comes first, hyperparameters last."""
    from rich.text import Text

    epoch = f"epoch {record.epoch}"
    if num_epochs is not None:
        epoch = f"epoch {record.epoch:>{len(str(num_epochs))}}/{num_epochs}"
    values = {name: steady(value) for name, value in record.metrics.items() if "duration" not in name}
    names = sorted(values, key=lambda name: goal is not None and name != goal.metric)
    # padded to the widths of most values and durations, so that the lines of a run are aligned
    metrics = [f"{printable(name)} {values[name]:<6}" for name in names]
    (seconds,) = durations([record.metrics["epoch duration"]])
    labels = " ".join(f"{printable(name)}={printable(text(value))}" for name, value in params.items())
    line = Text(join([f"run {number}", epoch, *metrics, f"{seconds:>7}", labels]))
    line.truncate(width, overflow="ellipsis")
    return line.plain


def table_of(rows: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return rows as a table that has the columns of every row."""
    import pandas as pd

    from runmanager.tables.columns import from_columns

    names = dict.fromkeys(name for row in rows for name in row) or ("run", "epoch", *LEADING)
    return from_columns({name: [row.get(name, pd.NA) for row in rows] for name in names}, ())


def save(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows to ``path.csv``, with the index as its first column, and ``path.json``, a list of objects."""
    from runmanager.tables.formats import to_csv, to_rows

    table = table_of(rows)
    objects = json.dumps(to_rows(table), ensure_ascii=False, indent=4, allow_nan=False)
    files.make_folder(path.absolute().parent)
    for suffix, content in (("csv", to_csv(table, index=True)), ("json", objects)):
        encoded = content.encode("utf-8", "backslashreplace")  # strict_json does the same replacement
        files.write_file(path.with_name(f"{path.name}.{suffix}"), encoded)
