"""Failed runs, grouped by cause: the hyperparameters that the runs of a group share, and the next step."""

from collections.abc import Callable, Mapping, Sequence
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

_MOST_ALTERNATIVES = 2  # maximum number of texts that a cause lists for a part that varies
_MOST_VALUES = 3  # maximum number of values of a hyperparameter that failed runs may share

_Codes = Mapping[str, tuple[Numbers, list[Any]]]


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
    if "status" not in runs:
        return []
    statuses = runs["status"].astype(str).tolist()
    is_missing = [status == Status.UNAVAILABLE for status in statuses]
    errors = [error if isinstance(error, str) else "" for error in runs.get("error", [""] * len(runs))]
    groups: dict[tuple[str, str], list[int]] = {}
    for row, status in enumerate(statuses):
        if status in LOST or is_missing[row]:
            groups.setdefault((status, VARIABLE.sub("\0", errors[row])), []).append(row)
    repeats, _ = repeats_of(runs, repeats)
    codes = {name: numbered(runs[name]) for name in axes_of(runs) if name not in repeats}
    failed: list[Failure] = []
    for (status, _), rows in groups.items():
        telling = {"device": codes["device"]} if is_missing[rows[0]] and "device" in codes else codes
        in_words = _which(rows, len(runs), telling, lambda row: _name(runs, row, what), what)
        failed.append(Failure(status, printable(_common([errors[row] for row in rows])), rows, in_words))
    return sorted(failed, key=lambda failure: (failure.status == Status.UNAVAILABLE, -len(failure.rows)))


def failed_settings(ended: Sequence[tuple[Run, Outcome]], repeats: Sequence[str]) -> list[str]:
    """Return sentences about settings that failed a check, in the form of those about failed runs of a grid."""
    # a loss that is not finite does not fail the check
    fine = (Status.DIVERGED, Status.UNAVAILABLE)
    if len(ended) == 1:
        ((_, outcome),) = ended
        has_failed = outcome.status.is_lost and outcome.status not in fine
        return [f"the only setting: {outcome.error}"] if has_failed else []
    params = [
        {column(name): value for name, value in run._asdict().items() if name not in repeats}
        for run, _ in ended
    ]
    table = pd.DataFrame(params, dtype=object)
    table.attrs[HYPERPARAMETERS] = list(table.columns)
    statuses = [outcome.status for _, outcome in ended]
    table["status"] = [str(Status.COMPLETED if status in fine else status) for status in statuses]
    table["error"] = [outcome.error for _, outcome in ended]
    return [f"{failure.runs}: {failure.cause}" for failure in failures(table, "setting")]


def _common(errors: Sequence[str]) -> str:
    """Merge errors that differ only in numbers or quoted text into one message.

    >>> _common(["KeyError: 'a' in step 7", "KeyError: 'a' in step 9"])
    "KeyError: 'a' in step 7 or 9"
    """
    variants = [dict.fromkeys(values) for values in zip(*map(VARIABLE.findall, errors), strict=True)]
    texts = iter(" or ".join(each) if len(each) <= _MOST_ALTERNATIVES else "…" for each in variants)
    return VARIABLE.sub(lambda _: next(texts), errors[0])


def _which(rows: Sequence[int], num_runs: int, codes: _Codes, name: Callable[[int], str], what: str) -> str:
    """Describe a group of runs by the hyperparameters that they share and that other runs lack."""
    if len(rows) == 1:
        return name(rows[0])
    common: dict[str, set[int]] = {}
    for axis, (numbers, _) in codes.items():
        values, all_values = set(numbers[rows].tolist()), set(numbers.tolist())
        is_telling = len(values) == 1 or (len(values) <= _MOST_VALUES and 2 * len(values) <= len(rows))
        if is_telling and len(values) < len(all_values):
            common[axis] = values

    def number(common: Mapping[str, set[int]]) -> int:
        shared = np.ones(num_runs, bool)
        for axis, values in common.items():
            shared &= np.isin(codes[axis][0], list(values))
        return int(shared.sum())

    for axis in reversed(list(common)):
        fewer = {other: values for other, values in common.items() if other != axis}
        if number(fewer) == number(common):  # the description needs no values of this axis
            common = fewer
    total = number(common)
    shared = " and ".join(_values(axis, [codes[axis][1][v] for v in sorted(v)]) for axis, v in common.items())
    whose = f"{what}s with {shared}" if shared else f"{what}s"
    return all_of(total, whose) if len(rows) == total else f"{len(rows)} of the {total} {whose}"


def _values(axis: str, values: Sequence[Any]) -> str:
    return " or ".join([label({axis: values[0]}), *map(brief, values[1:])])


def _name(runs: pd.DataFrame, row: int, what: str) -> str:
    names = [name for name in axes_of(runs) if len(numbered(runs[name])[1]) > 1]
    (run,) = names_of_runs(runs.iloc[[row]])
    number = f"one {what}" if run is None else f"run {run}"
    values = label({name: runs[name].iloc[row] for name in names})
    return f"{number} ({values})" if values else number
