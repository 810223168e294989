import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from runmanager import InvalidArgumentError, RunManager, RunManagerError
from runmanager.core.experiment import Design, Experiment
from runmanager.core.values import identity
from runmanager.tensorboard import server
from runmanager.tensorboard.hparams import tag
from runmanager.tensorboard.server import hint, page_of
from tests.board.reading import scalars_in, train

HOME = Path(__file__).parents[2]


def make(root, name, number=2, *, devices=("cpu",), missing=()):
    """Plan an experiment of `number` learning rates on each device; `missing` ones are not here."""
    grid = [{"max_lr": 1, "lr": 0.1 + n, "device": device} for device in devices for n in range(number)]
    unavailable = {identity(params): "not there" for params in grid if params["device"] in missing}
    return Experiment(root / name).plan(grid, unavailable)


def asked(link):
    """Return what a link asks the page for."""
    return {name: value for name, (value,) in parse_qs(urlsplit(link).query).items()}


def colors(query, runs):
    """Return what each run's color follows from: the groups of the expression that the page gets."""
    expression = asked(f"?{query}")["runColorGroup"].removeprefix("regex:")
    matches = (re.search(expression, run, re.ASCII) for run in runs)  # as in a browser
    return [match.groups() if match else None for match in matches]


def test_the_link_shows_the_experiment_without_smoothing_and_pins_what_matters(tmp_path):
    make(tmp_path, "grid.v1")

    address = page_of(tmp_path, "grid.v1").link("http://127.0.0.1:1234/")

    assert address.startswith("http://127.0.0.1:1234/?")
    assert address.endswith("#timeseries&_smoothingWeight=0")
    shown = asked(address)
    assert shown["smoothing"] == "0"
    assert "runFilter" not in shown  # it is alone
    assert json.loads(shown["pinnedCards"]) == [
        {"plugin": "scalars", "tag": tag(column)} for column in ("accuracy", "loss", "epoch duration")
    ]


def test_what_was_tested_is_pinned_if_anything_was(tmp_path):
    train(RunManager("exp", tmp_path, display=False), {"lr": 0.1})

    pinned = json.loads(asked(page_of(tmp_path).link())["pinnedCards"])

    assert [card["tag"] for card in pinned] == [
        tag(column) for column in ("test_accuracy", "test_loss", "epoch duration")
    ]


def test_a_link_has_no_character_at_which_a_terminal_or_a_shell_would_cut_it(tmp_path):
    make(tmp_path, "grid")

    assert re.fullmatch(
        r"http://localhost:6006/\?[\w%.,:=&/~+-]+#timeseries&_smoothingWeight=0",
        page_of(tmp_path, "grid").link(),
    )


def test_runs_have_the_color_of_their_device_if_it_varies(tmp_path):
    runs = make(tmp_path, "grid", devices=("cpu", "cuda:0"))

    assert colors(page_of(tmp_path).query, [f"grid/{run.path.name}" for run in runs]) == [
        ("cpu",), ("cpu",), ("cuda0",), ("cuda0",),
    ]  # fmt: skip


def test_a_device_without_runs_here_gives_no_color(tmp_path):
    runs = make(tmp_path, "grid", devices=("cuda", "cpu"), missing=("cuda",))

    assert colors(page_of(tmp_path).query, [f"grid/{run.path.name}" for run in runs[2:]]) == [
        ("0.1",),
        ("1.1",),
    ]


def test_an_axis_is_not_taken_for_one_whose_name_ends_alike(tmp_path):
    grid = [{"max_lr": top, "lr": low} for low in (1, 2) for top in (3, 4)]
    runs = Experiment(tmp_path / "grid").plan([{"lr": run["lr"], "max_lr": run["max_lr"]} for run in grid], {})

    query = page_of(tmp_path / "grid").query

    assert colors(query, [run.path.name for run in runs]) == [("1",), ("1",), ("2",), ("2",)]
    assert colors(query, ["001-max_lr=3-lr=1"]) == [("1",)]


@pytest.mark.parametrize(("first", "second"), [("n", "opt.lr"), ("opt.lr", "größe"), ("größe", "n")])
def test_the_color_of_a_run_is_the_value_of_its_axis_alone(tmp_path, first, second):
    grid = [{first: value, second: other} for value in (1e-05, -2) for other in range(8)]
    runs = Experiment(tmp_path / "grid").plan(grid, {})

    groups = colors(page_of(tmp_path / "grid").query, [run.path.name for run in runs])

    assert groups == [(str(value),) for value in (1e-05, -2) for _ in range(8)]


def test_a_dot_in_the_name_of_an_axis_stands_for_itself(tmp_path):
    runs = Experiment(tmp_path / "grid").plan(
        [{"optXlr": n, "opt.lr": m} for n in range(9) for m in (1, 2)], {}
    )

    assert colors(page_of(tmp_path / "grid").query, [run.path.name for run in runs[:2]]) == [("1",), ("2",)]


