import json
import os
import re
import subprocess
import sys

import pyte
import pytest

from runmanager.outcome import Outcome, Status
from tests.report.reading import write_runs

FAILED = Outcome(Status.FAILED, "ValueError: no batch was left after 14 steps (in sweep.py:41)", 1)
DIVERGED = Outcome(Status.DIVERGED, "loss is nan in epoch 2, step 14", 1)
GRID = [{"lr": lr, "width": width, "device": "cpu"} for lr in (0.1, 0.01, 0.001) for width in (16, 64)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """An experiment of six runs, one failed and one diverged, beside another of 50."""
    root = tmp_path_factory.mktemp("runs")
    write_runs(
        root / "sweep", GRID, lambda run: run["lr"] + run["width"] / 100, outcomes={1: FAILED, 4: DIVERGED}
    )
    write_runs(root / "many", [{"seed": seed} for seed in range(50)], lambda run: run["seed"] / 50)
    return root


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize(
    "arguments",
    [["list"], ["best"], ["compare", "lr"], ["list", "--where", "status=failed"], ["best", "--sort", "lr"]],
)
def test_a_table_fits_the_terminal_and_tears_no_value(root, terminal, arguments):
    whole, _ = terminal(500, *arguments, root / "sweep")

    for width in (40, 60, 80, 120):
        lines, result = terminal(width, *arguments, root / "sweep")

        assert result.exit_code == 0, result.output
        assert max(map(len, lines)) <= width
        rows = lines[-len(whole) + 1 :]
        for row, wide in zip(rows, whole[1:], strict=True):
            values = re.split(r"  +", row.strip())
            assert all(value in wide or "…" in value for value in values)


def test_essential_columns_come_first_and_the_others_are_named(root, terminal):
    lines, result = terminal(120, "list", root / "sweep")

    names = [
        "run",
        "lr",
        "width",
        "test_accuracy",
        "test_loss",
        "run",
        "duration",
        "status",
        "loss",
        "accuracy",
    ]
    assert lines[0].split()[: len(names)] == names
    assert "not shown: epochs, best accuracy, " in " ".join(result.stderr.split())
    assert "; --all" in result.stderr


@pytest.mark.slow(everywhere=True)
def test_the_best_run_is_bold_and_each_status_has_color_and_shape(root, terminal):
    terminal(100, "list", root / "sweep")

    screen = terminal.screen
    assert screen.style_of("✓ completed") == ("green", False)
    assert screen.style_of("✗ failed") == ("red", False)
    bold = [line for line in screen.lines if screen.style_of(line)[1] and "run" not in line]
    assert [line.split()[:3] for line in bold if line.split()[0].isdigit()] == [["4", "0.01", "64"]]


def test_columns_order_and_number_are_chosen(root, terminal):
    lines, result = terminal(
        80, "list", root / "sweep", "--columns", "lr,run,epochs", "--sort=-lr,-width", "-n", 3
    )

    assert [line.split() for line in lines] == [
        ["lr", "run", "epochs"], ["0.1", "2", "1"], ["0.1", "1", "3"], ["0.01", "4", "3"],
    ]  # fmt: skip
    assert "3 of 6 runs" in result.stderr


@pytest.mark.slow(everywhere=True)
def test_all_columns_are_printed_on_demand(root, terminal, command):
    terminal(80, "list", root / "sweep", "--all")
    piped = command("list", root / "sweep").stdout

    heading = "".join("".join(terminal.screen.lines).split())
    for name in ("mixed", "attempts", "best_", "epochs"):
        assert name.strip("_") in heading
        assert name.strip("_") in piped.splitlines()[0]


@pytest.mark.slow(everywhere=True)
def test_a_terminal_gets_a_screenful_of_many_runs_and_a_pipe_all(root, terminal, command):
    lines, result = terminal(80, "list", root / "many")
    every, _ = terminal(80, "list", root / "many", "--all")

    assert len([line for line in lines if line.split()[0].isdigit()]) == 40
    assert "40 of 50 runs; --all for more" in result.stderr
    assert len(command("list", root / "many").stdout.splitlines()) == 51
    assert len(every) > 50


@pytest.mark.parametrize(("name", "number"), [("list", 6), ("best", 4)])
def test_a_pipe_gets_whole_lines_without_colors_and_shapes(root, command, name, number):
    result = command(name, root / "sweep")

    assert "\x1b" not in result.stdout
    assert not set("✓✗…") & set(result.stdout)
    rows = result.stdout.splitlines()[1:]
    assert len(rows) == number
    assert any(FAILED.error in row and " failed " in row for row in rows) == (name == "list")


def test_conditions_choose_among_all_experiments(root, command):
    result = command("list", root, "--where", "status!=completed", "--columns", "experiment,run,status")
    rows = json.loads(command("list", root, "--where", "status=failed", "--json").stdout)

    assert [line.split() for line in result.stdout.splitlines()[1:]] == [
        ["sweep", "2", "failed"], ["sweep", "5", "diverged"],
    ]  # fmt: skip
    assert [[run["run"] for run in each["runs"]] for each in rows if each["runs"]] == [[2]]


def test_best_and_compare_take_conditions(root, command):
    best = json.loads(command("best", root / "sweep", "--where", "lr!=0.01", "--json").stdout)
    pairs = json.loads(command("compare", "lr", root / "sweep", "--where", "width=16", "--json").stdout)

    assert {row["lr"] for row in best} == {0.1, 0.001}
    assert [list(row)[:2] for row in pairs] == [["0.1", "0.01"]]


def test_json_has_the_rows_and_columns_that_were_asked_for(root, command):
    chosen = ["--sort=-lr,-width", "--columns", "width,lr", "--json"]
    best = json.loads(command("best", root / "sweep", *chosen, "--where", "status=completed").stdout)
    everything = json.loads(command("best", root / "many", "--all", "--json", "--repeats", "()").stdout)
    pairs = json.loads(command("compare", "width", root / "sweep", "--sort", "lr", "-n", 1, "--json").stdout)
    (listed,) = json.loads(command("list", root / "sweep", *chosen, "--where", "lr<0.1", "-n", 3).stdout)

    assert best == [
        {"width": width, "lr": lr} for lr, width in ((0.1, 16), (0.01, 64), (0.01, 16), (0.001, 64))
    ]
    assert len(everything) == 50
    assert [row["lr"] for row in pairs] == [0.01]
    assert listed["runs"] == [{"width": w, "lr": lr} for lr, w in ((0.01, 64), (0.01, 16), (0.001, 64))]


def test_json_of_several_experiments_keeps_the_order_that_was_asked_for(root, command):
    document = json.loads(command("list", root, "--sort=-run", "-n", 47, "--json").stdout)

    assert [each["experiment"] for each in document] == ["many", "sweep", "many"]
    assert [run["run"] for each in document for run in each["runs"]] == [*range(50, 6, -1), 6, 6, 5]
    assert {"params", "metrics", "status"} < set(document[-1]["runs"][0])


def test_the_mean_of_settings_has_the_name_of_its_metric_in_json_too(root, command):
    settings = ["best", root / "sweep", "--repeats", "width", "--columns", "lr,test_accuracy"]

    rows = json.loads(command(*settings, "--json").stdout)

    assert [list(row) for row in rows] == [["lr", "test_accuracy"]] * 3
    assert command(*settings).stdout.splitlines()[1].split()[0] == str(rows[0]["lr"])


@pytest.mark.parametrize("name", [["list"], ["best"], ["compare", "lr"]])
@pytest.mark.parametrize("option", ["--columns", "--sort"])
def test_json_refuses_a_column_that_is_not_there(root, command, name, option):
    result = command(*name, root / "sweep", option, "widht", "--json")

    assert (result.exit_code, result.stdout) == (2, "")
    assert "no column 'widht'; did you mean 'width'?" in result.stderr


def test_a_condition_that_no_run_meets_is_no_error(root, command):
    for arguments in (["list"], ["best"], ["compare", "lr"]):
        result = command(*arguments, root / "sweep", "--where", "lr>5")

        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr == "none of 6 runs meets --where 'lr>5'\n"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["list", "--where", "lr<0.1", "--where", "widht=3"], "no column 'widht'; did you mean 'width'?"),
        (["list", "--columns", "run,widht"], "no column 'widht'; did you mean 'width'?"),
        (["best", "--columns", "run,widht"], "no column 'widht'; did you mean 'width'?"),
        (["list", "--sort", "widht"], "no column 'widht'; did you mean 'width'?"),
        (["best", "--goal", "test_acuracy"], "no column 'test_acuracy'; did you mean 'test_accuracy'?"),
        (["compare", "widht"], "no hyperparameter 'widht'; did you mean 'width'?"),
        (["compare", "width", "--value", "test_los"], "no column 'test_los'; did you mean 'test_loss'?"),
        (["best", "--repeats", "widht"], "no hyperparameter 'widht'; did you mean 'width'?"),
        (["best", "-n", "0"], "--limit (-n) must be a whole number, 1 or more, got 0"),
        (["list", "--limit", "-3"], "--limit (-n) must be a whole number, 1 or more, got -3"),
    ],
)
def test_the_name_that_was_meant_is_asked_for(root, command, arguments, problem):
    result = command(*arguments, root / "sweep")

    assert (result.exit_code, result.stdout) == (2, "")
    assert problem in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["best"], ["report"], ["export", "--csv", "x.csv"], ["tensorboard"]],
)
def test_the_folder_that_was_meant_is_asked_for(root, command, arguments):
    result = command(*arguments, root / "swep")

    assert result.exit_code == 2
    assert f"did you mean '{root / 'sweep'}'?" in result.stderr


