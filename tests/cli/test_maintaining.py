import json
import os
import subprocess
import sys
from typing import Any

import pytest

from runmanager import load_results, load_runs, run_grid
from runmanager.storage.lock import hold
from tests.board.reading import train as train_small

PROGRAM = """
import torch
from torch.nn import functional

def train(run, manager):
    torch.manual_seed(getattr(run, "seed", 0))
    network = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(network.parameters(), lr=run.lr)
    images, labels = torch.rand(8, 2), torch.tensor([0, 1] * 4)
    print("training")
    with manager.run(run, network, [(images, labels)]):
        for _ in manager.epochs(3):
            for images, labels in manager.batches():
                preds = network(images)
                loss = functional.cross_entropy(preds, labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.track_loss(loss, images)
                manager.track_num_correct(preds, labels)
"""


@pytest.fixture
def experiment(tmp_path):
    """An experiment of two runs, executed by the function in program.py beside it."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    return execute(tmp_path).folder


def execute(folder):
    """Execute the grid of program.py as the script does."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(PROGRAM, folder / "program.py", "exec"), scope)  # noqa: S102
    train = scope["train"]
    return run_grid({"lr": [0.1, 0.01]}, train, experiment="grid", root=folder / "runs", executor="inline")


def bytes_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_is_removed_with_its_rows_once_that_is_confirmed(command, experiment):
    refused = command("rm", experiment / "1", input="n\n")
    left = load_runs(experiment)["run"].tolist()
    removed = command("rm", experiment / "1", input="y\n")

    assert (refused.exit_code, left) == (1, [1, 2])
    assert "Remove 1 run?" in refused.stderr
    assert removed.exit_code == 0
    assert load_runs(experiment)["run"].tolist() == [2]
    assert {path.name for path in experiment.iterdir()} == {
        "002-lr=0.01", "grid.json", "hparams.json", "results.csv", "results.json",
    }  # fmt: skip
    assert (experiment / "results.csv").read_text().count("\n") == 1 + 3


def test_a_removed_run_is_executed_anew_by_its_grid(command, experiment, tmp_path):
    command("rm", "--yes", experiment / "1")

    outcome = execute(tmp_path)

    assert outcome.exit_code == 0
    assert sorted(outcome.runs["run"]) == [2, 3]


def test_what_is_not_ours_stays_and_links_are_not_followed(command, experiment, tmp_path):
    folder = experiment / "001-lr=0.1"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "run.json").write_text("mine")
    for name in ("notes.txt", ".mine.tmp", ".run.json.7.0a1b2c3d.tmp"):
        (folder / name).write_text("mine")
    (folder / "weights.pt").symlink_to(outside / "run.json")
    (experiment / "007-linked=1").symlink_to(outside, target_is_directory=True)

    linked = command("rm", "--yes", experiment / "007-linked=1")
    removed = command("rm", "--yes", folder)

    assert linked.exit_code == 2
    assert removed.exit_code == 0
    assert "not removed: .mine.tmp, notes.txt, weights.pt" in removed.stderr
    assert (outside / "run.json").read_text() == "mine"
    assert {path.name for path in folder.iterdir()} == {"weights.pt", "notes.txt", ".mine.tmp"}


@pytest.mark.parametrize("names", [["results.csv"], [".."], ["1", "9"], ["../nope"]])
def test_nothing_is_removed_if_one_of_the_names_is_no_run(command, experiment, names):
    before = bytes_of(experiment)

    result = command("rm", "--yes", *(experiment / name for name in names))

    assert result.exit_code == 2
    assert bytes_of(experiment) == before


def test_nothing_is_removed_while_the_experiment_is_held(command, experiment, monkeypatch):
    before = bytes_of(experiment / "001-lr=0.1")

    with hold(experiment):
        monkeypatch.setattr("os.getpid", lambda: 1)
        result = command("rm", "--yes", experiment / "1")
        monkeypatch.undo()

    assert result.exit_code == 2
    assert "is in use by" in result.stderr
    assert bytes_of(experiment / "001-lr=0.1") == before


def test_a_run_that_a_bare_manager_executes_is_not_removed(command, tmp_path):
    from runmanager import RunManager

    results = []

    def remove(_):
        results.append(command("rm", "--yes", tmp_path / "another" / "1", tmp_path / "bare" / "1"))

    train_small(RunManager("another", tmp_path, display=False), {"lr": 0.1})
    train_small(RunManager("bare", tmp_path, display=False), {"lr": 0.1}, at_end=remove)

    assert results[0].exit_code == 2
    assert "is being executed: nothing was removed" in results[0].stderr
    assert load_runs(tmp_path)["status"].tolist() == ["completed", "completed"]


