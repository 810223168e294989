"""Each mistake of a new user is made; the advice of its message is followed, and the program then works."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torchmetrics
from torch import nn
from torch.nn.functional import cross_entropy  # noqa: F401 - of the programs
from typer.testing import CliRunner

import runmanager
from runmanager import (
    CheckpointError,
    InvalidArgumentError,
    LifecycleError,
    RunBuilder,
    RunManager,
    best,
    load_run,
    load_runs,
    main,
    run_grid,
    verdict,
)
from runmanager.cli.app import app
from runmanager.errors import GridError

PROGRAM = """
def train(run, manager):
    network = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(network.parameters(), lr=run.lr)
    with manager.run(run, network, loader):
        for epoch in manager.epochs(2, checkpoint={'network': network, 'optimizer': optimizer}):
            for inputs, labels in manager.batches():
                preds = network(inputs)
                loss = cross_entropy(preds, labels)
                manager.track_loss(loss, labels)
                manager.track_num_correct(preds, labels)
                manager.track(f1=0.5)
            manager.evaluate(loader, 'validation', metrics={'iou': metric()})
        manager.summary(final_f1=0.5)

outcome = run_grid(params, train, experiment='e', **quiet, jobs=1, goal='min:loss')
"""
"""The program that works; each mistake replaces a part of it."""


class PerClass(torchmetrics.Metric):
    """A metric with a value per class, by a name that torchmetrics can put into a column."""

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Take no notice of the batch."""

    def compute(self) -> torch.Tensor:
        """Return three values."""
        return torch.tensor([0.25, 0.5, 0.75])


class Mistake(NamedTuple):
    """A part of the program, what somebody writes in its place, and the message; its group is what to write.

    `replaced` is the part of the mistake that the advice replaces, by default all of it.
    """

    right: str
    wrong: str
    message: str
    replaced: str = ""


LEFT_OUT = {"leave it out": "pass", "exchange them": "run, manager"}
"""Advice in words, as code."""

TRACK_LOSS = "manager.track_loss(loss, labels)"
NUM_CORRECT = "manager.track_num_correct(preds, labels)"
TRACK = "manager.track(f1=0.5)"
LOOP = "for epoch in manager.epochs(2, checkpoint={'network': network, 'optimizer': optimizer}):"
EVALUATE = "manager.evaluate(loader, 'validation', metrics={'iou': metric()})"
BLOCK = "with manager.run(run, network, loader):"
SUMMARY = "manager.summary(final_f1=0.5)"

