"""The output of a loop without a grid: a line per epoch, the tutorial's table, and results.csv."""

import json
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.core import files
from runmanager.core.outcome import LEADING

if TYPE_CHECKING:
    import pandas as pd

from rich.text import Text

from runmanager.core.contracts import RunListener
from runmanager.core.goal import Goal
from runmanager.core.manager import Manager
from runmanager.core.open_run import OpenRun
from runmanager.core.outcome import EpochRecord, Outcome, Status
from runmanager.core.state import read_experiment
from runmanager.core.values import text
from runmanager.core.wording import printable
from runmanager.devices import ranks
from runmanager.devices.torch_devices import process_state
from runmanager.drawing.console import choose_screen
from runmanager.errors import warn
from runmanager.front import at_exit
from runmanager.tables.cells import durations, join, steady
from runmanager.tables.results_files import write_results
from runmanager.tables.steps import missing_goal

# The widths of most values and durations; shorter ones are padded, so that the lines of a run are aligned.
_VALUE = len("0.0000")
_TIME = len("0.250 s")


class LoopOutput(RunListener):
    """Shows the lines and tables of a loop, writes its results.csv, and ends runs that are open at the exit.

    Args:
        manager: A weak reference to the manager, which has this listener.
        goal: The user's goal.
        show: False shows nothing.
    """

    def __init__(self, manager: "weakref.ref[Manager]", goal: Goal | None, *, show: bool) -> None:
        self._manager_of, self._goal = manager, goal
        self._screen = choose_screen(show=show)
        # the last run, and the settings of the process when it began and when it ended
        self._last, self._begin = "", process_state()
        self._end = self._begin

    def _opened(self) -> tuple[Manager, OpenRun]:
        manager = self._manager_of()
        assert manager
        assert manager._current
        return manager, manager._current

    def run_began(self, run: Any, network: Any, loader: Any) -> None:
        """Register the run for the exit of the program; warn of settings that the earlier run left changed."""
        manager, opened = self._opened()
        at_exit.watch(manager)
        now, current = process_state(), f"run {opened.folder.number}"
        # a loop may set torch for each of its runs: these settings change again before the next run begins
        names = [name for name in now if self._end[name] != self._begin[name] != now[name]]
        if names:
            warn(
                f"{self._last} left settings of this process changed, and {current} begins with them: "
                f"{', '.join(names)}; restore them at its end, or use run_grid with executor='lanes'"
            )
        self._last, self._begin, self._end = current, now, now

    def epoch_ended(self, record: EpochRecord, network: Any) -> None:
        """Show the line or the table for an epoch."""
        if ranks.is_main():
            manager, opened = self._opened()
            folder, num_epochs = opened.folder, opened.num_epochs
            self._screen.epoch_ended(
                lambda: table_of(manager.run_data),
                lambda width: epoch_line(folder.number, folder.params, record, num_epochs, width, self._goal),
            )

    def run_ended(self, outcome: Outcome) -> None:
        """Write the tables, and show the results."""
        manager, opened = self._opened()
        at_exit.forget(manager)
        self._end = process_state()
        if not ranks.is_main():
            return
        path = opened.folder.path.parent
        write_results(read_experiment(path), path)
        if self._screen.is_shown:
            self._screen.run_ended(table_of(manager.run_data))
        is_first = manager.run_count == 1 and outcome.status is Status.COMPLETED
        if is_first and self._goal and (sentence := missing_goal([self._goal], opened.folder)):
            warn(sentence)


def epoch_line(
    number: int,
    params: Mapping[str, Any],
    record: EpochRecord,
    num_epochs: int | None,
    width: int,
    goal: Goal | None = None,
) -> str:
    """Write an epoch as one line that is cut at `width`; the goal's metric comes first, hyperparameters last.

    >>> record = EpochRecord(2, {"loss": 0.25, "accuracy": 0.875, "epoch duration": 1.5, "run duration": 3.0})
    >>> epoch_line(1, {"lr": 0.1, "device": "cpu"}, record, 10, 82)
    'run 1 · epoch  2/10 · loss 0.2500 · accuracy 0.8750 ·  1.50 s · lr=0.1 device=cpu'
    >>> epoch_line(1, {"lr": 0.1, "device": "cpu"}, record, None, 68)
    'run 1 · epoch 2 · loss 0.2500 · accuracy 0.8750 ·  1.50 s · lr=0.1 …'
    """
    epoch = f"epoch {record.epoch}"
    if num_epochs is not None:
        epoch = f"epoch {record.epoch:>{len(str(num_epochs))}}/{num_epochs}"
    values = {name: steady(value) for name, value in record.metrics.items() if "duration" not in name}
    names = sorted(values, key=lambda name: goal is not None and name != goal.metric)
    metrics = [f"{printable(name)} {values[name]:<{_VALUE}}" for name in names]
    (seconds,) = durations([record.metrics["epoch duration"]])
    labels = " ".join(f"{printable(name)}={printable(text(value))}" for name, value in params.items())
    line = Text(join([f"run {number}", epoch, *metrics, f"{seconds:>{_TIME}}", labels]))
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
