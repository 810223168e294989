"""A table that says in a sentence what it shows."""

import pandas as pd

from runmanager.core.wording import printable
from runmanager.tables.cells import join


class Finding(pd.DataFrame):
    """A table with a sentence on what it shows; its rows and columns keep the sentence."""

    _metadata = ["sentence"]  # noqa: RUF012 - pandas copies these attributes
    sentence: str = ""

    @property
    def _constructor(self) -> type["Finding"]:
        return Finding


def with_sentence(table: pd.DataFrame, *parts: str) -> Finding:
    """Add a sentence to a table, from the parts that are not empty; control characters are escaped."""
    finding = Finding(table)
    finding.attrs = dict(table.attrs)
    finding.sentence = printable(join(parts))
    return finding
