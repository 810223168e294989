"""Values of hyperparameters: which are accepted, which mean the same, and their text and JSON."""

import enum
import functools
import json
import math
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from runmanager.core.values import check_values, decode, encode, identity, text
from runmanager.tables.cells import aligned

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
TAGS = st.sampled_from(["$float", "$tuple", "$dict", "$device", "$dtype", "other"])
JSON = st.recursive(
    SCALARS | st.sampled_from(["cuda:999999999999", "torch.nn", "nan"]),
    lambda values: st.lists(values) | st.dictionaries(TAGS, values, max_size=2),
    max_leaves=8,
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


def nested(depth):
    return [] if depth == 1 else [nested(depth - 1)]


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


SAME: list[tuple[object, object]] = [
    (math.nan, float("nan")), (np.float64(0.1), 0.1), (np.bool_(True), True),
    (torch.device("cuda:1"), "cuda:1"),
    ({"a": 1, "b": 2}, {"b": 2.0, "a": 1}), (PurePosixPath("a"), "a"), (Weights(1), Weights(1.0)),
    (torch.tensor(0.5), 0.5),
]  # fmt: skip
OTHERS: list[tuple[object, object]] = [
    (1, True), (0, None), (1, "1"), (None, "None"), (math.nan, "nan"), (Size.SMALL, 1), (int, "int"),
    ((1, 2), (2, 1)), ((1, (2, 3)), (1, 2, 3)), ({"a": 1}, {"a": True}), (Weights(1), Weights(2)),
    (torch.tensor(0.123456), torch.tensor(0.123459)), (function, Thing),
]  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "is_same"), [(*pair, True) for pair in SAME] + [(*pair, False) for pair in OTHERS]
)
def test_values_have_the_same_identity_if_they_mean_the_same(one, other, is_same):
    assert (identity({"n": one}) == identity({"n": other})) == is_same


@pytest.mark.parametrize(
    "value",
    [
        0.1, "text at 0xff", ["text at 0xff", "<lambda>"], Colour.RED, Thing, function,
        torch.nn.functional.relu, torch.float16, {"a": (1, int)}, PurePosixPath("a"), Weights(3), np.float32(1),
        torch.tensor(1), nested(50),
    ],
)  # fmt: skip
def test_a_value_with_a_lasting_name_is_accepted(value):
    assert check_values([("n", value)]) == []
    decode(encode(value))


@pytest.mark.parametrize(
    "value",
    [
        Thing(), [Thing()], {"a": Thing()}, {Thing(): 1}, {1, 2}, functools.partial(function), lambda: 1,
        Weights(Thing()), np.arange(3), torch.arange(3), torch.nn.ReLU(), b"a", 1j, nested(51),
    ],
)  # fmt: skip
def test_any_other_value_is_refused_with_what_to_write(value):
    assert re.search("give (a|its) name", check_values([("n", value)])[0])


@given(VALUES)
def test_a_value_comes_back_from_strict_json_with_its_type(value):
    restored = decode(json.loads(json.dumps(encode(value), allow_nan=False)))

    assert repr(restored) == repr(value)  # tells 1 from 1.0 and True, and compares NaN


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (int, "int"), (function, f"{__name__}.function"), (torch.optim.SGD, "torch.optim.SGD"),
        (Colour.RED, "RED"), (Size.SMALL, "SMALL"), (PurePosixPath("a/b"), "a/b"), (np.float32(0.5), 0.5),
    ],
)  # fmt: skip
def test_anything_else_comes_back_as_plain_python_or_text(value, expected):
    restored = decode(json.loads(json.dumps(encode(value))))

    assert (type(restored), restored) == (type(expected), expected)


@given(JSON)
@example({"$dict": [1]})
@example({"$dict": [[[1], 2]]})
@example({"$dict": [[1, 2, 3]]})
@example(nested(51))
def test_foreign_json_is_decoded_or_refused_with_a_value_error(content):
    try:
        decoded = decode(content)
    except ValueError:
        return

    assert repr(decode(encode(decoded))) == repr(decoded)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1e-4, "0.0001"), (1e-5, "1e-05"), (1000000, "1000000"), (True, "True"), ((3, 0.50), "(3, 0.5)"),
        ([], "()"), ((64,), "(64,)"), (torch.tensor(0.5), "0.5"), (torch.nn.ReLU, "ReLU"), (Colour.RED, "RED"),
        (torch.device("cuda:0"), "cuda:0"),
    ],
)  # fmt: skip
def test_values_are_written_the_short_way(value, expected):
    assert text(value) == expected


@given(st.lists(st.floats(0.06, 1), min_size=1))  # below 0.05, three decimals would lose digits beside 1
def test_aligned_numbers_have_their_point_in_one_column_and_keep_their_value(numbers):
    texts = aligned(numbers)

    assert len({len(text.partition(".")[2]) for text in texts}) == 1
    assert [float(text) for text in texts] == pytest.approx(numbers, abs=0.001)


@pytest.mark.parametrize(
    ("numbers", "texts"),
    [
        ([], []),
        ([math.nan, math.inf], ["", "inf"]),
        ([1.0, 2.0], ["1", "2"]),
        ([0.5, 0.25], ["0.50", "0.25"]),
        ([1e-9, 0.5], ["1e-09", "0.5"]),
        ([99_999.0, 1.25], ["99999", "1.25"]),
        ([0.0, 12.345], ["0.00", "12.35"]),
        ([-0.25, 0.125], ["-0.250", "0.125"]),
    ],
)
def test_numbers_are_aligned_where_no_digit_gets_lost(numbers, texts):
    assert aligned(numbers) == texts
