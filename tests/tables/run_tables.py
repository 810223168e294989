"""Runs, and tables of runs, as an experiment would leave them behind."""

import math

import pandas as pd
from hypothesis import strategies as st

from runmanager.core.experiment import Experiment
from runmanager.core.journal import Journal
from runmanager.core.outcome import EpochRecord, Outcome, Status
from runmanager.tables.columns import HYPERPARAMETERS

DONE = Outcome(Status.COMPLETED)

METRIC = st.floats(-1e6, 1e6, allow_subnormal=False) | st.just(math.nan) | st.just(math.inf)


def table_of(*rows):
    """Make a table as `load_runs` does: hyperparameters, then the column `epoch duration`."""
    table = pd.DataFrame([row | {"epoch duration": seconds} for row, seconds in rows])
    table.attrs[HYPERPARAMETERS] = list(rows[0][0])
    return table


def record(epoch, loss=0.5, **more):
    metrics = {"loss": loss, "accuracy": 0.25 * epoch, "epoch duration": 2.0 * epoch, "run duration": 9.0}
    return EpochRecord(epoch, {**metrics, **more})


def write_run(experiment, params, records=(), outcome=DONE, attempt=1, facts=None, **details):
    """Write an attempt at a run; without an outcome, its journal has no end."""
    folder = Experiment(experiment).open(params)
    journal = Journal(folder.path, attempt, {"after": 0, "parameters": 12, **details})
    for each in records:
        journal.epoch(each)
    if outcome:
        journal.end(outcome, **(facts or {}))
    journal.close()
    return folder.path
