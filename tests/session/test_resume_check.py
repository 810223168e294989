import importlib
import os
import re
import subprocess
import sys

import pytest

from runmanager import GridError, main, run_grid
from runmanager.checks import resumes as resume_check
from runmanager.testing import assert_resumes
from tests.nightly import IS_NIGHT
from tests.session.planted import BAD, OMISSIONS, OWN_FILES, RIGHT, TRANSFORMERS, variant
from tests.session.planted import LIGHTNING as OF_LIGHTNING

GRID: dict[str, list[object]] = {"seed": [1], "device": ["cpu"]}
EVERY = 1 if IS_NIGHT else 6  # of the programs, one in so many is checked
IMPORTS_FOR_SECONDS = (OF_LIGHTNING, TRANSFORMERS)


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return a function that writes a program into a module of its own, and returns its `train`."""

    def import_module(name, source):
        stem = "program_" + re.sub(r"\W", "_", name)
        (tmp_path / f"{stem}.py").write_text(source, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, stem, raising=False)
        return importlib.import_module(stem).train

    return import_module


def check(train, tmp_path, **options):
    options = {"executor": "inline", "tensorboard": False, "display": False, "check": "resume", **options}
    return run_grid(GRID, train, experiment="e", root=tmp_path / "runs", **options)


def problem_of(train, tmp_path):
    with pytest.raises(GridError) as raised:
        check(train, tmp_path)
    assert not (tmp_path / "runs").exists()
    return str(raised.value)


@pytest.mark.slow
def test_an_omitted_scheduler_is_named_and_nothing_is_written(load, tmp_path):
    _, source = OMISSIONS["a scheduler by step"]

    problem = problem_of(load("scheduler", source), tmp_path)

    assert problem == (
        "the only setting: killed and resumed from step 1 of epoch 2 on, it differs from step 2 of epoch 2 on "
        "in state of optimizer; not restored: warm_up; name in checkpoint= what has state_dict(), and keep "
        "numbers in a dict of checkpoint="
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OMISSIONS][::EVERY])
def test_the_variable_that_is_not_restored_is_named(name, load, tmp_path):
    cause, source = OMISSIONS[name]

    _, _, causes = problem_of(load(name, source), tmp_path).partition("; not restored: ")

    assert cause in re.split(", | and ", causes.partition(";")[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*RIGHT][::EVERY])
def test_a_right_program_raises_no_alarm(name, load, tmp_path, caplog):
    if RIGHT[name] in IMPORTS_FOR_SECONDS:
        pytest.importorskip(name)

    with caplog.at_level("INFO", "runmanager"):
        outcome = check(load(name, RIGHT[name]), tmp_path, retry_failed=False)

    assert any(line.startswith("checked 1 setting in") for line in caplog.messages)
    assert outcome.exit_code in (0, 1)  # a loss that is not finite


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_a_program_that_cannot_be_checked_gets_a_sentence(name, load, tmp_path, monkeypatch):
    if name == "an epoch without an end":
        monkeypatch.setattr(resume_check, "LONGEST_S", 20.0)
    source, sentence = BAD[name]

    assert sentence in problem_of(load(name, source), tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:checkpoint= does not save rng")
def test_a_generator_without_a_seed_is_said_to_be_not_repeatable(load, tmp_path, caplog):
    source = variant(
        setup="rng = np.random.default_rng()",
        batch="inputs = inputs * float(rng.normal())",
        epochs="for epoch in manager.epochs(3, checkpoint=checkpoint):",
    )

    with caplog.at_level("INFO", "runmanager"):
        check(load("unseeded", source), tmp_path)

    (note,) = [line for line in caplog.messages if line.startswith("! ")]
    assert note == (
        "! Run(seed=1, device='cpu'): not repeatable by itself from step 2 of epoch 1 on in state of network, "
        "state of optimizer; other values too, at the start of epoch 1 in rng"
    )


RANKS = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from runmanager import run_grid

DATA = TensorDataset(torch.linspace(-1, 1, 640).reshape(80, 8).sin(), torch.arange(80) % 2)


def train(run, manager):
    torch.manual_seed(run.seed)
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
    parallel = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    sampler = DistributedSampler(DATA)
    loader = DataLoader(DATA, batch_size=5, sampler=sampler)
    with manager.run(run, network, loader):
        for epoch in manager.epochs(2, checkpoint={PARTS}):
            sampler.set_epoch(epoch)
            for inputs, labels in manager.batches():
                loss = cross_entropy(parallel(inputs), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.track_loss(loss, labels)
            scheduler.step()


if __name__ == "__main__":
    grid = {"seed": [1], "device": ["cpu"]}
    run_grid(grid, train, experiment="e", executor="inline", tensorboard=False, check="resume")
"""
PARTS = '"network": network, "optimizer": optimizer'


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "exit_code", "sentence"),
    [
        (PARTS + ', "scheduler": scheduler', 0, "s: killed after and inside an epoch"),
        (PARTS, 1, "not restored: scheduler;"),
    ],
    ids=["right", "an omitted scheduler"],
)
def test_ranks_of_torchrun_are_killed_together(parts, exit_code, sentence, tmp_path):
    (tmp_path / "ranks.py").write_text(RANKS.replace("PARTS", parts), encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "ranks.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    ended = subprocess.run(
        torchrun, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )

    output = ended.stdout + ended.stderr
    assert (ended.returncode, sentence in output) == (exit_code, True), output
    assert (tmp_path / "runs" / "e").exists() == (exit_code == 0)


@pytest.mark.slow
def test_a_loop_with_its_own_files_is_asserted(load):
    assert_resumes(load("own_files", OWN_FILES), GRID)


@pytest.mark.slow
def test_a_loop_that_does_not_load_its_optimizer_fails_the_assertion(load):
    loads = "parts[name].load_state_dict(state)"
    source = OWN_FILES.replace(loads, f"name == 'optimizer' or {loads}")

    with pytest.raises(AssertionError, match="not restored: optimizer"):
        assert_resumes(load("no_optimizer", source), GRID)


def test_another_check_is_refused(tmp_path):
    with pytest.raises(GridError, match="check must be True, False or 'resume', got 'resumes'"):
        check(print, tmp_path, check="resumes")


def test_the_flag_has_the_value_resume(tmp_path, capsys):
    words = ["--check", "again", "--root", str(tmp_path)]

    with pytest.raises(SystemExit):
        main(GRID, print, arguments=words)

    assert "invalid choice: 'again' (choose from" in capsys.readouterr().err
