import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runmanager import RunManager, load_runs
from tests.board.reading import train
from tests.damaging import flip, journals
from tests.locations import line_with
from tests.report.reading import write_runs

CONFTEST = Path(__file__).with_name("conftest.py")
HEAVY = ("torch", "tensorboard", "pandas", "numpy")


def test_experiments_are_listed_with_their_runs_what_is_best_and_their_size(command, root):
    result = command("list", root)

    assert result.exit_code == 0
    heading, grid, other = [re.split(r"  +", line.strip()) for line in result.stdout.splitlines()]
    assert heading == [
        "experiment", "runs", "completed", "failed", "goal", "best", "last written", "run seconds", "bytes",
    ]  # fmt: skip
    assert grid[:5] == [str(root / "grid"), "3", "2", "1", "max:test_accuracy"]
    best = load_runs(root / "grid")["test_accuracy"].max()
    assert float(grid[5]) == pytest.approx(best, abs=1e-4)
    assert int(grid[8]) == sum(path.stat().st_size for path in (root / "grid").rglob("*") if path.is_file())
    assert other[:3] == [str(root / "other"), "1", "1"]


def test_a_terminal_gets_an_overview_that_fits_with_shapes_and_what_they_mean(
    command, root, terminal, monkeypatch
):
    monkeypatch.chdir(root)
    lines, result = terminal(80, "list", ".")

    assert max(map(len, lines)) <= 80
    assert lines[-3].split()[:4] == ["experiment", "runs", "status", "goal"]
    assert lines[-2].split()[:7] == ["grid", "3", "✓", "2", "✗", "1", "test_accuracy"]
    assert "✓ completed   ✗ failed" in result.stderr


def test_the_runs_of_one_experiment_are_listed_with_what_varied_and_their_last_metrics(command, root):
    result = command("list", root / "grid")

    heading, *rows = result.stdout.splitlines()
    assert result.stderr.startswith(
        f"{root / 'grid'}: 3 runs, 2 completed, 1 failed\nRun 1 (lr=0.1) and run 2 (lr=0.01) are best: "
    )
    assert re.split(r"  +", heading.strip())[:5] == ["run", "lr", "test_accuracy", "test_loss", "run duration"]
    assert {"status", "device", "mixed"} < set(heading.split())  # a file gets every column
    assert [row.split()[:2] for row in rows] == [["1", "0.1"], ["2", "0.01"], ["3", "0.5"]]
    assert [row.split("  ").count("completed") for row in rows] == [1, 1, 0]
    cause = f"division by zero (in epoch 1, step 2, {line_with('1 / 0', CONFTEST)})"
    assert f"  ZeroDivisionError: {cause}  " in rows[2]


def test_scripts_get_every_run_with_types_as_json(command, root):
    result = command("list", root, "--json")

    grid, other = json.loads(result.stdout)
    assert [grid["experiment"], other["experiment"]] == ["grid", "other"]
    assert [run["params"] for run in grid["runs"]] == [{"lr": lr, "device": "cpu"} for lr in (0.1, 0.01, 0.5)]
    assert [run["status"] for run in grid["runs"]] == ["completed", "completed", "failed"]
    assert 0 <= grid["runs"][0]["metrics"]["test_accuracy"] <= 1
    for row, run in enumerate(grid["runs"][:2]):  # of each word the number of the table
        for name in ("epoch duration", "best test_accuracy"):
            assert run["metrics"][name] == load_runs(root / "grid")[name].iloc[row]


def test_one_run_is_shown_with_the_results_of_the_whole_run(command, tmp_path):
    manager = RunManager("one", tmp_path, display=False, tensorboard=False)
    with manager.run({"lr": 0.1}):
        manager.summary(final_f1=0.598666)

    result = command("show", tmp_path / "one" / "1")

    assert "\nResults of the run\nfinal_f1  0.5987\n" in result.stdout


