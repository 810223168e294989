import enum
import functools
import math
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from runmanager.core.values import check_value, identity, key_of

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
TORCH = st.sampled_from(
    [torch.device("cpu"), torch.device("cuda"), torch.device("cuda:1"), torch.float32, torch.bfloat16]
)
KEYS = st.recursive(SCALARS | TORCH, lambda keys: st.lists(keys).map(tuple), max_leaves=3)
VALUES = st.recursive(
    SCALARS | TORCH,
    lambda values: st.lists(values) | st.lists(values).map(tuple) | st.dictionaries(KEYS, values, max_size=3),
    max_leaves=10,
)
NUMBERS = st.integers(-(10**300), 10**300) | st.floats(allow_nan=False)


class Colour(enum.Enum):
    RED = 1


class Size(enum.IntEnum):
    SMALL = 1


class Thing:
    pass


def function():
    pass


@dataclass
class Weights:
    values: object


@pytest.mark.slow(everywhere=True)
@given(st.dictionaries(st.text(), VALUES, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_hyperparameters_does_not_matter_to_identity(params, random):
    shuffled = list(params.items())
    random.shuffle(shuffled)

    assert identity(dict(shuffled)) == identity(params)


@given(NUMBERS, NUMBERS)
@example(1, 1.0)
@example(0.0, -0.0)
@example(10**16, 1e16)
@example(2**53 + 1, float(2**53))
@example(math.inf, -math.inf)
def test_numbers_have_the_same_identity_exactly_if_they_are_equal(one, other):
    assert (identity({"n": one}) == identity({"n": other})) == (one == other)


@given(st.lists(VALUES, max_size=4))
def test_a_list_has_the_identity_of_its_tuple(items):
    assert identity({"layers": items}) == identity({"layers": tuple(items)})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (math.nan, float("nan")),
        (np.float64(0.1), 0.1),
        (torch.device("cuda:1"), "cuda:1"),
        ({"a": 1, "b": 2}, {"b": 2.0, "a": 1}),
        (PurePosixPath("a"), "a"),
        (Weights(1), Weights(1.0)),
        (torch.tensor(0.5), 0.5),
    ],
)
def test_what_means_the_same_has_the_same_identity(one, other):
    assert identity({"n": one}) == identity({"n": other})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (0, False),
        (0, None),
        (1, "1"),
        (None, "None"),
        (math.nan, "nan"),
        (Size.SMALL, 1),
        (int, "int"),
        ((1, 2), (2, 1)),
        ((1, (2, 3)), (1, 2, 3)),
        ({"a": 1}, {"a": True}),
        (torch.tensor(0.123456), torch.tensor(0.123459)),
        (Weights(1), Weights(2)),
    ],
)
def test_what_means_something_else_has_another_identity(one, other):
    assert identity({"n": one}) != identity({"n": other})


def test_the_identity_that_finished_runs_are_found_by_never_changes():
    params = {"lr": 0.01, "batch_size": 64, "device": "cuda:0", "layers": (8, 8), "seed": None, "amp": True}

    assert identity(params) == "851da26d5bdd957e"


@pytest.mark.parametrize(
    "value",
    [
        0.1, "text at 0xff", ["text at 0xff", "<lambda>"], Colour.RED, Thing, function,
        torch.nn.functional.relu, torch.float16, {"a": (1, int)}, PurePosixPath("a"), Weights(3), np.float32(1),
        torch.tensor(1),
    ],
)  # fmt: skip
def test_a_value_with_a_lasting_name_is_accepted(value):
    assert check_value(value) == ""


@pytest.mark.parametrize(
    "value",
    [
        Thing(), [Thing()], {"a": Thing()}, {Thing(): 1}, {1, 2}, functools.partial(function), lambda: 1,
        Weights(Thing()), np.arange(3), torch.arange(3), torch.nn.ReLU(), b"a", 1j,
    ],
)  # fmt: skip
def test_any_other_value_is_refused_with_what_to_write(value):
    assert "give it a name and look it up" in str(check_value(value))


def test_classes_and_functions_are_identified_by_their_full_name():
    assert key_of(Thing) == f'{{"name": "{__name__}.Thing"}}'
    assert key_of(function) == f'{{"name": "{__name__}.function"}}'
    assert key_of(Colour.RED) == f'{{"enum": "{__name__}.Colour.RED"}}'
