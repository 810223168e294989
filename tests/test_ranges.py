import itertools
import math
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runmanager import GridError, IntRange, InvalidArgumentError, LogUniform, RunBuilder, Uniform, run_grid
from runmanager.axes import space_of
from runmanager.nested import leaves

SPACE = {
    "lr": LogUniform(1e-5, 1e-1),
    "dropout": Uniform(0, 0.5),
    "width": IntRange(16, 512, log=True),
    "network": ["mlp", "cnn"],
}
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(5e-324, 1.7e308)
STEP = "draw runs with RunBuilder.sample(params, n=50, seed=0), or give run_grid a search="
IN_A_PAIR = (
    "values of 'lr, eps' have a range among them: give each name a range of its own, or write a list of tuples"
)
TEXT: Any = "0"
EIGHT: Any = 8.0
TEN: Any = 10
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


def test_each_order_of_magnitude_is_equally_likely():
    sample = RunBuilder.sample(SPACE, 2000, seed=0)

    decades = Counter(math.floor(math.log10(run.lr)) for run in sample)
    assert sorted(decades) == [-5, -4, -3, -2]
    assert all(420 < count < 580 for count in decades.values())
    assert 320 < sum(run.width < 32 for run in sample) < 480  # one of five doublings
    assert 900 < sum(run.network == "cnn" for run in sample) < 1100
    assert 920 < sum(run.dropout < 0.25 for run in sample) < 1080


def test_each_whole_number_is_equally_likely_with_its_bounds():
    counts = Counter(IntRange(1, 5).from_fraction((number + 0.5) / 1000) for number in range(1000))

    assert counts == dict.fromkeys(range(1, 6), 200)


@given(st.integers(1, 40), st.integers(0, 40), st.integers())
def test_a_sample_of_ranges_grows_without_changing(n, more, seed):
    sample = RunBuilder.sample(SPACE, n, seed)

    assert RunBuilder.sample(SPACE, n + more, seed)[:n] == sample
    assert len(set(sample)) == n


def test_the_values_of_a_range_do_not_depend_on_the_other_axes():
    alone = RunBuilder.sample({"lr": SPACE["lr"]}, 20, seed=3)

    assert [run.lr for run in RunBuilder.sample(SPACE, 20, seed=3)] == [run.lr for run in alone]


def test_two_ranges_are_drawn_independently():
    sample = RunBuilder.sample({"a": Uniform(0, 1), "b": Uniform(0, 1)}, 1000, seed=0)

    assert abs(np.corrcoef(np.array(sample).T)[0, 1]) < 0.1


def test_a_sample_of_ranges_has_no_run_twice_and_can_have_all():
    params = {"depth": IntRange(1, 3), "width": IntRange(1, 100, log=True), ("a", "b"): [(1, 2), (3, 4)]}

    sample = RunBuilder.sample(params, 600, seed=0)

    assert sorted(sample) == [
        (depth, width, *pair)
        for depth, width, pair in itertools.product(range(1, 4), range(1, 101), [(1, 2), (3, 4)])
    ]


@pytest.mark.parametrize(
    ("params", "where", "problem"),
    [
        ({"a": IntRange(1, 3)}, None, "a sample of 4 runs was asked for, this grid has 3: write n=3"),
        (
            {"a": IntRange(1, 3), "b": [1, 2]},
            lambda run: run.a > 2,
            "where= keeps 2 of all 6 runs of this grid, a sample of 4 was asked for: lower n",
        ),
    ],
)
def test_a_sample_that_ranges_do_not_have_is_refused(params, where, problem):
    with pytest.raises(GridError) as caught:
        RunBuilder.sample(params, 4, seed=0, where=where)

    assert caught.value.problems == [problem]


@pytest.mark.parametrize("expand", [RunBuilder.get_runs, RunBuilder.num_runs])
def test_a_grid_names_its_ranges_and_what_to_do(expand):
    with pytest.raises(GridError) as caught:
        expand({**SPACE, "device": "cpu"})

    assert caught.value.problems == [
        "values of 'device' must be a list or tuple, got 'cpu'; write device=['cpu'] for a single value",
        f"lr, dropout, width are ranges, which no grid can expand: {STEP}",
    ]


def test_run_grid_refuses_a_range_before_anything_starts(tmp_path):
    def train(run, manager):
        raise AssertionError

    with pytest.raises(GridError, match="lr is a range, which no grid can expand"):
        run_grid({"lr": LogUniform(0.1, 1)}, train, experiment="e", root=tmp_path / "runs")

    assert not (tmp_path / "runs").exists()


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


@pytest.mark.parametrize(
    ("make", "problems"),
    [
        (
            lambda: Uniform(TEXT, math.nan),
            [
                "low of Uniform must be a finite number, got '0'",
                "high of Uniform must be a finite number, got nan",
            ],
        ),
        (
            lambda: Uniform(1, 0),
            ["low of Uniform must be below high, got 1 and 0: write Uniform(0, 1)"],
        ),
        (
            lambda: LogUniform(0.1, 0.1),
            ["low of LogUniform must be below high, got 0.1 and 0.1: write [0.1] in the place of the range"],
        ),
        (lambda: LogUniform(0, 1), ["low of LogUniform must be a finite number above 0, got 0"]),
        (
            lambda: IntRange(True, EIGHT),
            [
                "low of IntRange must be a whole number, got True",
                "high of IntRange must be a whole number, got 8.0",
            ],
        ),
        (
            lambda: IntRange(0, 8, log=True),
            ["low of IntRange must be a whole number above 0 (log=True), got 0"],
        ),
        (lambda: IntRange(2, 8, log=TEN), ["log of IntRange must be one of True, False, got 10"]),
        (
            lambda: IntRange(0, 10**5000),
            ["high of IntRange must be a whole number, got one of over 300 digits"],
        ),
    ],
)
def test_bounds_that_cannot_be_used_are_refused_at_once(make, problems):
    with pytest.raises(InvalidArgumentError) as caught:
        make()

    assert caught.value.problems == problems


@pytest.mark.parametrize(
    "text", ["Uniform(0, 0.5)", "LogUniform(1e-05, 0.1)", "IntRange(16, 512)", "IntRange(16, 512, log=True)"]
)
def test_a_range_is_written_as_it_was_made_pickles_and_compares(text):
    values = eval(text)  # noqa: S307 - the texts above

    assert repr(values) == text
    assert pickle.loads(pickle.dumps(values)) == values == eval(text)  # noqa: S307
    assert len({values, eval(text)}) == 1  # noqa: S307
    with pytest.raises(AttributeError):
        values.low = 3


def test_bounds_of_numpy_are_plain_numbers():
    whole: Any = np.array([1, 4])
    single: Any = np.array([0.5, 1.5], dtype=np.float32)

    assert repr(IntRange(*whole)) == "IntRange(1, 4)"
    assert repr(Uniform(*single)) == "Uniform(0.5, 1.5)"


def test_the_space_of_a_grid_has_ranges_and_lists():
    assert space_of({"lr": Uniform(0, 1), ("a", "b"): [(1, 2)]}) == {
        ("lr",): Uniform(0, 1),
        ("a", "b"): [(1, 2)],
    }
