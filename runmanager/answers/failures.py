"""Failed runs, grouped by cause: the hyperparameters that the runs of a group share, and the next step."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from runmanager.answers.ranking import LOST, axes_of, names_of_runs, numbered, repeats_of
from runmanager.answers.sentences import VARIABLE
from runmanager.core.outcome import Outcome, Status, advice
from runmanager.core.run import Run
from runmanager.core.values import column
from runmanager.core.wording import printable
from runmanager.tables.cells import all_of, brief, label
from runmanager.tables.columns import HYPERPARAMETERS, Numbers

_WITHOUT_RESULT = LOST | {str(Status.UNAVAILABLE)}
_MOST_ALTERNATIVES = 2  # maximum number of texts that a cause lists for a part that varies
_MOST_VALUES = 3  # maximum number of values of a hyperparameter that failed runs may share


class Failure(NamedTuple):
    """Runs without a result that have the same cause."""

    status: str
    cause: str  # the error message; parts that vary between the runs are shortened to …
    rows: Sequence[int]  # the positions of the runs in the table
    runs: str  # a description of the runs

    def next_step(self, show: str, same: str = "the same command") -> str:
        """Say how to proceed; the command `show` shows the first run, `same` executes the grid again."""
        return advice(self.status, show, same=same, them="them" if len(self.rows) > 1 else "it")


def failures(runs: pd.DataFrame, what: str = "run", *, repeats: Sequence[str] | None = None) -> list[Failure]:
    """Group the runs that failed or lack their device, by the cause."""
    groups: dict[tuple[str, str], dict[int, str]] = {}
    empty = [""] * len(runs)
    for row, (status, text) in enumerate(zip(runs.get("status", empty), runs.get("error", empty), strict=True)):
        if status in _WITHOUT_RESULT:
            error = text if isinstance(text, str) else ""
            groups.setdefault((str(status), VARIABLE.sub("\0", error)), {})[row] = error
    codes = {name: numbered(runs[name]) for name in axes_of(runs, repeats_of(runs, repeats)[0])}
    failed = []
    for (status, _), errors in groups.items():
        causes = {"device": codes["device"]} if status == Status.UNAVAILABLE and "device" in codes else codes
        rows = list(errors)
        which = _name(runs, rows[0], what) if len(rows) == 1 else _which(rows, len(runs), causes, what)
        failed.append(Failure(status, printable(_common([*errors.values()])), rows, which))
    return sorted(failed, key=lambda failure: (failure.status == Status.UNAVAILABLE, -len(failure.rows)))


def failed_settings(ended: Sequence[tuple[Run, Outcome]], repeats: Sequence[str]) -> list[str]:
    """Return sentences about settings that failed a check, in the form of those about failed runs of a grid."""
    fine = (Status.DIVERGED, Status.UNAVAILABLE)  # a loss that is not finite does not fail the check
    table = pd.DataFrame(
        [{column(name): value for name, value in run._asdict().items()} for run, _ in ended], dtype=object
    )
    table.attrs[HYPERPARAMETERS] = [*table]
    outcomes = [outcome for _, outcome in ended]
    table["status"] = [Status.COMPLETED if outcome.status in fine else outcome.status for outcome in outcomes]
    table["error"] = [outcome.error for outcome in outcomes]
    return [f"{failure.runs}: {failure.cause}" for failure in failures(table, "setting", repeats=repeats)]


def _common(errors: Sequence[str]) -> str:
    """Merge errors that differ only in numbers or quoted text into one message."""
    variants = map(dict.fromkeys, zip(*map(VARIABLE.findall, errors), strict=True))
    texts = (" or ".join(each) if len(each) <= _MOST_ALTERNATIVES else "…" for each in variants)
    return VARIABLE.sub(lambda _: next(texts), errors[0])


def _which(
    rows: Sequence[int], num_runs: int, codes: Mapping[str, tuple[Numbers, list[Any]]], what: str
) -> str:
    """Describe a group of runs by the hyperparameters that they share and that other runs lack."""
    has = pd.DataFrame(index=range(num_runs))
    names: dict[str, str] = {}
    for axis, (numbers, values) in codes.items():
        shared = sorted({*numbers[rows].tolist()})
        if len(shared) < len(values) and len(shared) <= min(_MOST_VALUES, max(len(rows) // 2, 1)):
            has[axis] = np.isin(numbers, shared)
            first, *others = (values[code] for code in shared)
            names[axis] = " or ".join([label({axis: first}), *map(brief, others)])
    total = has.all(axis=1).sum()
    for axis in reversed([*names]):
        if has.drop(columns=axis).all(axis=1).sum() == total:
            del has[axis], names[axis]  # the description needs no values of this axis
    whose = f"{what}s with {' and '.join(names.values())}" if names else f"{what}s"
    return all_of(total, whose) if len(rows) == total else f"{len(rows)} of the {total} {whose}"


def _name(runs: pd.DataFrame, row: int, what: str) -> str:
    names = [name for name in axes_of(runs) if len(numbered(runs[name])[1]) > 1]
    (run,) = names_of_runs(runs.iloc[[row]])
    name = f"run {run}" if run is not None else f"the only {what}" if len(runs) == 1 else f"one {what}"
    return f"{name} ({label({name: runs[name].iloc[row] for name in names})})" if names else name
