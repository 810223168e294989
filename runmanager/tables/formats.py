"""Write tables to files that other tools read, and load them."""

import io
import json
import math
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Required, TypedDict

import msgspec
import pandas as pd

from runmanager.core import files
from runmanager.core.experiment import SEEDS, Rule
from runmanager.core.files import strict_json
from runmanager.core.goal import parse_goal
from runmanager.core.journal import DAMAGED
from runmanager.core.outcome import Status
from runmanager.core.values import decode, encode, plain, text
from runmanager.errors import InvalidArgumentError, MissingExtraError
from runmanager.tables.columns import (
    GOALS,
    HYPERPARAMETERS,
    REPEATS,
    RULES,
    category,
    check_table,
    from_columns,
    hyperparameters_of,
    without_numbers,
)
from runmanager.tables.results_files import FORMULA, json_value, readable
from runmanager.tables.where import check_columns

_WORDS = {"True": True, "False": False, "null": None}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,4000})(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?|nan|NaN|-?inf")
_STATUSES = {str(status): str(status) for status in Status} | {
    "finished": "completed", "complete": "completed", "success": "completed", "succeeded": "completed",
    "terminated": "completed", "done": "completed", "crashed": "failed", "fail": "failed", "error": "failed",
    "scheduled": "pending", "waiting": "pending", "preempted": "interrupted", "preempting": "interrupted",
}  # fmt: skip
"""The words of other tools for statuses, in lower case -> status."""


Content = tuple[dict[str, list[Any]], dict[str, Any] | None]
"""The columns of a file, and what it says of hyperparameters, goals, repeat axes and rules."""


class _Described(TypedDict, total=False):
    """What a file of `export` says of its table."""

    hyperparameters: Required[list[str]]
    goals: dict[str, list[str]]
    repeats: dict[str, list[str]]
    rules: dict[str, Rule]


msgspec.json.Decoder(_Described)  # threads may meet it, see the journal's facts


def export(table: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write a table to a file; `load_table` restores its types, hyperparameters, goal, repeat axes and rule.

    The file appears by rename, complete. Values of the types None, bool, int, float, str, tuple, list, dict,
    torch.device and torch.dtype round-trip; other values become text. If only some rows are exported, a column
    gets the type of the values in these rows. The index is not written.

    Args:
        table: The table of `load_runs` or `load_results`, or rows of it.
        path: The file; its name ends in ``.csv``, ``.json`` or ``.parquet`` (which needs
            ``torch-runmanager[parquet]``).
            CSV: one cell per value; tuples, lists and dicts are JSON. A text gets a ``'`` in front if a
            spreadsheet would execute it (it begins with ``= + - @``), or if it looks like a number. The column
            ``hyperparameters`` has the hyperparameters, the goal, the repeat axes and the rule of ``decide=``
            as JSON. JSON: an object with ``hyperparameters``, ``goals``, ``repeats``, ``rules``, ``columns``
            and ``rows``; a row omits its missing values. Parquet: the cells of the CSV, but numbers and truth
            values as such.

    Raises:
        InvalidArgumentError: `table` is not a DataFrame, or `path` has another suffix.
        MissingExtraError: The suffix is ``.parquet``, and pyarrow is not installed.
        StorageError: The file could not be written; an earlier file at `path` is kept.

    Example:
        >>> from runmanager import load_runs
        >>> export(load_runs("runs/circle"), "runs.csv")
        >>> load_table("runs.csv")["lr"].tolist()
        [0.1, 0.1, 0.01, 0.01]
    """
    check_table(table)
    suffix = _suffix(path)
    if suffix == ".json":
        content = _to_json(table)
    elif suffix == ".csv":
        content = _cells(table).to_csv(index=False, lineterminator="\n").encode()
    else:
        content = _cells(table).to_parquet(engine="pyarrow", index=False)
    files.make_folder(Path(path).parent)
    files.write_file(Path(path), content)


def load_table(
    table: str | os.PathLike[str] | pd.DataFrame,
    hyperparameters: Sequence[str] | None = None,
    *,
    repeats: str | Sequence[str] | None = None,
    goal: str | Sequence[str] | None = None,
) -> pd.DataFrame:
    """Load a table of runs: a file of `export`, a CSV file of the tutorial or another tool, or any DataFrame.

    Args:
        table: A file whose name ends in ``.csv``, ``.json`` or ``.parquet``; or a DataFrame, a row per run.
        hyperparameters: The columns that are hyperparameters; needed for tables that do not name their
            hyperparameters. By default, `load_table` uses the names in a file of `export`.
        repeats: The hyperparameters that only repeat a setting, as in `best`; their columns need not be among
            `hyperparameters`. By default, these are columns named seed, fold, split, trial or repeat.
        goal: The goal, or several goals, as in `best`.

    Returns:
        The table as it was exported; for the tutorial's file, a table in the format of `load_results`. For a
        DataFrame, a copy with the same columns; named levels of its index become columns. In the column
        `status`, the words of other tools, such as FINISHED, become the words of runmanager.

    Raises:
        InvalidArgumentError: `table` has another suffix, the file holds no table, `hyperparameters` or
            `repeats` names no column, the goal is not valid, or a status is not known.
        MissingExtraError: The suffix is ``.parquet``, and pyarrow is not installed.
        OSError: The file cannot be read.

    Example:
        >>> results = load_table("runs/circle/results.csv", hyperparameters=["lr", "width", "device"])
        >>> results["accuracy"].tail(1).tolist()
        [0.9632]
        >>> frame = pd.DataFrame({"lr": [0.1, 0.1, 0.01, 0.01], "seed": [0, 1, 0, 1]})
        >>> frame["f1"] = [0.7, 0.8, 0.6, 0.5]
        >>> from runmanager import best
        >>> runs = load_table(frame, hyperparameters=["lr"], repeats="seed", goal="max:f1")
        >>> best(runs)["lr"].tolist()
        [0.1, 0.01]
    """
    loaded = _of_another_tool(table) if isinstance(table, pd.DataFrame) else _loaded(table)
    noted = loaded.attrs.get(HYPERPARAMETERS, [])
    axes = [repeats] if isinstance(repeats, str) else list(repeats or ())
    names = [*(noted if hyperparameters is None else hyperparameters), *axes]
    check_columns(names, loaded)
    if repeats is None and hyperparameters is not None and loaded[names].astype(str).duplicated().any():
        names += [name for name in SEEDS if name in loaded]
    for name in names:
        if name not in noted:
            # texts are read as the cells of a CSV file, as MLflow exports numbers as text
            values = [
                _read_cell(value) if isinstance(value, str) and value else value
                for value in _values(loaded[name])
            ]
            loaded[name] = from_columns({name: values}, ())[name]
    if names:
        loaded.attrs[HYPERPARAMETERS] = list(dict.fromkeys(names))
    goals = [parse_goal(each) for each in ([goal] if isinstance(goal, str) else goal or ())]
    if problems := without_numbers(loaded, [each.metric for each in goals]):
        raise InvalidArgumentError(problems)
    experiments = loaded["experiment"].astype(str).unique() if "experiment" in loaded else [""]
    for key, argument, content in ((GOALS, goal, [*map(str, goals)]), (REPEATS, repeats, axes)):
        if argument is not None:
            loaded.attrs[key] = dict.fromkeys(experiments, content)
    return loaded


def _of_another_tool(table: pd.DataFrame) -> pd.DataFrame:
    """Copy a table; named levels of its index become columns, and its words for statuses ours."""
    levels = [name for name in table.index.names if name is not None and name not in table]
    copy = table.reset_index(levels).reset_index(drop=True)
    copy.columns = copy.columns.map(str)
    for name in ("status", "state", "State", "Status"):
        words = [_STATUSES.get(text(value).lower(), "") for value in copy.get(name, ())]
        if words and all(words):
            return copy.rename(columns={name: "status"}).assign(status=category(words))
        if words and name == "status":
            raise InvalidArgumentError(
                f"the column 'status' has {copy[name][words.index('')]!r}, which is no status of a run: "
                "write 'completed' or 'failed', or rename the column"
            )
    return copy


def _loaded(path: str | os.PathLike[str]) -> pd.DataFrame:
    suffix, content = _suffix(path), Path(path).read_bytes()
    try:
        columns, described = (
            _from_json(content) if suffix == ".json" else _from_cells(_cells_of(content, suffix))
        )
        if described is not None:
            msgspec.convert(described, _Described)
    except DAMAGED as error:
        raise InvalidArgumentError(
            f"{os.fspath(path)!r} holds no table that export() or the tutorial wrote: {error}"
        ) from error
    if described is not None:
        table = from_columns(columns, ())
        table.attrs |= described
        return table
    for name, values in columns.items():
        kinds = {type(value) for value in values}
        if kinds != {int} and kinds <= {int, float, type(pd.NA)}:
            columns[name] = [math.nan if value is pd.NA else float(value) for value in values]
    table = from_columns(columns, ())
    del table.attrs[HYPERPARAMETERS]  # an answer then says how to name them
    return _of_another_tool(table)


def to_csv(table: pd.DataFrame, *, index: bool = False) -> str:
    """Write a table as CSV for people, with values as `values.text` writes them."""
    cells = table.astype("object").where(table.notna(), None)
    columns = {readable(name): [*map(readable, cells[name])] for name in cells}
    return pd.DataFrame(columns, table.index, dtype="object").to_csv(index=index, lineterminator="\n")


def to_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Convert the rows of a table to JSON objects; NaN and infinities become null, other objects text."""
    return [
        {str(name): None if value is pd.NA else json_value(value) for name, value in row.items()}
        for row in table.to_dict(orient="records")
    ]


def _suffix(path: str | os.PathLike[str]) -> str:
    suffix, suffixes = Path(path).suffix.lower(), (".csv", ".json", ".parquet")
    if suffix not in suffixes:
        raise InvalidArgumentError(f"a table's file name must end in {', '.join(suffixes)}; got {str(path)!r}")
    if suffix == ".parquet" and not find_spec("pyarrow"):
        raise MissingExtraError("a Parquet file needs pyarrow: pip install 'torch-runmanager[parquet]'")
    return suffix


def _cells_of(content: bytes, suffix: str) -> dict[str, list[Any]]:
    if suffix == ".csv":
        cells = pd.read_csv(
            io.BytesIO(content), header=None, dtype="object", keep_default_na=False, skip_blank_lines=False,
            encoding="utf-8-sig",
        )  # fmt: skip
        return {column[0]: column[1:] for column in cells.T.to_numpy().tolist()}
    table = pd.read_parquet(io.BytesIO(content), engine="pyarrow")
    return {str(name): _values(table[name]) for name in table}


def _described(table: pd.DataFrame) -> dict[str, Any]:
    """Return what is written to a file beside the rows."""
    decisive = {key: table.attrs[key] for key in (GOALS, REPEATS, RULES) if table.attrs.get(key)}
    return {HYPERPARAMETERS: hyperparameters_of(table), **decisive}


def _values(column: "pd.Series[Any]") -> list[Any]:
    """Return the values of a column as plain Python; NaN in a column of numbers becomes `pandas.NA`."""
    if column.dtype == object:
        return [plain(value) for value in column]
    return column.astype("object").where(column.notna(), pd.NA).tolist()


def _cells(table: pd.DataFrame) -> pd.DataFrame:
    """Write each value as a number or a text, from which `_from_cells` restores it."""
    cells: dict[str, Any] = {}
    for name in table:
        column: Any = table[name].to_numpy()
        if table[name].dtype.kind not in "biuf":
            column = [_exact_cell(value) for value in _values(table[name])]
        if name == "error":
            column = ["" if cell == "'" else cell for cell in column]  # an error is never NA
        cells[_exact_text(str(name))] = column
    return pd.DataFrame({**cells, HYPERPARAMETERS: [json.dumps(_described(table))] * len(table)})


def _from_cells(cells: dict[str, list[Any]]) -> Content:
    described = next(iter(cells.pop(HYPERPARAMETERS, ())), "")
    cells.pop("", None)  # the index in the tutorial's file
    columns: dict[str, list[Any]] = {}
    for cell, values in cells.items():
        name = str(_read_cell(cell)) if cell.startswith(("'", '"')) else cell
        columns[name] = [_read_cell(value) if isinstance(value, str) else value for value in values]
    if "error" in columns:
        columns["error"] = ["" if value is pd.NA else value for value in columns["error"]]
    return columns, json.loads(described) if described else None


def _exact_cell(value: Any) -> str:
    if value is pd.NA:
        return ""
    encoded = encode(value)
    if isinstance(encoded, str):
        return _exact_text(encoded)
    if isinstance(value, float):
        return repr(float(value))
    return str(encoded) if isinstance(encoded, bool) else json.dumps(encoded)


def _exact_text(text: str) -> str:
    if any(c in "\r\0" or "\ud800" <= c <= "\udfff" for c in text):
        return json.dumps(text)
    return text if not text.startswith((*FORMULA, "'")) and _read_cell(text) is text else f"'{text}"


def _read_cell(cell: str) -> Any:
    """Return the value of a cell: a number, True, False, null or JSON; any other cell is text."""
    if not cell:
        return pd.NA
    if cell[0] == "'":
        return cell[1:]
    if cell in _WORDS:
        return _WORDS[cell]
    if _NUMBER.fullmatch(cell):
        return int(cell) if cell.lstrip("-").isdigit() else float(cell)
    if cell[0] in '"[{':
        with suppress(ValueError, RecursionError):
            return decode(json.loads(cell))
    return cell


def _to_json(table: pd.DataFrame) -> bytes:
    columns = {str(name): _values(table[name]) for name in table}
    rows = [
        {name: encode(value) for name, value in zip(columns, row, strict=True) if value is not pd.NA}
        for row in zip(*columns.values(), strict=True)
    ]
    return strict_json({**_described(table), "columns": list(columns), "rows": rows})


def _from_json(content: bytes) -> Content:
    document = json.loads(content)
    if isinstance(document, list):  # results.json
        raise TypeError("rows alone are load_table(pandas.read_json(path), hyperparameters=['lr'])")
    rows = [{name: decode(value) for name, value in row.items()} for row in document.pop("rows")]
    return {name: [row.get(name, pd.NA) for row in rows] for name in document.pop("columns")}, document
