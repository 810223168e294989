"""The line of a run that has ended: a row of a table in a terminal, elsewhere with the name of each value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len, set_cell_size

from runmanager.live import columns
from runmanager.live.columns import GAP, AxisColumn, Column, clock
from runmanager.outcome import Outcome, Status
from runmanager.wording import cell, duration, join, printable

_VALUE, _TIME = 7, 7  # the widths of most values, so that lines are aligned
_GOAL = len("diverged")  # is in the column of the goal
_MINUTE = 59.95  # seconds that are written as one


@dataclass(frozen=True)
class Ended:
    """A run that has ended."""

    count: str  # how many have, as in "7/12"
    number: str  # of the run, as wide as all are
    params: Mapping[str, Any]
    outcome: Outcome
    metrics: Mapping[str, float]  # the most important first
    seconds: float | None  # that it took, None if it was never begun

    def in_words(self, axes: Sequence[AxisColumn], width: int) -> list[str]:
        """Return a line that names each value; the cause has a line of its own where there is no room."""
        name = columns.axis_label(self.params, axes)
        start = f"{self._mark} {self.count} run {self.number}{name and f' {name}'}"
        metrics = {} if self._is_explained else self.metrics  # the cause says more
        values = [f"{printable(name)} {cell(value) or 'nan':<{_VALUE}}" for name, value in metrics.items()]
        cause = printable(self.outcome.error)
        time = "" if self.seconds is None else f"{duration(self.seconds):>6}"
        while values and cell_len(join([start, self._status, *values, cause, time])) > width:
            values.pop()
        line = join([start, self._status, *values, cause, time])
        if cell_len(line) <= width:
            return [line.rstrip()]
        return [join([start, self._status, time]), f"    {cause}"]

    def in_row(self, axes: Sequence[AxisColumn], metrics: Sequence[str], width: int) -> tuple[str, list[str]]:
        """Return the headings of these columns, and the row; the cause is below it where there is no room."""
        values = {name: cell(value) or "nan" for name, value in self.metrics.items()}
        left = [
            Column("", [f"{self._mark} {self.count}"], columns.ALWAYS, is_left=True),
            Column("run", [self.number], columns.ALWAYS),
            *columns.of_axes(axes, [self.params]),
        ]
        middle = [
            Column(
                printable(name),
                [values.get(name, "")],
                columns.rank_of_metric(index, name),
                most=_VALUE if index else _GOAL,
            )
            for index, name in enumerate(metrics)
        ]
        fitting = columns.fitting(
            [*left, *middle, Column("time", [self._time], columns.ALWAYS, most=_TIME)], width
        )
        headings = GAP.join(column.padded(column.heading) for column in fitting)
        num_metrics = sum(column.rank in columns.METRICS for column in fitting)
        row = [column.padded(column.cells[0]) for column in fitting]
        line = GAP.join(row)
        if not self._status:
            return headings, [line]
        if self.outcome.status is Status.PRUNED:
            # of runs that wait, when, is the same for all of their rung
            why = printable(self.outcome.error.removeprefix("after ")) if self.outcome.pruned_by else ""
            for text in filter(None, (why and f"{self._status} {why}", self._status)):
                if cell_len(line) + len(GAP) + cell_len(text) <= width:
                    return headings, [f"{line}{GAP}{text}"]
        error, first = printable(self.outcome.error), metrics[0] if metrics else ""
        goal = f"{printable(first)} {values[first]}" if first in values and not self._is_explained else ""
        first_metric = len(row) - 1 - num_metrics
        room = cell_len(GAP.join(row[first_metric:-1]))
        texts = (join([self._status, goal, error]), join([self._status, goal]), self._status)
        what = next((text for text in texts if cell_len(text) <= room), "")
        status = [set_cell_size(what, room)] if room else []
        lines = [GAP.join([*row[:first_metric], *status, row[-1]])]
        rest = "" if what == texts[0] else join([*([] if what else [self._status]), error])
        if cell_len(lines[0]) + len(GAP) + cell_len(rest) <= width:
            return headings, [f"{lines[0]}{GAP}{rest}".rstrip()]
        return headings, [*lines, f"    {rest}"]

    @property
    def _is_explained(self) -> bool:
        return self.outcome.status.is_exception or self.outcome.status is Status.DIVERGED

    @property
    def _mark(self) -> str:
        if self.outcome.status is Status.COMPLETED:
            return "✓"
        return "–" if self.outcome.status is Status.PRUNED else "✗"  # noqa: RUF001 - a dash

    @property
    def _status(self) -> str:
        if self.outcome.status is Status.PRUNED:
            return "pruned" if self.outcome.pruned_by else "waits"  # until all are at the rung
        return "" if self.outcome.status is Status.COMPLETED else self.outcome.status

    @property
    def _time(self) -> str:
        if self.seconds is None:
            return ""
        return f"{self.seconds:.1f} s" if self.seconds < _MINUTE else clock(self.seconds)
