"""`check=`: two steps of each setting before a grid starts, or a kill and a resume; nothing is written."""

import importlib
import os
import random
import re
import sys
import tempfile

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from runmanager import GridError, fit, main, run_grid
from runmanager.testing import assert_resumes
from tests.nightly import of_night_but

DATA = TensorDataset(torch.rand(60, 4), torch.arange(60) % 2)
COUNTED: list[str] = []  # what the networks below have computed, in this process
GRID: dict[str, list[object]] = {"seed": [1], "device": ["cpu"]}


class Net(nn.Linear):
    """Counts what it computes."""

    def __init__(self):
        super().__init__(4, 2)

    def forward(self, inputs):
        COUNTED.append("training" if self.training else "evaluation")
        return super().forward(inputs)


def losses(network, batches):
    for inputs, labels in batches:
        yield functional.cross_entropy(network(inputs), labels), labels


def in_epochs(run, manager, network, loader):
    with manager.run(run, network, loader):
        for _ in manager.epochs(3, checkpoint={"network": network}, keep="best:validation_loss", patience=2):
            for loss, labels in losses(network, manager.batches()):
                manager.track_loss(loss, labels)
            manager.evaluate(loader, "validation")
            with manager.evaluating(loader, "test") as batches:
                for loss, labels in losses(network, batches):
                    manager.track_loss(loss, labels)
        manager.load_weights()
        manager.summary(best=1.0)


def in_a_plain_loop(run, manager, network, loader):
    with manager.run(run, network):
        for _ in manager.epochs(3):
            for loss, labels in losses(network, loader):
                manager.track_loss(loss, labels)


def in_fit(run, manager, network, loader):
    fit(run, network, loader, manager, optimizer=torch.optim.SGD, epochs=3, test_loader=loader)


def refused(*_):
    raise ValueError("only this")


LOOPS = {
    in_epochs: ["training"] * 2 + ["evaluation"] * 2,
    in_a_plain_loop: ["training"] * 3, in_fit: ["training"] * 2 + ["evaluation"],
}  # fmt: skip


def train(run, manager):
    torch.manual_seed(run.seed)
    random.seed(run.seed)
    run.loop(run, manager, Net(), DataLoader(DATA, batch_size=6, shuffle=True))


def start(tmp_path, grid, work=train, **options):
    options = {"executor": "inline", "tensorboard": False, "display": False, "check": True, **options}
    return run_grid(grid, work, experiment="e", root=tmp_path / "runs", **options)


def problems_of(tmp_path, grid, work=train, **options):
    with pytest.raises(GridError) as caught:
        start(tmp_path, grid, work, **options)
    assert not (tmp_path / "runs").exists()  # nothing was written
    return caught.value.problems


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_check_does_two_steps_and_one_batch_of_each_evaluation_and_gives_random_states_back(tmp_path, loop):
    for _ in range(2):  # in the first one, libraries are imported
        COUNTED.clear()
        states = torch.get_rng_state().tolist(), random.getstate()
        problems_of(tmp_path, {"loop": [loop, refused], "seed": [1]})  # so that no run follows

    assert LOOPS[loop] == COUNTED
    assert (torch.get_rng_state().tolist(), random.getstate()) == states


def fails(run, manager):
    with manager.run(run, Net(), [(torch.ones(2, run.width), torch.zeros(2).long())] * 3):
        for _ in manager.epochs(2):
            for loss, labels in losses(manager.network, manager.batches()):
                manager.track_loss(loss, labels)
            if run.name == "late":
                manager.evaluate([(torch.ones(2, 5), torch.zeros(2).long())])
            if run.name == "nan":
                manager.track_loss(float("nan"), 1)
        if run.name == "loop":
            raise RuntimeError("after the loop")
    if run.name == "run":
        raise RuntimeError(f"after the run {run.status}")


def test_all_problems_are_listed_by_setting_and_nothing_is_written(tmp_path):
    grid = {"width": [4, 5], "name": ["", "late", "nan", "loop", "run"], "seed": range(3), "status": ["a"]}

    problems = problems_of(tmp_path, grid, fails, repeats=["seed"])

    parts = [
        ("all 5 settings with width=5", "shapes cannot be multiplied", "(2x5 and 4x2)", "epoch 1, step 1, "),
        ("one setting (width=4 name=late", "shapes cannot be multiplied", "evaluate(..., 'test')"),
        ("name=loop", "after the loop"),
        ("name=run", "after the run a"),
    ]
    assert len(problems) == len(parts)
    for problem, named in zip(problems, parts, strict=True):
        assert [part for part in (*named, "test_check.py:") if part not in problem] == []