MISTAKES = {
    "train takes the manager first": Mistake(
        "run, manager", "manager, run", r"takes \(manager, run\): (exchange them)"
    ),
    "train takes the run alone": Mistake(
        "def train(run, manager)", "def train(run)", r"too many positional arguments; write (def train.+)$"
    ),
    "no block of manager.run": Mistake(BLOCK, "if manager.run(run, network, loader):", r"write `(.+?)` around"),
    "nothing begins the run": Mistake(BLOCK, "if True:", r"outside a run: write `(.+?)` around it"),
    "network and loader are swapped": Mistake(
        "manager.run(run, network, loader)", "manager.run(run, loader, network)",
        r"must be a torch.nn.Module, got list: write (\S+\(.+?\))",
    ),
    "network and run are swapped": Mistake(
        "manager.run(run, network, loader)", "manager.run(network, run)", r"got Run: write (\S+\(.+?\))"
    ),
    "no loader": Mistake(
        "manager.run(run, network, loader)", "manager.run(run, network)",
        r"batches\(\) without a loader: write (\S+\(.+?\))",
    ),
    "no network": Mistake(
        "manager.run(run, network, loader)", "manager.run(run, None, loader)",
        r"evaluate\(\) without a network: write (\S+\(.+?\))",
    ),
    "no loop over epochs": Mistake(
        LOOP, "n = 2\n        if True:", r"outside an epoch: write `(.+?)` around it", "if True:"
    ),
    "epochs by the keyword": Mistake(
        LOOP, "for epoch in manager.epochs(epochs=2):", r"argument 'epochs'; did you mean '(n)'", "epochs="
    ),
    "a keyword of epochs": Mistake(
        "2, checkpoint=", "2, checkpoints=", r"did you mean '(checkpoint)'", "checkpoints="
    ),
    "checkpoint is the network": Mistake(
        LOOP, "for epoch in manager.epochs(2, checkpoint=network):", r"write (checkpoint=\{.+?\})",
        "checkpoint=network",
    ),
    "checkpoint is a list": Mistake(
        LOOP, "for epoch in manager.epochs(2, checkpoint=[network, optimizer]):", r"write (checkpoint=\{.+?\})",
        "checkpoint=[network, optimizer]",
    ),
    "begin_epoch in the loop": Mistake(
        TRACK, "manager.begin_epoch()", r"begin_epoch\(\) in a loop .+: (leave it out)"
    ),
    "end_epoch in the loop": Mistake(
        EVALUATE, "manager.end_epoch()", r"end_epoch\(\) in a loop .+: (leave it out)"
    ),
    "loss and inputs are swapped": Mistake(
        TRACK_LOSS, "manager.track_loss(inputs, loss)", r"swapped: write (track_loss\(.+?\))",
        "track_loss(inputs, loss)",
    ),
    "loss and size are swapped": Mistake(
        TRACK_LOSS, "manager.track_loss(len(labels), loss)", r"swapped: write (track_loss\(.+?\))",
        "track_loss(len(labels), loss)",
    ),
    "no loss": Mistake(TRACK_LOSS, "manager.track_loss()", r"write (track_loss\(.+?\))", "track_loss()"),
    "a loss per sample": Mistake(
        TRACK_LOSS, "manager.track_loss(loss.repeat(8), labels)", r"call (\.mean\(\)) on it", ".repeat(8)"
    ),
    "counts per sample": Mistake(TRACK, "manager.track(f1=labels)", r"call (\S+\(\)) on it", ""),
    "preds and labels are swapped": Mistake(
        NUM_CORRECT, "manager.track_num_correct(labels, preds)", r"swapped: write (track_num_correct\(.+?\))",
        "track_num_correct(labels, preds)",
    ),
    "a misspelled method": Mistake(
        NUM_CORRECT, "manager.track_num_corect(preds, labels)", r"did you mean '(track_num_correct)'",
        "track_num_corect",
    ),
    "a keyword of a method": Mistake(
        TRACK_LOSS, "manager.track_loss(loss, batches=labels)", r"did you mean '(batch)'", "batches="
    ),
    "a value without a name": Mistake(TRACK, "manager.track(0.5)", r"write (track\(.+?\))", "track(0.5)"),
    "a name and a value": Mistake(
        TRACK, "manager.track('f1', 0.5)", r"write (track\(.+?\))", "track('f1', 0.5)"
    ),
    "a logged value without a name": Mistake(TRACK, "manager.log(0.5)", r"write (log\(.+?\))", "log(0.5)"),
    "a value as text": Mistake(TRACK, "manager.track(f1='0.5')", r"write (float\(.+?\)) ", "'0.5'"),
    "track after the loop": Mistake(
        SUMMARY, "manager.track(final_f1=0.5)", r"track\(\) after the last .+ write (manager.summary\(.+?\))"
    ),
    "log after the loop": Mistake(
        SUMMARY, "manager.log(final_f1=0.5)", r"log\(\) after the last .+ write (manager.summary\(.+?\))"
    ),
    "name and loader are swapped": Mistake(
        EVALUATE, "manager.evaluate('validation', loader)", r"write (evaluate\(.+?\))",
        "evaluate('validation', loader)",
    ),
    "evaluate gets the network": Mistake(
        EVALUATE, "manager.evaluate(network, loader)", r"write (evaluate\(.+?\))", "evaluate(network, loader)"
    ),
    "a metric per class": Mistake(
        "metric()", "PerClass()", r"names, as (torchmetrics.ClasswiseWrapper)\(metric\) does", "PerClass()"
    ),
    "a keyword of run_grid": Mistake("jobs=1", "n_jobs=1", r"did you mean '(jobs)'", "n_jobs"),
    "goals": Mistake("goal=", "goals=", r"did you mean '(goal)'", "goals"),
    "experiments": Mistake("experiment=", "experiments=", r"did you mean '(experiment)'", "experiments"),
    "a list of grids": Mistake("params,", "grids,", r"write (\[run for .+\]), where grids", "grids,"),
    "a list of settings": Mistake("params,", "settings,", r"write (\[run for .+\]), where grids", "settings,"),
}  # fmt: skip


