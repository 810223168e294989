import itertools
import math

import pandas as pd
import pytest

from runmanager.answers.failures import failures
from runmanager.core.outcome import Status
from runmanager.tables.columns import HYPERPARAMETERS, REPEATS

GRID = list(itertools.product([0.1, 0.01], [32, 128], [50, 100], [1, 2]))


def table(causes, repeats=()):
    """Make a table of the runs of GRID; `causes` maps some of them to their status and error."""
    runs = pd.DataFrame(GRID, columns=["lr", "width", "batch_size", "seed"])
    runs.insert(0, "run", range(1, len(runs) + 1))
    ended = [causes(*params) or ("completed", "") for params in GRID]
    runs["status"], runs["error"] = zip(*ended, strict=True)
    runs.attrs |= {HYPERPARAMETERS: ["lr", "width", "batch_size", "seed"], REPEATS: {"e": list(repeats)}}
    return runs


def told(runs):
    return [(f.status, f.cause, f.runs) for f in failures(runs)]


def test_runs_of_a_cause_are_one_group_with_the_setting_that_they_share():
    def causes(lr, width, batch_size, seed):
        if lr == 0.1 and width == 128:
            return (
                "diverged",
                f"loss became nan in epoch 2, step {batch_size + seed}; before it was 0.{seed}{batch_size}",
            )
        return ("failed", "ValueError: no (in train.py:7)") if lr == 0.01 and seed == 1 else None

    assert told(table(causes)) == [
        (
            "diverged",
            "loss became nan in epoch 2, step …; before it was …",
            "all 4 runs with lr=0.1 and width=128",
        ),
        ("failed", "ValueError: no (in train.py:7)", "all 4 runs with lr=0.01 and seed=1"),
    ]


def test_a_setting_in_which_some_runs_failed_says_how_many():
    def causes(lr, width, _, seed):
        return ("diverged", "") if lr == 0.1 and (width == 32) == (seed == 1) else None

    assert told(table(causes)) == [("diverged", "", "4 of the 8 runs with lr=0.1")]


def test_several_values_are_named_if_they_are_few_for_the_runs():
    runs = table(lambda *_: ("failed", "no"))
    runs["lr"] = [0.1, 0.2, 0.3, 0.4] * 4
    runs["status"] = ["failed" if lr > 0.25 else "completed" for lr in runs["lr"]]

    assert told(runs) == [("failed", "no", "all 8 runs with lr=0.3 or 0.4")]


@pytest.mark.parametrize(
    ("errors", "causes"),
    [
        (["KeyError: 'a' (in x.py:3)", "KeyError: 'b' (in x.py:3)"], ["KeyError: 'a' or 'b' (in x.py:3)"]),
        (["KeyError: 'a' (in x.py:3)", "KeyError: 'a' (in x.py:4)"], None),
        (["bad value -1.5e-3 at 0x7f3a", "bad value 2 at 0x12"], ["bad value -1.5e-3 or 2 at 0x7f3a or 0x12"]),
        (["loss became nan in epoch 2", "loss became inf in epoch 2"], ["loss became nan or inf in epoch 2"]),
        (["device 'cuda:1' is lost", "out of file"], None),
        (["resnet18 is unknown", "resnet34 is unknown"], None),
        (["", ""], [""]),
        (["shapes (20x16 and 8x2)", "shapes (20x32 and 8x2)"], ["shapes (20x16 or 20x32 and 8x2)"]),
    ],
)
def test_causes_are_alike_if_they_differ_in_numbers_and_quotations_only(errors, causes):
    runs = table(lambda *_: None)
    runs["error"] = [*errors, *[""] * 14]
    runs["status"] = [*["failed"] * 2, *["completed"] * 14]

    assert [failure.cause for failure in failures(runs)] == (causes or errors)


def test_repeat_axes_are_no_setting():
    runs = table(lambda *params: ("failed", "no") if params[-1] == 1 else None, repeats=["seed"])

    assert told(runs) == [("failed", "no", "8 of the 16 runs")]


def test_one_run_is_named_and_text_from_outside_cannot_steer_a_terminal():
    runs = table(lambda *_: None)
    runs.loc[2, ["status", "error"]] = "hung", "\x1b[31mno"

    assert told(runs) == [("hung", "\\x1b[31mno", "run 3 (lr=0.1 width=32 batch_size=100 seed=1)")]


def test_missing_devices_come_last_and_no_cause_is_named_that_their_runs_share():
    def causes(lr, width, *_):
        if width == 128:
            return "unavailable", "device 'cuda' is not there"
        return ("failed", "no") if lr == 0.1 else None

    assert told(table(causes)) == [
        ("failed", "no", "all 4 runs with lr=0.1 and width=32"),
        ("unavailable", "device 'cuda' is not there", "all 8 runs with width=128"),
    ]


def test_no_cause_is_named_that_pending_runs_share():
    def causes(lr, width, batch_size, seed):
        if lr == 0.1:
            return ("failed", "ValueError: no") if width == 32 and batch_size == 50 else ("pending", "")
        return None

    assert told(table(causes)) == [
        ("failed", "ValueError: no", "both runs with lr=0.1 and width=32 and batch_size=50")
    ]


def test_a_missing_device_is_the_cause_whatever_else_its_runs_share():
    runs = table(lambda lr, *_: ("unavailable", "device 'cuda' is not there") if lr == 0.1 else ("pending", ""))
    runs["device"] = runs["lr"].map({0.1: "cuda", 0.01: "cpu"})
    runs.attrs[HYPERPARAMETERS] = ["lr", "width", "batch_size", "seed", "device"]

    assert told(runs) == [("unavailable", "device 'cuda' is not there", "all 8 runs with device=cuda")]


def test_nothing_has_failed_where_nothing_says_so():
    runs = table(lambda *_: None)
    assert failures(runs) == failures(runs.drop(columns="status")) == []


def test_each_status_has_a_next_step():
    statuses = [status for status in Status if status.is_fault or status in (Status.KILLED, Status.UNAVAILABLE)]
    for status in statuses:
        (failure, *_) = failures(table(lambda *_, status=status: (str(status), math.nan)))
        assert failure.next_step("runmanager show runs/e/1")
