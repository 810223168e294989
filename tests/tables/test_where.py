import ast
import json
import math
from pathlib import Path

import pandas as pd
import pytest

from runmanager.errors import InvalidArgumentError
from runmanager.tables.where import names_in, select

CASES = json.loads(Path(__file__).with_name("where_cases.json").read_text(encoding="utf-8"))
"""Comparisons that are tried here and on the page (test_where_page.py)."""


def value_of(written):
    """Return a value of a column; JSON has no NaN and no tuples."""
    if isinstance(written, dict):
        return math.nan if "number" in written else ast.literal_eval(written["text"])
    return written


RUNS = pd.DataFrame({name: list(map(value_of, column)) for name, column in CASES["columns"].items()})
RUNS["gain"] = pd.Series([1, 0.1, 10**400, pd.NA], dtype="object")
RUNS["clip"] = pd.Series([None, 1.0, "auto", pd.NA], dtype="object")  # as tables have missing values


@pytest.mark.parametrize(("where", "runs"), CASES["chosen"])
def test_rows_are_chosen_by_what_their_columns_hold(where, runs):
    assert select(RUNS, [where])["run"].tolist() == runs


def test_several_comparisons_must_all_hold():
    assert select(RUNS, ["lr<0.1", "status=failed"])["run"].tolist() == [2]
    assert select(RUNS.head(0), ["lr<0.1", "status=failed"]).empty


@pytest.mark.parametrize(
    ("where", "problem"),
    [*CASES["refused"], ("status=faild", "did you mean 'failed'"), ("gain=big", "holds numbers")],
)
def test_a_mistake_is_explained(where, problem):
    with pytest.raises(InvalidArgumentError, match=problem):
        select(RUNS, [where])


def test_names_are_split_at_commas_outside_of_quotes():
    assert names_in(" lr,epoch duration , 'a,b',\"-x\",") == ["lr", "epoch duration", "a,b", "-x"]