def executed(program: str) -> tuple[str, Any]:
    """Execute a program; return the message that its user reads, and the outcome of the grid."""
    torch.manual_seed(0)
    loader = [(torch.randn(8, 4), torch.arange(8) % 3)] * 2
    names: dict[str, Any] = {
        **globals(),
        "loader": loader,
        "params": {"lr": [0.1], "device": ["cpu"]},
        "grids": [{"lr": [0.1], "device": ["cpu"]}],
        "settings": [{"lr": 0.1, "device": "cpu"}],
        "quiet": {"executor": "inline", "display": False, "tensorboard": False, "changed": "rerun"},
        "metric": lambda: torchmetrics.ClasswiseWrapper(PerClass()),
    }
    try:
        exec(compile(program, "program.py", "exec"), names)  # noqa: S102 - the programs above
    except Exception as error:  # noqa: BLE001 - whatever it is, its message is read
        return str(error), None
    ((_, outcome),) = names["outcome"].outcomes
    return outcome.error, outcome


def followed(mistake: Mistake, program: str, advice: str) -> str:
    """Write the advice into a program."""
    code = LEFT_OUT.get(advice, advice)
    replaced = mistake.replaced or mistake.wrong
    if advice.startswith("for epoch"):
        code = code.replace("(n)", "(2)")
    if replaced.endswith("="):
        code += "="
    if advice == "torchmetrics.ClasswiseWrapper":
        code = f"{advice}(PerClass())"
    if replaced in ("grids,", "settings,"):
        code = f"{code.replace(' grids ', f' {replaced[:-1]} ')},"
    if mistake.wrong == "manager.track(f1=labels)":
        replaced, code = "f1=labels", f"f1=labels{advice}"
    if replaced == ".repeat(8)":
        code = f"{replaced}{advice}"
    if mistake.wrong == "def train(run)":
        code = code.split(" (", 1)[0]
    assert program.count(replaced) >= 1
    return program.replace(replaced, code)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.filterwarnings("ignore::runmanager.RunsWarning")
@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_program_works_once_the_advice_is_followed_to_the_letter(mistake):
    assert PROGRAM.count(mistake.right) >= 1
    program = PROGRAM.replace(mistake.right, mistake.wrong)

    message, outcome = executed(program)

    assert outcome is None or outcome.status == "failed", "the mistake is none"
    advice = re.search(mistake.message, message)
    assert advice, message
    message, outcome = executed(followed(mistake, program, advice[1]).replace("'e'", "'again'"))
    assert outcome is not None, message
    assert outcome.status == "completed", message


@pytest.mark.filterwarnings("ignore::runmanager.RunsWarning")
def test_the_program_without_mistakes_works():
    message, outcome = executed(PROGRAM)

    assert outcome.status == "completed", message


def tracked(run, manager):
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track(reward=run.lr)


def grid(params=None, train=tracked, **options):
    settings: dict[str, Any] = {
        "experiment": "e",
        "executor": "inline",
        "display": False,
        "tensorboard": False,
    } | options
    return run_grid(params or {"lr": [0.1, 0.2]}, train, **settings)


def told(line: str) -> str:
    """Return what stands between quotes after "did you mean"."""
    match = re.search(r"did you mean '(.+?)'\?", line)
    assert match, line
    return match[1]


