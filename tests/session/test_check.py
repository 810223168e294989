import os
import random
import re
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from runmanager import RunBuilder, fit, main, run_grid
from runmanager.core.outcome import Status
from runmanager.errors import GridError
from tests.accelerators import Machine, fail_kernels, installed
from tests.locations import line_with

DATA = TensorDataset(torch.rand(60, 4), torch.arange(60) % 2)
COUNTED: list[tuple[str, int]] = []  # of the loops below, in this process: where, and the size of a batch


class Net(nn.Linear):
    """Counts what it computes."""

    def __init__(self):
        super().__init__(4, 2)

    def forward(self, inputs):
        COUNTED.append(("training" if self.training else "evaluation", len(inputs)))
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


def in_hooks(run, manager, network, loader):
    manager.begin_run(run, network, loader)
    for _ in range(3):
        manager.begin_epoch()
        for loss, labels in losses(network, manager.batches()):
            manager.track_loss(loss, labels)
        manager.end_epoch()
    manager.end_run()


def in_a_plain_loop(run, manager, network, loader):
    with manager.run(run, network):
        for _ in manager.epochs(3):
            for loss, labels in losses(network, loader):
                manager.track_loss(loss, labels)


def with_values_only(run, manager, network, loader):
    with manager.run(run, network):
        for _ in manager.epochs(3):
            for loss, _labels in losses(network, loader):
                manager.track(loss_g=loss, loss_d=2.0)


def one_by_one(run, manager, network, loader):
    with manager.run(run, network, loader):
        for _ in manager.epochs(3):
            batches = losses(network, manager.batches())
            for _ in range(len(loader)):
                loss, labels = next(batches)
                manager.track_loss(loss, labels)


def in_fit(run, manager, network, loader):
    fit(run, network, loader, manager, optimizer=torch.optim.SGD, epochs=3, test_loader=loader)


LOOPS = {
    in_epochs: ["training"] * 2 + ["evaluation"] * 2, in_hooks: ["training"] * 2, one_by_one: ["training"] * 2,
    in_a_plain_loop: ["training"] * 3, with_values_only: ["training"] * 3,
    in_fit: ["training"] * 2 + ["evaluation"],
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


def fails(run, manager):
    with manager.run(run, Net(), [(torch.ones(2, run.width), torch.zeros(2).long())] * 3):
        for _ in manager.epochs(2):
            for loss, labels in losses(manager.network, manager.batches()):
                manager.track_loss(loss, labels)
            if run.name == "late":
                manager.evaluate([(torch.ones(2, 5), torch.zeros(2).long())])
            if run.name == "nan":
                manager.track_loss(float("nan"), 1)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_check_executes_two_steps_and_one_batch_of_each_evaluation(tmp_path, loop):
    COUNTED.clear()
    (run,) = RunBuilder.get_runs({"loop": [loop], "seed": [1]})

    with pytest.raises(GridError, match="only this"):  # so that no run follows
        start(tmp_path, [run, *RunBuilder.get_runs({"loop": [_refuse], "seed": [1]})])

    assert [where for where, _ in COUNTED] == LOOPS[loop]
    assert not (tmp_path / "runs").exists()


def _refuse(*_):
    raise ValueError("only this")


def asserts(run, manager):
    with manager.run(run):
        fail_kernels()
        torch.ones(1, device=run.device)


@pytest.mark.slow
def test_a_check_on_a_device_that_fails_tells_the_error(tmp_path):
    (tmp_path / "devices").mkdir()
    with installed(Machine(tmp_path / "devices")):
        problems = problems_of(tmp_path, {"device": ["cuda:1"]}, asserts)

    assert len(problems) == 1
    assert problems[0].startswith("the only setting: GPU error on cuda:1 (device-side assert triggered)")


def test_a_check_on_the_cpu_does_not_begin_cuda(tmp_path, monkeypatch):
    def begin():
        raise AssertionError("after cudaGetDeviceCount() no forked process can use CUDA")

    monkeypatch.setattr(torch.accelerator, "is_available", begin)
    monkeypatch.setattr(torch.cuda, "is_available", begin)
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)  # some releases of torch begin CUDA in it

    outcome = start(tmp_path, {"loop": [in_epochs], "seed": [1]})

    assert outcome.runs["status"].tolist() == ["completed"]


