"""Journals in, tables out: `load_results`, `load_runs`, and their CSV and JSON exports."""

import contextlib
import math
import os
import statistics
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.errors import RunsWarning
from runmanager.storage import holder, paths, processes
from runmanager.storage.durable import write_file
from runmanager.storage.folders import RunFolder, is_experiment, read_runs
from runmanager.storage.journal import Attempt, EpochRecord, Status, read_attempt, strict_json
from runmanager.values import text

if TYPE_CHECKING:
    import pandas as pd

LEADING = ("loss", "accuracy", "epoch duration", "run duration")
"""The metrics that stand before the hyperparameters, as in the tutorial's table."""

HYPERPARAMETERS = "hyperparameters"
"""The key in a table's `attrs` under which the names of its hyperparameters are."""

_NAMED = 5  # damaged files in a warning
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\0")


@dataclass(frozen=True)
class RunResult:
    """All that the journals of a run say.

    Attributes:
        folder: Where it lives.
        status: Derived from its journals and, if they have no end, its process.
        epochs: The records of its epochs, each once, in order.
        attempts: How often it was executed.
        error: Why it failed, in one line.
        start: The first line of its last attempt.
    """

    folder: RunFolder
    status: Status
    epochs: Sequence[EpochRecord]
    attempts: int
    error: str
    start: Mapping[str, Any]


def load_results(path: str | os.PathLike[str] = "runs") -> "pd.DataFrame":
    """Load one row per finished epoch of every run.

    Columns: `run, epoch, loss, accuracy, epoch duration, run duration` (durations in seconds), the
    hyperparameters in axis order, then further metrics; `experiment` in front if there are several.
    Hyperparameters have the types they went in with. Files that are damaged are named in one `RunsWarning`.

    Args:
        path: The root of all experiments, an experiment's folder, or a run's folder.

    Raises:
        FileNotFoundError: There is no such path.
    """
    experiments = list(_load(Path(path)))
    return epochs_table([(name, run) for name, runs in experiments for run in runs])


def load_runs(path: str | os.PathLike[str] = "runs") -> "pd.DataFrame":
    """Load one row per run, those that were not executed included.

    Columns: `run, status, epochs`, the last value of every metric, the best ones (`best accuracy`),
    `epoch duration` (median, s), `run duration` (s), the hyperparameters, `parameters` (of the network),
    `attempts`, `error`; `experiment` in front if there are several.

    Args:
        path: As for `load_results`.

    Raises:
        FileNotFoundError: There is no such path.
    """
    experiments = list(_load(Path(path)))
    return runs_table([(name, run) for name, runs in experiments for run in runs])


def read_experiment(path: Path, damaged: list[str]) -> list[RunResult]:
    """Read all runs of one experiment; whatever cannot be read goes to `damaged`."""
    return [read_run(folder, damaged) for folder in read_runs(path, damaged)]


def read_run(folder: RunFolder, damaged: list[str]) -> RunResult:
    """Read what the journals of one run say; whatever cannot be read goes to `damaged`."""
    attempts: list[Attempt] = []
    try:
        journals = list(paths.attempts(folder.path).values())
    except OSError:
        journals = []
    for path in journals:
        try:
            attempt = read_attempt(path)
        except OSError as error:
            damaged.append(f"{path} ({error.strerror})")
            continue
        if attempt.damaged:
            damaged.append(f"{path} (line {', '.join(map(str, attempt.damaged))})")
        attempts.append(attempt)
    standing = _standing(attempts)
    last = standing[-1] if standing else Attempt()
    return RunResult(
        folder,
        _status(folder, standing, journals[-1] if journals else None),
        _merged(standing),
        len(journals),
        last.outcome.error if last.outcome else folder.unavailable,
        last.start,
    )


def epochs_table(runs: Sequence[tuple[str, RunResult]]) -> "pd.DataFrame":
    """Build the table of `load_results` from (experiment, run) pairs."""
    leading = ("experiment", "run", "epoch", *LEADING)
    rows = [
        {
            "experiment": experiment,
            "run": run.folder.number,
            "epoch": record.epoch,
            **dict.fromkeys(LEADING, math.nan),
            **run.folder.params,
            **record.metrics,
        }
        for experiment, run in runs
        for record in run.epochs
    ]
    return _table(rows, leading, _names(run.folder.params for _, run in runs))