def test_an_axis_with_more_values_than_colors_gives_way_to_the_next(tmp_path):
    grid = [{"lr": lr, "depth": depth, "seed": seed} for lr in range(8) for depth in (1, 2) for seed in (0, 1)]
    runs = Experiment(tmp_path / "both").plan(grid, {}, Design(repeats=("depth",)))
    many = Experiment(tmp_path / "many").plan([{"lr": lr} for lr in range(8)], {})

    query = page_of(tmp_path / "both").query

    assert colors(query, [run.path.name for run in runs]) == 16 * [("0",), ("1",)]  # a repeat axis tells less
    assert "runColorGroup" not in asked(f"?{page_of(many[0].path.parent).query}")  # each run has its own


@pytest.mark.parametrize(
    ("options", "metrics", "expected"),
    [
        ({"goal": "max:reward"}, ["policy_loss", "reward"], ["reward", "policy_loss"]),
        ({"goal": "max:reward"}, ["reward"], ["reward", "loss"]),
        ({"goal": "validation_f1"}, ["validation_loss", "validation_f1"], ["validation_f1", "validation_loss"]),
        ({"goal": "val_f1_macro"}, ["val_f1_macro", "val_loss"], ["val_f1_macro", "val_loss"]),
        ({"goal": "test_accuracy"}, ["test_loss", "test_accuracy"], ["test_accuracy", "test_loss"]),
        ({"goal": "min:test_loss"}, ["test_loss", "test_accuracy"], ["test_loss", "test_accuracy"]),
        ({}, ["test_loss", "test_accuracy"], ["test_accuracy", "test_loss"]),
        ({}, ["reward"], ["loss"]),  # each run has it, and decides by it
        ({}, ["val_loss"], ["val_loss"]),
    ],
)
def test_the_goal_is_pinned_with_the_metric_beside_it_whatever_it_is_called(
    tmp_path, options, metrics, expected
):
    manager = RunManager("exp", tmp_path, display=False, **options)
    with manager.run({"lr": 0.1}):
        for _ in manager.epochs(1):
            if "policy_loss" not in metrics:
                manager.track_loss(0.5, 1)
            values: dict[str, Any] = dict.fromkeys(metrics, 0.5)
            manager.track(**values)

    pinned = json.loads(asked(page_of(tmp_path / "exp").link())["pinnedCards"])

    assert [card["tag"] for card in pinned] == [tag(column) for column in (*expected, "epoch duration")]


def test_experiments_with_other_metrics_pin_what_all_runs_have(tmp_path):
    for name in ("test", "validation"):
        manager = RunManager(name, tmp_path, display=False)
        with manager.run({"lr": 0.1}):
            for _ in manager.epochs(1):
                manager.track_loss(0.5, 1)
                values: dict[str, Any] = {f"{name}_accuracy": 0.5, f"{name}_loss": 0.5}
                manager.track(**values)

    pinned = [card["tag"] for card in json.loads(asked(page_of(tmp_path).link())["pinnedCards"])]

    assert pinned == ["Goal/last", "loss/train", "time/epoch_s"]
    written = [set(scalars_in(folder)) for folder in tmp_path.iterdir()]
    assert all(set(pinned) <= names for names in written)


def test_several_experiments_have_a_color_each(tmp_path):
    make(tmp_path, "one")
    make(tmp_path, "two")

    query = page_of(tmp_path).query

    assert colors(query, ["one/001-lr=1", "two/001-lr=1"]) == [("one",), ("two",)]
    assert "runFilter" not in asked(f"?{query}")


@pytest.mark.parametrize("folder", ["", "grid"])
def test_one_experiment_is_shown_alone_on_its_folder(tmp_path, folder):
    runs = make(tmp_path, "grid")
    make(tmp_path, "other", 300)

    found = page_of(tmp_path / folder, "grid")

    assert found.logdir == tmp_path / "grid"
    assert colors(found.query, [run.path.name for run in runs]) == [("0.1",), ("1.1",)]


def test_files_that_other_tools_wrote_are_shown_too(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events.out.tfevents.1").touch()

    assert asked(page_of(tmp_path).link()) == {"smoothing": "0"}


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(
        InvalidArgumentError,
        match=r"no runs in .*missing.: start a grid first, or give the folder that it wrote",
    ):
        page_of(tmp_path / "missing")


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(RunManagerError, match=r"no runs in .*: start a grid first"):
        page_of(tmp_path)


def test_an_experiment_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    make(tmp_path, "one")
    make(tmp_path, "none_here", devices=("cuda",), missing=("cuda",))

    with pytest.raises(RunManagerError, match=r"no runs of an experiment 'another'; it has those of: one$"):
        page_of(tmp_path, "another")
    with pytest.raises(RunManagerError, match=r"no runs of an experiment 'on'; did you mean 'one'\?$"):
        page_of(tmp_path, "on")


def test_a_notebook_is_told_the_call_instead_of_a_command(tmp_path, monkeypatch):
    make(tmp_path, "grid")
    monkeypatch.setattr(server, "in_notebook", lambda: True)

    assert hint(tmp_path / "grid") == [f"TensorBoard: open_tensorboard({str(tmp_path)!r}, 'grid')"]


def test_nothing_is_said_of_an_experiment_whose_runs_are_all_elsewhere(tmp_path):
    make(tmp_path, "grid", devices=("cuda",), missing=("cuda",))

    assert hint(tmp_path / "grid") == []