def test_a_name_of_the_package_is_suggested_for_an_attribute_and_for_an_import():
    with pytest.raises(AttributeError) as of_attribute:
        runmanager.RunManger  # noqa: B018
    with pytest.raises(ImportError) as of_import:
        from runmanager import RunBulder  # noqa: F401

    assert hasattr(runmanager, told(str(of_attribute.value)))
    assert hasattr(runmanager, told(str(of_import.value)))
    from runmanager import report  # noqa: F401 - a module, whose name is like `export`


@pytest.mark.slow(everywhere=True)
def test_a_hyperparameter_that_is_asked_of_the_manager_is_one_of_the_run():
    def train(first, second):
        with second.run(first):
            assert (first if swap else second).lr == 0.1

    swap = False
    ((_, outcome),) = grid({"lr": [0.1]}, train).outcomes
    assert "RunManager has no 'lr', a hyperparameter: take it from the run" in outcome.error

    swap = True
    ((_, outcome),) = grid({"lr": [0.1]}, train, retry_failed=True).outcomes
    assert outcome.status == "completed"


def test_a_hook_that_is_asked_of_the_run_says_the_order_of_the_arguments():
    def train(first, second):
        with first.run(second):
            pass

    order = r"it is a hook of the manager: train gets the run first, so write def train\(run, manager\)"
    with pytest.raises(GridError, match=order):
        grid({"lr": [0.1]}, train)


@pytest.mark.slow(everywhere=True)
def test_a_run_whose_checkpoint_does_not_fit_is_removed_by_the_command_of_the_message(monkeypatch):
    def train(run, manager):
        network = nn.Linear(4, int(os.environ["SIZE"]))  # a change that no fingerprint of the code sees
        with manager.run(run):
            for epoch in manager.epochs(2, checkpoint={"network": network}):
                if epoch == 2 and os.environ["SIZE"] == "3":
                    raise RuntimeError("the first attempt fails")
                manager.track(f1=0.5)

    monkeypatch.setenv("SIZE", "3")
    grid({"lr": [0.1]}, train)
    monkeypatch.setenv("SIZE", "5")
    ((_, outcome),) = grid({"lr": [0.1]}, train, retry_failed=True).outcomes
    command = re.search(r"remove the run by runmanager (.+), then start it again", outcome.error)

    assert command, outcome.error
    assert CliRunner().invoke(app, [*shlex.split(command[1]), "--yes"]).exit_code == 0
    ((_, outcome),) = grid({"lr": [0.1]}, train).outcomes
    assert outcome.status == "completed"
    assert load_runs("runs/e")["epochs"].tolist() == [2]


def test_weights_of_another_shape_are_named_with_both_shapes():
    def train(run, manager):
        with manager.run(run, nn.Linear(4, run.width)):
            for _ in manager.epochs(1, keep="last"):
                manager.track_loss(0.5, 1)

    grid({"width": [3]}, train)
    with pytest.raises(CheckpointError) as raised:
        load_run("runs/e/1").load_weights(nn.Linear(5, 3))

    assert "('weight' has the shape (3, 4) in the file and (3, 5) in the network)" in str(raised.value)
    assert str(raised.value).endswith("build it with load_run('runs/e/001').params")
    load_run("runs/e/1").load_weights(nn.Linear(4, 3))


def test_a_misspelled_goal_is_told_after_the_first_run(capsys):
    said = []

    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(2):
                said.append("! the goal is 'max:rewad'" in capsys.readouterr().out)
                manager.track(reward=run.lr)

    grid({"lr": [0.1, 0.2]}, train, goal="max:rewad", display=True)
    text = capsys.readouterr().out

    assert said == [False, False, True, False]  # once
    goal = "max:reward"
    assert told("did you mean 'reward'?") in goal
    assert grid({"lr": [0.1, 0.2]}, train, goal=goal, display=True).exit_code == 0
    assert "the goal is 'max:reward', but" not in text + capsys.readouterr().out


