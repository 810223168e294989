"""Programs that know nothing of runmanager, executed as grids: `Command`, and `runmanager run`."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runmanager import Command, InvalidArgumentError, load_results, load_runs, load_steps, run_grid
from tests.border.experiments import QUIET
from tests.border.screens import command

HEAD = """
import json, os, sys
def given(name, default=None):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default
def say(**values):
    print(json.dumps(values))
"""
RESUMES = (
    HEAD
    + """
path = given("--out") + "/last.json"
last = json.load(open(given("--resume"))) if "--resume" in sys.argv else 0
for epoch in range(last + 1, 5):
    say(epoch=epoch, loss=1 / epoch)
    say(epoch=epoch, val_acc=float(given("--lr")) + epoch)
    json.dump(epoch, open(path, "w"))
    if epoch == 2 and not os.path.exists("killed"):
        open("killed", "w")
        os.kill(os.getpid(), 9)
"""
)
PYTHON = sys.executable


def execute(text, axes, options=None, *, words="", **of_grid):
    Path("train.py").write_text(HEAD + text)
    train = Command(f"{PYTHON} train.py {words}", **(options or {}))
    return run_grid(axes, train, experiment="exp", **{**QUIET, "goal": "max:val_acc", **of_grid})


def rows(*columns):
    return load_results("runs/exp")[list(columns)].to_numpy().tolist()


def test_hyperparameters_are_flags_and_what_is_done_is_not_executed_again(own_folder):
    axes = {"lr": [0.1, 0.2], "amp": [True, False], "bias": ["no"], "sizes": [(1, 2)], "device": ["cpu"]}
    text = "open('words', 'a').write(repr((sys.argv[1:], os.environ.get('CUDA_VISIBLE_DEVICES'))) + '\\n')\n"
    text += "say(epoch=1, val_acc=float(sys.argv[3][1:]))"

    for _ in range(2):
        outcome = execute(text, axes, words="--out {folder}/x {{lr}")

    assert outcome.runs["val_acc"].tolist() == [0.1, 0.1, 0.2, 0.2]
    words = [ast.literal_eval(line) for line in Path("words").read_text().splitlines()]
    assert [seen for _, seen in words] == [""] * 4
    folder = outcome.runs["folder"].iloc[0]
    assert words[0][0] == [
        "--out",
        f"{own_folder / folder}/files/x",
        "{0.1",
        "--amp",
        "--no-bias",
        "--sizes",
        "1",
        "2",
    ]
    assert words[1][0][3:4] == ["--no-bias"]


@pytest.mark.parametrize("start", ["train.py", "-m train other.py"])
def test_a_changed_module_of_the_program_makes_its_runs_due_again_and_is_named(own_folder, capsys, start):
    Path("other.py").touch()
    Path("train.py").write_text(HEAD + "import helper\nsay(val_acc=helper.X)")
    for text in ("X = 1\n", "X = 1 + 1\n"):
        Path("helper.py").write_text(text)
        outcome = run_grid({"lr": [1]}, Command(f"{PYTHON} {start}"), experiment="e", executor="inline")

    assert outcome.runs[["attempts", "val_acc"]].to_numpy().tolist() == [[2, 2]]
    assert "helper.py" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("goal", "text"),
    [
        ("max:val_acc", "loss=3; loss=2; val_acc=1; loss=1; val_acc=2; loss=0"),
        (None, "epoch=0, loss=2; epoch=0, val_acc=1; epoch=1, loss=1, val_acc=2"),
        (None, "step=10, loss=2; step=10, val_acc=1; step=20, loss=1, val_acc=2"),
        (None, "loss=2, val_acc=1; loss=1, val_acc=2, text='x'"),
    ],
)
def test_a_row_ends_where_its_metrics_come_again(own_folder, goal, text):
    execute("\n".join(f"say({each})" for each in text.split(";")), {"lr": [1]}, goal=goal)

    assert rows("loss", "val_acc") == [[2, 1], [1, 2]]
    if goal:
        assert load_steps("runs/exp")[["epoch", "step_loss"]].to_numpy().tolist() == [
            [1, 3],
            [1, 2],
            [2, 1],
            [3, 0],
        ]


CALLS = """
import {0}
with {0}.init(project="p", config={{"lr": 1}}) as run:
    {0}.watch(None)
    for epoch in range(2):
        run.log({{"val/acc": epoch, "image": {0}.Image(None), "name": "x"}}, step=epoch)
        run.log({{"loss": 2}}, step=epoch)
    {0}.config.setdefaults({{"lr": 2}})
    {0}.summary["best"] = {0}.config.lr
    {0}.finish()