def runs_table(runs: Sequence[tuple[str, RunResult]]) -> "pd.DataFrame":
    """Build the table of `load_runs` from (experiment, run) pairs."""
    import pandas as pd

    leading = ("experiment", "run", "status", "epochs")
    rows = [
        {
            "experiment": experiment,
            "run": run.folder.number,
            "status": str(run.status),
            "epochs": len(run.epochs),
            **dict.fromkeys(LEADING, math.nan),
            **_summary(run.epochs),
            **run.folder.params,
            "parameters": run.start.get("parameters", pd.NA),
            "attempts": run.attempts,
            "error": run.error,
        }
        for experiment, run in runs
    ]
    bests = sorted({name for row in rows for name in row if name.startswith("best ")})
    metrics = (*LEADING[:2], *bests, *LEADING[2:])
    names = _names(run.folder.params for _, run in runs)
    table = _table(rows, (*leading, *metrics), names)
    last = [name for name in ("parameters", "attempts", "error") if name in table]
    order = [name for name in table if name not in last] + last
    return table.loc[:, order]


def export(table: "pd.DataFrame", folder: Path) -> None:
    """Write a table to results.csv and results.json in a folder, each whole, by rename.

    Raises:
        StorageError: One could not be written; its old content is still there.
    """
    write_file(folder / paths.RESULTS_CSV, to_csv(table).encode("utf-8", "backslashreplace"))
    write_file(folder / paths.RESULTS_JSON, strict_json(to_rows(table)))


def to_csv(table: "pd.DataFrame", *, index: bool = False) -> str:
    """Write a table as CSV in which no text is taken for a formula by a spreadsheet.

    Text that begins with ``= + - @``, a tab, a return or NUL gets a ``'`` in front (OWASP ASVS 5, 1.2.10).
    """
    import pandas as pd

    plain = pd.DataFrame(
        {
            name: [_cell(value) for value in table[name]]
            if not pd.api.types.is_numeric_dtype(table[name])
            else table[name]
            for name in table
        },
        index=table.index,
    )
    return str(plain.to_csv(index=index, lineterminator="\n"))


def to_rows(table: "pd.DataFrame") -> list[dict[str, Any]]:
    """Turn a table into JSON objects; NaN and infinities become null, other objects their text."""
    return [
        {str(name): _json_value(value) for name, value in row.items()}
        for row in table.to_dict(orient="records")
    ]


def _load(path: Path) -> Iterator[tuple[str, list[RunResult]]]:
    if not path.exists():
        raise FileNotFoundError(
            f"no results at {str(path)!r}: give the folder that RunManager or run_grid wrote, as 'runs'"
        )
    path = path.resolve()  # the experiment of the run folder '.' is not '.'
    damaged: list[str] = []
    for experiment in _experiments(path):
        runs = read_experiment(experiment, damaged)
        chosen = [run for run in runs if path in (run.folder.path, experiment)] or runs
        yield experiment.name, chosen
    if damaged:
        more = f" and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
        warnings.warn(
            f"{len(damaged)} damaged under {path}, the rest is complete: {'; '.join(damaged[:_NAMED])}{more}",
            RunsWarning,
            stacklevel=3,
        )


def _experiments(path: Path) -> list[Path]:
    if (path / paths.RUN).is_file():
        return [path.parent]
    if is_experiment(path):
        return [path]
    return sorted(folder for folder in path.iterdir() if folder.is_dir() and is_experiment(folder))


def _status(folder: RunFolder, attempts: Sequence[Attempt], journal: Path | None) -> Status:
    if not attempts or journal is None:
        return Status.UNAVAILABLE if folder.unavailable else Status.PENDING
    last = attempts[-1]
    if last.outcome:
        return last.outcome.status
    alive = processes.lives(last.start)
    if alive is None:
        return _status_elsewhere(last.start, folder.path.parent, journal)
    return Status.RUNNING if alive else Status.INTERRUPTED


