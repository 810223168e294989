"""`prune=`: the asynchronous rule, Optuna's pruners, TrialPruned (docs/grids-and-pruning.md)."""

import optuna
import pytest
import torch
from torch import nn

from runmanager import Decide, GridError, InvalidArgumentError, RunManager, load_results, load_runs, run_grid
from tests.border.experiments import QUIET, Scored, execute, halving

NINE = {"lr": [float(10**-e) for e in range(1, 10)]}


def loss(run):
    return {"loss": run.lr}


def outcomes(runs):
    return [tuple(row) for row in runs[["lr", "status", "epochs"]].values.tolist()]


class Rising(Scored):
    """Tracks the lr as loss in each of three epochs, so that a higher lr is worse."""

    def __init__(self, interrupt=None):
        super().__init__(loss, epochs=3)
        self.interrupt, self.epochs_of = interrupt, {}

    def __call__(self, run, manager):
        with manager.run(run):
            for epoch in manager.epochs(3, checkpoint={}):
                if self.interrupt == (run.lr, epoch):
                    self.interrupt = None
                    raise KeyboardInterrupt
                self.executed.append((run.lr, epoch))
                manager.track_loss(run.lr, 1)


def start(tmp_path, train, grid=NINE, **options):
    return execute(tmp_path, grid, train, **{"prune": halving("loss", factor=3), **options})


def test_a_run_continues_if_it_is_among_the_best_third_at_its_rung(tmp_path):
    falling, rising = Rising(), Rising()
    ascending = {"lr": sorted(NINE["lr"])}

    improving = start(tmp_path / "a", falling)
    behind = start(tmp_path / "b", rising, ascending)

    assert set(improving.runs["status"]) == {"completed"}  # each run is the best so far
    assert [status for _, status, _ in outcomes(behind.runs)] == ["completed"] + ["pruned"] * 8
    assert behind.runs["epochs"].tolist() == [3] + [1] * 8
    assert behind.exit_code == 0
    assert "epoch 1" in behind.runs["error"][1]


def test_the_rule_uses_the_goal_and_its_direction(tmp_path):
    outcome = execute(
        tmp_path, {"lr": [0.3, 0.1, 0.2]}, Scored(lambda run: {"score": run.lr}, epochs=9),
        prune=halving(), goal="max:score",
    )  # fmt: skip

    assert [status for _, status, _ in outcomes(outcome.runs)] == ["completed", "pruned", "pruned"]


def test_failed_runs_are_never_among_the_best(tmp_path):
    def scores(run):
        if run.lr == 0.1:
            raise ValueError("no")
        return {"loss": float("nan") if run.lr == 0.2 else run.lr}

    outcome = execute(tmp_path, {"lr": [0.1, 0.2, 0.3, 0.4]}, Scored(scores, epochs=3), prune=halving("loss"))

    assert outcome.runs["status"].tolist() == ["failed", "diverged", "completed", "pruned"]


