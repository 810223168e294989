import itertools
import math
import re
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from runmanager import RunManager, load_runs
from runmanager.answers.compare import compare
from runmanager.answers.effects import effects
from runmanager.errors import GridError
from tests.tables.run_tables import METRIC, table_of

GRID = list(itertools.product([0.1, 0.01], [64, 128], ["cpu", "cuda", "cuda:1"]))
SECONDS = st.floats(0.001, 1000) | st.just(math.nan)


def rows_of(table):
    return table.to_dict(orient="records")


@pytest.mark.slow(everywhere=True)
@given(st.dictionaries(st.sampled_from(GRID), SECONDS, min_size=1))
def test_comparing_agrees_with_pandas(seconds):
    names = ("lr", "batch_size", "device")
    runs = table_of(*((dict(zip(names, key, strict=True)), value) for key, value in seconds.items()))

    pairs = compare(runs, "device", "epoch duration")

    counts = runs.dropna()["device"].value_counts()
    devices = sorted(
        (each for each in runs["device"].unique() if each in counts), key=lambda each: -counts[each]
    )
    first, others = devices[:1], devices[1:]
    reference = runs.pivot_table("epoch duration", ["lr", "batch_size"], "device", dropna=False)
    reference = reference.reindex(columns=devices).dropna(subset=first)
    reference = reference[reference[others].notna().any(axis="columns")]
    for other in others:
        reference[f"{other} vs {first[0]}"] = reference[other] - reference[first[0]]
        reference[f"{other} / {first[0]}"] = reference[other] / reference[first[0]]
    actual = pairs[list(reference)].fillna(-1.0).itertuples(index=False, name=None)
    assert sorted(actual) == sorted(reference.fillna(-1.0).itertuples(index=False, name=None))


