"""Pruners of Optuna in grids: they decide as in a study of Optuna that trains the same runs."""

import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runmanager import (
    GridError,
    InvalidArgumentError,
    OptunaSearch,
    SuccessiveHalving,
    Uniform,
    load_runs,
    run_grid,
)
from runmanager.core.contracts import Slot
from runmanager.core.goal import parse_goal
from runmanager.core.outcome import EpochRecord, Outcome, Status
from tests.damaging import as_if_killed
from tests.nightly import of_night_but

optuna = pytest.importorskip("optuna")
optuna.logging.set_verbosity(optuna.logging.WARNING)

from runmanager.search.optuna_pruner import OptunaPruner, pruner_name  # noqa: E402 - needs optuna

pruners: Any = optuna.pruners
pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
MEDIAN = pruners.MedianPruner(n_startup_trials=2)
MIXED = {"lr": [3, 1, 2, 8, 4, 5, 0, 7, 6]}
ALL = {
    "median": lambda: pruners.MedianPruner(n_startup_trials=2),
    "percentile": lambda: pruners.PercentilePruner(
        25.0, n_startup_trials=1, n_warmup_steps=2, interval_steps=2
    ),
    "halving": lambda: pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2),
    "halving auto": pruners.SuccessiveHalvingPruner,
    "hyperband": lambda: pruners.HyperbandPruner(min_resource=1, max_resource=9, reduction_factor=3),
    "hyperband auto": pruners.HyperbandPruner,
    "threshold": lambda: pruners.ThresholdPruner(upper=5.0, n_warmup_steps=1),
    "patient": lambda: pruners.PatientPruner(pruners.MedianPruner(n_startup_trials=1), patience=1),
    "patient alone": lambda: pruners.PatientPruner(None, patience=2),
    "nop": pruners.NopPruner,
}


def curve(lr, epoch):
    """Return the metric of a run: it rises again in the end for every third."""
    return lr + 1 / epoch + (0.3 * epoch if lr % 3 == 0 else 0)


class Train:
    def __init__(self, faults=None):
        self.faults = faults or {}
        self.executed: list[tuple[int, int]] = []

    def __call__(self, run, manager):
        with manager.run(run):
            for epoch in manager.epochs(9, checkpoint={}):
                self.executed.append((run.lr, epoch))
                at, fault = self.faults.get(run.lr, (0, None))
                if epoch == at:
                    raise fault
                manager.track(score=curve(run.lr, epoch))


@pytest.fixture
def start(tmp_path):
    def run(train, params=MIXED, **options):
        quiet: dict[str, Any] = {
            "tensorboard": False,
            "display": False,
            "executor": "inline",
            "goal": "min:score",
        }
        return run_grid(params, train, experiment="exp", root=tmp_path, **(quiet | options))

    return run


def standing(outcome):
    return list(zip(outcome.runs["status"], outcome.runs["epochs"], strict=True))


def in_optuna(pruner, direction="minimize"):
    """Train the same runs in a study of Optuna."""

    def objective(trial):
        for epoch in range(1, 10):
            trial.report(curve(MIXED["lr"][trial.number], epoch), epoch)
            if epoch < 9 and trial.should_prune():
                raise optuna.TrialPruned
        return curve(MIXED["lr"][trial.number], 9)

    study = optuna.create_study(study_name="grid", direction=direction, pruner=pruner)
    study.optimize(objective, n_trials=len(MIXED["lr"]))
    states = {optuna.trial.TrialState.COMPLETE: "completed", optuna.trial.TrialState.PRUNED: "pruned"}
    return [(states[trial.state], trial.last_step) for trial in study.trials]


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("name", sorted(ALL))
def test_a_grid_stops_the_same_runs_as_optuna(start, name):
    pruner = ALL[name]()

    assert standing(start(Train(), prune=pruner)) == in_optuna(pruner)


@pytest.mark.slow(everywhere=True)
def test_the_direction_is_that_of_the_goal(start):
    outcome = start(Train(), prune=MEDIAN, goal="max:score")

    assert standing(outcome) == in_optuna(MEDIAN, direction="maximize") != in_optuna(MEDIAN)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ALL))
@pytest.mark.parametrize("epoch", of_night_but([1, 4], [4]))
def test_a_grid_that_is_interrupted_stops_the_same_runs_as_an_undisturbed_one(start, name, epoch):
    pruner = ALL[name]()
    start(Train({4: (epoch, KeyboardInterrupt())}), prune=pruner)

    assert standing(start(Train(), prune=pruner)) == in_optuna(pruner)


@pytest.mark.slow(everywhere=True)
def test_runs_that_were_pruned_stay_so_and_another_pruner_or_none_continues_them(start):
    first = start(Train(), prune=MEDIAN)
    again, milder, none = Train(), Train(), Train()

    assert standing(start(again, prune=pruners.MedianPruner(n_startup_trials=2))) == standing(first)
    start(milder, prune=pruners.MedianPruner(n_startup_trials=99))
    outcome = start(none)

    assert again.executed == []
    assert len(milder.executed) == 9 * 9 - first.runs["epochs"].sum()
    assert (none.executed, standing(outcome)) == ([], [("completed", 9)] * 9)


