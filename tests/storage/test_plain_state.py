import collections
import enum
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from runmanager.core.plain_state import copied, fill, is_plain_state
from runmanager.errors import CheckpointError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(), inside, max_size=3),
    max_leaves=8,
)
STATES = st.dictionaries(st.text(), VALUES, max_size=4) | st.lists(VALUES, max_size=4)


class Colour(enum.IntEnum):
    RED = 1


@given(STATES, STATES)
@settings(max_examples=20)
def test_a_state_that_was_copied_is_filled_in_again(saved, other):
    copy = copied("state", saved)
    fresh = type(saved)()
    if type(other) is type(saved):
        fresh = other

    fill(fresh, copy)

    assert fresh == copied("state", saved) == copy
    assert repr(fresh) == repr(saved)


def test_a_copy_does_not_follow_its_original():
    state: dict[str, Any] = {"inside": {"losses": [1]}}

    copy = copied("state", state)
    state["inside"]["losses"].append(2)

    assert copy == {"inside": {"losses": [1]}}


def test_dicts_and_lists_inside_are_the_same_objects_afterwards():
    losses, inside = [0.5], {"deep": {"best": math.inf}}
    deep, row = inside["deep"], {"best": 0.9}
    state: dict[str, Any] = {"losses": losses, "inside": inside, "rows": [row], "gone": 1}

    fill(state, {"inside": {"deep": {"best": 0.1}, "new": []}, "losses": [0.3, 0.2], "rows": [{"best": 0.2}]})

    assert list(state) == ["inside", "losses", "rows"]
    assert (losses, deep, row) == ([0.3, 0.2], {"best": 0.1}, {"best": 0.2})
    assert state["losses"] is losses
    assert state["inside"] is inside
    assert inside == {"deep": {"best": 0.1}, "new": []}
    assert state["rows"][0] is row


def test_a_list_that_is_shorter_than_before_is_filled():
    state = [[1], 2, 3]

    fill(state, [[4, 5]])

    assert state == [[4, 5]]


def test_numbers_of_numpy_that_are_floats_become_them():
    copy = copied("state", {"best": np.float64(0.1), "worst": np.mean([0.5, 1.0]), "never": math.inf})

    assert copy == {"best": 0.1, "worst": 0.75, "never": math.inf}
    assert {type(value) for value in copy.values()} == {float}


REFUSED = {
    "weights": (nn.Linear(1, 1).state_dict(), "or give checkpoint= an object with state_dict()"),
    "tensor": (torch.tensor(0.5), "float(...)"),
    "array": (np.zeros(3), "with state_dict()"),
    "float32": (np.float32(1), "float(...)"),
    "tuple": ((1, 2), "a list"),
    "enum": (Colour.RED, "int(...)"),
    "function": (len, "with state_dict()"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_json_is_refused_with_what_to_write(kind):
    value, advice = REFUSED[kind]

    with pytest.raises(CheckpointError) as caught:
        copied("checkpoint['state']", {"rows": [0, {"best": value}]})

    assert str(caught.value).startswith("checkpoint['state']['rows'][1]['best']")
    assert advice in str(caught.value)


def test_an_object_in_two_positions_is_refused():
    row = [1]

    with pytest.raises(CheckpointError, match="is in the state twice"):
        copied("state", {"first": row, "second": row})


@pytest.mark.parametrize(("state", "saved"), [({}, []), ([], {}), ({}, torch.zeros(1)), ([], 3)])
def test_another_kind_of_state_does_not_fit(state, saved):
    with pytest.raises(TypeError, match="saved was a"):
        fill(state, saved)

    assert not state


@pytest.mark.parametrize(
    ("part", "is_plain"),
    [({}, True), ([], True), (collections.OrderedDict(), True), (nn.ParameterDict(), False), (0.5, False)],
)
def test_dicts_and_lists_are_plain_state(part, is_plain):
    assert is_plain_state(part) is is_plain
