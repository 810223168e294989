"""The values of single steps: load_steps."""

import math
import warnings
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from runmanager import (
    InvalidArgumentError,
    RunManager,
    RunsWarning,
    best,
    load_results,
    load_run,
    load_runs,
    load_steps,
)


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Two experiments; the first has two runs that logged different names and one that logged none."""
    monkeypatch.chdir(tmp_path)
    for name, lrs in (("first", (0.1, 0.2, 0.3)), ("second", (0.4,))):
        manager = RunManager(name, tensorboard=False, display=False)
        for lr in lrs:
            with manager.run({"lr": lr}):
                for epoch in manager.epochs(2):
                    manager.track_loss(lr, 1)
                    for number in (1, 2):
                        if lr != 0.3:
                            manager.log(step_loss=lr * number)
                        if lr == 0.2 and number == epoch:
                            manager.log(norm=number)
    return Path("runs")


def test_an_experiment_has_a_row_for_each_step_of_its_runs(root):
    steps = load_steps("runs/first")

    assert list(steps) == ["run", "epoch", "step", "lr", "step_loss", "norm"]
    assert [str(kind) for kind in steps.dtypes] == ["int64"] * 3 + ["float64"] * 3
    assert steps[["run", "epoch", "step"]].to_numpy().tolist() == [
        *[[1, 1, 1], [1, 1, 2], [1, 2, 3], [1, 2, 4]],
        *[[2, 1, 1], [2, 1, 2], [2, 2, 3], [2, 2, 4]],
    ]
    assert steps["norm"].dropna().to_dict() == {4: 1, 7: 2}
    assert steps["step_loss"].tolist() == [0.1, 0.2, 0.1, 0.2, 0.2, 0.4, 0.2, 0.4]


def test_the_number_of_a_step_is_not_a_hyperparameter_of_that_name(root):
    manager = RunManager("third", tensorboard=False, display=False)
    with manager.run({"step": 7}):
        for _ in manager.epochs(2):
            manager.log(step_loss=0.5)

    steps = load_steps("runs/third")

    assert steps["step"].tolist() == [1, 2]
    assert steps["step (hyperparameter)"].tolist() == [7, 7]


def test_a_root_of_several_experiments_names_them(root):
    steps = load_steps()

    assert list(steps)[:4] == ["experiment", "run", "epoch", "step"]
    assert steps["experiment"].tolist() == ["first"] * 8 + ["second"] * 4
    assert math.isnan(steps["norm"].iloc[-1])


def test_runs_are_given_as_paths_as_rows_or_as_a_table(root):
    runs = load_runs("runs/first")
    row = namedtuple("Row", ["folder"])(runs["folder"][1])  # noqa: PYI024 - as itertuples makes them
    for given in (
        "runs/first/2", Path(runs["folder"][1]), ["runs/first/2"], runs[runs["lr"] == 0.2], runs.iloc[1], row,
        best(runs, "max:loss").iloc[1:2], load_run("runs/first/2"), [load_run("runs/first/2")],
        runs.to_dict("records")[1], next(runs.iloc[1:].itertuples()),
    ):  # fmt: skip
        steps = load_steps(given)
        assert steps["run"].tolist() == [2] * 4
        assert list(steps) == ["run", "epoch", "step", "lr", "step_loss", "norm"]
    assert load_steps(["runs/first/1", "runs/first/2"])["run"].unique().tolist() == [1, 2]
    assert load_steps(("runs/first", "runs/second")).equals(load_steps())
    assert load_steps(load_runs()).equals(load_steps())


def test_runs_that_logged_nothing_give_an_empty_table_with_its_columns(root):
    nothing: list[Any] = ["runs/first/3", [], load_runs("runs/first")[:0]]
    for given in nothing:
        steps = load_steps(given)
        assert steps.empty
        assert list(steps) == ["run", "epoch", "step"]


@pytest.mark.parametrize("given", [7, None, {"run": 7}, [1]])
def test_anything_else_is_refused(root, given):
    with pytest.raises(InvalidArgumentError):
        load_steps(given)
    with pytest.raises(InvalidArgumentError, match="folder"):
        load_steps(load_results())
    with pytest.raises(InvalidArgumentError, match="first"):
        load_steps("runs/frist")


def test_damage_is_named_once_and_costs_no_other_run(root):
    for number in (1, 2):
        (path,) = (root / "first").glob(f"00{number}*/attempt-1.steps.jsonl")
        path.write_bytes(b"x\n" + path.read_bytes())

    with pytest.warns(RunsWarning, match=r"attempt-1\.steps\.jsonl") as caught:
        steps = load_steps("runs/first")

    assert (len(caught), len(steps)) == (1, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_runs("runs/first")  # which reads no steps


def test_a_line_that_occurs_twice_gives_no_second_row(root):
    before = load_steps()
    for path in root.rglob("attempt-1.steps.jsonl"):
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines, *lines[:1]]))

    assert load_steps().equals(before)