def test_runs_that_differ_in_the_axis_only_become_one_row():
    runs = table_of(
        ({"lr": 0.1, "amp": True, "device": "cuda"}, 1.0),
        ({"lr": 0.1, "amp": True, "device": "cpu"}, 2.0),
        ({"lr": 0.01, "amp": True, "device": "cuda"}, 1.5),
        ({"lr": 0.01, "amp": True, "device": "cpu"}, 6.0),
    )

    pairs = compare(runs)

    assert rows_of(pairs) == [  # amp does not vary
        {"lr": 0.1, "cuda": 1.0, "cpu": 2.0, "cpu vs cuda": 1.0, "cpu / cuda": 2.0},
        {"lr": 0.01, "cuda": 1.5, "cpu": 6.0, "cpu vs cuda": 4.5, "cpu / cuda": 4.0},
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

    assert rows_of(pairs) == [{"lr": 0.1, "cpu": 2.0, "cuda": 1.0, "cuda vs cpu": -1.0, "cuda / cpu": 0.5}]
    assert "1 pair left out, as runs have no number" in pairs.sentence


def test_a_value_of_which_no_run_has_a_number_leaves_the_pairs_of_the_others():
    runs = table_of(
        *(({"lr": lr, "device": d}, v) for lr in (1, 2) for d, v in (("tpu", math.nan), ("a", 2.0), ("b", 1.0)))
    )

    pairs = compare(runs)

    assert rows_of(pairs) == [{"lr": lr, "a": 2.0, "b": 1.0, "b vs a": -1.0, "b / a": 0.5} for lr in (1, 2)]
    assert "2 pairs left out" in pairs.sentence
    assert "geometric mean of 2," in pairs.sentence


def test_only_runs_of_the_same_experiment_are_paired():
    runs = table_of(({"device": "cpu"}, 2.0), ({"device": "cuda"}, 1.0), ({"device": "cpu"}, 3.0))
    runs.insert(0, "experiment", ["a", "a", "b"])

    pairs = compare(runs)

    assert rows_of(pairs) == [
        {"experiment": "a", "cpu": 2.0, "cuda": 1.0, "cuda vs cpu": -1.0, "cuda / cpu": 0.5}
    ]


@pytest.mark.parametrize(
    ("values", "columns"),
    [
        ([0.12345678, 0.12345679], ["0.12345678", "0.12345679"]),
        ([1, "1"], ["1", "'1'"]),
        ([(3, 3), (5, 5)], ["(3, 3)", "(5, 5)"]),
        ([True, "True"], ["True", "'True'"]),
    ],
)
def test_every_value_of_the_axis_has_a_column_of_its_own(values, columns):
    runs = table_of(*(({"x": value, "seed": seed}, 2.0**seed) for value in values for seed in (0, 1)))

    pairs = compare(runs.astype({"x": object}), "x")

    assert list(pairs) == ["seed", *columns, *(f"{columns[1]} {sign} {columns[0]}" for sign in ("vs", "/"))]
    assert [len(pairs), list(pairs[columns[1]])] == [2, [1.0, 2.0]]


@pytest.mark.parametrize(
    ("axis", "value", "message"),
    [
        ("momentum", "epoch duration", "these runs have no hyperparameter 'momentum'; they have: lr, device"),
        (
            "epoch duration",
            "epoch duration",
            "these runs have no hyperparameter 'epoch duration'; they have: lr, device",
        ),
        ("lr", "loss", "these runs have no column 'loss'; they have: lr, device, epoch duration"),
    ],
)
def test_an_axis_or_a_value_that_is_not_there_is_refused(axis, value, message):
    runs = table_of(({"lr": 0.1, "device": "cpu"}, 2.0))

    with pytest.raises(GridError) as caught:
        compare(runs, axis, value)

    assert caught.value.problems == [message]


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

    assert rows_of(pairs) == [{"64": 1.0, "128": 3.0, "128 vs 64": 2.0, "128 / 64": 3.0}]


@pytest.mark.slow(everywhere=True)
@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=1, max_size=12))
def test_the_mean_ratio_and_its_interval_agree_with_scipy(pairs):
    runs = table_of(
        *(
            ({"seed": seed, "device": device}, seconds)
            for seed, pair in enumerate(pairs)
            for device, seconds in zip(("cuda", "cpu"), pair, strict=True)
        )
    )

    sentence = compare(runs).sentence

    ratios = [cpu / cuda for cuda, cpu in pairs]
    ((mean, number),) = re.findall(r"cpu / cuda: (\S+) \(geometric mean of (\d+)", sentence)
    assert float(mean) == pytest.approx(stats.gmean(ratios), rel=1e-3)
    assert int(number) == len(pairs)
    if len(pairs) == 1:
        assert "interval" not in sentence
    else:
        logs = np.log(ratios)
        half = stats.t.ppf(0.975, len(pairs) - 1) * np.std(logs, ddof=1) / math.sqrt(len(pairs))
        interval = np.exp([logs.mean() - half, logs.mean() + half]).tolist()
        (ends,) = re.findall(r"95 % interval (\S+) to (\S+)\)", sentence)
        assert list(map(float, ends)) == pytest.approx(interval, rel=1e-3)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_ratios_that_are_not_above_zero_have_no_geometric_mean(seconds):
    runs = table_of(*(({"seed": s, "device": d}, v) for s, d, v in ((0, "a", 2.0), (0, "b", seconds))))

    pairs = compare(runs)

    assert pairs["b / a"].tolist() == [seconds / 2]
    assert "geometric" not in pairs.sentence


def test_no_pairs_have_no_mean_ratio():
    runs = table_of(({"seed": 0, "device": "a"}, 1.0), ({"seed": 1, "device": "b"}, 1.0))

    assert "geometric" not in compare(runs).sentence


def test_repeats_of_a_run_are_paired_by_their_mean():
    runs = table_of(
        *(({"device": device}, v) for device, v in (("a", 1.0), ("b", 2.0), ("a", 3.0), ("b", math.nan)))
    )

    assert rows_of(compare(runs)) == [{"a": 2.0, "b": 2.0, "b vs a": 0.0, "b / a": 1.0}]


@pytest.mark.slow(everywhere=True)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), METRIC), min_size=1, max_size=30))
def test_effects_agree_with_the_analysis_of_variance(rows):
    runs = table_of(*(({"width": width, "amp": bool(amp)}, value) for width, amp, value in rows))

    table = effects(runs, "epoch duration")

    numbers = runs["epoch duration"].where(np.isfinite(runs["epoch duration"]))
    for axis, found in table.groupby("axis"):
        groups = [numbers[runs[axis] == value].dropna() for value in found["value"]]
        assert found["n"].tolist() == [len(group) for group in groups]
        assert found["mean"].tolist() == pytest.approx([g.mean() for g in groups], abs=1e-6, nan_ok=True)
        assert found["std"].tolist() == pytest.approx([g.std() for g in groups], abs=1e-6, nan_ok=True)
        share = found["explained"].iloc[0]
        full = [group for group in groups if len(group)]
        within = sum(len(full_group) for full_group in full) - len(full)
        if len(full) > 1 and within > 0 and all(g.std(ddof=0) > 1e-3 for g in full):
            f = stats.f_oneway(*full).statistic
            assert share == pytest.approx(f * (len(full) - 1) / (f * (len(full) - 1) + within), abs=1e-6)
        if not math.isnan(share):
            assert -1e-9 <= share <= 1 + 1e-9
    varied = [name for name in ("width", "amp") if len(set(runs[name])) > 1]
    assert sorted(set(table["axis"])) == sorted(varied)


