"""A report that is renewed while its runs change."""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from runmanager.report.render import write_page
from runmanager.results.loading import Paths, read_results

_SHARE = 20  # of the time that passes, one part is for the page
_LEAST_S = 2.0  # between two looks


def watch_runs(
    path: Paths,
    target: str | os.PathLike[str],
    goal: str | Sequence[str] | None = None,
    repeats: str | Sequence[str] | None = None,
    *,
    say: Callable[[str], None],
) -> None:
    """Write a report, and renew it when runs have changed, until Ctrl-C.

    It takes at most a twentieth of the time. The last page does not load itself any more.

    Raises:
        NoRunsError, InvalidArgumentError, StorageError: As `write_report` does.
    """
    before: Any = None
    interval = _LEAST_S
    try:
        while True:
            started = time.monotonic()
            now = _state(path)
            if now != before:
                write_page(path, target, goal, repeats, seconds=interval)
            if before is None:
                say(f"{target} is written and renewed until Ctrl-C: open it in a browser")
            before = now
            interval = max(_LEAST_S, _SHARE * (time.monotonic() - started))
            time.sleep(interval)
    except KeyboardInterrupt:
        write_page(path, target, goal, repeats)
        say(f"{target} is written for the last time")


def _state(path: Paths) -> list[Any]:
    """Return what changes when runs do."""
    results, _ = read_results(path)
    return [(name, run.folder.id, run.status, run.journals) for name, runs in results for run in runs]
