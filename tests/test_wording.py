import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runmanager.core.wording import did_you_mean, listed
from runmanager.tables.cells import aligned, cell


@given(st.lists(st.floats(0.01, 1), min_size=1))
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


@pytest.mark.parametrize(
    ("name", "names", "hint"),
    [
        ("acuracy", ["loss", "accuracy"], "did you mean 'accuracy'?"),
        ("Adam_LR", ["adam_lr"], "did you mean 'adam_lr'?"),
        ("lt", ["lr", "seed"], "did you mean 'lr'?"),
        ("momentum", ["lr", "seed"], "they have: lr, seed"),
        ("x", [], "they have: none"),
        ("red", ["\x1b[31mre"], "they have: \\x1b[31mre"),
    ],
)
def test_the_name_that_was_meant_is_asked_for(name, names, hint):
    assert did_you_mean(name, names) == hint


def test_of_many_names_the_first_are_listed():
    assert listed(range(30), 2) == "0, 1 and 28 more"


def test_a_cell_has_four_digits():
    assert cell(0.123456) == "0.1235"
