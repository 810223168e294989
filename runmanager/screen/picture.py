"""The picture of a running grid: one row per running run, the best run so far, and a progress bar."""

import html
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.text import Text

from runmanager.console import colored
from runmanager.hyperparameters import counted
from runmanager.screen.run_rows import Row, RunColumns
from runmanager.table import GAP
from runmanager.wording import brief, duration, join, printable

_BAR = 40  # maximum width of the bar
_ECHO = 5  # number of free columns after the last line, so that an echoed ^C^C does not wrap
_BEST = "best so far"
_MOST_ROWS = 8  # number of rows of ended runs that a notebook shows unfolded
_MOST_FOLDED = 200  # number of folded rows of ended runs in a notebook, as a row takes more than a kilobyte
_NOTEBOOK_WIDTH, _NOTEBOOK_HEIGHT = 110, 100


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
    ended_rows: Sequence[Row] = ()  # rows of ended runs, if the rows are not printed above
    is_over: bool = False  # whether only ended runs are left to show

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
        columns, width = self.columns, _NOTEBOOK_WIDTH
        rows = self.ended_rows[-(_MOST_FOLDED if self.is_over else _MOST_ROWS) :]
        headings = columns.lines(rows[:1], width)[0] if rows else []
        lines = [*headings, *(line for row in rows for line in columns.explained(row, width))]
        live = [] if self.is_over else self._replace(above=headings).lines(width, _NOTEBOOK_HEIGHT)
        return "\n".join([*lines, *(line.plain.rstrip() for line in live)])

    def _repr_html_(self) -> str:
        if self.is_over:
            rows = self.ended_rows[-_MOST_FOLDED:]
            table = self.columns.to_html(rows) if rows else ""
            if len(rows) <= _MOST_ROWS:
                return table
            which = "" if len(rows) == len(self.ended_rows) else f", the last {_MOST_FOLDED}"
            number = counted(len(self.ended_rows), "ended run")
            return f"<details><summary>{number}{which}</summary>{table}</details>"
        num_hidden = max(len(self.ended_rows) - _MOST_ROWS, 0)
        hidden = f"<div>({counted(num_hidden, 'earlier run')} not shown)</div>\n" if num_hidden else ""
        rows = [*self.ended_rows[num_hidden:], *self.rows]
        table = hidden + (self.columns.to_html(rows) if rows else "")
        best = f"<div>{_BEST}: {html.escape(self.best)}</div>\n" if self.best else ""
        share = f"{100 * self.done / max(self.total, 1):.1f}"
        bar = f'<progress aria-label="progress" value="{share}" max="100"></progress>'
        counts = join([f"{self.ended}/{self.total}", duration(self.elapsed, 0), self.left])
        return f"{table}\n{best}<div>{html.escape(printable(self.name))} {bar} {html.escape(counts)}</div>"

    def _bar(self, width: int) -> Text:
        ended = f"{self.ended:>{len(str(self.total))}}/{self.total}"
        counts = GAP.join(["", ended, duration(self.elapsed, 0), *filter(None, [self.left])])
        name = f"{brief(self.name)}{GAP}"
        length = min(max(width - cell_len(name + counts), 10), _BAR)
        full = int(length * self.done / self.total) if self.total else length
        return Text.assemble(name, ("━" * full, "green"), ("╌" * (length - full), "bright_black"), counts)
