"""What HParams shows of the runs of an experiment (docs/tensorboard.md)."""

import json
import os
import time

import numpy as np
import pytest

from runmanager import OptunaSearch, RunBuilder, RunManager, Uniform
from tests.border.events import event_files, hparams_of, manager_in, scalars_of, sessions_of
from tests.border.experiments import execute
from tests.border.reading import as_killed, journals, lines, write


def train(run, manager, at_end=lambda: None):
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(0.5, 1)
            at_end()


def start(root, grid, name="e"):
    return execute(root, grid, train, name, tensorboard=True)


def folders(root):
    return [path.parent for path in event_files(root)]


def shown(root):
    """Read the hyperparameters that HParams shows, of the run with a number of an experiment."""
    return {f"{folder.parent.name}/{folder.name[:3]}": hparams_of(folder) for folder in folders(root)}


def trials(root):
    return [sessions_of(folder)[0].group_name for folder in folders(root)]


def states(folder):
    """Read when everything in a folder was changed, and the content of its files."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in (folder, *folder.rglob("*"))
    }


def test_an_axis_has_one_type_and_long_values_stay_different(tmp_path):
    axes = {
        "number": [0.1, 1, np.int64(2)], "flag": [True, False, True], "lr": [0.1, None, 0.2],
        "mixed": [1, True, 2], "limit": [1, float("inf"), 2], "shape": ["a", (1, 2), "b"],
        "note": [300 * "a" + name for name in "bcd"],
    }  # fmt: skip

    start(tmp_path, {tuple(axes): list(zip(*axes.values(), strict=True))})

    columns = {name: [values[name] for values in shown(tmp_path).values()] for name in axes}
    assert {len(note) for note in columns["note"]} == {64}
    assert len(set(columns.pop("note"))) == 3
    assert columns == {
        "number": [0.1, 1, 2], "flag": [True, False, True], "lr": ["0.1", "none", "0.2"],
        "mixed": ["1", "True", "2"], "limit": ["1", "inf", "2"], "shape": ["a", "(1, 2)", "b"],
    }  # fmt: skip
    assert [type(value) for value in columns["number"]] == [float] * 3


def test_each_run_of_an_experiment_that_has_grown_has_every_axis_and_nothing_else_is_written(tmp_path):
    train({"lr": 0.5}, manager_in(tmp_path))  # a loop of one's own
    start(tmp_path, {"lr": [0.1], "momentum": [0.9]})
    start(tmp_path, {"x": [1]}, "other")
    (first, *_) = event_files(tmp_path / "e")
    with first.open("ab") as file:
        file.write(b"\x40\0\0\0")  # a record that was being written
    before, other = first.read_bytes(), states(tmp_path / "other")
    began = sessions_of(folders(tmp_path)[0])[0].start_time_secs

    start(tmp_path, {"lr": [1, None], "dropout": [True]})

    assert shown(tmp_path / "e") == {
        "e/001": {"lr": "0.5", "momentum": "none", "dropout": "none"},
        "e/002": {"lr": "0.1", "momentum": "0.9", "dropout": "none"},
        "e/003": {"lr": "1", "momentum": "none", "dropout": "True"},
        "e/004": {"lr": "none", "momentum": "none", "dropout": "True"},
    }
    after = first.read_bytes()
    assert after.endswith(before[-300:])
    assert after[:60] == before[:60]
    assert sessions_of(folders(tmp_path)[0])[0].start_time_secs == began
    assert {path.name for path in first.parent.iterdir()} == {first.name, "attempt-1.jsonl", "run.json"}
    assert states(tmp_path / "other") == other
    settled = states(tmp_path / "e" / "001-lr=0.5")
    start(tmp_path, {"lr": [1, None], "dropout": [True]})
    assert states(tmp_path / "e" / "001-lr=0.5") == settled


def test_what_a_grid_has_decided_holds_for_a_loop_and_a_loop_over_a_grid_has_its_kinds(tmp_path):
    start(tmp_path, {"lr": [0.1, None], "momentum": [0.9]})
    for run in RunBuilder.get_runs({"lr": [0.5], "amp": [True]}):
        train(run, manager_in(tmp_path))
    for run in RunBuilder.get_runs({"lr": [0.1, None], "amp": [True], "note": [1, "a"]}):
        train(run, RunManager("loop", tmp_path, display=False))

    assert shown(tmp_path)["e/003"] == {"lr": "0.5", "amp": True, "momentum": "none"}
    assert list(shown(tmp_path / "loop").values()) == [
        {"lr": lr, "amp": True, "note": note} for lr in ("0.1", "none") for note in ("1", "a")
    ]


def test_runs_of_which_none_can_be_executed_here_change_nothing(tmp_path):
    start(tmp_path, {"lr": [0.1]})
    start(tmp_path, {"dropout": [0.5], "device": ["cuda:99"]})

    assert shown(tmp_path) == {"e/001": {"lr": 0.1}}


def test_a_run_that_is_being_executed_is_left_alone_and_updated_later(tmp_path):
    train({"lr": 0.1}, manager_in(tmp_path), lambda: start(tmp_path, {"dropout": [0.5]}))
    during = shown(tmp_path)
    start(tmp_path, {"dropout": [0.5]})

    assert during["e/001"] == {"lr": 0.1}
    assert shown(tmp_path)["e/001"] == {"lr": "0.1", "dropout": "none"}
    assert scalars_of(tmp_path / "e" / "001-lr=0.1")["loss/train"] == [(1, 0.5)]


@pytest.mark.parametrize(
    ("host", "age_s", "is_updated"), [("another", 0, False), ("another", 3600, True), (None, 0, True)]
)
def test_a_run_without_an_end_is_updated_if_it_is_not_being_executed(tmp_path, host, age_s, is_updated):
    train({"lr": 0.1}, manager_in(tmp_path))
    as_killed(tmp_path / "e" / "001-lr=0.1")
    (journal,) = journals(tmp_path / "e" / "001-lr=0.1")
    start_line, *rest = lines(journal)
    if host:
        start_line |= {"host": host, "boot": host}
    write(journal, [start_line, *rest])
    os.utime(journal, 2 * (time.time() - age_s,))

    start(tmp_path, {"dropout": [0.5]})

    assert shown(tmp_path)["e/001"] == ({"lr": "0.1", "dropout": "none"} if is_updated else {"lr": 0.1})


def test_repeats_of_a_setting_share_a_trial_also_after_another_grid_and_their_seed_is_no_hyperparameter(
    tmp_path,
):
    start(tmp_path, {"lr": [0.1], "seed": [1, 2]})
    alone = trials(tmp_path)
    start(tmp_path, {"lr": [0.01], "seed": [1, 2]})

    assert alone == ["e/all"] * 2
    assert trials(tmp_path) == [*["e/lr=0.1"] * 2, *["e/lr=0.01"] * 2]
    assert list(shown(tmp_path).values()) == [{"lr": lr} for lr in (0.1, 0.1, 0.01, 0.01)]


def test_a_search_shows_all_goals_and_no_axis_of_one_value(tmp_path):
    execute(
        tmp_path, {"lr": Uniform(0, 1), "device": ["cpu"]}, lambda run: {"score": run.lr, "cost": 2.0},
        tensorboard=True, search=OptunaSearch(2), goal=["max:score", "min:cost"],
    )  # fmt: skip

    assert [list(params) for params in shown(tmp_path).values()] == [["lr"], ["lr"]]
    assert sorted(scalars_of(folders(tmp_path)[0]))[:3] == [
        "Goal/last max:score",
        "Goal/last min:cost",
        "Run/best max:score",
    ]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"kinds": 1}', b"\xff"])
def test_a_damaged_file_of_kinds_is_written_again(tmp_path, content):
    start(tmp_path, {"lr": [0.1, None]})
    path = tmp_path / "e" / "hparams.json"
    path.write_bytes(content)

    start(tmp_path, {"lr": [0.1, None]})

    assert list(json.loads(path.read_bytes())["kinds"]) == ["lr"]