def _status_elsewhere(start: Mapping[str, Any], experiment: Path, journal: Path) -> Status:
    """Judge an attempt on another machine by who holds the experiment, else by its journal's age."""
    held = holder.holder(experiment)
    if held and held[0].get("host") == start.get("host"):
        return Status.RUNNING if holder.is_holding(*held) else Status.STALE
    with contextlib.suppress(OSError):
        if time.time() - journal.stat().st_mtime < holder.GONE_AFTER_S:
            return Status.RUNNING
    return Status.INTERRUPTED


def _standing(attempts: Sequence[Attempt]) -> Sequence[Attempt]:
    """Leave out attempts that ended before their first epoch: what was there before them stands."""
    if not attempts:
        return attempts
    *earlier, last = attempts
    begun = [attempt for attempt in earlier if attempt.epochs or _has_ended(attempt)]
    is_begun = last.epochs or _has_ended(last) or processes.lives(last.start) is not False
    return [*begun, last] if is_begun or not begun else begun


def _has_ended(attempt: Attempt) -> bool:
    return attempt.outcome is not None and attempt.outcome.status is not Status.INTERRUPTED


def _merged(attempts: Iterable[Attempt]) -> list[EpochRecord]:
    merged: dict[int, EpochRecord] = {}
    for attempt in attempts:
        # an attempt goes on after the epoch it names and supersedes what came later
        after = attempt.start.get("after")
        if isinstance(after, int) and attempt.epochs:
            merged = {epoch: record for epoch, record in merged.items() if epoch <= after}
        merged |= attempt.epochs
    return [record for _, record in sorted(merged.items())]


def _summary(records: Sequence[EpochRecord]) -> dict[str, float]:
    if not records:
        return {}
    summary = dict(records[-1].metrics)
    for name in records[-1].metrics:
        values = [r.metrics[name] for r in records if math.isfinite(r.metrics.get(name, math.nan))]
        if values and name.endswith("loss"):
            summary[f"best {name}"] = min(values)
        elif values and name.endswith("accuracy"):
            summary[f"best {name}"] = max(values)
        elif values and name == "epoch duration":
            summary[name] = statistics.median(values)
    return summary


def _names(params: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for mapping in params for name in mapping))


def _table(rows: Sequence[Mapping[str, Any]], leading: Sequence[str], params: Sequence[str]) -> "pd.DataFrame":
    import pandas as pd

    found = dict.fromkeys(name for row in rows for name in row)
    order = dict.fromkeys([*leading, *params, *found])
    single = len({row["experiment"] for row in rows}) <= 1
    names = [name for name in order if not (name == "experiment" and single)]
    table = pd.DataFrame({name: _column([row.get(name, pd.NA) for row in rows]) for name in names})
    table.attrs[HYPERPARAMETERS] = list(params)
    return table


def _column(values: list[Any]) -> "pd.Series":
    import pandas as pd

    kinds = {type(value) for value in values}
    missing = type(pd.NA)
    if kinds <= {float, missing}:
        return pd.Series([v if isinstance(v, float) else math.nan for v in values], dtype="float64")
    if len(kinds) == 1 and kinds <= {int, bool, str}:
        try:
            return pd.Series(values)
        except OverflowError:
            pass
    return pd.Series(values, dtype="object")


def _cell(value: Any) -> Any:
    import pandas as pd

    if value is None or value is pd.NA or isinstance(value, (bool, int, float)):
        return value
    shown = text(value)
    safe = f"'{shown}" if shown.startswith(_FORMULA) else shown
    return safe.replace("\r\n", "\n").replace("\r", "\n")  # csv quotes \n; \r only since Python 3.13


def _json_value(value: Any) -> Any:
    import pandas as pd

    if value is None or value is pd.NA:
        return None
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_json_value(item) for item in value]
    if isinstance(value, Mapping):
        return {text(key): _json_value(item) for key, item in value.items()}
    return text(value)
