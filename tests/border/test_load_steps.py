"""The values of single steps: what log() keeps, and load_steps."""

import math
import time
from collections import namedtuple
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from runmanager import InvalidArgumentError, RunManager, best, load_results, load_run, load_runs, load_steps
from tests.border import reading
from tests.border.events import events_of
from tests.border.experiments import manager_in


@pytest.fixture
def root(own_folder):
    """Two experiments; the first has two runs that logged different names and one that logged none."""
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


def test_a_line_that_occurs_twice_gives_no_second_row(root):
    before = load_steps()
    for path in root.rglob("attempt-1.steps.jsonl"):
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines, *lines[:1]]))

    assert load_steps().equals(before)


LOADER = [(torch.ones(2, 4), torch.tensor([0, 1]))] * 3


def begin(manager, num_epochs=1, loader=LOADER):
    """Yield the number of each batch in a run of epochs of three batches."""
    number = 0
    with manager.run({"lr": 0.1}, None, loader):
        for _ in manager.epochs(num_epochs):
            for _ in manager.batches():
                number += 1
                yield number


def rows(root):
    return [tuple(row) for row in load_steps(root).drop(columns="lr").itertuples(index=False)]


def test_a_name_that_is_logged_again_in_a_batch_begins_a_further_step(manager, tmp_path):
    for number in begin(manager):
        for _ in range(number):
            manager.log(critic=number)
        manager.log(generator=number)

    steps = load_steps(tmp_path).set_index("step")
    assert steps["critic"].to_dict() == {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 3}
    assert steps["generator"].dropna().to_dict() == {1: 1, 3: 2, 6: 3}


def test_without_batches_losses_or_else_calls_are_counted(manager, tmp_path):
    for lr in (0.1, 0.2):
        with manager.run({"lr": lr}):
            for _ in manager.epochs(2):
                for number in range(1, 5):
                    if lr == 0.1:
                        manager.track_loss(1.0, 1)
                    if number in (2, 4):
                        manager.log(some=number)

    assert rows(tmp_path) == [
        *[(1, 1, 2, 2), (1, 1, 4, 4), (1, 2, 6, 2), (1, 2, 8, 4)],
        *[(2, 1, 1, 2), (2, 1, 2, 4), (2, 2, 3, 2), (2, 2, 4, 4)],
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 5e-324, 1e308, -0.0])
def test_every_number_comes_back_as_it_was_when_it_was_logged(manager, tmp_path, value):
    tensor = torch.tensor(value, dtype=torch.float64)
    for number in begin(manager):
        manager.log(score=tensor)
        tensor += number

    assert str(load_steps(tmp_path)["score"][0]) == str(value)


RAMP = torch.linspace(0, 1, 60)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"loss": 1}, "'loss' is a column already"), ({"epoch": 1}, "'epoch' is a column already"),
        ({"a b": 1}, "'a b' is not an identifier"), ({"score": "good"}, "score .* got 'good'"),
        ({"score": torch.zeros(2)}, r"score must be a single value.*\(2,\)"),
        ({"score": 9 * RAMP.reshape(6, 10)}, r"score must be a single value.*\(6, 10\)"),
        *(({"every": x}, "every must be a whole number, 1 or more") for x in (0, -1, 2.0, True, "2", None)),
    ],
)  # fmt: skip
def test_what_cannot_be_logged_is_refused_at_the_first_call(manager, values, named):
    for _ in begin(manager):
        with pytest.raises(InvalidArgumentError, match=named):
            manager.log(**{"score": 1, **values})


def test_a_scheduled_hyperparameter_has_a_curve_beside_its_column(manager, tmp_path):
    for number in begin(manager):
        manager.log(lr=0.5 * number, step=number)

    steps = load_steps(tmp_path)
    assert steps["lr"].unique().tolist() == [0.1]
    assert steps["lr_logged"].tolist() == [0.5 * number for number in steps["step_logged"]]


def test_whoever_looks_into_a_long_epoch_sees_blocks(manager, tmp_path):
    sizes = []
    for number in begin(manager, loader=range(6000)):
        manager.log(score=number, other=-number)
        if number % 1000 == 0:
            sizes.append(len(load_steps(tmp_path)))

    assert sizes == [0, 0, 2048, 2048, 4096, 4096]  # of two values each
    assert load_steps(tmp_path)["score"].tolist() == [*range(1, 6001)]


@pytest.mark.slow
def test_values_wait_ten_seconds_at_most_until_they_are_on_disk(manager, tmp_path):
    sizes = []
    for number in begin(manager):
        manager.log(score=number)
        sizes.append(len(load_steps(tmp_path)))
        time.sleep(10.1 if number == 1 else 0)

    assert sizes == [0, 2, 2]


