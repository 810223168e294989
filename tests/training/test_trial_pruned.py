"""optuna.TrialPruned, raised where runs are trained: the run is pruned, and its epochs are kept."""

from typing import Any

import pytest
import torch
from torch import nn

from runmanager import RunManager, load_results, load_runs, run_grid
from runmanager.errors import is_pruned

optuna = pytest.importorskip("optuna")


class CountingNetwork(nn.Linear):
    """A network whose bias says for how many epochs it was trained."""

    def __init__(self):
        super().__init__(1, 1)
        nn.init.zeros_(self.bias)


class Train:
    """Trains four epochs; says with TrialPruned that a run ends, in an epoch of its own for each lr."""

    def __init__(self, pruned_in, *, in_batches=False):
        self.pruned_in, self.in_batches = pruned_in, in_batches
        self.executed = []

    def __call__(self, run, manager):
        network = CountingNetwork()
        with manager.run(run, network, [torch.ones(2, 1)] * 3):
            for epoch in manager.epochs(4, checkpoint={"network": network}):
                self.executed.append((run.lr, epoch))
                is_pruned = self.pruned_in.get(run.lr) == epoch
                for batch in manager.batches():
                    manager.track_loss(run.lr, batch)
                    if is_pruned and self.in_batches:
                        raise optuna.TrialPruned
                with torch.no_grad():
                    network.bias.add_(1)
                manager.track(num_trained=network.bias.sum())
                if is_pruned:
                    raise optuna.TrialPruned("too slow")


@pytest.fixture
def start(tmp_path):
    def run(train, **options):
        quiet: dict[str, Any] = {"tensorboard": False, "display": False, "executor": "inline"} | options
        return run_grid({"lr": [1.0, 2.0, 3.0]}, train, experiment="exp", root=tmp_path, **quiet)

    return run


def standing(outcome):
    return list(zip(outcome.runs["status"], outcome.runs["epochs"], strict=True))


@pytest.mark.parametrize("executor", ["inline", pytest.param("lanes", marks=pytest.mark.slow)])
def test_in_a_grid_the_run_is_pruned_with_its_epochs_and_the_grid_is_through(start, executor):
    outcome = start(Train({2.0: 3}), executor=executor)

    assert standing(outcome) == [("completed", 4), ("pruned", 3), ("completed", 4)]
    assert outcome.exit_code == 0
    assert "TrialPruned: too slow" in outcome.runs["error"][1]
    assert outcome.results.loc[outcome.results["run"] == 2, "num_trained"].tolist() == [1, 2, 3]


def test_an_epoch_whose_batches_are_not_through_does_not_count(start):
    assert standing(start(Train({2.0: 3}, in_batches=True)))[1] == ("pruned", 2)


@pytest.mark.slow(everywhere=True)
def test_it_stays_pruned_until_runs_that_failed_are_to_be_executed_again(start):
    start(Train({2.0: 3}))
    again, retry = Train({}), Train({})

    assert standing(start(again, changed="keep"))[1] == ("pruned", 3)
    outcome = start(retry, retry_failed=True, changed="keep")

    assert (again.executed, retry.executed) == ([], [(2.0, 4)])
    assert standing(outcome)[1] == ("completed", 4)
    assert outcome.results.loc[outcome.results["run"] == 2, "num_trained"].tolist() == [1, 2, 3, 4]


def test_a_run_may_be_pruned_before_it_begins(start):
    def train(run, manager):
        if run.lr == 2.0:
            raise optuna.exceptions.TrialPruned
        with manager.run(run):
            manager.summary(f9=1.0)

    outcome = start(train)

    assert standing(outcome) == [("completed", 0), ("pruned", 0), ("completed", 0)]
    assert outcome.exit_code == 0


def test_a_study_of_optuna_around_a_bare_loop_hears_of_it(tmp_path):
    def objective(trial):
        manager = RunManager("exp", root=tmp_path, tensorboard=False, display=False)
        with manager.run({"lr": trial.suggest_float("lr", 0.0, 1.0), "trial": trial.number}):
            for epoch in manager.epochs(3):
                manager.track_loss(1.0, 1)
                if trial.number == 1 and epoch == 2:
                    raise optuna.TrialPruned
        return 0.5

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study()
    study.optimize(objective, n_trials=3)

    states = optuna.trial.TrialState
    assert [trial.state for trial in study.trials] == [states.COMPLETE, states.PRUNED, states.COMPLETE]
    assert load_runs(tmp_path / "exp")["status"].tolist() == ["completed", "pruned", "completed"]
    assert load_results(tmp_path / "exp")["run"].value_counts().to_dict() == {1: 3, 2: 2, 3: 3}


def test_hooks_alone_end_as_pruned_too(tmp_path):
    manager = RunManager("exp", root=tmp_path, tensorboard=False, display=False)

    def train():
        with manager.run({"lr": 0.1}):
            manager.begin_epoch()
            manager.track_loss(1.0, 1)
            manager.end_epoch()
            manager.begin_epoch()
            raise optuna.TrialPruned

    with pytest.raises(optuna.TrialPruned):
        train()

    assert manager.outcome
    assert (manager.outcome.status, manager.outcome.epochs) == ("pruned", 1)
    assert not list(tmp_path.rglob("error.log"))


def test_an_exception_of_another_library_of_that_name_is_a_failure():
    class TrialPruned(Exception):  # noqa: N818 - as Optuna calls it
        pass

    assert is_pruned(optuna.TrialPruned())
    assert not is_pruned(TrialPruned())