def test_a_note_is_kept_with_its_experiment_and_with_its_run(command, experiment, tmp_path):
    written = command("note", experiment, "larger steps? \n\n- **half** the lr\n")
    of_run = command("note", experiment / "2", "[bold]the\x1b[31m best")
    execute(tmp_path)  # a start without a note keeps both

    shown = command("note", experiment)

    assert (written.exit_code, written.stderr) == (0, f"{experiment}: noted: larger steps?\n")
    assert shown.stdout == "larger steps?\n\n- **half** the lr\n"
    assert of_run.exit_code == 0
    assert "\x1b" not in of_run.stderr
    assert command("note", experiment / "2").stdout == "[bold]the\\x1b[31m best\n"
    note = "larger steps?\n\n- **half** the lr"
    assert load_runs(experiment).attrs["notes"] == {"grid": note}
    assert load_results(experiment.parent).attrs["notes"] == {"grid": note}


@pytest.mark.slow(everywhere=True)
def test_notes_are_where_a_person_looks_for_them(command, experiment, terminal):
    command("note", experiment, "larger steps?\n- half the lr")
    command("note", experiment / "2", "the best\nso far")

    listed, run = command("list", experiment), command("show", experiment / "2")
    (document,) = json.loads(command("list", experiment, "--json").stdout)
    of_run = json.loads(command("show", experiment / "2", "--json").stdout)

    assert listed.stderr.splitlines()[1] == "note: larger steps?"
    assert run.stdout.splitlines()[2] == "note    the best · of the experiment: larger steps?"
    assert document["note"] == "larger steps?\n- half the lr"
    assert (of_run["note"], of_run["experiment_note"]) == ("the best\nso far", document["note"])
    assert (
        command("show", experiment / "1").stdout.splitlines()[2] == "note    of the experiment: larger steps?"
    )


@pytest.mark.slow(everywhere=True)
def test_an_overview_has_the_notes_of_experiments(command, experiment, terminal, monkeypatch):
    monkeypatch.chdir(experiment.parent)
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(PROGRAM, experiment.parents[1] / "program.py", "exec"), scope)  # noqa: S102
    run_grid({"lr": [0.1]}, scope["train"], experiment="other", root=".", executor="inline", display=False)
    assert "note" not in terminal(100, "list", ".")[0][-3]
    command("note", experiment, "does a larger batch need a larger learning rate?")

    wide, _ = terminal(140, "list", ".")
    narrow, result = terminal(60, "list", ".")

    assert wide[-3].split()[-1] == "note"
    assert wide[-2].endswith("  does a larger batch need a larger learning rate?")
    assert "note" not in narrow[-3]
    assert "grid: does a larger batch need a larger learning rate?\n" in result.stderr


def test_an_empty_note_removes_it_and_a_removed_run_takes_its_own_along(command, experiment):
    command("note", experiment, "first")
    command("note", experiment / "1", "gone soon")

    removed = command("note", experiment, "")
    command("rm", "--yes", experiment / "1")

    assert removed.stderr.endswith("the note is removed\n")
    assert command("note", experiment).stderr.startswith(f"{experiment} has no note: ")
    assert "note" not in (experiment / "grid.json").read_text()


@pytest.mark.parametrize(
    ("target", "text", "problem"),
    [
        ("grid", "x" * 1001, "a note has at most 1000 characters, this one has 1,001"),
        ("gird", "text", "did you mean "),
        ("grid/9", "text", "has no run '9'; its runs are 1 to 2"),
        ("", "text", "runs has: grid"),
    ],
)
def test_a_note_that_cannot_be_written_is_refused(command, experiment, target, text, problem):
    result = command("note", experiment.parent / target, text)

    assert result.exit_code == 2
    assert problem in result.stderr


@pytest.mark.slow(everywhere=True)
def test_diff_shows_the_notes_of_both_sides(command, experiment, tmp_path):
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(PROGRAM, tmp_path / "program.py", "exec"), scope)  # noqa: S102
    run_grid(
        {"lr": [0.1]}, scope["train"], experiment="other", root=experiment.parent, executor="inline",
        note="after the change",
    )  # fmt: skip

    result = command("diff", experiment, experiment.parent / "other", "--json")

    rows = [row for row in json.loads(result.stdout) if row["what"] == "note"]
    assert [(row["name"], row["first"], row["second"]) for row in rows] == [
        ("experiment", "", "after the change")
    ]


def without_reader(stream, *arguments):
    """Call `runmanager` with a pipe that nobody reads as one of its streams; return its exit code."""
    reading, writing = os.pipe()
    os.close(reading)
    streams: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | {stream: writing}
    command = [sys.executable, "-c", "from runmanager.cli.app import app; app()", *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, check=False, **streams)
    os.close(writing)
    return done.returncode


@pytest.mark.slow(everywhere=True)
def test_nothing_is_removed_if_nobody_can_be_asked(experiment):
    code = without_reader("stderr", "rm", experiment / "1")

    assert (code, load_runs(experiment)["run"].tolist()) == (1, [1, 2])


@pytest.mark.slow(everywhere=True)
def test_what_need_not_be_asked_is_removed_though_nobody_reads_of_it(experiment):
    code = without_reader("stderr", "rm", "--yes", experiment / "1")

    assert (code, load_runs(experiment)["run"].tolist()) == (0, [2])
