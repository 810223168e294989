import io
import sys
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from runmanager.drawing.console import (
    Screen,
    choose_screen,
    in_notebook,
    print_fitted,
    wide_console,
)
from runmanager.drawing.table import Table


def test_of_a_long_table_the_last_rows_are_shown():
    file = io.StringIO()
    options: Any = {"highlight": False, "markup": False, "emoji": False, "color_system": None}

    Screen(Console(file=file, width=200, **options)).run_ended(pd.DataFrame({"run": range(1, 51)}))

    lines = file.getvalue().splitlines()
    assert lines[0] == "(the last 40 of 50 rows)"
    assert [line.strip() for line in lines[1:]] == ["run", *map(str, range(11, 51))]


@pytest.mark.parametrize("text", ["[red]a[/red]", "cuda:on:0", "lr=0.01"])
def test_the_console_of_a_grid_prints_what_it_is_given(capsys, text):
    wide_console().print(text)

    assert capsys.readouterr().out == f"{text}\n"


def test_without_a_terminal_lines_are_not_folded_at_its_width(capsys):
    print_fitted(Table.of(pd.DataFrame([{"run": 1, "error": "word " * 50}])))

    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("width", "heads"),
    [(20, ["run", "time"]), (36, ["run", f"time  {'n' * 30}"]), (40, [f"run time  {'n' * 30}"])],
)
def test_a_heading_is_folded_only_if_more_columns_fit(width, heads):
    lines, _ = Table(["run time", "n" * 30], [[1, 2]]).fitted(width)

    assert [line.plain.strip() for line in lines[:-1]] == heads


@pytest.mark.parametrize("modules", ["plain Python", "IPython in a terminal", "IPython not in use"])
def test_only_a_kernel_is_a_notebook(monkeypatch, modules):
    shells = {"IPython in a terminal": SimpleNamespace(config={"TerminalIPythonApp": {}})}
    found = None if modules == "plain Python" else SimpleNamespace(get_ipython=lambda: shells.get(modules))
    monkeypatch.setitem(sys.modules, "IPython", found)

    assert not in_notebook()


@pytest.mark.parametrize(
    ("encoding", "lines"),
    [
        ("ascii", ["? na?ve ? 1 ?", "? 2", "setting", "?"]),
        ("latin-1", ["? naïve · 1", "? 2", "setting", "?"]),
        ("cp1252", ["? naïve · 1 …", "? 2", "setting", "…"]),
    ],
)
def test_what_an_old_encoding_cannot_write_is_replaced_by_question_marks(monkeypatch, encoding, lines):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    monkeypatch.setattr(sys, "stdout", file)

    choose_screen(show=True).print([f"✓ naïve · 1{' …' if encoding != 'latin-1' else ''}", "✗ 2"])
    print_fitted(Table.of([{"setting": "…"}]))

    file.flush()
    assert [line.strip() for line in file.buffer.getvalue().decode(encoding).splitlines()] == lines


def test_a_disk_that_is_full_ends_nothing():
    class Full(io.StringIO):
        def write(self, _text):
            raise OSError(28, "No space left on device")

    screen = Screen(Console(file=Full()))

    screen.print(["one"])
    screen.print(["two"])
