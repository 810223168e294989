"""The commands that write: note, rm, export, report, tensorboard (docs/command-line.md)."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import runmanager
from runmanager import RunManager, load_results, load_runs, load_table, show
from tests.border.experiments import execute
from tests.border.screens import command

GRID = {"lr": [0.1, 0.2], "device": ["cpu"]}


@pytest.fixture
def experiment(tmp_path):
    """Two completed runs of `runs/e`."""
    return execute(tmp_path / "runs", GRID, lambda run: {"val_loss": run.lr}, epochs=3).folder


# Notes


def test_a_note_is_written_shown_replaced_and_removed(experiment):
    written = command("note", experiment, "larger steps?\n\n- **half** the lr")
    of_run = command("note", experiment / "2", "the \x1b[31mbest")

    assert (written.code, of_run.code) == (0, 0)
    assert command("note", experiment).out == "larger steps?\n\n- **half** the lr\n"
    assert "\x1b" not in command("note", experiment / "2").out
    assert "note: larger steps?" in str(show(load_runs(experiment)))
    assert "larger steps?" in command("list", experiment).words
    assert "the best" in command("show", experiment / "2").words.replace("\\x1b[31m", "")
    assert "larger steps?" in command("show", experiment / "1").words
    assert command("note", experiment, "").code == 0
    assert command("note", experiment).out == ""


def test_a_note_of_the_grid_is_kept_by_starts_without_one_and_diff_prints_those_of_both_sides(experiment):
    for note in ("why", None):
        execute(experiment.parent, GRID, lambda run: {"val_loss": run.lr}, "other", note=note)

    rows = json.loads(command("diff", experiment, experiment.parent / "other", "--json").out)

    assert [(row["first"], row["second"]) for row in rows if row["what"] == "note"] == [("", "why")]


@pytest.mark.parametrize(
    ("target", "text", "named"),
    [("e", "x" * 1001, "1000"), ("f", "text", "f"), ("e/9", "text", "9"), ("", "text", "e")],
)
def test_a_note_that_cannot_be_written_is_refused(experiment, target, text, named):
    answer = command("note", experiment.parent / target, text)

    assert answer.code == 2
    assert named in answer.err


# Removal


def test_a_run_is_removed_with_its_rows_after_a_question(experiment):
    for run in (1, 2):
        command("note", experiment / f"{run}", f"of run {run}")
    refused = command("rm", experiment / "1", answer="n\n")
    runs = load_runs(experiment)["run"].tolist()
    removed = command("rm", experiment / "1", answer="y\n")

    assert (refused.code, runs) == (1, [1, 2])
    assert "1 run" in refused.err
    assert removed.code == 0
    assert load_runs(experiment)["run"].tolist() == [2]
    assert not list(experiment.glob("001*"))
    assert len(pd.read_csv(experiment / "results.csv")) == 3
    again = execute(experiment.parent, GRID, lambda run: {"val_loss": run.lr}, epochs=3)
    assert sorted(again.runs["lr"]) == [0.1, 0.2]  # under a new number
    assert [command("note", experiment / f"{run}").out for run in again.runs["run"]] == ["", "of run 2\n"]


def test_an_experiment_is_removed_but_for_the_files_of_others(experiment):
    (experiment / "mine.txt").write_text("mine")

    answer = command("rm", experiment, answer="y\n")

    assert answer.code == 0
    assert "mine.txt" in answer.err
    assert [*experiment.parent.rglob("*")] == [experiment, experiment / "mine.txt"]
    (experiment / "mine.txt").unlink()
    assert command("rm", "--yes", experiment).code == 2  # no experiment any more


def test_links_are_not_followed(experiment, tmp_path):
    outside = execute(tmp_path / "outside", {"lr": [0.3]}, lambda run: {"val_loss": run.lr}).folder / "001"
    (experiment / "007-linked=1").symlink_to(outside, target_is_directory=True)
    (experiment.parent / "link").symlink_to(experiment, target_is_directory=True)

    linked = [command("rm", "--yes", experiment.parent / "link").code]
    linked += [command("rm", "--yes", experiment / "007-linked=1").code]
    command("rm", "--yes", experiment)

    assert linked == [2, 2]
    assert (outside / "run.json").exists()


@pytest.mark.parametrize("names", [["results.csv"], [".."], ["1", "9"], ["../nope"]])
def test_nothing_is_removed_if_one_of_the_names_is_no_run(experiment, names):
    def contents():
        return {path: path.read_bytes() for path in experiment.rglob("*") if path.is_file()}

    before = contents()

    assert command("rm", "--yes", *(experiment / name for name in names)).code == 2
    assert contents() == before


def test_a_run_in_progress_is_not_removed_and_a_completed_one_with_all_that_it_has_left(tmp_path):
    manager = RunManager("e", tmp_path, display=False, tensorboard=False)
    with manager.run({"lr": 0.1}):
        for _ in manager.epochs(1):
            manager.log(score=1.0)
            refused = command("rm", "--yes", tmp_path / "e")
        manager.artifact("text", "deep/er/notes.txt")
        assert manager.folder
        (manager.folder / "trainer").mkdir()
        (manager.folder / "trainer/state.bin").write_text("state")
    with manager.run({"lr": 0.2}):
        pass

    assert (refused.code, str(tmp_path / "e") in refused.err) == (2, True)
    assert load_runs(tmp_path)["status"].tolist() == ["completed"] * 2
    assert command("rm", "--yes", tmp_path / "e/1").code == 0
    assert [path.name for path in (tmp_path / "e").glob("0*")] == ["002-lr=0.2"]


# Export


@pytest.mark.parametrize(("words", "load"), [([], load_runs), (["--epochs"], load_results)])
def test_exported_files_come_back_as_they_were(experiment, tmp_path, words, load):
    files = [tmp_path / f"table.{kind}" for kind in ("csv", "json", "parquet")]
    flags = [part for file in files for part in (f"--{file.suffix[1:]}", file)]

    answer = command("export", experiment, *flags, *words)

    assert answer.code == 0
    for file in files:
        pd.testing.assert_frame_equal(load_table(file), load(experiment))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["{e}"], ["--csv", "--json", "--parquet", "--mlflow", "--wandb"]),
        (["{e}", "--csv", "runs.xlsx"], [".csv", "runs.xlsx"]),
        (["{e}/../empty", "--csv", "{e}/../runs.csv"], ["no runs"]),
    ],
)
def test_an_export_that_cannot_be_done_says_why(experiment, words, named):
    (experiment.parent / "empty").mkdir()

    answer = command("export", *(word.format(e=experiment) for word in words))

    assert answer.code == 2
    assert [name for name in named if name not in answer.err] == []
    assert len(list(experiment.parent.iterdir())) == 2


# Report


def test_a_report_is_written_to_the_named_file_or_into_the_experiment(experiment, tmp_path):
    with contextlib.chdir(tmp_path):
        command("report", experiment)
        answer = command("report", experiment, "-o", "page.html")

    assert answer.code == 0
    assert "page.html" in answer.err
    assert (experiment / "report.html").read_text().startswith("<!")
    assert "Run 1 (lr=0.1)" in (tmp_path / "page.html").read_text()


def test_a_report_of_a_root_is_an_index_and_the_page_of_each_experiment(experiment, tmp_path):
    execute(tmp_path / "runs", GRID, lambda run: {"val_loss": run.lr}, "other", note="why")

    assert command("report", tmp_path / "runs").code == 0

    index = (tmp_path / "runs/index.html").read_text()
    for name in ("e", "other"):
        assert f'href="{name}/report.html"' in index
        assert (tmp_path / "runs" / name / "report.html").is_file()
    assert "why" in index


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (["{root}/nothing"], 2, "nothing"),
        (["{root}", "--goal", "f1"], 2, "f1"),
        (["{root}", "-o", "{root}/missing/report.html"], 74, "{root}/missing"),
        (["{root}", "-o", "{root}"], 74, "cannot write"),
    ],
)
def test_a_report_that_cannot_be_written_says_why(experiment, words, code, named):
    answer = command("report", *(word.format(root=experiment) for word in words))

    assert answer.code == code
    assert named.format(root=experiment) in answer.err
    assert "Traceback" not in answer.err
    assert not list(experiment.parent.rglob("*.html"))


# TensorBoard


@pytest.mark.slow(everywhere=True)
def test_a_port_that_is_in_use_is_named(tmp_path):
    with RunManager("exp", tmp_path, display=False).run({"lr": 0.1}):
        pass
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        answer = command("tensorboard", tmp_path, "--port", port)

    assert (answer.code, f"port {port} is in use: choose another" in answer.words) == (2, True)
    assert "Traceback" not in answer.err


@pytest.mark.slow
def test_tensorboard_serves_until_ctrl_c(tmp_path):
    with RunManager("exp", tmp_path, display=False).run({"lr": 0.1}):
        pass
    words = ["-m", "runmanager", "tensorboard", str(tmp_path), "--experiment", "exp", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(Path(runmanager.__file__).parents[1]), "DISPLAY": ""}

    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, *words], env=environment, text=True, **pipes) as process:
        assert process.stdout
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)

    assert "http://127.0.0.1:" in line
    assert (process.returncode, errors) == (0, "")
