"""The commands that ask: list, show, best, compare, decide, diff, devices (docs/command-line.md)."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.filesize import decimal

import runmanager
from runmanager import InvalidArgumentError, RunManager, available_devices, load_runs
from tests.border.experiments import execute
from tests.border.reading import flip, journals
from tests.border.screens import command, terminal

GRID = {"lr": [0.1, 0.01, 0.001], "width": [16, 64], "device": ["cpu"]}
SEEDS = {"lr": [0.1, 0.2], "device": ["cpu"], "seed": [1, 2, 3, 4]}
COMMANDS = ["list", "show", "best", "compare", "diff", "decide", "report", "export", "note", "rm"]


def scores(run):
    """Let run 2 fail and run 5 diverge; run 4 is the best."""
    if (run.lr, run.width) == (0.1, 64):
        raise ValueError("no batch was left")
    accuracy = {(0.1, 16): 0.5, (0.01, 16): 0.6, (0.01, 64): 0.9, (0.001, 64): 0.7}.get(run[:2], 0.1)
    loss = float("nan") if (run.lr, run.width) == (0.001, 16) else 1 - accuracy
    return {"loss": loss, "test_accuracy": accuracy, "test_loss": 1 - accuracy}


def kl(run):
    if run.lr == 0.1 and run.seed == 4:
        raise ValueError("no")
    return {"kl": run.lr + 0.01 * run.seed + 0.001 * (run.seed % 3) + getattr(run, "dropout", 0.0)}


def train_again(run, manager):
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track(**kl(run))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Experiments: `sweep` of six runs, `many` of 45; `a` and `b` with seeds, which differ in an axis."""
    root = tmp_path_factory.mktemp("runs")
    execute(root, GRID, scores, "sweep", epochs=2)
    execute(root, {"number": range(45)}, lambda run: {"loss": run.number}, "many")
    (root / "seeds").mkdir()
    execute(root / "seeds", SEEDS, kl, "a", goal="min:kl", repeats="seed")
    execute(root / "seeds", {**SEEDS, "dropout": [0.5]}, train_again, "b", goal="min:kl", repeats="seed")
    return root


def columns(lines):
    return [line.split()[0] for line in lines if line.split()[:1] and line.split()[0].isdigit()]


# Tables


def test_experiments_are_listed_with_statuses_goal_best_value_and_size(root):
    heading, *rows = command("list", root).rows

    assert heading[:2] == ["experiment", "runs"]
    assert {"status", "goal", "best", "size"} < set(heading)
    sweep = next(row for row in rows if row[0] == "sweep")
    assert {"6", "4", "completed,", "1", "failed,", "diverged", "max:test_accuracy", "0.9"} < set(sweep)
    num_bytes = sum(path.stat().st_size for path in (root / "sweep").rglob("*") if path.is_file())
    assert decimal(num_bytes) in " ".join(sweep)


def test_a_pipe_gets_every_column_in_one_line_per_run_and_sentences_go_to_standard_error(root):
    answer = command("list", root / "sweep")

    heading, *rows = answer.out.splitlines()
    assert heading.split()[:3] == ["run", "lr", "width"]
    assert {"status", "device", "epochs", "folder"} < set(heading.split())
    assert [row.split()[:3] for row in rows[:2]] == [["1", "0.1", "16"], ["2", "0.1", "64"]]
    assert len(rows) == 6
    assert "ValueError: no batch was left" in rows[1]
    assert " diverged " in rows[4]
    assert not set("\x1b✓✗…") & set(answer.out)
    assert "4 completed" in answer.err
    assert "0.9" in answer.err


@pytest.mark.parametrize("width", [60, 80])
def test_long_headings_and_texts_cut_no_number_and_hide_no_column_of_diff(tmp_path, width):
    grid = {"lr": [0.1, 10.0], "optimizer.scheduler.name": ["cosine"], "augmentation": ["none", "crop+" * 9]}
    execute(tmp_path, grid, lambda run: {"f1": 0.55984 + run.lr / 1e4}, "e", goal="max:f1")

    with terminal(width) as screen:
        command("list", tmp_path / "e")
        command("diff", tmp_path / "e/1", tmp_path / "e/4")

    text = " ".join(screen.lines)
    assert "0.5598" in text
    assert "0.5608" in text
    assert "difference" in text


def test_a_status_has_a_sign_and_a_color_and_the_best_row_is_bold(root):
    with terminal(120) as screen:
        command("list", root / "sweep")
    with terminal(120, NO_COLOR="1") as plain:
        command("list", root / "sweep")

    assert screen.style_of("✓ completed")[0] == "green"
    assert screen.style_of("✗ failed")[0] == "red"
    bold = [line.split()[0] for line in screen.lines[1:] if screen.style_of(line.strip())[1]]
    assert bold == ["4"]
    assert plain.style_of("✗ failed")[0] == "default"


def test_a_terminal_gets_40_rows_of_many_and_all_on_demand(root):
    with terminal(80) as screen:
        answer = command("list", root / "many")
    with terminal(80) as every:
        command("list", root / "many", "--all")

    assert len(columns(screen.lines)) == 40
    assert "40 of 45" in answer.err
    assert "--all" in answer.err
    assert len(columns(every.lines)) == 45
    assert len(command("list", root / "many").out.splitlines()) == 46


