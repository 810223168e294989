"""The row of a run that has ended."""

import math
from collections.abc import Mapping
from dataclasses import replace

from runmanager.core.experiment import RunFolder
from runmanager.core.outcome import Outcome, Status
from runmanager.core.wording import printable
from runmanager.screen.run_rows import DEVICE, DURATION, Row
from runmanager.screen.running import Running
from runmanager.tables.cells import durations, join


def ended_row(
    count: str,
    folder: RunFolder,
    outcome: Outcome,
    running: Running | None,
    metrics: Mapping[str, float],
) -> Row:
    """Return the row of a run that has ended; without a result, the row gives the cause."""
    is_completed = outcome.status is Status.COMPLETED
    status, cause = "" if is_completed else outcome.status, printable(outcome.error)
    begin = running.beginning if running else ""
    notes = [join([status, cause, begin]), join([status, cause]), status]
    # committed epochs, as in the tables: a message from inside an epoch may or may not have arrived
    epochs = replace(running, epoch=outcome.epochs).epochs if running else ""
    if outcome.status is Status.PRUNED:
        notes, cause = [f"{status} {cause.removeprefix('after ')}".rstrip(), status, ""], ""
    elif begin and is_completed:
        notes = [begin, begin.replace("epoch ", ""), ""]
    sign = "✓" if is_completed else "–" if outcome.status is Status.PRUNED else "✗"  # noqa: RUF001 - a dash
    # whether the row says more than the metrics
    says_more = outcome.status.is_exception or outcome.status is Status.DIVERGED
    return Row(
        f"{sign} {count}",
        str(folder.number),
        folder.params,
        printable(running.device if running else str(folder.params.get(DEVICE, ""))),
        epochs,
        durations([running.metrics.get(DURATION, math.nan)])[0] if running else "",
        {} if says_more else metrics,
        notes,
        cause,
    )