@pytest.mark.slow(everywhere=True)
def test_a_run_that_was_killed_before_its_answer_came_is_judged_when_it_is_resumed(start, tmp_path):
    expected = standing(start(Train(), prune=MEDIAN))
    number = next(number for number, (status, _) in enumerate(expected, 1) if status == "pruned")
    (folder,) = (tmp_path / "exp").glob(f"{number:03}*")
    as_if_killed(folder, 0)
    again = Train()

    assert standing(start(again, prune=MEDIAN)) == expected
    assert again.executed == []


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("prune", [SuccessiveHalving(), MEDIAN])
def test_runs_of_a_search_are_pruned_as_those_of_a_list(start, prune):
    def train(run, manager):
        with manager.run(run):
            for epoch in manager.epochs(9, checkpoint={}):
                executed.append((run.depth_m, epoch))
                if len(executed) == 30:
                    raise KeyboardInterrupt
                manager.track(score=(run.depth_m - 0.3) ** 2 + 1 / epoch)

    executed: list[tuple[float, int]] = []
    options = {"params": {"depth_m": Uniform(-1, 1)}, "search": OptunaSearch(n=12, seed=0), "prune": prune}
    start(train, **options)
    outcome = start(train, **options)
    number = len(executed)
    again = start(train, **options)

    assert outcome.runs["status"].value_counts().keys().tolist() == ["pruned", "completed"]
    assert len(outcome.results) == number - 1  # one was interrupted
    assert (standing(again), len(executed)) == (standing(outcome), number)


@pytest.mark.slow
def test_lanes_ask_it_too(start):
    pruner = pruners.ThresholdPruner(upper=5.5)

    outcome = start(Train(), prune=pruner, executor="lanes", jobs=2)

    assert standing(outcome) == in_optuna(pruner)


@pytest.mark.slow(everywhere=True)
def test_what_an_asked_pruner_remembers_stays_in_the_grid(start):
    pruner = pruners.HyperbandPruner()
    before = pruner_name(pruner)

    start(Train(), prune=pruner)

    assert (pruner_name(pruner), pruner._pruners) == (before, [])


def test_a_pruner_of_ones_own_is_asked(start):
    class EvenNumbers(pruners.BasePruner):  # type: ignore[misc]
        def prune(self, study, trial):
            return trial.number % 2 == 0 and trial.last_step == 2 and study.direction.name == "MINIMIZE"

    outcome = start(Train(), prune=EvenNumbers())

    assert outcome.runs["epochs"].tolist() == [2, 9, 2, 9, 2, 9, 2, 9, 2]
    assert outcome.runs["error"][0] == "after epoch 2 of 9: EvenNumbers"


def test_without_a_goal_or_its_metric_there_is_nothing_to_compare(start, tmp_path):
    with pytest.raises(GridError, match=r"prune= has nothing to compare runs by: give run_grid\(goal="):
        start(Train(), prune=MEDIAN, goal=None)
    assert not (tmp_path / "exp").exists()
    with pytest.raises(InvalidArgumentError, match="compares runs by 'f2', which epoch 1 does not have"):
        start(Train(), prune=MEDIAN, goal="max:f2")


def end(pruner, id_, status):
    pruner.slot = Slot(id_)
    pruner.run_ended(Outcome(status))


def test_values_without_a_number_are_left_to_optuna():
    pruner = OptunaPruner(MEDIAN, parse_goal("min:loss"))
    for id_ in "abc":
        for epoch in (1, 2):
            assert pruner.should_stop(id_, EpochRecord(epoch, {"loss": 1.0})) == ""
        end(pruner, id_, Status.COMPLETED)

    assert pruner.should_stop("d", EpochRecord(1, {"loss": math.nan})) == "MedianPruner"
    end(pruner, "d", Status.DIVERGED)
    assert pruner.should_stop("e", EpochRecord(1, {"loss": math.inf})) == "MedianPruner"


@pytest.mark.slow(everywhere=True)
@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.floats()), max_size=40))
def test_runs_may_be_executed_again_in_any_way(events):
    pruner = OptunaPruner(ALL["halving"](), parse_goal("max:reward"))
    for number, epoch, value in events:
        pruner.should_stop(str(number), EpochRecord(epoch, {"reward": value}))
        if epoch == 4:
            end(pruner, str(number), Status.COMPLETED if value > 0 else Status.FAILED)


def test_the_rule_names_what_the_pruner_was_made_with():
    wrapped = pruners.PatientPruner(pruners.MedianPruner(), patience=3)

    assert pruner_name(wrapped) == (
        "PatientPruner(wrapped_pruner=MedianPruner(n_startup_trials=5, n_warmup_steps=0, interval_steps=1, "
        "n_min_trials=1), patience=3, min_delta=0.0)"
    )


@pytest.mark.slow(everywhere=True)
def test_nothing_is_said_by_optuna(start, capfd):
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.INFO)

    start(Train(), prune=MEDIAN)

    assert optuna.logging.get_verbosity() == optuna.logging.INFO
    optuna.logging.set_verbosity(verbosity)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_grid_without_it_does_not_import_optuna(tmp_path):
    program = (
        "import sys; from runmanager import SuccessiveHalving, run_grid\n"
        "def train(run, manager):\n"
        "    with manager.run(run):\n"
        "        for _ in manager.epochs(2): manager.track_loss(run.lr, 1)\n"
        "prune = SuccessiveHalving('loss')\n"
        f"options = {{'experiment': 'e', 'root': {str(tmp_path)!r}, 'executor': 'inline'}}\n"
        "run_grid({'lr': [1, 2]}, train, prune=prune, **options)\n"
        "sys.exit('optuna' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    assert load_runs(tmp_path / "e")["status"].tolist() == ["completed", "pruned"]


def test_what_is_no_rule_is_refused(start):
    with pytest.raises(GridError, match=r"a pruner of Optuna, or None to stop no run, got <class"):
        start(Train(), prune=SuccessiveHalving)
