import enum
import functools
import json
import math
import re
from collections import OrderedDict
from pathlib import PurePosixPath

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from runmanager.hyperparameters import canonical, decode, encode, identity, is_nameable, plain, text

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

TAGS = st.sampled_from(["$float", "$tuple", "$dict", "$device", "$dtype", "other"])
JSON = st.recursive(
    SCALARS | st.sampled_from(["cuda:999999999999", "torch.nn", "nan"]),
    lambda values: st.lists(values) | st.dictionaries(TAGS, values, max_size=2),
    max_leaves=8,
)


class Colour(enum.Enum):
    RED = 1


class Size(enum.IntEnum):
    SMALL = 1


class Thing:
    pass


def function():
    pass


@given(VALUES)
def test_a_value_comes_back_from_strict_json_with_its_type(value):
    document = json.dumps(encode(value), allow_nan=False)

    restored = decode(json.loads(document))

    assert repr(restored) == repr(value)  # tells 1 from 1.0 and True, and compares NaN


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (int, "int"),
        (function, "function"),
        (Colour.RED, "RED"),
        (Size.SMALL, "SMALL"),
        (PurePosixPath("a/b"), "a/b"),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (OrderedDict(a=1), {"a": 1}),
    ],
)
def test_anything_else_comes_back_as_plain_python_or_text(value, expected):
    restored = decode(json.loads(json.dumps(encode(value))))

    assert (type(restored), restored) == (type(expected), expected)


def test_an_address_is_left_out_of_the_text():
    assert encode(Thing()) == f"<{__name__}.Thing object>"


@given(JSON)
@example({"$dict": [1]})
@example({"$dict": [[[1], 2]]})
@example({"$dict": [[1, 2, 3]]})
def test_foreign_json_is_decoded_or_refused_with_a_value_error(content):
    try:
        decoded = decode(content)
    except ValueError:
        return

    assert repr(decode(encode(decoded))) == repr(decoded)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "not an encoded value: {}"),
        ({"$tuple": 3}, "not an encoded value: {'$tuple': 3}"),
        ({"$float": "one"}, "not an encoded value: {'$float': 'one'}"),
        ({"$dict": [1]}, "not the items of a dict: [1]"),
        ({"$device": "gpu"}, "not a torch device: 'gpu'"),
        ({"$dtype": "torch.nn"}, "not a torch dtype: 'torch.nn'"),
    ],
)
def test_damaged_json_is_named(content, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        decode(content)


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
    [Thing(), [Thing()], {"a": Thing()}, {Thing(): 1}, functools.partial(function), lambda: 1],
)
def test_a_value_that_is_another_one_in_the_next_process_is_not_nameable(value):
    assert not is_nameable(value)


def test_classes_and_functions_are_identified_by_their_full_name():
    assert canonical(Thing) == {"name": f"{__name__}.Thing"}
    assert canonical(function) == {"name": f"{__name__}.function"}
    assert canonical(Colour.RED) == {"enum": f"{__name__}.Colour.RED"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [(np.float64(0.5), 0.5), (np.int64(3), 3), (np.bool_(False), False), ("a", "a"), (None, None)],
)
def test_numpy_scalars_become_plain_python(value, expected):
    assert (type(plain(value)), plain(value)) == (type(expected), expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1e-4, "0.0001"),
        (1e-5, "1e-05"),
        (1000000, "1000000"),
        (True, "True"),
        ((3, 0.50), "(3, 0.5)"),
        ([], "()"),
        (torch.nn.ReLU, "ReLU"),
        (Colour.RED, "RED"),
        (torch.device("cuda:0"), "cuda:0"),
    ],
)
def test_values_are_written_the_short_way(value, expected):
    assert text(value) == expected