@pytest.mark.slow(everywhere=True)
def test_listing_for_a_script_imports_nothing_heavy(root):
    program = (
        "import sys\n"
        "from runmanager.cli.app import app\n"
        "try:\n"
        f"    app(['list', {str(root)!r}, '--json'])\n"
        "finally:\n"
        f"    print([name for name in {HEAVY} if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


def test_for_a_run_the_command_that_shows_it_is_named(command, root):
    folder = next((root / "other").glob("001-*"))

    result = command("list", folder)

    assert result.exit_code == 2
    assert f"{folder} is one run: runmanager show {folder}" in result.stderr.replace("\n", " ")


def test_an_empty_folder_has_no_runs_and_is_no_error(command, tmp_path):
    text, document = command("list", tmp_path), command("list", tmp_path, "--json")

    assert (text.exit_code, document.exit_code) == (0, 0)
    assert (text.stdout, json.loads(document.stdout)) == ("", [])
    assert text.stderr.startswith(f"no runs under {tmp_path}: start a grid first")


@pytest.mark.parametrize("name", [["list"], ["best"], ["compare", "lr"]])
def test_a_folder_that_is_not_there_is_refused_in_one_line(command, tmp_path, name):
    result = command(*name, tmp_path / "missing")

    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("runmanager: no ")
    assert result.stderr.count("\n") == 1


def test_what_is_damaged_is_named_and_the_rest_is_listed(command, root):
    flip(journals(root / "grid" / "001-lr=0.1")[0], 0.2)

    result = command("list", root / "grid", "--json")

    assert result.exit_code == 1
    assert len(json.loads(result.stdout)[0]["runs"]) == 3
    assert result.stderr.startswith("! ")
    assert "attempt-1.jsonl" in result.stderr


def test_a_run_is_found_by_its_number_and_shown_with_its_traceback(command, root):
    result = command("show", root / "grid" / "3")

    assert result.exit_code == 0
    cause = f"division by zero (in epoch 1, step 2, {line_with('1 / 0', CONFTEST)})"
    assert f"ZeroDivisionError: {cause}" in result.stdout
    assert "at_end=lambda _: 1 / 0" in result.stdout
    assert "retry_failed=True" in result.stdout
    assert "attempt-1.jsonl" in result.stdout


def test_the_durations_of_epochs_have_their_unit(command, root):
    lines = command("show", root / "grid" / "1").stdout.splitlines()

    first = lines[lines.index("Epochs") + 2]
    assert len(re.findall(r" [\d.]+ s(?: |$)", first)) == 2


def test_a_run_as_json_has_its_epochs_and_files(command, root):
    folder = root / "grid" / "001-lr=0.1"

    shown = json.loads(command("show", folder, "--json").stdout)

    assert shown["params"] == {"lr": 0.1, "device": "cpu"}
    assert [epoch["epoch"] for epoch in shown["per_epoch"]] == [1, 2]
    assert shown["files"] == {path.name: path.stat().st_size for path in folder.iterdir()}
    assert shown["traceback"] == []


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        (
            "grid",
            "/grid is an experiment: name a run, as '{root}/grid/1'; runmanager list {root}/grid lists them",
        ),
        ("gird/1", "/gird is no experiment; did you mean '{root}/grid/1'?"),
        ("grid/9", "has no run '9'; its runs are 1 to 3"),
        ("grid/results.csv", "has no run 'results.csv'"),
        ("gird/1", "gird is no experiment; did you mean "),
    ],
)
def test_what_is_no_run_is_refused_with_what_to_write(command, root, path, problem):
    result = command("show", root / path)

    assert result.exit_code == 2
    assert problem.format(root=root) in result.stderr
    assert "Traceback" not in result.output


def test_text_of_runs_cannot_steer_the_terminal(command, tmp_path):
    for name in ("\x1b[31mred", "blue"):
        train(RunManager("grid", tmp_path, display=False), {"name": name})

    for result in (command("list", tmp_path), command("show", tmp_path / "grid" / "1")):
        assert "\x1b" not in result.stdout
        assert "\\x1b[31mred" in result.stdout


