"""Show a table where the user looks: at the end of each run in a terminal, updated in place in a notebook."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table

from runmanager.hyperparameters import text

if TYPE_CHECKING:
    import pandas as pd

_MOST = 40  # rows shown in a terminal


class TerminalDisplay:
    """Print the table at the end of each run."""

    wants_epochs = False

    def epoch_ended(self, table: "pd.DataFrame") -> None:
        """Wait for the end of the run."""

    def run_ended(self, table: "pd.DataFrame") -> None:
        """Print it."""
        print_table(table)


class NotebookDisplay:
    """Keep one table up to date below the cell."""

    wants_epochs = True

    def __init__(self) -> None:
        self._place = InPlace()

    def epoch_ended(self, table: "pd.DataFrame") -> None:
        """Put the table in the place of the last one."""
        self._place.show(table)

    def run_ended(self, table: "pd.DataFrame") -> None:
        """Leave the table as the last epoch left it."""


class InPlace:
    """A place below a notebook's cell, whose content is replaced; it is where it was shown first."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, content: Any) -> None:
        """Put something in the place of what was shown last."""
        from IPython.display import display

        if self._handle is None:
            self._handle = display(content, display_id=True)
        else:
            self._handle.update(content)


def choose_display(wanted: bool | None) -> TerminalDisplay | NotebookDisplay | None:
    """Return what shows a table here: None if it is not wanted."""
    if wanted is False:
        return None
    return NotebookDisplay() if in_notebook() else TerminalDisplay()


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel; never imports IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython and hasattr(ipython, "get_ipython") else None
    return shell is not None and "IPKernelApp" in shell.config


def print_table(table: "pd.DataFrame", title: str | None = None, console: Console | None = None) -> None:
    """Print a table, its last rows if it is long; numbers are aligned and cut to what matters."""
    console = console or wide_console()
    shown = table.tail(_MOST)
    drawn = plain_table(title)
    for name in shown:
        values = [cell(value) for value in shown[name]]
        is_text = any(isinstance(value, str) for value in shown[name])
        width = max(map(len, [*str(name).split(), *values]))
        drawn.add_column(str(name), justify="left" if is_text else "right", min_width=width)
    for row in shown.itertuples(index=False, name=None):
        drawn.add_row(*(cell(value) for value in row))
    if len(table) > _MOST:
        console.print(f"({len(table) - _MOST} earlier rows are in the table, not shown here)")
    console.print(drawn, soft_wrap=True)  # a narrow terminal folds the lines, it loses no column


def print_rows(rows: Sequence[Mapping[str, Any]], console: Console | None = None) -> None:
    """Print rows under the names of their columns: as `print_table`, but a thousand take no time.

    Args:
        rows: Column -> value; a column that a row lacks stays empty there.
        console: Where to print.
    """
    console = console or wide_console()
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines: list[list[str]] = [names, *([cell(row.get(name, math.nan)) for name in names] for row in rows)]
    is_text = [any(isinstance(row.get(name), str) for row in rows) for name in names]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        parts = [
            set_cell_size(shown, width) if left else " " * (width - cell_len(shown)) + shown
            for shown, width, left in zip(line, widths, is_text, strict=True)
        ]
        style = "bold" if line is lines[0] else None
        console.out("  ".join(parts).rstrip(), style=style, highlight=False)


def plain_table(title: str | None = None) -> Table:
    """Return a table without lines."""
    return Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)


class _PlainConsole(Console):
    """A console whose reader may have had enough."""

    def on_broken_pipe(self) -> None:
        """Leave it to who prints, instead of ending the process with 1."""
        raise BrokenPipeError


def wide_console() -> Console:
    """Return a console on standard output; without a terminal, lines are as long as they need to be."""
    console = _PlainConsole(highlight=False, markup=False, emoji=False)
    return (
        console if console.is_terminal else _PlainConsole(highlight=False, markup=False, emoji=False, width=200)
    )


def cell(value: Any) -> str:
    """Write a value as a table shows it: four digits, nothing for what is missing.

    >>> cell(0.598666), cell(7.504), cell(12345.6), cell(1e30), cell(1000), cell(float("nan")), cell("cpu")
    ('0.5987', '7.504', '12346', '1e+30', '1000', '', 'cpu')
    """
    if isinstance(value, bool) or not isinstance(value, float):
        return "" if _is_missing(value) else printable(text(value))
    if math.isnan(value):
        return ""
    return f"{value:.0f}" if 9999.5 <= abs(value) < 1e9 else f"{value:.4g}"  # noqa: PLR2004 - four digits


def duration(seconds: float) -> str:
    """Write how long something took.

    >>> duration(1.25), duration(83), duration(4800), duration(200_000)
    ('1.2 s', '1 min 23 s', '1 h 20 min', '2 d 7 h')
    """
    if seconds < 59.95:  # noqa: PLR2004 - what is written as less than a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s"))
    first = next(place for place, (number, _) in enumerate(parts) if number)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number)


def printable(shown: str) -> str:
    r"""Escape what would steer a terminal.

    >>> printable("a\x1b[31m")
    'a\\x1b[31m'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def join(parts: Iterable[str]) -> str:
    """Join the parts that are not empty with a middle dot."""
    return " · ".join(part for part in parts if part)


def _is_missing(value: Any) -> bool:
    return type(value).__name__ == "NAType"
