"""Update the page of a report while its grid runs."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from runmanager.core import files
from runmanager.core.contracts import Listener
from runmanager.core.outcome import EpochRecord, Outcome

_SHARE = 20  # writing the page takes at most 1 / _SHARE of the time
_LEAST_S = 2.0  # minimum time between two updates


class LivePage(Listener):
    """Writes the page of an experiment repeatedly, in at most a twentieth of the elapsed time."""

    def __init__(
        self,
        experiment: Path,
        report: bool | str | os.PathLike[str],
        say: Callable[[str], None],
        *,
        is_alone: bool = False,
    ) -> None:
        self._experiment, self._say, self._is_alone = experiment, say, is_alone
        file = experiment / files.REPORT if isinstance(report, bool) else Path(report)
        self.target = file.absolute()  # train() may change the working directory
        self._next, self._interval = 0.0, _LEAST_S
        self._is_writable = True

    def __enter__(self) -> Self:
        """Write the page for the first time, and show its path."""
        self._say(f"report: {files.for_people(self.target)} (a browser that shows it follows)")
        self._renew()
        return self

    def __exit__(self, *_: object) -> None:
        """Write the page for the last time; the final page does not reload itself."""
        self._renew(is_over=True)

    def epoch_ended(self, record: EpochRecord, network: Any) -> None:
        """Update the page if an update is due, and runs are executed in other processes."""
        if not self._is_alone and time.monotonic() >= self._next:
            self._renew()

    def run_ended(self, outcome: Outcome) -> None:
        """Update the page if an update is due."""
        if time.monotonic() >= self._next:
            self._renew()

    def _renew(self, *, is_over: bool = False) -> None:
        if not self._is_writable:
            return
        before = time.monotonic()
        try:
            # import here, as the slow import must not count as time of writing
            from runmanager.report.render import write_page

            before = time.monotonic()
            write_page(self._experiment, self.target, seconds=None if is_over else self._interval)
        except Exception as error:  # noqa: BLE001 - a view must not end a grid
            self._say(f"! the report could not be written: {type(error).__name__}: {error}")
            self._is_writable = False
        now = time.monotonic()
        self._interval = max(_LEAST_S, _SHARE * (now - before))
        self._next = now + self._interval