def test_the_command_that_was_meant_is_asked_for(command):
    assert "Did you mean 'list'?" in " ".join(command("lits").output.split())


def test_help_names_no_types_of_flags(command):
    for name in ([], ["list"], ["best"], ["export"], ["rm"]):
        assert "bool" not in command(*name, "--help").stdout.lower()
    lines = command("--help").stdout.splitlines()
    options = [line.split()[1] for line in lines if line.startswith("│ --")]
    assert options[:2] == ["--version", "--help"]


def test_compare_says_what_it_compares_before_the_pairs(root, terminal):
    lines, result = terminal(100, "compare", "width", root / "sweep")

    sentences = result.stderr.splitlines()
    assert sentences[0] == "test_accuracy of runs that differ in width only"
    assert "2 pairs are left out: 1 with a failed run, 1 with a diverged run" in sentences
    assert lines[0].split()[0] == "lr"


@pytest.mark.slow(everywhere=True)
def test_in_a_real_terminal_nothing_is_wider_than_its_screen(root):
    pty = pytest.importorskip("pty", reason="Windows has no pseudo-terminals")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "runmanager", "list", str(root / "sweep")]
    environment = {
        **os.environ,
        "COLUMNS": "80",
        "TERM": "xterm-256color",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    environment.pop("NO_COLOR", None)

    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(theirs)
        written = b""
        try:
            while part := os.read(ours, 4096):
                written += part
        except OSError:  # the terminal is closed
            pass
    os.close(ours)
    screen = pyte.Screen(80, 40)
    pyte.ByteStream(screen).feed(written)

    rows = [line for line in screen.display if line.split() and line.split()[0].isdigit()]
    assert process.returncode == 0
    assert len(rows) == 6
    assert b"\x1b[32m" in written
    assert sum("✓ completed" in row for row in rows) == 4