"""


@pytest.mark.parametrize("library", ["wandb", pytest.param("trackio", marks=pytest.mark.slow)])
def test_calls_of_a_library_are_metrics_and_nothing_else_is_needed(own_folder, library):
    execute(CALLS.format(library), {"lr": [1]}, {"catch": library})

    assert rows("epoch", "position", "val_acc") == [[1, 0, 0], [2, 1, 1]]
    assert load_results("runs/exp")["summary_best"].tolist()[1:] == [1]


@pytest.mark.parametrize(
    "parts",
    [
        ["epoch, val_acc, note\n", '1,0.5,"a, b"\n2,0.25,b'],
        pytest.param(  # again, with another column
            ["epoch,val_acc\n1,0.5\n", "!loss,epoch,val_acc\n,1,0.5\n3,2,0.25\n"], marks=pytest.mark.slow
        ),
        pytest.param(
            ["val_acc,epoch\n0.5,1\n", "!val_acc,epoch\n", "0.5,1\n0.25,2\n", "!", "val_acc,epoch\n0.5,1\n"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_file_of_metrics_is_read_also_if_it_is_written_again(own_folder, parts):
    text = f"""
import time
for part in {parts!r}:
    with open(given("--out") + "/log.csv", "w" if part[:1] == "!" else "a") as file:
        file.write(part.lstrip("!"))
    time.sleep(0.3)
"""
    execute(text, {"lr": [1]}, {"metrics_file": "{folder}/log.csv"}, words="--out {folder}")

    assert rows("epoch", "val_acc") == [[1, 0.5], [2, 0.25]]


def test_a_program_without_a_metric_stops_the_grid_and_says_what_was_looked_for(own_folder):
    with pytest.raises(InvalidArgumentError, match=r"no metric; looked for lines .*--catch"):
        execute("print('accuracy 0.9')", {"lr": [1, 2]})

    assert load_runs("runs/exp")["status"].tolist() == ["interrupted", "pending"]
    with pytest.raises(InvalidArgumentError, match=r"no val_acc, but val_ac; .*another goal"):
        execute("say(val_ac=1)", {"lr": [1, 2]})


def test_a_failed_program_has_its_exception_as_the_cause_and_keeps_its_rows(own_folder):
    text = "say(val_acc=1)\ntry:\n    1 / 0\nexcept Exception:\n    raise ValueError('no data')"
    outcome = execute(text, {"lr": [1]})
    other = execute("say(val_acc=1)\nsys.exit(3)", {"lr": [2]})

    assert outcome.runs["error"].tolist() == ["CommandError: exit code 1: ValueError: no data (in train.py:11)"]
    assert (rows("val_acc"), other.runs["status"].tolist()) == ([[1], [1]], ["failed"])
    assert "ZeroDivisionError" in (Path(outcome.runs["folder"].iloc[0]) / "output.log").read_text()
    assert other.runs["error"].str.contains("exit code 3").all()


@pytest.mark.parametrize("last", [2, 4])  # after 4, the program has nothing left to do
def test_a_killed_program_goes_on_at_its_checkpoint_with_the_rows_before_it(own_folder, last):
    (own_folder / "train.py").write_text(RESUMES.replace("epoch == 2", f"epoch == {last}"))
    train = Command(f"{PYTHON} train.py --out {{folder}}", resume="--resume {folder}/last.json")

    statuses = [
        run_grid({"lr": [0.5]}, train, experiment="exp", goal="max:val_acc", **QUIET).outcomes[0][1].status
        for _ in range(2)
    ]

    assert statuses == ["killed", "completed"]
    assert rows("epoch", "loss", "val_acc") == [[n, 1 / n, n + 0.5] for n in range(1, 5)]
    assert load_runs("runs/exp")["attempts"].tolist() == [2]


STOPS = (
    HEAD
    + """
import signal, time
open("starts", "a").write("x")
attempt = len(open("starts").read())
last = json.load(open(given("--ckpt"))) if "--ckpt" in sys.argv else 0
for epoch in range(last + 1, 6):
    say(loss=10 * attempt + epoch)
    say(loss=10 * attempt + epoch)
    if [attempt, epoch] in {stops}:
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(30)
    say(epoch=epoch, val_acc=epoch + attempt / 10)
    say(epoch=epoch, val_loss=100 * epoch)
    if [attempt, epoch] in {saves}:
        json.dump(epoch, open(f"{given('--out')}/{given('--lr')}.json", "w"))
