"""The rows of a manager's own runs, as a table and as the tutorial's files."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.outcome import LEADING
from runmanager.storage import durable

if TYPE_CHECKING:
    import pandas as pd


def table_of(rows: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return rows as a table with the columns of all."""
    import pandas as pd

    from runmanager.results.tables import from_columns

    names = dict.fromkeys(name for row in rows for name in row) or ("run", "epoch", *LEADING)
    return from_columns({name: [row.get(name, pd.NA) for row in rows] for name in names}, ())


def save(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows to ``path.csv``, with the index as its first column, and ``path.json``, a list of objects.

    Raises:
        StorageError: A file could not be written; the one before is still there.
    """
    from runmanager.results.files import to_csv, to_rows

    table = table_of(rows)
    objects = json.dumps(to_rows(table), ensure_ascii=False, indent=4, allow_nan=False)
    durable.make_folder(path.absolute().parent)
    for suffix, content in (("csv", to_csv(table, index=True)), ("json", objects)):
        encoded = content.encode("utf-8", "backslashreplace")  # as strict_json does
        durable.write_file(path.with_name(f"{path.name}.{suffix}"), encoded)