def test_scripts_get_types_as_json(root):
    first, second, *_ = json.loads(command("list", root / "sweep", "--json").out)
    chosen = json.loads(command("list", root / "sweep", "--json", "--columns", "run,lr", "-n", 2).out)

    assert (first["lr"], first["width"], first["device"], first["test_accuracy"]) == (0.1, 16, "cpu", 0.5)
    assert second["status"] == "failed"
    assert chosen == [{"run": 1, "lr": 0.1}, {"run": 2, "lr": 0.1}]
    assert {row["experiment"] for row in json.loads(command("list", root, "--json").out)} == {"many", "sweep"}


def test_what_is_damaged_is_named_the_rest_is_listed_and_the_exit_code_is_1(root, tmp_path):
    shutil.copytree(root / "sweep", tmp_path / "sweep")
    flip(journals(next((tmp_path / "sweep").glob("001-*")))[0], 0.2)
    copied = next((tmp_path / "sweep").glob("002-*"))
    shutil.copytree(copied, copied.with_name("009"))

    answer = command("list", tmp_path / "sweep", "--json")

    assert answer.code == 1
    assert len(json.loads(answer.out)) == 6
    assert "attempt-1.jsonl" in answer.err
    assert f"009 (a copy of {copied.name})" in answer.words


@pytest.mark.parametrize("words", [["list"], ["best"], ["compare", "lr"], ["show"], ["report"], ["rm"]])
def test_a_misspelt_folder_is_answered_with_the_folder_that_was_meant(root, words):
    answer = command(*words, root / "swep")

    assert answer.code == 2
    assert f"did you mean '{root / 'sweep'}'?" in answer.words
    with pytest.raises(InvalidArgumentError, match=f"did you mean '{root / 'sweep'}'"):
        load_runs(root / "swep")


def test_an_empty_folder_has_no_runs_and_is_no_error(tmp_path):
    assert command("list", tmp_path).code == 0
    assert json.loads(command("list", tmp_path, "--json").out) == []


# One run


def test_one_run_is_shown_with_settings_outcome_and_traceback(root):
    by_number = command("show", root / "sweep" / "2")
    by_folder = command("show", next((root / "sweep").glob("002-*")))

    assert by_number.code == 0
    assert by_number.out == by_folder.out
    for part in ("lr", "0.1", "width", "64", "failed", "Traceback", "ValueError: no batch was left"):
        assert part in by_number.out
    assert Path(__file__).name in by_number.out


def test_a_run_is_shown_with_its_settings_results_and_files(tmp_path):
    manager = RunManager("one", tmp_path, display=False, tensorboard=False)
    with manager.run({"lr": 0.123456789, "prompt": "a\nb"}):
        manager.summary(final_f1=0.598666)
        manager.artifact("text", "notes.txt")

    rows = command("show", tmp_path / "one/1").rows
    with terminal(60) as screen:
        command("show", tmp_path / "one/1")

    assert screen.getvalue().startswith(f"run     {manager.folder}\n")  # in one piece
    expected = "lr 0.123456789|prompt a\\nb|status completed|artifacts/notes.txt 4 bytes|final_f1 0.5987"
    assert [row for row in expected.split("|") if row.split() not in rows] == []


@pytest.mark.parametrize(
    ("run", "named"),
    [("sweep/9", "9"), ("swep/1", "sweep"), ("sweep/x", "x"), ("sweep", "runmanager list ")],
)
def test_a_run_that_does_not_exist_is_refused_with_what_there_is(root, run, named):
    answer = command("show", root / run)

    assert answer.code == 2
    assert named in answer.err


# Answers


def test_a_run_whose_epochs_lack_the_metric_of_the_goal_is_shown(tmp_path):
    results: dict[float, dict[str, float]] = {0.1: {"reward": 0.5}, 0.2: {"loss": 2}}
    execute(tmp_path, {"lr": [*results]}, lambda run: results[run.lr], epochs=2, goal="max:reward")

    answer = command("show", tmp_path / "e/2")

    assert (answer.code, "reward" in answer.out, "loss" in answer.out) == (0, False, True)


def test_best_takes_another_goal_other_repeats_and_a_number_of_rows(root):
    def rows(*words):
        return json.loads(command("best", root / "seeds/a", *words, "--json").out)

    assert [row["lr"] for row in rows("--goal", "max:kl")] == [0.2, 0.1]
    assert [row["seed"] for row in rows("--repeats", "lr")] == [1, 2, 3, 4]
    assert [row["run"] for row in rows("--repeats", "()", "-n", 2)] == [1, 2]


def test_compare_takes_two_experiments(root):
    a, b = root / "seeds/a", root / "seeds/b"

    rows = json.loads(command("compare", "experiment", a, b, "--json").out)
    assert len(rows) == 7
    assert {round(row["b vs a"], 9) for row in rows} == {0.5}


