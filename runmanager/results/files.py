"""Tables as files that other tools read, and that come back with every type."""

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.errors import GridError
from runmanager.hyperparameters import RESERVED, decode, encode, plain
from runmanager.outcome import LEADING
from runmanager.results.tables import FORMULA, HYPERPARAMETERS, check_table, from_columns
from runmanager.storage import durable
from runmanager.storage.durable import strict_json

if TYPE_CHECKING:
    import pandas as pd

_WORDS = {"True": True, "False": False, "null": None}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,4000})(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?|nan|-?inf")
_ENCODED = "encoded"


def export(table: "pd.DataFrame", path: str | os.PathLike[str]) -> None:
    """Write a table to a file from which `load_table` gives it back, types and hyperparameters included.

    The file appears by rename, complete. Values come back as hyperparameters do: what is none of None, bool,
    int, float, str, tuple, list, dict, torch.device and torch.dtype, as its text. A column of some rows
    gets the type of the values that are left. The index is not written.

    Args:
        table: What `load_runs` or `load_results` gave, or rows of it.
        path: Ends in ``.csv``, ``.json`` or ``.parquet`` (which needs ``runmanager[parquet]``).
            CSV: one cell per value, tuples and the like as JSON; a ``'`` in front of text that a spreadsheet
            would execute (it begins with ``= + - @``), or that looks like a number; a column
            ``hyperparameters`` that names them.
            JSON: an object with ``hyperparameters``, ``columns`` and ``rows``, which lack what is missing.
            Parquet: columns of mixed types as JSON.

    Raises:
        GridError: This is no table, the name ends otherwise, or pyarrow is not there.
        StorageError: The file could not be written; the one before is still there.
    """
    check_table(table)
    write, _ = _format(path)
    durable.make_folder(Path(path).absolute().parent)
    durable.write_file(Path(path), write(table))


def load_table(path: str | os.PathLike[str], hyperparameters: Sequence[str] | None = None) -> "pd.DataFrame":
    """Load a table that `export` wrote, or results.csv or results.json of the tutorial or of a grid.

    Args:
        path: The file; its name ends in ``.csv``, ``.json`` or ``.parquet``.
        hyperparameters: Which columns they are, where the file does not say: by default those after
            `run duration` that are no other column of ours and whose names do not end in loss or accuracy.

    Returns:
        The table as it was exported; what `load_results` would give, of the tutorial's file.

    Raises:
        GridError: The name ends otherwise, the file holds no table, a hyperparameter is no column of it, or
            pyarrow is not there.
        OSError: The file cannot be read.
    """
    _, read = _format(path)
    content = Path(path).read_bytes()
    try:
        columns, known = read(content)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        problem = f"{os.fspath(path)!r} holds no table that export() or the tutorial wrote: {error}"
        raise GridError([problem]) from error
    if hyperparameters is None:
        hyperparameters = _after_durations(list(columns)) if known is None else known
    names = list(hyperparameters)
    if missing := [name for name in names if name not in columns]:
        have = ", ".join(columns) or "none"
        raise GridError([f"{name!r} is no column of {os.fspath(path)!r}; it has: {have}" for name in missing])
    for name in LEADING:
        if name in columns and all(isinstance(value, int) for value in columns[name]):
            columns[name] = [float(value) for value in columns[name]]  # a person's file may have 1 for 1.0
    return from_columns(columns, names)


Columns = dict[str, list[Any]]
Writer = Callable[["pd.DataFrame"], bytes]
Reader = Callable[[bytes], tuple[Columns, list[str] | None]]


def _format(path: str | os.PathLike[str]) -> tuple[Writer, Reader]:
    suffix = Path(path).suffix.lower()
    if suffix not in _FORMATS:
        raise GridError([f"a table is a file that ends in {', '.join(_FORMATS)}; got {os.fspath(path)!r}"])
    return _FORMATS[suffix]


def _values(column: "pd.Series[Any]") -> list[Any]:
    """Return the values of a column as plain Python; NaN in a column of numbers is missing."""
    import pandas as pd

    if column.dtype == object:
        return [plain(value) for value in column]
    return column.astype("object").where(column.notna(), pd.NA).tolist()


def _params(table: "pd.DataFrame") -> list[str]:
    return [name for name in table.attrs.get(HYPERPARAMETERS, ()) if name in table]


def _after_durations(names: list[str]) -> list[str]:
    after = names[names.index("run duration") + 1 :] if "run duration" in names else []
    own = {*RESERVED, "peak memory"}
    return [name for name in after if name not in own and not name.endswith(("loss", "accuracy"))]


def _to_csv(table: "pd.DataFrame") -> bytes:
    columns = {str(name): [_cell(value) for value in _values(table[name])] for name in table}
    if "error" in columns:
        columns["error"] = ["" if cell == "'" else cell for cell in columns["error"]]  # never missing
    columns[HYPERPARAMETERS] = [_text_cell(" ".join(_params(table)))] * len(table)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([_text_cell(name) for name in columns])
    writer.writerows(zip(*columns.values(), strict=True))
    return file.getvalue().encode()


def _from_csv(content: bytes) -> tuple[Columns, list[str] | None]:
    import pandas as pd

    cells = pd.read_csv(
        io.BytesIO(content), header=None, dtype="object", keep_default_na=False, skip_blank_lines=False,
        encoding="utf-8-sig",
    )  # fmt: skip
    names = [str(_value(name)) if name.startswith(("'", '"')) else name for name in cells.iloc[0]]
    columns = {name: [_value(cell) for cell in cells[place].iloc[1:]] for place, name in enumerate(names)}
    if names[0] in ("", "Unnamed: 0"):  # the tutorial's index
        del columns[names[0]]
    named = [value for value in columns.pop(HYPERPARAMETERS, []) if isinstance(value, str)]
    if "error" in columns:
        columns["error"] = ["" if value is pd.NA else value for value in columns["error"]]
    return columns, named[0].split() if named else None


def _to_json(table: "pd.DataFrame") -> bytes:
    import pandas as pd

    columns = {str(name): _values(table[name]) for name in table}
    rows = [
        {name: encode(value) for name, value in zip(columns, row, strict=True) if value is not pd.NA}
        for row in zip(*columns.values(), strict=True)
    ]
    return strict_json({HYPERPARAMETERS: _params(table), "columns": list(columns), "rows": rows})


def _from_json(content: bytes) -> tuple[Columns, list[str] | None]:
    import pandas as pd

    document = json.loads(content)
    if isinstance(document, list):  # the tutorial's: null is what is missing
        names = list(dict.fromkeys(name for row in document for name in row))
        rows = [{name: value for name, value in row.items() if value is not None} for row in document]
        return {name: [row.get(name, pd.NA) for row in rows] for name in names}, None
    rows = [{name: decode(value) for name, value in row.items()} for row in document["rows"]]
    columns = {name: [row.get(name, pd.NA) for row in rows] for name in document["columns"]}
    return columns, document[HYPERPARAMETERS]


def _to_parquet(table: "pd.DataFrame") -> bytes:
    import pandas as pd

    columns: dict[str, Any] = {}
    encoded = []
    for name in map(str, table):
        if table[name].dtype.kind in "biuf":
            columns[name] = table[name].to_numpy()
            continue
        values = _values(table[name])
        columns[name] = [None if v is pd.NA else json.dumps(encode(v), allow_nan=False) for v in values]
        encoded.append(name)
    plain_table = pd.DataFrame(columns)
    plain_table.attrs = {HYPERPARAMETERS: _params(table), _ENCODED: encoded}  # pandas keeps them in the file
    file = io.BytesIO()
    with _explained():
        plain_table.to_parquet(file, engine="pyarrow", index=False)
    return file.getvalue()


def _from_parquet(content: bytes) -> tuple[Columns, list[str] | None]:
    import pandas as pd

    with _explained():
        table = pd.read_parquet(io.BytesIO(content), engine="pyarrow")
    encoded = table.attrs.get(_ENCODED, ())
    columns = {str(name): _values(table[name]) for name in table}
    for name in encoded:
        columns[name] = [v if v is pd.NA else decode(json.loads(v)) for v in columns[name]]
    return columns, table.attrs.get(HYPERPARAMETERS)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise GridError(["a Parquet file needs pyarrow: pip install 'runmanager[parquet]'"]) from error


def _cell(value: Any) -> str:
    import pandas as pd

    if value is pd.NA:
        return ""
    encoded = encode(value)
    if isinstance(encoded, str):
        return _text_cell(encoded)
    if isinstance(value, float):
        return repr(float(value))
    return str(encoded) if isinstance(encoded, (bool, int)) else json.dumps(encoded, allow_nan=False)


def _text_cell(text: str) -> str:
    if any(c in "\r\0" or "\ud800" <= c <= "\udfff" for c in text):
        return json.dumps(text)
    return text if not text.startswith((*FORMULA, "'")) and _value(text) is text else f"'{text}"


def _value(cell: str) -> Any:
    """Return what a cell holds; what is no number, word or JSON is text."""
    import pandas as pd

    if not cell:
        return pd.NA
    if cell[0] == "'":
        return cell[1:]
    if cell in _WORDS:
        return _WORDS[cell]
    if _NUMBER.fullmatch(cell):
        return int(cell) if cell.lstrip("-").isdigit() else float(cell)
    if cell[0] in '"[{':
        try:
            return decode(json.loads(cell))
        except (ValueError, RecursionError):
            pass
    return cell


_FORMATS: dict[str, tuple[Writer, Reader]] = {
    ".csv": (_to_csv, _from_csv),
    ".json": (_to_json, _from_json),
    ".parquet": (_to_parquet, _from_parquet),
}
