from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runmanager import GridError, IntRange, LogUniform, RunBuilder, Uniform
from runmanager.nested import leaves

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(5e-324, 1.7e308)
IN_A_PAIR = (
    "values of 'lr, eps' have a range among them: give each name a range of its own, or write a list of tuples"
)
FRACTIONS = st.floats(0, 1, exclude_max=True)


def bounds_of(low, high):
    return (low, high) if low < low / 2 + high / 2 < high else (1.0, 2.0)


@given(FLOATS, FLOATS, st.lists(FRACTIONS, min_size=2))
def test_a_uniform_draw_lies_within_the_bounds_and_grows_with_its_fraction(one, other, fractions):
    values = Uniform(*bounds_of(*sorted([one, other])))

    drawn = [values.from_fraction(fraction) for fraction in sorted(fractions)]

    assert all(type(value) is float and values.low <= value <= values.high for value in drawn)
    assert drawn == sorted(drawn)
    assert all(values.rounded(value) == value for value in drawn)


@given(POSITIVE, POSITIVE, st.lists(FRACTIONS, min_size=2))
def test_a_logarithmic_draw_lies_within_the_bounds_and_grows_with_its_fraction(one, other, fractions):
    values = LogUniform(*bounds_of(*sorted([one, other])))

    drawn = [values.from_fraction(fraction) for fraction in sorted(fractions)]

    assert all(type(value) is float and values.low <= value <= values.high for value in drawn)
    assert drawn == sorted(drawn)
    assert all(values.rounded(value) == value for value in drawn)


@given(st.integers(1, 10**18), st.integers(1, 10**18), st.booleans(), st.lists(FRACTIONS, min_size=2))
def test_a_whole_draw_lies_within_the_bounds_and_grows_with_its_fraction(low, width, log, fractions):
    values = IntRange(low, low + width, log)

    drawn = [values.from_fraction(fraction) for fraction in sorted(fractions)]

    assert all(type(value) is int and values.low <= value <= values.high for value in drawn)
    assert drawn == sorted(drawn)


@pytest.mark.parametrize(
    ("values", "width"), [(Uniform(0, 0.5), 6), (Uniform(1000, 5000), 6), (LogUniform(1e-5, 1e-1), 9)]
)
def test_a_draw_has_few_digits_and_many_values(values, width):
    drawn = [values.from_fraction(number / 20_000) for number in range(20_000)]

    assert max(len(str(value)) for value in drawn) <= width
    assert 1000 <= len(set(drawn)) <= values.num_values


@pytest.mark.parametrize(
    "values", [Uniform(0.9999, 0.99991), LogUniform(1, 1.001), Uniform(10**15, 10**15 + 10)]
)
def test_close_bounds_leave_many_values_too(values):
    assert len({values.from_fraction(number / 5000) for number in range(5000)}) > (
        60 if values.low > 1 else 900
    )


def test_each_whole_number_is_equally_likely_with_its_bounds():
    counts = Counter(IntRange(1, 5).from_fraction((number + 0.5) / 1000) for number in range(1000))

    assert counts == dict.fromkeys(range(1, 6), 200)


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        (
            {"lr": [Uniform(0, 1)]},
            "values of 'lr' have a range among them: write 'lr': Uniform(0, 1), without a list",
        ),
        (
            {("lr", "eps"): (Uniform(0, 1), Uniform(0, 2))},
            IN_A_PAIR,
        ),
        (
            {("lr", "eps"): Uniform(0, 1)},
            IN_A_PAIR,
        ),
        ({"device": IntRange(0, 3)}, "'device' is a range of numbers: write a list of devices"),
    ],
)
def test_a_range_where_none_can_be_is_refused(params, problem):
    with pytest.raises(GridError) as caught:
        RunBuilder.sample(params, 2, seed=0)

    assert caught.value.problems == [problem]


def test_a_nested_grid_may_have_ranges():
    nested = {"opt": {"lr": LogUniform(1e-5, 1e-1), "name": ["sgd", "adam"]}}
    flat = {"opt.lr": LogUniform(1e-5, 1e-1), "opt.name": ["sgd", "adam"]}

    assert RunBuilder.sample(nested, 5, seed=0) == RunBuilder.sample(flat, 5, seed=0)
    assert dict(leaves(nested))["opt.lr"] == LogUniform(1e-5, 1e-1)


def test_bounds_of_numpy_are_plain_numbers():
    whole: Any = np.array([1, 4])
    single: Any = np.array([0.5, 1.5], dtype=np.float32)

    assert repr(IntRange(*whole)) == "IntRange(1, 4)"
    assert repr(Uniform(*single)) == "Uniform(0.5, 1.5)"