def test_decide_says_whether_the_repeats_decide(root):
    text = command("decide", "lr", root / "seeds/a")
    document = json.loads(command("decide", root / "seeds/a", "--json").out)
    between = json.loads(command("decide", "experiment", root / "seeds/a", root / "seeds/b", "--json").out)

    assert text.code == 0
    first = text.out.splitlines()[0]
    for part in ("lr=0.1", "lr=0.2", "do not decide", "failed"):
        assert part in first
    assert (document["better"], document["decided"], document["repeats"]) == ({"lr": 0.1}, False, 3)
    assert (between["better"], between["outcome"]) == ("a", "undecided")


def test_decide_names_all_mistakes_at_once(root):
    answer = command("decide", "lear", root / "seeds/a", "--margin", "-1")

    assert answer.code == 2
    assert "margin" in answer.err
    assert "'lear'" in answer.err


def test_diff_lists_what_differs_between_experiments_or_runs_and_says_when_nothing_does(root):
    rows = json.loads(command("diff", root / "seeds/a", root / "seeds/b", "--json").out)
    by_name = {(row["what"], row["name"]): row for row in rows}

    assert by_name["parameter", "dropout"]["second"] == "0.5"
    assert ("code", "train_again") in by_name
    assert ("parameter", "lr") not in by_name  # the same in both

    a = root / "seeds/a"
    rows = json.loads(command("diff", a / "5", a / "1", "--json").out)

    lr = next(row for row in rows if (row["what"], row["name"]) == ("parameter", "lr"))
    assert (lr["first"], lr["second"]) == ("0.2", "0.1")
    metric = next(row for row in rows if (row["what"], row["name"]) == ("metric", "kl"))
    assert metric["difference"] == pytest.approx(-0.1)
    assert "nothing differs" in command("diff", a, a).words
    assert "seeds: a, b" in command("diff", a, root / "seeds").err


def test_the_devices_of_this_machine_are_listed():
    answer = command("devices")

    assert answer.code == 0
    assert set(available_devices()) <= {row[0] for row in answer.rows if row}
    assert "memory_gib" in answer.out


# The command line itself


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples_and_exit_codes(name):
    answer = command(name, "--help")

    assert answer.code == 0
    assert f"runmanager {name}" in answer.out
    assert "--help" in answer.out
    assert "Exit codes" in answer.words
    lines = [line.strip("│ ") for line in answer.out.splitlines()]
    options = [line for line in lines if re.match(r"(\* +)?--\w|[A-Z]+ ", line)]
    assert [line for line in options if not re.search(r"[a-z] +[a-z]", line)] == []  # each has a help


def test_help_lists_the_commands_and_the_completion_and_the_version_is_that_of_the_package():
    words, version = command("--help").out.split(), command("--version")

    assert {*COMMANDS, "devices", "--version", "--install-completion"} <= set(words)
    assert (version.code, version.out.split()) == (0, ["runmanager", runmanager.__version__])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["lits"], ["lits", "list"]),
        (["best", "--gaol", "loss"], ["--gaol", "--goal"]),
        (["--verison"], ["--verison", "--version"]),
        (["show"], ["RUN"]),
        (["list", "a", "b"], ["argument"]),
        (["tensorboard", "--port", "70000"], ["--port", "65535", "70000"]),
    ],
)
def test_a_command_line_that_cannot_be_read_is_refused_and_a_similar_name_suggested(words, named):
    answer = command(*words)

    assert (answer.code, answer.out) == (2, "")
    assert [name for name in named if name not in answer.err] == []
    assert "Traceback" not in answer.err


HEAVY = ("torch", "tensorboard")


@pytest.mark.slow
def test_python_m_is_the_command_and_imports_nothing_heavy(root):
    def python(*words):
        environment = {**os.environ, "PYTHONPATH": str(Path(runmanager.__file__).parents[1])}
        return subprocess.run(
            [sys.executable, *map(str, words)], env=environment, capture_output=True, text=True, check=False
        )

    done = python("-m", "runmanager", "list", root / "sweep", "--json")
    without = python("-OO", "-m", "runmanager", "list", "--all", "-n", "3", "--json", "nothing")
    program = (
        "import runpy, sys\n"
        "try:\n    runpy.run_module('runmanager', run_name='__main__')\n"
        f"finally:\n    print([name for name in {HEAVY} if name in sys.modules])"
    )
    listing = python("-c", program, "list", root / "sweep", "--json")

    assert (done.returncode, without.returncode) == (0, 2)
    assert "no results at 'nothing'" in without.stderr  # options have their names without docstrings too
    assert json.loads(done.stdout) == json.loads(command("list", root / "sweep", "--json").out)
    assert listing.stdout.splitlines()[-1] == "[]"
    assert load_runs(root / "sweep")["run"].tolist() == [1, 2, 3, 4, 5, 6]


def test_best_writes_a_table_for_latex(root):
    lines = command("best", root / "seeds/a", "--latex").out.splitlines()

    assert (lines[0][:16], lines[-1]) == ("\\begin{tabular}{", "\\end{tabular}")
    assert lines[2].startswith("lr & kl & 95 \\% interval & repeats")
    assert " $\\pm$ " in lines[4]
