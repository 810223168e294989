"""Plain state in checkpoints: dicts and lists of JSON values."""

import enum
import math
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from runmanager import CheckpointError, RunManager

pytestmark = pytest.mark.usefixtures("own_folder")


class Colour(enum.IntEnum):
    RED = 1


def loop(state, change=None):
    """Train two epochs with a state, which changes in the first; the second is interrupted if it changes."""
    manager = RunManager("exp", display=False, tensorboard=False)
    with suppress(KeyboardInterrupt), manager.run({"lr": 0.1}):
        for _ in manager.epochs(2, checkpoint={"state": state}):
            manager.track_loss(0.5, 1)
            if change and manager.epoch_count == 2:
                raise KeyboardInterrupt
            if change:
                change(state)


def test_a_state_is_filled_in_again_and_dicts_and_lists_inside_are_the_same_objects():
    def change(state):
        state["rows"][0]["best"] = np.float64(0.2)
        state["inside"] = {"deep": {"best": np.mean([0.5, 1.0])}, "new": [], "never": math.inf, "none": None}
        state["losses"] += [0.2]
        state["inside"]["deep"]["1"] = state.pop("gone")

    loop({"losses": [0.3], "inside": {"deep": {}}, "rows": [{"best": 1.0}], "gone": True}, change)
    deep: dict[str, Any] = {"best": 9.0}
    losses, inside, row = [0.5, 0.6, 0.7], {"deep": deep, "old": 1}, {"best": 9.0}
    state: dict[str, Any] = {"losses": losses, "inside": inside, "rows": [row, {}], "gone": 1}

    loop(state)

    assert [*state] == ["losses", "inside", "rows"]
    assert (losses, row) == ([0.3, 0.2], {"best": 0.2})
    assert inside == {"deep": {"best": 0.75, "1": True}, "new": [], "never": math.inf, "none": None}
    assert state["losses"] is losses
    assert state["inside"] is inside
    assert inside["deep"] is deep
    assert state["rows"][0] is row
    assert type(row["best"]) is float


TWICE = [1]
REFUSED = {
    "weights": (nn.Linear(1, 1).state_dict(), "state_dict()"), "number": (torch.tensor(0.5), "float(...)"),
    "tensor": (torch.zeros(3), "not its state_dict()"), "array": (np.zeros(3), "state_dict()"),
    "float32": (np.float32(1), "float(...)"), "tuple": ((1, 2), "a list"), "enum": (Colour.RED, "int(...)"),
    "function": (len, "state_dict()"), "twice": ([TWICE, TWICE], "twice"),
    "optimizer": (torch.optim.SGD([nn.Parameter(torch.zeros(1))]).state_dict(), "the object itself"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_json_is_refused_with_its_place_and_what_to_write(kind):
    value, advice = REFUSED[kind]

    with pytest.raises(CheckpointError) as caught:
        loop({"rows": [0, {"best": value}]})

    assert "checkpoint['state']['rows'][1]['best']" in str(caught.value)
    assert advice in str(caught.value)


@pytest.mark.parametrize(("first", "second"), [({}, []), ([], {}), ({}, nn.Linear(1, 1))])
def test_another_kind_of_state_does_not_fit(first, second):
    loop(first, lambda _: None)

    with pytest.raises(CheckpointError, match="state"):
        loop(second)