def test_a_loop_without_a_grid_warns_of_a_misspelled_goal_after_its_first_run():
    manager = RunManager("loop", display=False, tensorboard=False, goal="max:rewad")
    with pytest.warns(runmanager.RunsWarning) as caught, manager.run({"lr": 0.1}):  # noqa: PT031 - a loop
        for _ in manager.epochs(2):
            manager.track(reward=0.5)
        assert not caught

    assert told(str(caught[0].message)) == "reward"
    assert caught[0].filename == __file__


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("executor", ["inline", "lanes"])
def test_a_goal_that_only_log_has_is_told_before_the_grid_ends(capsys, executor):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(2):
                manager.track(f1=0.5)
                getattr(manager, call)(reward=run.lr)

    call = "log"
    grid({"lr": [0.1, 0.2]}, train, goal="max:reward", display=True, executor=executor)
    text = capsys.readouterr().out
    advice = re.search(r"write (\w+)\(\) in place of log\(\)", text)
    assert advice, text
    call = advice[1]

    assert text.count("! the goal is 'max:reward', but run 1 has no such metric: log() writes") == 1
    outcome = grid({"lr": [0.1, 0.2]}, train, goal="max:reward")
    assert outcome.runs["reward"].tolist() == [0.1, 0.2]


def test_a_loop_without_a_grid_warns_of_a_goal_that_only_log_has():
    manager = RunManager("loop", display=False, tensorboard=False, goal="max:reward")
    with pytest.warns(runmanager.RunsWarning, match=r"in place of log\(\)"), manager.run({"lr": 0.1}):  # noqa: PT031
        for _ in manager.epochs(2):
            manager.track(f1=0.5)
            manager.log(reward=0.5)


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("goal", ["max:reward", "max:best train_reward"])
def test_a_goal_that_only_a_table_of_runs_has_is_not_called_unknown(capsys, goal):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(train_reward=0.5)
            manager.summary(reward=0.5)

    grid({"lr": [0.1]}, train, goal=goal, display=True)
    manager = RunManager("loop", display=False, tensorboard=False, goal=goal)
    train({"lr": 0.1}, manager)  # without a warning

    assert "has no such metric" not in capsys.readouterr().out


@pytest.mark.slow(everywhere=True)
def test_a_kept_metric_gets_the_similar_one():
    def train(run, manager):
        with manager.run(run, nn.Linear(4, 3)):
            for _ in manager.epochs(1, keep=keep):
                manager.track(reward=0.5)

    keep = "max:rewad"
    ((_, outcome),) = grid({"lr": [0.1]}, train).outcomes
    keep = f"max:{told(outcome.error)}"

    assert grid({"lr": [0.1]}, train, retry_failed=True).exit_code == 0


def test_several_problems_of_a_table_do_not_say_that_nothing_was_started():
    grid()
    with pytest.raises(InvalidArgumentError) as raised:
        verdict(load_runs("runs/e"), "lrr", margin=0)

    assert str(raised.value).startswith("2 problems:\n")
    assert best(load_runs("runs/e"), "reward")["lr"].tolist() == [0.2, 0.1]


def test_a_keyword_of_a_function_of_tables_gets_the_similar_one():
    grid()
    runs = load_runs("runs/e")
    with pytest.raises(TypeError) as of_best:
        best(runs, goals="reward")  # type: ignore[call-arg]
    with pytest.raises(TypeError) as of_loading:
        load_runs(folders="runs/e")  # type: ignore[call-arg]

    options: dict[str, Any] = {told(str(of_best.value)): "reward"}
    assert best(runs, **options)["lr"].tolist() == [0.2, 0.1]
    assert str(of_loading.value).startswith("load_runs() got an unexpected keyword argument 'folders'; its")
    with pytest.raises(TypeError, match=r"'hyperparameters'; its arguments are: runs, axis, goal, repeats, ma"):
        verdict(runs, repeats="seed", hyperparameters=[])  # type: ignore[call-arg]


