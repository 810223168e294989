import enum
import json
import re
from collections import OrderedDict
from pathlib import PurePosixPath

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from runmanager.core.values import decode, encode, plain, text

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
        (function, f"{__name__}.function"),
        (torch.optim.SGD, "torch.optim.SGD"),
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
        ((64,), "(64,)"),
        (torch.tensor(0.5), "0.5"),
        (torch.nn.ReLU, "ReLU"),
        (Colour.RED, "RED"),
        (torch.device("cuda:0"), "cuda:0"),
    ],
)
def test_values_are_written_the_short_way(value, expected):
    assert text(value) == expected
