import io
import sys
from types import SimpleNamespace

import pandas as pd
import pytest
from rich.console import Console

from runmanager.console import (
    NotebookDisplay,
    TerminalDisplay,
    cell,
    choose_display,
    in_notebook,
    join,
    print_table,
    printable,
    wide_console,
)

ROW = {
    "run": 1, "epoch": 1, "loss": 0.598666, "accuracy": 0.7812, "epoch duration": 7.504123,
    "run duration": 12.5, "lr": 0.01, "batch_size": 1000, "num_workers": 1, "device": "cuda:0",
}  # fmt: skip


@pytest.fixture
def notebook(monkeypatch):
    """IPython as a notebook's kernel has it; the list of what was displayed and updated."""
    shown: list[tuple[str, int]] = []

    def display(table, *, display_id):
        assert display_id
        shown.append(("display", len(table)))
        return SimpleNamespace(update=lambda table: shown.append(("update", len(table))))

    shell = SimpleNamespace(config={"IPKernelApp": {}})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    return shown


def printed(table, width=200, title=None):
    file = io.StringIO()
    print_table(table, title, Console(file=file, width=width, highlight=False, markup=False, emoji=False))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_table_is_aligned_and_cut_to_what_matters():
    table = pd.DataFrame([ROW, ROW | {"run": 10, "loss": 12345.6, "device": "cpu"}])

    assert printed(table, title="Results") == [
        "Results",
        "run  epoch    loss  accuracy  epoch duration  run duration    lr  batch_size  num_workers  device",
        "  1      1  0.5987    0.7812           7.504          12.5  0.01        1000            1  cuda:0",
        " 10      1   12346    0.7812           7.504          12.5  0.01        1000            1  cpu",
    ]


def test_a_narrow_terminal_folds_the_headings_and_loses_no_column():
    assert printed(pd.DataFrame([ROW]), width=80) == [
        "                                 epoch       run",
        "run  epoch    loss  accuracy  duration  duration    lr  batch_size  num_workers  device",
        "  1      1  0.5987    0.7812     7.504      12.5  0.01        1000            1  cuda:0",
    ]


def test_no_column_is_lost_however_many_there_are():
    table = pd.DataFrame([{f"c{number}": number / 7 for number in range(60)} | {"error": "x y " * 99 + "end"}])

    heading, row = printed(table, width=80)

    assert heading.split() == list(table)
    assert row.split()[:60] == [cell(number / 7) for number in range(60)]
    assert row.endswith("x y end")


def test_of_a_long_table_the_last_rows_are_shown():
    table = pd.DataFrame({"run": range(1, 51)})

    lines = printed(table)

    assert lines[0] == "(10 earlier rows are in the table, not shown here)"
    assert [line.strip() for line in lines[1:]] == ["run", *map(str, range(11, 51))]


def test_an_empty_table_shows_its_columns():
    assert printed(pd.DataFrame(columns=["run", "epoch"])) == ["run  epoch"]


def test_values_are_shown_as_they_are_written():
    table = pd.DataFrame({"name": ["[red]a[/red]", ":cat:", "a\x1b[31m", pd.NA]})

    assert printed(table) == ["name", "[red]a[/red]", ":cat:", r"a\x1b[31m", ""]


@pytest.mark.parametrize("text", ["[red]a[/red]", "cuda:on:0", "lr=0.01"])
def test_the_console_of_a_grid_prints_what_it_is_given(capsys, text):
    wide_console().print(text)

    assert capsys.readouterr().out == f"{text}\n"


def test_without_a_terminal_lines_are_not_folded_at_its_width(capsys):
    print_table(pd.DataFrame([ROW | {"error": "word " * 50}]))

    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.598666, "0.5987"),
        (9999.4, "9999"),
        (9999.96, "10000"),
        (-12345.6, "-12346"),
        (1e-5, "1e-05"),
        (float("inf"), "inf"),
        (float("nan"), ""),
        (pd.NA, ""),
        (None, "None"),
        (1000000, "1000000"),
        (True, "True"),
        ((0.10, "a"), "(0.1, a)"),
        ("a\nb\x07", r"a\nb\x07"),
    ],
)
def test_a_cell_has_four_digits_and_nothing_for_what_is_missing(value, expected):
    assert cell(value) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("Größe · 1 µs", "Größe · 1 µs"), ("\x9b2J\u202e", r"\x9b2J\u202e")]
)
def test_what_would_steer_a_terminal_is_escaped(text, expected):
    assert printable(text) == expected


def test_parts_that_are_empty_are_left_out():
    assert join(["a", "", "b"]) == "a · b"


def test_a_terminal_shows_the_table_at_the_end_of_a_run(capsys):
    display = choose_display(None)

    assert isinstance(display, TerminalDisplay)
    assert not display.wants_epochs
    display.epoch_ended(pd.DataFrame([ROW]))
    assert capsys.readouterr().out == ""
    display.run_ended(pd.DataFrame({"run": [1]}))
    assert capsys.readouterr().out == "run\n  1\n"


def test_a_notebook_keeps_one_table_up_to_date(notebook, capsys):
    display = choose_display(None)

    assert isinstance(display, NotebookDisplay)
    assert display.wants_epochs
    for rows in (1, 2, 3):
        display.epoch_ended(pd.DataFrame([ROW] * rows))
    display.run_ended(pd.DataFrame([ROW] * 3))
    assert notebook == [("display", 1), ("update", 2), ("update", 3)]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("modules", ["plain Python", "IPython in a terminal", "IPython not in use"])
def test_only_a_kernel_is_a_notebook(monkeypatch, modules):
    shells = {"IPython in a terminal": SimpleNamespace(config={"TerminalIPythonApp": {}})}
    found = None if modules == "plain Python" else SimpleNamespace(get_ipython=lambda: shells.get(modules))
    monkeypatch.setitem(sys.modules, "IPython", found)

    assert not in_notebook()


def test_a_display_that_is_not_wanted_is_none():
    assert choose_display(wanted=False) is None