@pytest.mark.slow(everywhere=True)
def test_a_value_that_shares_no_setting_with_another_is_not_said_to_have_no_result():
    runs = RunBuilder.get_runs({"model": ["net"], "lr": [0.1, 0.2], "seed": [0, 1]})
    runs += RunBuilder.get_runs({"model": ["svm", "forest"], "seed": [0, 1]})

    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(reward=run.seed + len(run.model))

    grid(runs, train, repeats="seed", goal="max:reward")
    sentence = str(verdict(load_runs("runs/e"), "model"))

    assert "no result" not in sentence
    assert "net is not compared: no run of another value has the same other hyperparameters" in sentence


def test_a_step_of_a_run_outside_is_refused_like_the_others():
    manager = RunManager("loop", display=False, tensorboard=False)

    with pytest.raises(LifecycleError, match=r"write `with manager\.run"):
        manager.log(loss=0.5)


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("flags", [False, True], ids=["run_grid", "main"])
def test_failed_runs_are_executed_again_by_what_the_message_names(flags, tmp_path, capsys):
    def train(run, manager):
        with manager.run(run):
            assert (tmp_path / "cured").exists()

    words: list[str] = []
    options: dict[str, Any] = {"executor": "inline", "tensorboard": False, "display": True, "experiment": "e"}

    def start(**more):
        if flags:
            return main({"lr": [0.1]}, train, arguments=words, **options)
        return run_grid({"lr": [0.1]}, train, **options, **more).exit_code

    assert start() == 1
    text = capsys.readouterr().out
    (tmp_path / "cured").touch()
    assert start() == 1  # not by itself
    text += capsys.readouterr().out
    assert ("--retry-failed" in text, "retry_failed=True" in text) == (flags, not flags)

    words.append("--retry-failed")
    assert start(retry_failed=True) == 0


def test_an_axis_as_an_argument_of_main_is_written_into_the_grid():
    with pytest.raises(TypeError, match=r"main\(\) got the axis 'lr' as an argument: .+ or start with --lr$"):
        main({"lr": [0.1]}, tracked, lr=0.2)
    with pytest.raises(TypeError) as raised:
        main({"lr": [0.1]}, tracked, experiments="e")

    options: dict[str, Any] = {told(str(raised.value)): "e"}
    settings: dict[str, Any] = {"executor": "inline", "tensorboard": False, "display": False}
    assert main({"lr": [0.1]}, tracked, arguments=["--lr", "0.2"], **options, **settings) == 0


SCRIPT = """
import runmanager
def train(run, manager):
    raise ValueError("as the user wrote it")
runmanager.run_grid({"lr": []}, train, experiment="e")
"""


@pytest.mark.slow
def test_a_script_shows_its_own_line_and_the_sentence_alone(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False
    )

    frames = [line for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert [shlex.split(line)[1].rpartition("/")[2] for line in frames] == ["script.py,"]
    assert done.stderr.splitlines()[-1].endswith(
        "axis 'lr' has no values: give it at least one, or leave it out"
    )


@pytest.mark.slow(everywhere=True)
def test_the_log_of_an_error_begins_with_the_line_of_the_user():
    def train(run, manager):
        with manager.run(run):
            raise ValueError("as the user wrote it")

    grid({"lr": [0.1]}, train)
    lines = Path("runs/e/001/error.log").read_text(encoding="utf-8").splitlines()

    assert lines[0].startswith("Traceback")
    assert __file__ in lines[1]


@pytest.mark.slow(everywhere=True)
def test_a_warning_about_the_source_of_train_names_the_line_of_the_user():
    names: dict[str, Any] = {}
    exec("def train(run, manager):\n    with manager.run(run): pass", names)  # noqa: S102 - has no file

    with pytest.warns(runmanager.RunsWarning, match="the source of train is not known") as caught:
        grid({"lr": [0.1]}, names["train"])

    assert caught[0].filename == __file__