@pytest.mark.slow
def test_a_process_that_dies_is_a_problem_of_its_setting_and_leaves_nothing(tmp_path, monkeypatch):
    def exits(run, manager):
        if run.lr == 1:
            os._exit(3)
        in_a_plain_loop(run, manager, Net(), DataLoader(DATA))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()

    problems = problems_of(tmp_path, {"lr": [1, 2]}, exits, executor="lanes")

    assert list((tmp_path / "temporary").glob("runmanager*")) == []
    assert problems == ["one setting (lr=1): its process ended itself with exit code 3"]


def test_what_works_is_executed_afterwards_as_without_a_check_and_not_checked_again(tmp_path, caplog):
    grid = {"loop": [in_epochs], "seed": [1, 2], "device": ["cpu"]}
    with caplog.at_level("INFO", "runmanager"):
        checked = start(tmp_path, grid)
    said = [line for line in caplog.messages if line.startswith("checked")]
    plain = start(tmp_path / "plain", grid, check=False)
    with caplog.at_level("INFO", "runmanager"):
        again = start(tmp_path, grid)
        plan = start(tmp_path / "plan", {"loop": [refused], "seed": [1]}, plan_only=True)

    assert checked.runs["loss"].tolist() == plain.runs["loss"].tolist()
    assert checked.runs[["epochs", "attempts"]].to_numpy().tolist() == [[3, 1]] * 2
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["e"]
    assert re.fullmatch("checked 1 setting in .+ no problem", *said)
    assert (again.exit_code, [str(end.status) for _, end in plan.outcomes]) == (0, ["pending"])
    assert len([line for line in caplog.messages if line.startswith("checked")]) == 1


def test_a_script_has_the_flag_and_exits_with_2(tmp_path, capsys):
    words = ["--check", "--executor", "inline", "--root", str(tmp_path / "runs"), "--experiment", "e"]

    code = main({"width": [5], "name": [""]}, fails, arguments=words, tensorboard=False)

    assert code == 2
    assert "shapes cannot be multiplied" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(GRID, refused, arguments=["--check=again"])
    assert "invalid choice: 'again'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


PROGRAM = """\
import copy
import itertools
import random
import time

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from runmanager import ImageTensors, TensorLoader, fit

DATA = TensorDataset(torch.linspace(-1, 1, 640).reshape(80, 8).sin(), torch.arange(80) % 2)
STEPS = [0]


def train(run, manager):
    torch.manual_seed(run.seed)
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(DATA, batch_size=10, shuffle=True)
    checkpoint = {"network": network, "optimizer": optimizer}
    # setup
    with manager.run(run, network, loader):
        for epoch in manager.epochs(3, checkpoint=checkpoint):  # epochs
            for inputs, labels in manager.batches():  # batches
                # batch
                loss = cross_entropy(network(inputs), labels)
                # loss
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                # step
                manager.track_loss(loss, labels)
            # end
"""
FITTED = (
    PROGRAM.partition("    checkpoint =")[0]
    + """\
    fit(run, network, loader, manager, optimizer=torch.optim.SGD, epochs=3, test_loader=loader)
"""
)
BY_HAND = PROGRAM.replace("for epoch in manager.epochs(3, checkpoint=checkpoint):  # epochs", """\
for name, state in torch.load(manager.folder / "state.pt").items() if manager.resume_epoch else ():
            checkpoint[name].load_state_dict(state)
        for epoch in range(manager.resume_epoch + 1, 4):
            manager.begin_epoch()""").replace("            # end", """\
            states = {name: part.state_dict() for name, part in checkpoint.items()}
            torch.save(states, manager.folder / "state.pt")
            manager.end_epoch()
            if manager.should_stop:
                break""")  # fmt: skip
BY_HAND = BY_HAND.replace("shuffle=True", "shuffle=False").replace("Dropout(0.2)", "Dropout(0.0)")


def variant(source=PROGRAM, **inserted):
    """Put statements in the place of comments."""
    lines = []
    for line in source.splitlines():
        code, _, marker = line.partition("# ")
        indent = code[: len(code) - len(code.lstrip())]
        lines += [indent + part for part in inserted[marker].splitlines()] if marker in inserted else [line]
    return "\n".join(lines)


INSIDE = {
    "setup": "images = DATA.tensors[0].reshape(80, 1, 2, 4)\n"
    "loader = TensorLoader(ImageTensors(images, DATA.tensors[1]), 10)",
    "epochs": "for epoch in manager.epochs(2, checkpoint=checkpoint, checkpoint_every='1h'):\n    total = 0.0",
    "batch": "inputs = inputs.flatten(1)",
}
AVERAGE = """\
for mean, parameter in zip(average.parameters(), network.parameters()):
    mean.data.lerp_(parameter.data, 0.1)"""