"""
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("saves", "stops", "attempts"),
    [
        ([[1, 1]], [[1, 2]], [1, 2, 2, 2, 2]),
        ([[1, 1], [2, 3]], [[1, 4], [2, 4]], [1, 2, 2, 3, 3]),
        ([[1, 2], [2, 3]], [[1, 4], [2, 4]], [1, 1, 2, 3, 3]),
    ],
)
def test_after_ctrl_c_each_row_is_of_the_attempt_that_the_program_went_on_from(
    own_folder, saves, stops, attempts
):
    (own_folder / "train.py").write_text(STOPS.replace("{saves}", str(saves)).replace("{stops}", str(stops)))
    words = ["--goal", "max:val_acc", "--lr", "1", "--executor", "inline", "--resume=--ckpt {folder}/{lr}.json"]
    line = [PYTHON, "-m", "runmanager", "run", *words, "--", PYTHON, "train.py", "--out", "{folder}"]

    codes = [subprocess.run(line, check=False, capture_output=True).returncode for _ in range(len(stops) + 1)]

    assert codes == [130] * len(stops) + [0]
    expected = [[n, n + attempt / 10, 100 * n] for n, attempt in enumerate(attempts, 1)]
    table = load_results("runs/train")
    assert table[["position", "val_acc", "val_loss"]].to_numpy().tolist() == expected
    assert table["run duration"].is_monotonic_increasing


@pytest.mark.slow  # it ignores SIGTERM for seconds
def test_a_diverged_program_is_stopped_with_all_that_it_has_started(own_folder):
    text = "import subprocess, time\nchild = subprocess.Popen(['sleep', '100'])\n"
    text += "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    text += "open('pids', 'w').write(f'{os.getpid()} {child.pid}')\nsay(loss=float('nan'), val_acc=1)\n"
    text += "say(loss=1, val_acc=1)\nsys.stdout.flush()\ntime.sleep(100)"

    outcome = execute(text, {"lr": [1]})

    assert outcome.runs["status"].tolist() == ["diverged"]
    for pid in map(int, Path("pids").read_text().split()):
        until = time.monotonic() + 10
        while Path(f"/proc/{pid}/stat").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
            assert time.monotonic() < until
            time.sleep(0.05)


def test_wrong_arguments_are_refused_together(own_folder):
    with pytest.raises(InvalidArgumentError) as raised:
        Command("pythn train.py", style="yaml", catch="mlflow", metrics_file="log.csv")

    problems = ["style", "catch", "catch,", "no", "no", "no"]
    assert [problem.split()[0] for problem in raised.value.problems] == problems
    with pytest.raises(InvalidArgumentError, match=r"no file 'trian.py'"):
        Command("python trian.py")


def test_the_command_line_has_axes_and_options_before_the_program(own_folder):
    (own_folder / "train.py").write_text(HEAD + "say(val_acc=float(given('--lr')) + int(given('-s')))")
    axes, options = (["--lr", "0.5", "0.25"], ["-s", "0..1"]), ["--goal", "max:val_acc", "--executor", "inline"]
    program = ["--", PYTHON, "train.py"]
    refused = command("run", "--lr", "--x", "0.1..0.5", "--y", "0..2", "7", "--y=8")

    planned = command("run", *axes[0], "--events", *axes[1], "--plan", *program)
    done = command("run", *axes[0], *axes[1], *options, *program)
    again = command("run", *axes[1], *axes[0], *options, "--plan", *program)

    assert (refused.code, planned.code, done.code) == (2, 0, 0)
    assert "completed 4" in again.out
    for text in ("--lr has no value", "--x: a range stands alone", "--y: a range stands alone", "no program"):
        assert text in refused.err
    assert "execute 4" in planned.out
    table = load_runs("runs/train")
    assert table[["lr", "s", "val_acc"]].to_numpy().tolist() == [
        [0.5, 0, 0.5], [0.5, 1, 1.5], [0.25, 0, 0.25], [0.25, 1, 1.25]
    ]  # fmt: skip


@pytest.mark.slow
def test_a_search_and_a_decision_work_as_for_a_training_function(own_folder):
    (own_folder / "train.py").write_text(
        HEAD + "say(val_acc=float(given('--lr')) * (1 + int(given('--seed', 0)) % 3 / 9))"
    )
    words = ["--executor", "inline", "--goal", "max:val_acc", "--", PYTHON, "train.py"]

    searched = command("run", "--lr", "log:1e-3..1e-1", "--search", "3", "--experiment", "found", *words)
    decided = command("run", "--lr", "1", "2", "--decide", "--experiment", "decided", *words)

    assert (searched.code, decided.code, len(load_runs("runs/found"))) == (0, 0, 3)
    assert "lr=2 is better than lr=1" in decided.out


def test_a_check_executes_one_run_that_the_users_words_shorten(own_folder):
    text = "open('tries', 'a').write(' '.join(sys.argv[1:]) + '\\n')\nsay(val_acc=1)\nsay(val_acc=2)"
    execute(text, {"lr": [1, 2]}, {"check": "--epochs 1"}, check=True)
    execute(text, {"lr": [1, 2]})

    assert Path("tries").read_text().splitlines() == ["--lr 1 --epochs 1", "--lr 1", "--lr 2"]
