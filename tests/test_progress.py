import io
from pathlib import Path

import pytest
from rich.console import Console

from runmanager import progress
from runmanager.progress import GridProgress, label
from runmanager.storage.folders import RunFolder
from runmanager.storage.journal import EpochRecord, Outcome, Status

FOLDER = RunFolder(Path("runs/exp/007_lr=0.01"), 7, "id", {"lr": 0.010, "net": "a", "device": "cpu"})
RECORD = EpochRecord(3, {"loss": 0.598666, "test_accuracy": 0.75, "epoch duration": 7.5, "f1": 1.0})


def without_time(shown):
    return [line.rpartition(" · ")[0] if line.endswith(" s") else line for line in shown.splitlines()]


@pytest.mark.parametrize(
    ("outcome", "record", "lines"),
    [
        (
            Outcome(Status.COMPLETED, "", 3),
            RECORD,
            ["✓ 1/2 run 7 lr=0.01 net=a · loss 0.5987 · test_accuracy 0.75"],
        ),
        (Outcome(Status.COMPLETED), None, ["✓ 1/2 run 7 lr=0.01 net=a"]),
        (
            Outcome(Status.DIVERGED, "loss became nan", 3),
            RECORD,
            ["✗ 1/2 run 7 lr=0.01 net=a · diverged · loss 0.5987 · test_accuracy 0.75 · loss became nan"],
        ),
        (
            Outcome(Status.FAILED, "KeyError: ':cat:' [bold]\x1b[31m"),
            None,
            [
                "✗ 1/2 run 7 lr=0.01 net=a · failed · KeyError: ':cat:' [bold]\\x1b[31m",
                "    the traceback is in runs/exp/007_lr=0.01/error.log; the other runs go on",
            ],
        ),
    ],
)
def test_each_run_gets_a_line_when_it_ends(capsys, outcome, record, lines):
    with GridProgress("exp", 2, ["lr", "net"]) as shown:
        shown.run_started(FOLDER)
        shown.epoch_ended(RECORD)
        shown.run_ended(FOLDER, outcome, record)

    assert without_time(capsys.readouterr().out) == lines


def test_runs_are_counted_as_they_begin(capsys):
    with GridProgress("exp", 2, []) as shown:
        for _ in range(2):
            shown.run_started(FOLDER)
            shown.run_ended(FOLDER, Outcome(Status.COMPLETED), None)

    assert without_time(capsys.readouterr().out) == ["✓ 1/2 run 7", "✓ 2/2 run 7"]


def test_nothing_is_shown_where_that_is_wanted(capsys):
    with GridProgress("exp", 1, [], show=False) as shown:
        shown.say("hello")
        shown.run_started(FOLDER)
        shown.run_ended(FOLDER, Outcome(Status.COMPLETED), None)

    assert capsys.readouterr().out == ""


def test_a_terminal_shows_the_run_and_its_last_epoch_live(monkeypatch):
    terminal = Console(file=io.StringIO(), force_terminal=True, width=200, highlight=False, markup=False)
    monkeypatch.setattr(progress, "wide_console", lambda: terminal)

    with GridProgress("exp", 2, ["lr"]) as shown:
        shown.run_started(FOLDER)
        shown.epoch_ended(RECORD)

    assert isinstance(terminal.file, io.StringIO)
    written = terminal.file.getvalue()
    assert "run 7 lr=0.01 · epoch 3 · loss 0.5987 · test_accuracy 0.75" in written
    assert "0/2" in written
    assert written.endswith("\x1b[2K")  # the live line is gone at the end


def test_lines_are_as_long_as_they_need_to_be(capsys):
    with GridProgress("exp", 1, []) as shown:
        shown.say("x" * 1000)

    assert capsys.readouterr().out == "x" * 1000 + "\n"


@pytest.mark.parametrize(
    ("params", "shown"),
    [
        ({"lr": 0.010, "size": (3, 3)}, "lr=0.01 size=(3, 3)"),
        ({"size": "a\nb"}, "size=a\\nb"),
        ({}, ""),
    ],
)
def test_a_run_is_named_by_what_varies(params, shown):
    assert label({"seed": 1, **params}, ["lr", "size"]) == shown
