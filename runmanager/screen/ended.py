"""A run that has ended: a row of a table in a terminal, elsewhere a line with the name of each value."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len

from runmanager.outcome import Outcome, Status
from runmanager.screen.run_rows import DEVICE, Row, RunColumns
from runmanager.screen.running import Running
from runmanager.wording import cell, duration, join, printable

_VALUE = 7  # the width of most values, so that lines are aligned


@dataclass(frozen=True)
class Ended:
    """A run that has ended."""

    number: int
    params: Mapping[str, Any]
    outcome: Outcome
    count: str  # how many have, as in "7/12"
    running: Running | None = None  # None if it was never begun
    seconds: float | None = None  # that it took, None if it was never begun
    metrics: Mapping[str, float] = field(default_factory=dict)  # the most important first

    def in_words(self, columns: RunColumns, width: int) -> list[str]:
        """Return a line that names each value; the cause has a line of its own where there is no room."""
        name = columns.label(self.params)
        start = f"{self._mark} {self.count} run {columns.number(self.number)}{name and f' {name}'}"
        values = [
            f"{printable(name)} {cell(value) or 'nan':<{_VALUE}}" for name, value in self._metrics.items()
        ]
        cause = printable(self.outcome.error)
        begin = self.running.beginning if self.running else ""
        time = "" if self.seconds is None else f"{duration(self.seconds):>6}"
        while values and cell_len(join([start, self._status, *values, cause, begin, time])) > width:
            values.pop()
        line = join([start, self._status, *values, cause, begin, time])
        if cell_len(line) <= width:
            return [line.rstrip()]
        return [join([start, self._status, time]), f"    {cause}"]

    @property
    def row(self) -> Row:
        """Its row, which ends in why there is no result."""
        device = self.running.device if self.running else str(self.params.get(DEVICE, ""))
        time = "" if self.seconds is None else duration(self.seconds)
        return Row(
            f"{self._mark} {self.count}", str(self.number), self.params, printable(device),
            self.running.epochs if self.running else "", time, self._metrics, self._notes,
        )  # fmt: skip

    def in_row(self, columns: RunColumns, width: int) -> list[str]:
        """Return the row; the cause is below it where there is no room."""
        _, lines, _ = columns.lines([self.row], width)
        cause = printable(self.outcome.error)
        is_told = self.outcome.status.is_success or not cause or lines[0].endswith(cause)
        return lines if is_told else [*lines, f"    {cause}"]

    @property
    def _notes(self) -> list[str]:
        begin = self.running.beginning if self.running else ""
        cause = printable(self.outcome.error)
        if self.outcome.status is Status.PRUNED:
            # of runs that wait, when, is the same for all of their rung
            why = cause.removeprefix("after ") if self.outcome.pruned_by else ""
            return [f"{self._status} {why}".rstrip(), self._status, ""]
        return [join([self._status, cause, begin]), join([self._status, cause]), self._status]

    @property
    def _metrics(self) -> Mapping[str, float]:
        is_explained = self.outcome.status.is_exception or self.outcome.status is Status.DIVERGED
        return {} if is_explained else self.metrics  # the cause says more

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
