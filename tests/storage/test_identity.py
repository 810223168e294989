import enum
import functools
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from runmanager.storage.identity import canonical, identity, is_nameable

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
TORCH = st.sampled_from(
    [torch.device("cpu"), torch.device("cuda"), torch.device("cuda:1"), torch.float32, torch.bfloat16]
)
KEYS = st.recursive(SCALARS | TORCH, lambda keys: st.lists(keys).map(tuple), max_leaves=3)
SETS = st.sets(st.integers(), max_size=1) | st.frozensets(st.text(), max_size=1)
VALUES = st.recursive(
    SCALARS | TORCH,
    lambda values: (
        st.lists(values) | st.lists(values).map(tuple) | st.dictionaries(KEYS, values, max_size=3) | SETS
    ),
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


class One:
    def __repr__(self):
        return "SGD()"


class Other(One):
    pass


class Table:
    def __repr__(self):
        return "1 2 ... 9"


@pytest.mark.slow(everywhere=True)
def test_a_set_has_the_same_identity_in_every_process():
    program = (
        "from runmanager.hyperparameters import encode; from runmanager.storage.identity import identity; "
        "value = {'p': {'relu', 'tanh', 'gelu', 'silu'}}; print(identity(value), encode(value))"
    )

    lines = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(seed)}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in range(4)
    }  # fmt: skip

    assert len(lines) == 1


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
        (np.arange(2000), np.arange(2000)),
        (torch.arange(3), torch.arange(3)),
        (torch.arange(6).reshape(2, 3).T, torch.arange(6).reshape(2, 3).T.contiguous()),
        ({"relu", "tanh", "gelu"}, frozenset(("gelu", "tanh", "relu"))),
        (Weights(np.arange(2000)), Weights(np.arange(2000))),
        (torch.nn.ReLU(), torch.nn.ReLU()),
        (np.array(["a", None], dtype=object), np.array(["a", None], dtype=object)),
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
        (np.arange(2000), np.where(np.arange(2000) == 1000, -5, np.arange(2000))),
        (np.array([0.123456789012]), np.array([0.123456789013])),
        (np.arange(4), np.arange(4).reshape(2, 2)),
        (np.arange(2), np.arange(2.0)),
        (torch.tensor(0.123456), torch.tensor(0.123459)),
        (torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.float16)),
        (torch.tensor([1 + 2j]), torch.tensor([1 - 2j])),
        ({1, 2}, {1, 3}),
        ({"a", "b"}, ("a", "b")),
        (Weights(np.arange(2000)), Weights(np.arange(2000) * 2)),
        (torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)),
        (One(), Other()),
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
        0.1,
        "text at 0xff",
        ["text at 0xff", "<lambda>"],
        Colour.RED,
        Thing,
        function,
        torch.nn.functional.relu,
        torch.float16,
        {"a": (1, int)},
    ],
)
def test_a_value_with_a_lasting_name_is_nameable(value):
    assert is_nameable(value)


@pytest.mark.parametrize(
    "value",
    [
        Thing(),
        [Thing()],
        {"a": Thing()},
        {Thing(): 1},
        {Thing()},
        functools.partial(function),
        lambda: 1,
        Weights(Thing()),
        Table(),
    ],
)
def test_a_value_that_is_another_one_in_the_next_process_is_not_nameable(value):
    assert not is_nameable(value)


def test_classes_and_functions_are_identified_by_their_full_name():
    assert canonical(Thing) == {"name": f"{__name__}.Thing"}
    assert canonical(function) == {"name": f"{__name__}.function"}
    assert canonical(Colour.RED) == {"enum": f"{__name__}.Colour.RED"}