def test_a_diverged_run_and_a_failed_one_keep_their_steps(manager, tmp_path):
    for number in begin(manager, 2):
        manager.track_loss(math.nan, 1)
        manager.log(step_loss=number)
    with suppress(ZeroDivisionError), manager.run({"lr": 0.2}, None, LOADER):
        for _ in manager.epochs(2):
            for number, _ in enumerate(manager.batches()):
                manager.log(step_loss=number)
                1 / (1 - number)

    assert load_runs(tmp_path)["status"].tolist() == ["diverged", "failed"]
    steps = load_steps(tmp_path)[["run", "epoch", "step"]].to_numpy().tolist()
    assert steps == [[1, 1, 1], [1, 1, 2], [1, 1, 3], [2, 1, 1], [2, 1, 2]]


def interrupted(root, at, bonus=0.0):
    """Train three epochs, interrupted after a batch, unless it is 0."""
    manager = manager_in(root)
    state = {"number": 0}
    with suppress(KeyboardInterrupt), manager.run({"lr": 0.1}, None, LOADER):
        for epoch in manager.epochs(3, checkpoint={"state": state}):
            for _ in manager.batches():
                state["number"] += 1
                manager.track_loss(1.0, 1)
                manager.log(step_loss=state["number"] + bonus, every=2)
                if epoch > 1:
                    manager.log(late=state["number"])
                if state["number"] == at:
                    raise KeyboardInterrupt


def test_steps_that_are_executed_again_are_replaced_and_committed_ones_stay(tmp_path):
    interrupted(tmp_path / "whole", 0)
    for at in (2, 5, 7, 7, 8, 0):
        interrupted(tmp_path / "cut", at, bonus=0.5 if at == 2 else 0.0)

    whole, cut = load_steps(tmp_path / "whole"), load_steps(tmp_path / "cut")
    assert cut.equals(whole)
    assert cut["step"].tolist() == [2, *range(4, 10)]


def test_an_epoch_that_the_checkpoint_alone_has_keeps_its_steps(tmp_path):
    interrupted(tmp_path, 7)
    reading.as_killed(reading.run_folder(tmp_path / "exp"), num_lost=1)
    assert load_results(tmp_path)["epoch"].tolist() == [1]

    interrupted(tmp_path, 0)

    assert load_results(tmp_path)["epoch"].tolist() == [1, 2, 3]
    assert load_steps(tmp_path)["step"].tolist() == [2, *range(4, 10)]


def test_a_run_that_starts_over_has_the_steps_of_its_last_attempt_alone(tmp_path):
    for values in ([1, 2, 3], [4, 5, 6], []):
        manager = manager_in(tmp_path)
        for number, _ in enumerate(begin(manager)):
            manager.log(dict.fromkeys(["score"] * bool(values), values[number] if values else 0))
        assert [*load_steps(tmp_path).get("score", [])] == values


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (RAMP.reshape(6, 10), (6, 10)),
        (RAMP.reshape(1, 6, 10).double().requires_grad_(), (6, 10)),
        (RAMP.reshape(3, 4, 5), (4, 5)),
        (RAMP.reshape(4, 5, 3).half(), (4, 5)),
        (np.arange(60, dtype=np.uint8).reshape(5, 4, 3)[::-1], (5, 4)),
        (RAMP.numpy().reshape(6, 10) > 0.5, (6, 10)),
        (RAMP.reshape(3, 4, 5) - 9, (6, 7)),  # a sheet of one image, with its margin
        (RAMP.reshape(5, 3, 2, 2), (4, 20)),
        (RAMP.numpy().reshape(5, 2, 2, 3), (4, 20)),
    ],
)
def test_arrays_and_tensors_with_the_shape_of_an_image_are_drawn(tmp_path, value, size):
    manager = RunManager("exp", tmp_path, display=False)
    for _ in begin(manager):
        manager.log(image=value)

    (tag,) = [tag for tag in events_of(tmp_path).Tags()["images"] if "image" in tag]
    image = events_of(tmp_path).Images(tag)[0]
    assert (image.height, image.width) == size
    assert load_steps(tmp_path).empty


@pytest.mark.parametrize(
    "value",
    [RAMP.reshape(6, 10) + 1, RAMP.reshape(6, 10).long(), RAMP.reshape(6, 5, 2), np.full((2, 2), "a"),
     pd.DataFrame({"a": ["x", "y"]}), torch.zeros(2, 2, device="meta"), torch.zeros(2, 2, dtype=torch.cfloat)],
    ids=lambda value: f"{type(value).__name__} {value.shape}",
)  # fmt: skip
def test_other_matrices_are_no_images(manager, value):
    for _ in begin(manager):
        with pytest.raises(InvalidArgumentError, match="value must be a"):
            manager.log(value=value)
