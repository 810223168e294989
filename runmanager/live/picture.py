"""What a grid looks like while it runs: a line for each lane, the best run so far, and a bar."""

import html
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from runmanager.live import columns
from runmanager.live.columns import GAP, AxisColumn, Column, clock, cut
from runmanager.live.running import Running
from runmanager.live.screen import Part
from runmanager.markup import COLORS
from runmanager.wording import cell, printable

_SILENT_S = 30  # without news before the line says so
_VALUE, _STEP, _EPOCH, _TIME = 6, 5, 5, 7  # the widths of most values, so that columns keep theirs
_BAR = (10, 40)  # its least and greatest width
_ECHO = 5  # columns free behind the last line: a terminal that echoes ^C there, twice, begins no new line
_BEST = "best so far"
_NOTEBOOK_WIDTH = 140
_TRACK = "rgba(128, 128, 128, 0.3)"  # what is left of a bar, on white and on black


class Picture(NamedTuple):
    """The lanes of a grid and its bar, at one moment."""

    name: str  # of the experiment
    lanes: Sequence[tuple[str, Running | None]]  # the device of each lane and the run in it, None if idle
    axes: Sequence[AxisColumn]  # of all runs, the least important last
    metrics: Sequence[str]  # that have columns, the most important first
    best: str  # what is best so far, "" before a run has ended
    ended: int  # runs
    total: int  # runs
    elapsed: float  # seconds since the grid began
    left: str  # the time left, in words
    now: float  # of the same clock as that of the runs
    margin: int = 0  # the width of the first column, at least

    def draw(self, width: int, height: int) -> list[list[Part]]:
        """Return lines of at most `width` characters, at most `height` of them."""
        most = max(height - 5, 1)  # lanes; the cursor's line stays free
        lanes = self.lanes if len(self.lanes) <= most + 1 else self.lanes[:most]
        lines = self._table(lanes, width) if lanes else []
        if len(lanes) < len(self.lanes):
            lines.append([Part(cut(f"and {len(self.lanes) - len(lanes)} more lanes", width), "dim")])
        if self.best and len(lines) + 2 < height:
            best = (
                self.best if cell_len(f"{_BEST}{GAP}{self.best}") <= width else columns.abbreviated(self.best)
            )
            lines.append(_fitting([Part(_BEST, "dim"), Part(f"{GAP}{best}")], width))
        return [*lines, self._bar(max(width - _ECHO, 1))]

    def to_html(self) -> str:
        """Return the same for a notebook."""
        fitting = columns.fitting(self._columns(self.lanes), _NOTEBOOK_WIDTH) if self.lanes else []
        styles = [f' style="text-align: {"left" if column.is_left else "right"}"' for column in fitting]
        rows = [("th", [column.heading for column in fitting])]
        rows += [("td", [column.cells[index] for column in fitting]) for index in range(len(self.lanes))]
        lines = []
        for tag, cells in rows:
            parts = zip(styles, map(html.escape, cells), strict=True)
            lines.append("".join(f"<{tag}{style}>{content}</{tag}>" for style, content in parts))
        table = "".join(f"<tr>{line}</tr>\n" for line in lines)
        best = f"<div>best so far: {html.escape(self.best)}</div>\n" if self.best else ""
        share = f"{100 * self._done / max(self.total, 1):.1f}"
        bar = (
            f'<span role="progressbar" aria-valuenow="{share}" style="display: inline-block; width: 20em; '
            f"height: 0.6em; border-radius: 0.3em; background: linear-gradient(90deg, {COLORS['✓']} {share}%, "
            f'{_TRACK} {share}%)"></span>'
        )
        counts = " · ".join(filter(None, [f"{self.ended}/{self.total}", clock(self.elapsed), self.left]))
        return (
            f'<table class="dataframe">\n{table}</table>\n{best}'
            f"<div>{html.escape(printable(self.name))} {bar} {html.escape(counts)}</div>"
        )

    def _table(self, lanes: Sequence[tuple[str, Running | None]], width: int) -> list[list[Part]]:
        device, *others = fitting = self._fitting_columns(lanes, width)
        lines = [[Part(GAP.join(column.padded(column.heading) for column in fitting), "dim")]]
        for index, (_, running) in enumerate(lanes):
            parts = [Part(device.padded(device.cells[index]))]
            if running is None:
                parts.append(Part(f"{GAP}idle", "dim"))
            else:
                parts += [Part(f"{GAP}{column.padded(column.cells[index])}", column.style) for column in others]
                if notice := self._notice(running):
                    line = "".join(part.text for part in parts[:-1])
                    start = set_cell_size(line, max(cell_len(line) - cell_len(notice), 0))
                    parts = [Part(start), Part(notice, "yellow"), parts[-1]]
            lines.append(parts)
        return [_fitting(line, width) for line in lines]

    def _fitting_columns(self, lanes: Sequence[tuple[str, Running | None]], width: int) -> list[Column]:
        """Choose the columns there is room for; the margin is for alignment alone, and costs none of them."""
        device, *others = self._columns(lanes)
        fitting = columns.fitting([replace(device, most=self.margin), *others], width)
        without = columns.fitting([device, *others], width)
        return fitting if len(fitting) == len(without) else without

    def _columns(self, lanes: Sequence[tuple[str, Running | None]]) -> list[Column]:
        """Return all columns that there could be, with a cell for each lane."""
        runs = [running for _, running in lanes]

        def column(heading: str, rank: int, cells: Sequence[str], most: int = 0, style: str = "") -> Column:
            is_empty = rank in (columns.STEP, *columns.METRICS) and not any(cells)
            return Column(heading, cells, columns.EMPTY if is_empty else rank, most=most, style=style)

        all_columns = [
            Column("device", [printable(device) for device, _ in lanes], columns.ALWAYS, is_left=True),
            column("run", columns.ALWAYS, [str(run.number) if run else "" for run in runs]),
            *columns.of_axes(self.axes, [run.params if run else None for run in runs]),
        ]
        all_columns.append(
            column("epoch", columns.ALWAYS, [_epoch(run) if run else "" for run in runs], _EPOCH)
        )
        is_heard = [run is not None and not self._notice(run) for run in runs]
        values = [_step(run) if run and heard else "" for run, heard in zip(runs, is_heard, strict=True)]
        widest = max([_STEP, *(len(f"{run.num_steps}") * 2 + 1 for run in runs if run and run.is_measured)])
        all_columns.append(column("step", columns.STEP, values, widest))
        for number, name in enumerate(self.metrics):
            rank = columns.rank_of_metric(number, name)
            values = [
                _value(run, name) if run and heard else "" for run, heard in zip(runs, is_heard, strict=True)
            ]
            all_columns.append(column(printable(name), rank, values, _VALUE, "" if number else "bold"))
        times = [clock(self.now - run.started) if run else "" for run in runs]
        return [*all_columns, column("time", columns.ALWAYS, times, _TIME)]

    def _notice(self, running: Running) -> str:
        silent = self.now - running.heard
        return f"no news for {silent:.0f} s" if silent > _SILENT_S else ""

    @property
    def _done(self) -> float:
        """How many runs are done, with the parts of the running ones."""
        return min(self.ended + sum(running.done for _, running in self.lanes if running), self.total)

    def _bar(self, width: int) -> list[Part]:
        ended = f"{self.ended:>{len(str(self.total))}}/{self.total}"
        counts = GAP.join(["", ended, clock(self.elapsed), *filter(None, [self.left])])
        least, most = _BAR
        name = cut(printable(self.name), max(width - cell_len(counts) - least - len(GAP), 0))
        room = width - cell_len(name) - len(GAP) - cell_len(counts)
        length = max(min(room, most), 0)
        full = int(length * self._done / self.total) if self.total else length
        bar = [Part("━" * full, "green"), Part("╌" * (length - full), "bright_black")]
        return _fitting([Part(f"{name}{GAP}" if name else ""), *bar, Part(counts)], width)


def _epoch(running: Running) -> str:
    of = "" if running.num_epochs is None else f"/{running.num_epochs}"
    return f"{running.epoch}{of}" if running.epoch else ""


def _step(running: Running) -> str:
    of = f"/{running.num_steps}" if running.is_measured else ""
    return f"{running.step}{of}" if running.step else ""


def _value(running: Running, name: str) -> str:
    return cell(running.metrics[name]) or "nan" if name in running.metrics else ""


def _fitting(line: Sequence[Part], width: int) -> list[Part]:
    """Cut a line at the width."""
    fitting: list[Part] = []
    for part in line:
        fitting.append(part._replace(text=cut(part.text, width)))
        width -= cell_len(fitting[-1].text)
    return fitting