OMITTED = {  # the variable that is not restored -> the program
    "warm_up": variant(
        setup="warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 30)", step="warm_up.step()"
    ),
    "average": variant(setup="average = copy.deepcopy(network)", step=AVERAGE),
    "step": variant(setup="step = 0", batch="step += 1\noptimizer.param_groups[0]['lr'] = 0.1 / (1 + step)"),
    "STEPS": variant(batch="STEPS[0] += 1", loss="loss = loss / STEPS[0]"),
    "rng": variant(setup="rng = np.random.default_rng(0)", batch="inputs = inputs * float(rng.normal(1, 0.1))"),
    "optimizer": variant(setup="checkpoint = {'network': network}"),
    "total": variant(**INSIDE, step="total += loss.item()", end="manager.track({'total': total}, how='last')"),
    "numbers": variant(setup="numbers = itertools.count(1)", loss="loss = loss / next(numbers)"),
}
PARTS = """\
scheduler, average = torch.optim.lr_scheduler.StepLR(optimizer, 1), copy.deepcopy(network)
drops, state = torch.Generator().manual_seed(1), {'step': 0}
began, history, seen = time.time(), [], 0
checkpoint |= {'scheduler': scheduler, 'average': average, 'drops': drops, 'state': state}"""
RIGHT = {
    "parts of all kinds": variant(
        setup=PARTS, batch="state['step'] += 1\ninputs = inputs * torch.rand(8, generator=drops)",
        step=AVERAGE + "\nseen += len(labels)",
        end="scheduler.step()\nhistory.append(loss.item())\nprint(seen, time.time() - began)",
    ),
    "inside an epoch": variant(**INSIDE),
    "the loop's own loader": variant(batches="for inputs, labels in loader:"),
    "its own files": BY_HAND,
    "fit": FITTED,
}  # fmt: skip
BAD = {
    "it saves no checkpoint": variant(epochs="for epoch in manager.epochs(3):"),
    "no epoch ends after a few batches": variant(
        epochs="for epoch in manager.epochs(3, checkpoint=checkpoint):\n    source = manager.batches()",
        batches="for _ in range(8):", batch="inputs, labels = next(source)",
    ),
    "shapes cannot be multiplied": variant(setup="nn.Linear(8, 8)(torch.zeros(3))"),
}  # fmt: skip


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return a function that writes a program into a module of its own, and returns its `train`."""

    def import_module(source):
        stem = f"program_{abs(hash(source))}"
        (tmp_path / f"{stem}.py").write_text(source, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        return importlib.import_module(stem).train

    yield import_module
    for name in [name for name in sys.modules if name.startswith("program_")]:
        del sys.modules[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", of_night_but([*OMITTED], ["warm_up", "total"]))
def test_the_variable_that_is_not_restored_is_named(load, tmp_path, name):
    (problem,) = problems_of(tmp_path, GRID, load(OMITTED[name]), check="resume")

    named = problem.partition("; not restored: ")[2].partition(";")[0]
    assert name in re.split(", | and ", named)
    assert "killed and resumed" in problem
    assert "name in checkpoint= what has state_dict()" in problem


@pytest.mark.slow
@pytest.mark.parametrize("name", of_night_but([*RIGHT], ["parts of all kinds", "inside an epoch"]))
def test_a_right_program_raises_no_alarm(load, tmp_path, caplog, name):
    with caplog.at_level("INFO", "runmanager"):
        outcome = start(tmp_path, GRID, load(RIGHT[name]), check="resume")

    assert any(line.startswith("checked 1 setting in") for line in caplog.messages)
    assert outcome.exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("sentence", BAD)
def test_a_program_that_cannot_be_checked_gets_a_sentence(load, tmp_path, sentence):
    assert sentence in "".join(problems_of(tmp_path, GRID, load(BAD[sentence]), check="resume"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:checkpoint= does not save rng")
def test_a_generator_without_a_seed_is_said_to_be_not_repeatable(load, tmp_path, caplog):
    source = OMITTED["rng"].replace("default_rng(0)", "default_rng()")
    with caplog.at_level("INFO", "runmanager"):
        start(tmp_path, GRID, load(source), check="resume")

    (note,) = [line for line in caplog.messages if line.startswith("! ")]
    assert [part in note for part in ("seed=1", "not repeatable by itself", "network", "rng")] == [True] * 4


@pytest.mark.slow
def test_a_loop_with_its_own_files_is_asserted(load):
    assert_resumes(load(BY_HAND), GRID)
    saves = "checkpoint[name].load_state_dict(state)"
    with pytest.raises(AssertionError, match=r"not restored: (name, )?optimizer"):
        assert_resumes(load(BY_HAND.replace(saves, f"name == 'optimizer' or {saves}")), GRID)
