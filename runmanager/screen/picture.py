"""The picture of a running grid: one row per running run, the best run so far, and a progress bar."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.text import Text

from runmanager.drawing.console import NOTEBOOK_WIDTH, NotebookLines, colored
from runmanager.drawing.table import GAP
from runmanager.screen.run_rows import Row, RunColumns
from runmanager.tables.cells import brief, duration

_BAR = 40  # maximum width of the bar
_ECHO = 5  # number of free columns after the last line, so that an echoed ^C^C does not wrap
_BEST = "best so far"
_NOTEBOOK_HEIGHT = 100


class Picture(NamedTuple):
    """A snapshot of the running runs of a grid and its progress bar."""

    name: str  # the name of the experiment
    columns: RunColumns
    rows: Sequence[Row]
    best: str  # the best run or setting so far, "" before there is one
    ended: int  # number of ended runs
    total: int  # number of all runs
    done: float  # number of ended runs, plus the finished fraction of each running run
    elapsed: float  # seconds since the grid began
    left: str  # the time left, in words
    above: Sequence[str] = ()  # the headings printed above

    def lines(self, width: int, height: int) -> list[Text]:
        """Return at most `height` lines of at most `width` characters."""
        most = max(height - 7, 1)  # number of rows; the line of the cursor stays free
        rows = self.rows if len(self.rows) <= most + 1 else self.rows[:most]
        headings, texts, _ = self.columns.lines(rows, width) if rows else ([], [], [])
        lines = [] if headings == self.above else [Text(line, "dim") for line in headings]
        lines += map(colored, texts)
        if len(rows) < len(self.rows):
            lines.append(Text(f"and {len(self.rows) - len(rows)} more lanes", "dim"))
        if self.best:
            lines.append(Text.assemble((_BEST, "dim"), f"{GAP}{self.best}"))
        lines.append(self._bar(max(width - _ECHO, 1)))
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        return lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in self.lines(options.max_width, console.height):
            yield from line.render(console, end="\n")  # render without wrapping, which is slow

    def __repr__(self) -> str:
        lines = self.lines(NOTEBOOK_WIDTH, _NOTEBOOK_HEIGHT)
        return "\n".join(line.plain.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        return NotebookLines(repr(self).split("\n"))._repr_html_()

    def _bar(self, width: int) -> Text:
        ended = f"{self.ended:>{len(str(self.total))}}/{self.total}"
        counts = GAP.join(["", ended, duration(self.elapsed, 0), *filter(None, [self.left])])
        name = f"{brief(self.name)}{GAP}"
        length = min(max(width - cell_len(name + counts), 10), _BAR)
        full = int(length * self.done / self.total) if self.total else length
        return Text.assemble(name, ("━" * full, "green"), ("╌" * (length - full), "bright_black"), counts)