def test_the_axis_that_explains_most_stands_first():
    grid = itertools.product([1, 2], [10, 20])
    runs = table_of(*(({"seed": seed, "width": width}, 1.0 * width + seed) for seed, width in grid))

    table = effects(runs, "epoch duration", repeats=())

    assert rows_of(table.drop(columns="std")) == [
        {"axis": "width", "value": 10, "n": 2, "mean": 11.5, "explained": pytest.approx(100 / 101)},
        {"axis": "width", "value": 20, "n": 2, "mean": 21.5, "explained": pytest.approx(100 / 101)},
        {"axis": "seed", "value": 1, "n": 2, "mean": 16.0, "explained": pytest.approx(1 / 101)},
        {"axis": "seed", "value": 2, "n": 2, "mean": 17.0, "explained": pytest.approx(1 / 101)},
    ]


def test_a_grid_in_which_nothing_varies_has_no_effects():
    runs = table_of(({"lr": 0.1}, 1.0), ({"lr": 0.1}, 2.0))

    table = effects(runs, "epoch duration")

    assert (len(table), list(table)) == (0, ["axis", "value", "n", "mean", "std", "explained"])


@pytest.mark.parametrize("seconds", [1.0, 0.1])
def test_a_result_that_does_not_vary_is_explained_by_nothing(seconds):
    runs = table_of(({"lr": 0.1}, seconds), ({"lr": 0.2}, seconds), ({"lr": 0.3}, seconds))

    assert effects(runs, "epoch duration")["explained"].isna().all()


def test_a_value_that_no_name_of_a_column_can_have_is_escaped():
    runs = pd.DataFrame({"device": ["cpu", "\ud800"], "epoch duration": [2.0, 5.0]}, dtype="object")
    runs = runs.astype({"epoch duration": "float64"})
    runs.attrs["hyperparameters"] = ["device"]

    assert list(compare(runs)) == ["cpu", "\\ud800", "\\ud800 vs cpu", "\\ud800 / cpu"]


def test_an_empty_text_is_a_value_as_others_are():
    runs = pd.DataFrame({"device": ["", "cpu"], "epoch duration": [2.0, 5.0]})
    runs.attrs["hyperparameters"] = ["device"]

    assert compare(runs)["cpu vs "].tolist() == [3.0]


def test_a_value_that_is_called_like_a_difference_is_told_from_it():
    runs = pd.DataFrame({"x": ["a", "b", "b vs a"], "loss": [1.0, 2.0, 4.0]})
    runs.attrs["hyperparameters"] = ["x"]

    pairs = compare(runs, "x")

    assert pairs[["'b vs a'", "'b' vs 'a'"]].to_numpy().tolist() == [[4.0, 1.0]]


def test_a_hyperparameter_that_is_called_like_a_ratio_is_kept():
    rows = {"cpu / cuda": [1, 1, 2, 2], "device": ["cuda", "cpu"] * 2, "epoch duration": [2.0, 4.0, 3.0, 3.0]}
    runs = pd.DataFrame(rows)
    runs.attrs["hyperparameters"] = ["cpu / cuda", "device"]

    pairs = compare(runs)

    assert pairs["cpu / cuda (hyperparameter)"].tolist() == [1, 2]
    assert pairs["cpu / cuda"].tolist() == [2.0, 1.0]


def test_numbers_whose_squares_are_infinite_explain_nothing_and_warn_of_nothing():
    runs = pd.DataFrame({"lr": [0.1, 0.1, 0.2, 0.2], "loss": [1e308, -1e308, 1e308, 1.0]})
    runs.attrs["hyperparameters"] = ["lr"]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert effects(runs)["explained"].isna().all()


def test_a_value_that_is_called_like_a_hyperparameter_leaves_both_columns():
    runs = table_of(*(({"x": value, "seed": seed}, 2.0) for value in ("seed", "b") for seed in (0, 1)))

    pairs = compare(runs, "x")

    assert [list(pairs[name]) for name in ("seed (hyperparameter)", "seed")] == [[0, 1], [2.0, 2.0]]
