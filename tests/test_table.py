import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from runmanager.console import print_fitted
from runmanager.table import Table
from tests.screens import Terminal

ROWS = [
    {"run": 1, "lr": 0.1, "net": "a" * 30, "validation_accuracy": 0.75, "status": "completed", "error": ""},
    {
        "run": 12,
        "lr": 0.01,
        "net": "b" * 30,
        "validation_accuracy": 0.5,
        "status": "failed",
        "error": "x " * 60,
    },
]
FIRST = ["run", "validation_accuracy", "status", "lr"]


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 120, 200, 400])
def test_no_line_is_longer_than_the_terminal_and_every_column_is_shown_or_named(width):
    table = Table.of(ROWS, first=FIRST)

    fitted, left_out = table.fitted(width)
    lines = fitted.lines(width)

    assert max(map(cell_len, lines)) <= width
    heading = " ".join(lines[:-2])
    parts = {"run": "run", "lr": "lr", "net": "net", "validation_accuracy": "accuracy"}
    parts |= {"status": "status", "error": "error"}
    assert [name for name, part in parts.items() if part not in heading.split() and name not in heading] == [
        name for name in parts if name in left_out
    ]


def test_what_matters_most_is_left_out_last():
    table = Table.of(ROWS, first=FIRST)

    orders = [table.fitted(width)[1] for width in range(20, 100)]

    assert {tuple(names) for names in orders} >= {("net", "error"), ("error",), ()}
    assert all("validation_accuracy" not in names for names in orders)


@given(st.integers(10, 120), st.lists(st.floats(0.001, 1e6), min_size=1, max_size=12))
def test_numbers_are_never_cut(width, numbers):
    table = Table.of([{f"column_{index}": number for index, number in enumerate(numbers)}])

    fitted, left_out = table.fitted(width)
    row = fitted.lines(width)[-1].split()

    whole = table.lines()[-1].split()
    assert row == whole[: len(row)]
    assert len(row) + len(left_out) == len(numbers)


def test_the_middle_of_a_long_text_is_left_out():
    fitted, _ = Table.of([{"error": "ValueError: the loader gave no batch (in sweep.py:41)"}]).fitted(30)

    assert fitted.lines(30) == ["error", "ValueError: the loa…eep.py:41)"]


def test_headings_are_folded_at_blanks_and_underscores():
    assert Table.of([{"validation_accuracy": 0.5, "run duration": 1.5}]).lines(20) == [
        "validation_       run",
        "   accuracy  duration",
        "        0.5       1.5",
    ]


def test_status_has_a_shape_and_a_color_and_the_best_row_is_bold():
    terminal = Terminal(80)

    print_fitted(Table.of(ROWS, first=FIRST, best=[0]), terminal.console)

    assert terminal.style_of("✓ completed") == ("green", True)
    assert terminal.style_of("✗ failed") == ("red", False)
    assert terminal.style_of("0.75")[1]
    assert not terminal.style_of("0.01")[1]


def test_without_colors_shapes_and_bold_are_left():
    terminal = Terminal(80, color=False)

    print_fitted(Table.of(ROWS, first=FIRST, best=[0]), terminal.console)

    assert any("✗ failed" in line for line in terminal.lines)
    assert terminal.style_of("✗ failed") == ("default", False)


def test_numbers_of_one_kind_have_as_many_decimals():
    table = Table.of([{"lr": 0.1, "loss": 0.5}, {"lr": 0.003, "loss": 0.25}], even=["loss"])

    assert table.lines() == ["   lr  loss", "  0.1  0.50", "0.003  0.25"]


def test_a_notebook_gets_bars_colors_and_the_whole_text_when_pointed_at():
    html = Table.of(
        ROWS, best=[0], bars={"validation_accuracy": (0.25, 0.75)}, hints=["", "out of luck"]
    ).to_html()

    assert "linear-gradient(90deg, rgba(84, 137, 214, 0.32) 50%, transparent 50%)" in html
    assert html.count("font-weight: bold") == len(ROWS[0]) + 2  # the cells of a row, and the signs
    assert 'title="out of luck"><span style="color: #e5534b; font-weight: bold">✗</span> failed' in html
    assert "<script" not in html


def test_the_best_row_is_bold_in_markdown_and_latex():
    table = Table.of(pd.DataFrame({"run": [1, 2], "loss": [0.5, 0.25]}), best=[1])

    assert table.to_markdown().split("\n")[2:] == ["| 1 | 0.5 |", "| **2** | **0.25** |"]
    assert "\\textbf{2} & \\textbf{0.25} \\\\" in table.to_latex()