@pytest.mark.slow
def test_all_problems_are_listed_by_setting_and_nothing_is_written(tmp_path):
    grid = {"width": [4, 5], "name": ["", "late", "nan"], "seed": range(3), "device": ["cpu"]}
    where = line_with("return super().forward(inputs)")
    shapes = "RuntimeError: mat1 and mat2 shapes cannot be multiplied"

    problems = problems_of(tmp_path, grid, fails, repeats=["seed"])

    assert [re.sub("addmm: ", "", problem) for problem in problems] == [
        f"all 3 settings with width=5: {shapes} (2x5 and 4x2) (in epoch 1, step 1, {where})",
        f"one setting (width=4 name=late): {shapes} (2x5 and 4x2) (in epoch 1, evaluate(..., 'test'), {where})",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("is_left", [False, True])
def test_what_fails_after_the_loop_is_a_problem(tmp_path, is_left):
    def late(run, manager):
        with manager.run(run):
            for _ in manager.epochs(3):
                manager.track_loss(0.5, 1)
            if not is_left:
                raise RuntimeError("after the loop")
        raise RuntimeError("after the run")

    where = "run" if is_left else "loop"
    with pytest.raises(GridError, match=f"the only setting: RuntimeError: after the {where}"):
        run_grid({"lr": [0.1]}, late, experiment="e", root=tmp_path, executor="inline", check=True)


@pytest.mark.slow
def test_an_axis_may_have_the_name_of_a_column(tmp_path):
    def refuse(run, manager):
        raise ValueError(f"status {run.status!r}")

    problems = problems_of(tmp_path, {"status": ["a", "b"], "error": [1]}, refuse)

    where = line_with('raise ValueError(f"status')
    assert problems == [f"both settings: ValueError: status 'a' or 'b' (in {where})"]


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


@pytest.mark.slow
def test_what_works_is_executed_afterwards_as_without_a_check(tmp_path, caplog):
    grid = {"loop": [in_epochs], "seed": [1, 2], "device": ["cpu"]}
    with caplog.at_level("INFO", "runmanager"):
        checked = start(tmp_path, grid)
    plain = start(tmp_path / "plain", grid, check=False)

    assert checked.runs["loss"].tolist() == plain.runs["loss"].tolist()
    assert checked.runs["epochs"].tolist() == plain.runs["epochs"].tolist() == [3, 3]
    assert [path.name for path in (checked.folder / "..").resolve().iterdir()] == ["e"]
    assert checked.runs["attempts"].tolist() == [1, 1]
    (line,) = [line for line in caplog.messages if line.startswith("checked")]
    assert re.fullmatch("checked 1 setting in .+: two steps and one evaluation batch each, no problem", line)


def test_random_states_are_given_back(tmp_path):
    states = torch.get_rng_state(), random.getstate()

    problems_of(tmp_path, {"loop": [in_a_plain_loop, _refuse], "seed": [7]})

    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_what_is_done_before_is_not_checked(tmp_path, caplog):
    grid = {"loop": [in_fit], "seed": [1]}
    start(tmp_path, grid, check=False)

    with caplog.at_level("INFO", "runmanager"):
        again = start(tmp_path, grid)

    assert again.exit_code == 0
    assert not any("checked" in line for line in caplog.messages)


def test_a_plan_is_shown_without_a_check(tmp_path):
    outcome = start(tmp_path, {"loop": [_refuse], "seed": [1]}, plan_only=True)

    assert [ended.status for _, ended in outcome.outcomes] == [Status.PENDING]


@pytest.mark.slow
def test_a_script_has_the_flag_and_exits_with_2(tmp_path, capsys):
    words = ["--check", "--executor", "inline", "--root", str(tmp_path / "runs"), "--experiment", "e"]

    code = main({"width": [5], "name": [""]}, fails, arguments=words, tensorboard=False)

    assert code == 2
    assert "shapes cannot be multiplied" in capsys.readouterr().err
    assert list(Path(tmp_path).iterdir()) == []