@pytest.mark.slow
def test_pruned_runs_stay_pruned_and_resume_without_the_rule_bit_identically(tmp_path):
    def train(run, manager):
        torch.manual_seed(0)
        network = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(network.parameters(), lr=run.lr, momentum=0.9)
        inputs = torch.ones(8, 4)
        with manager.run(run, network):
            for _ in manager.epochs(4, checkpoint={"network": network, "optimizer": optimizer}):
                loss = network(nn.functional.dropout(inputs)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.track_loss(loss, 8)

    def start(name, **options):
        run_grid({"lr": [0.1, 0.001, 0.01]}, train, experiment=name, root=tmp_path, **QUIET, **options)
        return load_results(tmp_path / name).drop(columns=["epoch duration", "run duration"])

    first = start("e", prune=halving("loss"))
    again = start("e", prune=halving("loss"))
    statuses = load_runs(tmp_path / "e")["status"].tolist()
    resumed = start("e")

    assert statuses == ["completed", "pruned", "pruned"]
    assert again.equals(first)
    assert resumed.equals(start("whole"))


def test_a_stopped_grid_decides_as_an_undisturbed_one(tmp_path):
    ascending = {"lr": [0.2, 0.1, 0.3, 0.05]}
    disturbed = Rising(interrupt=(0.1, 2))

    assert start(tmp_path / "a", disturbed, ascending).exit_code == 130
    resumed = start(tmp_path / "a", disturbed, ascending)
    whole = start(tmp_path / "b", Rising(), ascending)

    assert outcomes(resumed.runs) == outcomes(whole.runs)
    assert len(set(disturbed.executed)) == len(disturbed.executed)


def test_a_loop_without_epochs_asks_should_stop(tmp_path):
    def train(run, manager):
        with manager.run(run):
            for _ in range(9):
                manager.begin_epoch()
                manager.track_loss(run.lr, 1)
                manager.end_epoch()
                if manager.should_stop:
                    break

    outcome = run_grid({"lr": [0.1, 0.2]}, train, experiment="e", root=tmp_path, prune=halving("loss"), **QUIET)

    assert [status for _, status, _ in outcomes(outcome.runs)] == ["completed", "pruned"]


@pytest.mark.parametrize(
    "pruner",
    [
        optuna.pruners.MedianPruner(n_startup_trials=2),
        optuna.pruners.PercentilePruner(50.0, n_startup_trials=2),
    ],
    ids=["median", "percentile"],
)
def test_a_pruner_of_optuna_decides_after_each_epoch_by_the_goal(tmp_path, pruner):
    grid = {"lr": [0.1, 0.2, 0.3, 0.05]}

    outcome = execute(tmp_path, grid, Scored(loss, epochs=3), prune=pruner, goal="min:loss")

    assert outcome.runs["status"].tolist() == ["completed", "completed", "pruned", "completed"]


def test_trial_pruned_in_train_ends_the_run_as_pruned_until_it_is_retried(tmp_path):
    train = Scored(pruned)

    first = execute(tmp_path, {"lr": [0.1, 0.2]}, train)
    execute(tmp_path, {"lr": [0.1, 0.2]}, train)
    execute(tmp_path, {"lr": [0.1, 0.2]}, train, retry_failed=True)

    assert (first.runs["status"].tolist(), first.exit_code) == (["completed", "pruned"], 0)
    assert [run.lr for run in train.executed] == [0.1, 0.2, 0.2]


def pruned(run):
    if run.lr == 0.2:
        raise optuna.TrialPruned
    return {"loss": run.lr}


class TrialPruned(Exception):  # noqa: N818 - as Optuna calls it
    """Of another library."""


def pruned_somewhere(run, manager):
    if run.where == "before":
        raise optuna.TrialPruned
    with manager.run(run, None, [torch.ones(2, 1)] * 3):
        for epoch in range(1, 5):
            manager.begin_epoch()
            for batch in manager.batches():
                manager.track_loss(0.5, batch)
                if (run.where, epoch) == ("batches", 3):
                    raise optuna.TrialPruned
            if (run.where, epoch) == ("epoch", 3):
                raise TrialPruned
            manager.end_epoch()
            if (run.where, epoch) == ("after", 3):
                raise optuna.TrialPruned("too slow")


def test_a_pruned_run_keeps_its_epochs_wherever_it_was_pruned_and_only_by_optunas_exception(tmp_path):
    grid = {"where": ["before", "batches", "epoch", "after", "nowhere"]}

    runs = run_grid(grid, pruned_somewhere, experiment="e", root=tmp_path, on_error="continue", **QUIET).runs

    assert runs["status"].tolist() == ["pruned", "pruned", "failed", "pruned", "completed"]
    assert runs["epochs"].tolist() == [0, 2, 2, 3, 4]
    assert "TrialPruned: too slow" in runs["error"][3]
    assert [path.parent.name for path in tmp_path.rglob("error.log")] == ["003-where=epoch"]


def test_what_train_pruned_is_executed_again_if_asked_for_whatever_the_rule_says(tmp_path):
    executed = []

    def train(run, manager):
        with manager.run(run):
            executed.append(run.lr)
            for epoch in manager.epochs(4, checkpoint={}):
                manager.track_loss(run.lr, 1)
                if run.lr == 9 and epoch == 3:
                    raise optuna.TrialPruned

    options = {"experiment": "e", "root": tmp_path, "data": "same", **QUIET}
    run_grid({"lr": [1, 2, 9]}, train, **options)
    run_grid(
        {"lr": [1, 2, 9]}, train, prune=halving("loss", min_epochs=3, factor=2), retry_failed=True, **options
    )

    assert executed == [1, 2, 9, 9]


def test_a_bare_manager_records_a_pruned_trial_and_passes_it_on_to_the_study(tmp_path):
    def objective(trial):
        manager = RunManager("e", tmp_path, tensorboard=False, display=False)
        with manager.run({"lr": trial.suggest_float("lr", 0, 1)}):
            raise optuna.TrialPruned

    study = optuna.create_study()
    study.optimize(objective, n_trials=1)

    assert study.trials[0].state == optuna.trial.TrialState.PRUNED
    assert load_runs(tmp_path)["status"].tolist() == ["pruned"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"prune": halving("loss"), "decide": Decide(), "repeats": "seed"}, "decide"),
        ({"prune": "median"}, "'median'"),
    ],
)
def test_what_cannot_be_pruned_is_refused(tmp_path, options, named):
    with pytest.raises(GridError, match=named):
        execute(tmp_path, NINE, loss, **options)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [{"factor": 1}, {"min_epochs": 0}])
def test_arguments_of_the_rule_are_checked(options):
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        halving("loss", **options)