@pytest.mark.slow(everywhere=True)
def test_a_reader_that_has_enough_is_no_error(root):
    command = [sys.executable, "-c", "from runmanager.cli.app import app; app()", "list", str(root)]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        errors = process.stderr.read()

    assert (process.returncode, errors) == (0, b"")


@pytest.mark.slow(everywhere=True)
def test_a_process_without_standard_output_is_no_error(root):
    program = "import sys; sys.stdout = None; from runmanager.cli.app import app; app()"

    done = subprocess.run([sys.executable, "-c", program, "list", str(root)], capture_output=True, check=False)

    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow(everywhere=True)
def test_runs_that_differ_in_one_axis_are_compared(command, root):
    command("rm", "--yes", root / "grid" / "3")
    rows = json.loads(command("compare", "lr", root / "grid", "--value", "accuracy", "--json").stdout)
    unknown = command("compare", "momentum", root / "grid")

    assert [set(row) for row in rows] == [{"0.1", "0.01", "0.01 vs 0.1", "0.01 / 0.1"}]
    assert (unknown.exit_code, unknown.stdout) == (2, "")
    assert "these runs have no hyperparameter 'momentum'; they have: lr, device" in unknown.stderr


def test_the_best_runs_come_first_with_what_varied(command, root):
    text = command("best", root / "grid", "-n", 2)
    rows = json.loads(command("best", root / "grid", "--goal", "run duration", "--json").stdout)

    heading, first, second = text.stdout.splitlines()
    assert heading.split()[:2] == ["run", "lr"]
    assert {first.split()[0], second.split()[0]} == {"1", "2"}
    assert "the same in all: status=completed, device=cpu" in text.stderr
    assert "2 of 3 runs are ranked (1 failed)" in text.stderr
    assert [row["run"] for row in rows] in ([1, 2], [2, 1])
    assert rows[0]["run duration"] < rows[1]["run duration"]


@pytest.mark.slow(everywhere=True)
def test_however_many_runs_are_asked_for_the_best_is_the_first(command, tmp_path):
    grid = [{"seed": seed, "device": device} for seed in range(45) for device in ("cpu", "cuda")]
    write_runs(tmp_path / "grid", grid, lambda run: run["seed"] / 100)

    best = command("best", tmp_path, "-n", 50, "--repeats", "()").stdout.splitlines()
    pairs = command("compare", "device", tmp_path).stdout.splitlines()

    assert [len(best), len(pairs)] == [1 + 50, 1 + 45]
    assert best[1].split()[:2] == ["89", "44"]


def test_error_log_is_not_followed_when_it_is_a_link(command, root, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("the secret\n")
    folder = next((root / "grid").glob("003*"))
    (folder / "error.log").unlink()
    (folder / "error.log").symlink_to(secret)

    shown = command("show", folder)
    command("report", root / "grid", "-o", tmp_path / "report.html")

    assert shown.exit_code == 0
    assert "the secret" not in shown.output
    assert "the secret" not in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.slow(everywhere=True)
def test_names_in_files_cannot_steer_a_terminal(command, root):
    run = next((root / "grid").glob("001*")) / "run.json"
    document = json.loads(run.read_text())
    document["params"]["\x1b[2J\x1b]0;title"] = 1
    del document["crc"]
    run.write_text(json.dumps(document))
    (root / "grid" / "grid.json").unlink(missing_ok=True)

    for arguments in (["list"], ["best"], ["show"], ["list", "--json"]):
        folder = root / "grid" / "1" if arguments == ["show"] else root / "grid"
        result = command(*arguments, folder)

        assert result.exit_code == 0
        assert "\x1b" not in result.output
        assert "title" in result.output


def test_a_run_is_shown_with_all_digits_of_its_values(command, tmp_path):
    path = write_runs(tmp_path / "grid", [{"lr": 0.20268812345, "width": 8}], lambda _: 0.5)

    shown = command("show", path / "1").stdout

    assert re.search(r"^lr +0\.20268812345\nwidth +8$", shown, re.MULTILINE)
