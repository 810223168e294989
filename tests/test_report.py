import itertools
import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runmanager import RunManager, load_runs
from runmanager.errors import GridError
from runmanager.report import compare
from runmanager.storage.tables import HYPERPARAMETERS

GRID = list(itertools.product([0.1, 0.01], [64, 128], ["cpu", "cuda", "cuda:1"]))
SECONDS = st.floats(0.001, 1000) | st.just(math.nan)


def table_of(*rows):
    """Make a table as `load_runs` does: hyperparameters, then the column `epoch duration`."""
    table = pd.DataFrame([row | {"epoch duration": seconds} for row, seconds in rows])
    table.attrs[HYPERPARAMETERS] = list(rows[0][0])
    return table


def rows_of(table):
    return table.to_dict(orient="records")


@given(st.dictionaries(st.sampled_from(GRID), SECONDS, min_size=1))
def test_comparing_agrees_with_pandas(seconds):
    names = ("lr", "batch_size", "device")
    runs = table_of(*((dict(zip(names, key, strict=True)), value) for key, value in seconds.items()))

    pairs = compare(runs, "device", "epoch duration")

    first, *others = runs["device"].unique()
    reference = runs.pivot_table("epoch duration", ["lr", "batch_size"], "device", dropna=False)
    reference = reference.reindex(columns=[first, *others]).dropna()
    for other in others:
        reference[f"{other} / {first}"] = reference[other] / reference[first]
    found = pairs[list(reference)].itertuples(index=False, name=None)
    assert sorted(found) == sorted(reference.itertuples(index=False, name=None))


def test_runs_that_differ_in_the_axis_only_become_one_row():
    runs = table_of(
        ({"lr": 0.1, "amp": True, "device": "cuda"}, 1.0),
        ({"lr": 0.1, "amp": True, "device": "cpu"}, 2.0),
        ({"lr": 0.01, "amp": True, "device": "cuda"}, 1.5),
        ({"lr": 0.01, "amp": True, "device": "cpu"}, 6.0),
    )

    pairs = compare(runs)

    assert rows_of(pairs) == [  # amp does not vary
        {"lr": 0.1, "cuda": 1.0, "cpu": 2.0, "cpu / cuda": 2.0},
        {"lr": 0.01, "cuda": 1.5, "cpu": 6.0, "cpu / cuda": 4.0},
    ]


def test_runs_without_a_partner_or_a_number_are_left_out():
    runs = table_of(
        ({"lr": 0.1, "device": "cpu"}, 2.0),
        ({"lr": 0.1, "device": "cuda"}, 1.0),
        ({"lr": 0.2, "device": "cpu"}, 3.0),
        ({"lr": 0.3, "device": "cpu"}, 3.0),
        ({"lr": 0.3, "device": "cuda"}, math.nan),
    )

    pairs = compare(runs)

    assert rows_of(pairs) == [{"lr": 0.1, "cpu": 2.0, "cuda": 1.0, "cuda / cpu": 0.5}]


def test_only_runs_of_the_same_experiment_are_paired():
    runs = table_of(({"device": "cpu"}, 2.0), ({"device": "cuda"}, 1.0), ({"device": "cpu"}, 3.0))
    runs.insert(0, "experiment", ["a", "a", "b"])

    pairs = compare(runs)

    assert rows_of(pairs) == [{"experiment": "a", "cpu": 2.0, "cuda": 1.0, "cuda / cpu": 0.5}]


@pytest.mark.parametrize(
    ("values", "columns"),
    [
        ([0.12345678, 0.12345679], ["0.12345678", "0.12345679"]),
        ([1, "1"], ["1", "'1'"]),
        (["seed", "b"], ["'seed'", "'b'"]),
        ([(3, 3), (5, 5)], ["(3, 3)", "(5, 5)"]),
        ([True, "True"], ["True", "'True'"]),
    ],
)
def test_every_value_of_the_axis_has_a_column_of_its_own(values, columns):
    runs = table_of(*(({"x": value, "seed": seed}, 2.0**seed) for value in values for seed in (0, 1)))

    pairs = compare(runs.astype({"x": object}), "x")

    assert list(pairs) == ["seed", *columns, f"{columns[1]} / {columns[0]}"]
    assert [len(pairs), list(pairs[columns[1]])] == [2, [1.0, 2.0]]


@pytest.mark.parametrize(
    ("axis", "value", "message"),
    [
        ("momentum", "epoch duration", "'momentum' is no hyperparameter of these runs; they have: lr, device"),
        (
            "epoch duration",
            "epoch duration",
            "'epoch duration' is no hyperparameter of these runs; they have: lr, device",
        ),
        ("lr", "loss", "'loss' is no column of these runs; they have: lr, device, epoch duration"),
    ],
)
def test_an_axis_or_a_value_that_is_not_there_is_refused(axis, value, message):
    runs = table_of(({"lr": 0.1, "device": "cpu"}, 2.0))

    with pytest.raises(GridError) as caught:
        compare(runs, axis, value)

    assert caught.value.problems == [message]


def test_both_problems_are_told_at_once():
    with pytest.raises(GridError) as caught:
        compare(pd.DataFrame(), "device", "loss")

    assert caught.value.problems == [
        "'device' is no hyperparameter of these runs; they have: none",
        "'loss' is no column of these runs; they have: none",
    ]


def test_no_runs_are_no_pairs():
    runs = table_of(({"lr": 0.1, "device": "cpu"}, 2.0))

    assert len(compare(runs[runs["lr"] > 1])) == 0


def test_what_load_runs_gives_can_be_compared(tmp_path):
    manager = RunManager("study", tmp_path, tensorboard=False, display=False)
    for batch_size, loss in ((64, 1.0), (128, 3.0)):
        with manager.run({"batch_size": batch_size, "device": "cpu"}):
            for _ in manager.epochs(1):
                manager.track_loss(loss, batch_size)

    pairs = compare(load_runs(tmp_path), "batch_size", "loss")

    assert rows_of(pairs) == [{"64": 1.0, "128": 3.0, "128 / 64": 3.0}]
