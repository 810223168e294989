"""Tables as `load_runs` returns them, made by hand."""

import math

import pandas as pd
from hypothesis import strategies as st

from runmanager.results.tables import HYPERPARAMETERS

METRIC = st.floats(-1e6, 1e6, allow_subnormal=False) | st.just(math.nan) | st.just(math.inf)


def table_of(*rows):
    """Make a table as `load_runs` does: hyperparameters, then the column `epoch duration`."""
    table = pd.DataFrame([row | {"epoch duration": seconds} for row, seconds in rows])
    table.attrs[HYPERPARAMETERS] = list(rows[0][0])
    return table
