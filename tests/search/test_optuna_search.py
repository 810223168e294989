"""Searches with a sampler of Optuna: the suggestions of a study that is rebuilt, none lost or made twice."""

import itertools
import json
import os
import re
import shutil
import sys
from typing import Any

import optuna
import pytest

from runmanager import (
    GridError,
    IntRange,
    InvalidArgumentError,
    LogUniform,
    MissingExtraError,
    OptunaSearch,
    RunBuilder,
    RunManager,
    Uniform,
    load_runs,
    main,
    pareto,
    run_grid,
)
from runmanager.storage import paths
from runmanager.storage.folders import read_runs
from runmanager.tables.removal import remove
from tests import searching
from tests.nightly import of_night_but

AXES = {
    "height": Uniform(-1, 1),
    "rate": LogUniform(1e-4, 1),
    "layers": IntRange(1, 8),
    "shape": ["a", "b", "c"],
}


def score(run):
    """Return what a run is worth: the least is the best."""
    shape = {"a": 0.5, "b": 0, "c": 0.2}[run.shape]
    return (run.height - 0.3) ** 2 + (run.rate - 0.1) ** 2 + abs(run.layers - 5) / 10 + shape


class Train:
    """Track a score.

    Args:
        worth: Run -> its score, None for no epoch.
        faults: How many runs have been executed -> what is raised in the next one.
    """

    def __init__(self, worth=score, faults=None):
        self.worth, self.faults = worth, faults or {}
        self.executed = []

    def __call__(self, run, manager):
        if fault := self.faults.pop(len(self.executed), None):
            raise fault
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(score=self.worth(run))
        self.executed.append(run)


@pytest.fixture
def start(tmp_path):
    """Start a search under tmp_path."""

    def run(train, params=AXES, n=12, *, seed=0, sampler=None, most=None, **options):
        quiet: dict[str, Any] = {"tensorboard": False, "display": False, "executor": "inline"}
        usual = {"goal": "min:score", "experiment": "exp", "data": "the same"}
        search = OptunaSearch(n, seed=seed, sampler=sampler, max_seconds=most)
        return run_grid(params, train, root=tmp_path, search=search, **quiet | usual | options)

    return run


def by_optuna(make, n, worth=score, seed=0):
    """Let Optuna alone suggest and evaluate; return the values that it suggests."""

    def objective(trial):
        suggested = RunBuilder.get_runs(
            {
                "height": [trial.suggest_float("height", -1, 1)],
                "rate": [trial.suggest_float("rate", 1e-4, 1, log=True)],
                "layers": [trial.suggest_int("layers", 1, 8)],
                "shape": [trial.suggest_categorical("shape", ["a", "b", "c"])],
            }
        )
        return worth(suggested[0])

    trials = searching.suggested(make, objective, n, seed=seed)
    return [tuple(trial.params[name] for name in AXES) for trial in trials]


def trials(root):
    """Return the trials that the runs keep."""
    return searching.trials(root / "exp")


@pytest.fixture(autouse=True)
def _quiet():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(before)


TPE = optuna.samplers.TPESampler
SAME = {
    "tpe": TPE,
    "tpe of all axes": lambda seed: TPE(seed=seed, n_startup_trials=4, multivariate=True),
    "tpe of groups": lambda seed: TPE(seed=seed, n_startup_trials=4, multivariate=True, group=True),
    "tpe of lanes": lambda seed: TPE(seed=seed, n_startup_trials=4, constant_liar=True),
    "tpe of constraints": lambda seed: TPE(
        seed=seed, n_startup_trials=4, constraints_func=lambda trial: [trial.params["height"]]
    ),
    "random": optuna.samplers.RandomSampler,
}


@pytest.mark.slow(everywhere=True)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", sorted(SAME))
def test_one_lane_gets_the_suggestions_of_optuna_alone_however_often_it_starts(start, tmp_path, name):
    train = Train()

    for n in (1, 7, 24):
        assert start(train, n=n, sampler=SAME[name]).exit_code == 0

    asked = [tuple(trial["params"].values()) for trial in trials(tmp_path)]
    assert asked == by_optuna(SAME[name], 24)
    assert list(map(tuple, train.executed)) == list(dict.fromkeys(asked))


CONTINUED = {
    "nsgaii": lambda seed: optuna.samplers.NSGAIISampler(population_size=5, seed=seed),
    "nsgaiii": lambda seed: optuna.samplers.NSGAIIISampler(population_size=5, seed=seed),
    "cmaes": lambda seed: optuna.samplers.CmaEsSampler(seed=seed, popsize=4),
}


@pytest.mark.slow(everywhere=True)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("name", sorted(CONTINUED))
def test_samplers_that_keep_generations_continue_from_those_so_far(start, tmp_path, name):
    if name == "cmaes":
        pytest.importorskip("cmaes")
    axes = {"height": Uniform(-1, 1), "rate": LogUniform(1e-4, 1)}
    train = Train(worth=lambda run: (run.height - 0.3) ** 2 + (run.rate - 0.1) ** 2)

    for n in (9, 18, 40):
        start(train, axes, n=n, sampler=CONTINUED[name])

    generations = [list(trial.get("attributes", {}).values()) for trial in trials(tmp_path)]
    assert len(generations) == 40
    assert all(type(value) is int for values in generations for value in values)  # no pickle
    assert max(values[0] for values in generations if values) >= 5
    assert min(map(train.worth, train.executed[20:])) < min(map(train.worth, train.executed[:9]))


@pytest.mark.slow(everywhere=True)
def test_the_default_sampler_is_optunas_own(start):
    train = Train()

    start(train, n=15, seed=7)

    assert list(map(tuple, train.executed)) == by_optuna(TPE, 15, seed=7)


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture
def kill_at(monkeypatch):
    """Let the process be gone before it does something to a file for the n-th time, as `kill_at(n)`."""

    def at(number):
        events = itertools.count()

        def counted(function):
            def changed(*arguments, **options):
                if next(events) >= number:
                    raise Killed
                return function(*arguments, **options)

            return changed

        patch = monkeypatch.context()
        context = patch.__enter__()
        for name in ("fsync", "replace", "mkdir", "write"):
            context.setattr(os, name, counted(getattr(os, name)))
        return lambda: (patch.__exit__(None, None, None), next(events))[1]

    return at


LISTED = {"height": Uniform(-1, 1), "shape": ["a", "b"], "seed": [0, 1]}


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(29, marks=pytest.mark.slow),
        pytest.param(1, marks=[pytest.mark.slow(minutes=5), pytest.mark.nightly]),
    ],
    ids=["some", "any"],
)
@pytest.mark.parametrize(
    "kind", of_night_but(["tpe", "tpe with repeats", "random of few settings"], ["tpe with repeats"])
)
@pytest.mark.nightly
def test_a_search_that_is_killed_after_any_event_asks_what_an_undisturbed_one_does(
    start, tmp_path, kill_at, kind, step
):
    worth = lambda run: (run.height - 0.3) ** 2 + getattr(run, "seed", 0)  # noqa: E731
    options: dict[str, dict[str, Any]] = {
        "tpe": {"params": {"height": Uniform(-1, 1), "shape": ["a", "b"]}},
        "tpe with repeats": {"params": LISTED, "repeats": "seed"},
        "random of few settings": {
            "params": {"height": [0, 0.5], "shape": ["a", "b"]},
            "sampler": optuna.samplers.RandomSampler,
        },
    }
    how = {"n": 5, "sampler": lambda seed: TPE(seed=seed, n_startup_trials=2), **options[kind]}
    start(Train(worth), experiment="undisturbed", **how)
    expected = searching.trials(tmp_path / "undisturbed")
    num_runs = len(load_runs(tmp_path / "undisturbed"))

    has_ended, number = False, 1
    while not has_ended:
        end = kill_at(number)
        train = Train(worth)
        try:
            start(train, **how)
            has_ended = True
        except Killed:
            pass
        finally:
            end()
        for _ in range(2):  # the second start finds nothing to do
            start(train, **how)

        assert searching.trials(tmp_path / "exp") == expected, number
        assert len(load_runs(tmp_path / "exp")) == num_runs
        shutil.rmtree(tmp_path / "exp")
        number += step

    assert number > 60


@pytest.mark.slow(everywhere=True)
def test_the_same_start_again_executes_nothing_and_a_larger_one_goes_on(start):
    train = Train()
    first = start(train)

    again = start(train)
    more = start(train, n=15)

    assert len(train.executed) == 15
    assert [len(each.runs) for each in (first, again, more)] == [12, 12, 15]
    assert again.runs.drop(columns=["folder"]).equals(first.runs.drop(columns=["folder"]))


@pytest.mark.slow(everywhere=True)
def test_a_search_that_is_stopped_goes_on_with_the_same_run(start, tmp_path):
    undisturbed = Train()
    start(undisturbed, experiment="other")
    train = Train(faults={5: KeyboardInterrupt()})

    assert start(train).exit_code == 130
    assert len(trials(tmp_path)) == 6
    assert start(train).exit_code == 0

    assert train.executed == undisturbed.executed


@pytest.mark.slow(everywhere=True)
def test_the_panel_of_a_search_that_is_stopped_counts_all_that_was_asked_for(start):
    outcome = start(Train(faults={5: KeyboardInterrupt()}), n=12)

    text = str(outcome.panel)
    assert outcome.exit_code == 130
    assert " is best so far: " in text
    assert "! 7 of 12 runs are left to execute" in text
    assert "left to execute" not in str(start(Train(), n=12).panel)


@pytest.mark.slow(everywhere=True)
def test_a_run_that_cannot_say_its_trials_costs_the_sequence_and_no_run(start, tmp_path):
    train = Train()
    start(train, n=6)
    (path,) = (tmp_path / "exp").glob(f"003*/{paths.RUN}")
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"trials": [{"number": "x"}, 7, {"number": -1}]}))

    assert start(train, n=12).exit_code == 0
    start(train, n=12)

    assert len(train.executed) == len(set(map(tuple, train.executed))) == 12 + 1  # the third is no trial now


@pytest.mark.slow(everywhere=True)
def test_text_that_a_sampler_might_unpickle_is_not_read(start, tmp_path):
    seen: list[Any] = []

    class Reading(optuna.samplers.RandomSampler):  # type: ignore[misc] # Optuna is untyped for tests
        def sample_independent(self, study, *arguments):
            seen.extend(trial.system_attrs for trial in study.get_trials(deepcopy=False))
            return super().sample_independent(study, *arguments)

    train = Train()
    start(train, n=2, sampler=Reading)
    for path in (tmp_path / "exp").glob(f"*/{paths.RUN}"):
        content = json.loads(path.read_text())
        content["trials"][0]["attributes"] = {"cma:optimizer:0": "80", "generation": 3, "space": {"x": ["a"]}}
        path.write_text(json.dumps(content))
    seen.clear()

    start(train, n=3, sampler=Reading)

    assert {"generation": 3, "space": {"x": ["a"]}} in seen
    assert not any("cma:optimizer:0" in attributes for attributes in seen)


@pytest.mark.slow(everywhere=True)
def test_values_of_any_type_are_chosen(start, tmp_path):
    values = [dict, (1, 2), None, 1, True, "x", [3, {"a": 1}]]
    params = {"thing": values, ("left", "right"): [(1, "one"), (2, None)], "opt": {"rate": Uniform(0, 1)}}
    train = Train(worth=lambda run: values.index(run.thing) + run.left + run.opt.rate)
    start(train, params, n=10)

    outcome = start(train, params, n=20)

    assert outcome.exit_code == 0
    assert len(train.executed) == 20
    assert all(any(run.thing is value for value in values) for run in train.executed)
    assert {(run.left, run.right) for run in train.executed} == {(1, "one"), (2, None)}


def test_a_setting_that_is_suggested_again_is_not_executed_again(start, tmp_path, caplog):
    train = Train(worth=lambda run: float(run.width + run.depth))

    outcome = start(train, {"width": [1, 2], "depth": [3, 4], "device": ["cpu"]}, n=20)

    assert outcome.exit_code == 0
    assert len(train.executed) == len(set(train.executed)) <= 4
    assert [trial["number"] for trial in trials(tmp_path)] == list(range(20))


@pytest.mark.slow(everywhere=True)
def test_a_search_that_suggests_nothing_new_ends_and_says_so(start, tmp_path, caplog, monkeypatch):
    caplog.set_level("INFO", "runmanager")
    monkeypatch.setattr("runmanager.search.searching.MOST_REPEATS", 10)
    axes = {"width": [1, 2], "depth": [3, 4]}
    train = Train(worth=lambda run: float(run.width + run.depth))

    start(train, axes, n=500)
    number = len(trials(tmp_path))
    start(train, axes, n=500)
    start(train, axes | {"depth": [3, 4, 5, 6, 7]}, n=500)

    assert f"the last 10 suggestions were repeated settings: the search ends after {number}" in (caplog.text)
    assert 10 < number < 500
    assert len(train.executed) == len(set(train.executed))
    assert {run.depth for run in train.executed} > {3, 4}


@pytest.mark.slow(everywhere=True)
def test_runs_that_the_experiment_has_are_given_to_the_sampler(start, tmp_path):
    axes = {"height": Uniform(-1, 1), "shape": ["a", "b"]}
    worth = lambda run: run.height**2  # noqa: E731
    train = Train(worth)
    grid = {"height": [-0.5, 0, 0.5, 7], "shape": ["a"]}
    quiet: dict[str, Any] = {"tensorboard": False, "display": False, "executor": "inline", "data": "the same"}
    run_grid(grid, train, experiment="exp", root=tmp_path, **quiet)
    manager = RunManager("exp", tmp_path, tensorboard=False, display=False)
    for run in RunBuilder.get_runs({"height": [0.25], "shape": ["b"]}):
        train(run, manager)
    seen: list[Any] = []

    class Reading(optuna.samplers.RandomSampler):  # type: ignore[misc] # Optuna is untyped for tests
        def sample_independent(self, study, *arguments):
            seen.append([(trial.params, trial.value) for trial in study.get_trials(deepcopy=False)[:4]])
            return super().sample_independent(study, *arguments)

    outcome = start(train, axes, n=3, sampler=Reading)
    start(train, axes, n=6, sampler=Reading)

    points = [(-0.5, "a"), (0, "a"), (0.5, "a"), (0.25, "b")]
    given = [({"height": height, "shape": shape}, height**2) for height, shape in points]
    assert [each for each in seen if len(each) == 4] == [given] * 12  # two axes of six suggestions
    assert len(train.executed) == 5 + 6
    assert len(outcome.runs) == 4 + 3


@pytest.mark.slow(everywhere=True)
def test_another_sampler_goes_on_from_the_runs(start, tmp_path):
    train = Train()
    start(train, n=6)

    for n in (10, 11):
        start(train, n=n, sampler=optuna.samplers.RandomSampler)

    assert list(map(tuple, train.executed[:6])) == by_optuna(TPE, 6)
    assert list(map(tuple, train.executed[6:])) == by_optuna(optuna.samplers.RandomSampler, 11)[6:]


@pytest.mark.slow(everywhere=True)
def test_a_sampler_without_a_seed_goes_on_from_the_runs(start, tmp_path):
    train = Train()
    for n in (6, 12):
        start(train, n=n, seed=None)

    assert len(train.executed) == len(set(train.executed)) == 12


@pytest.mark.slow(everywhere=True)
def test_other_axes_keep_the_runs_that_are_within_them(start, tmp_path):
    train = Train(worth=lambda run: run.height**2)
    start(train, {"height": Uniform(-1, 1)}, n=20)
    inside = sum(run.height >= 0 for run in train.executed)

    outcome = start(train, {"height": Uniform(0, 2)}, n=20)

    assert len(outcome.runs) == 20
    assert len(train.executed) == 40 - inside
    assert start(train, {"height": Uniform(0, 2)}, n=20).exit_code == 0
    assert len(train.executed) == 40 - inside


@pytest.mark.slow(everywhere=True)
def test_another_constant_makes_other_runs(start):
    train = Train(worth=lambda run: run.height**2)
    start(train, {"height": Uniform(-1, 1), "num_epochs": [5]}, n=4)

    outcome = start(train, {"height": Uniform(-1, 1), "num_epochs": [10]}, n=4)

    assert len(outcome.runs) == 4
    assert len(train.executed) == 8


def test_runs_that_fail_or_diverge_are_told_so_and_the_search_goes_on(start, tmp_path):
    def worth(run):
        if run.height > 0.5:
            raise RuntimeError("too high")
        return float("nan") if run.height < -0.5 else run.height

    outcome = start(Train(worth), {"height": Uniform(-1, 1)}, n=15)

    assert len(trials(tmp_path)) == len(outcome.outcomes) == 15
    assert outcome.exit_code == 1
    assert sum(abs(run.height) > 0.5 for run, _ in outcome.outcomes) > 2


@pytest.mark.slow(everywhere=True)
def test_runs_that_failed_are_executed_again_if_asked_for_and_the_sampler_learns_of_it(start, tmp_path):
    faults = {2: RuntimeError("once")}
    train = Train(faults=faults)
    assert start(train, n=3).exit_code == 1

    assert start(train, n=15, retry_failed=True).exit_code == 0

    assert len(train.executed) == len(set(train.executed)) == 15
    assert list(map(tuple, train.executed)) == by_optuna(TPE, 15)  # where it did not fail


@pytest.mark.slow(everywhere=True)
def test_changed_code_executes_the_suggestions_again_before_it_goes_on(start, tmp_path):
    train = Train()
    start(train, n=4)
    first = list(train.executed)

    outcome = start(train, n=6, data="other data")

    assert train.executed[4:8] == first
    assert len(outcome.runs) == 6


def test_a_run_that_was_removed_is_replaced_by_another_suggestion(start, tmp_path):
    train = Train()
    outcome = start(train, n=5)
    folder = tmp_path / "exp" / sorted(path.name for path in (tmp_path / "exp").glob("00*"))[1]
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    grid = json.loads((tmp_path / "exp" / paths.GRID).read_text())
    grid["runs"] = [entry for entry in grid["runs"] if entry["folder"] != folder.name]
    (tmp_path / "exp" / paths.GRID).write_text(json.dumps(grid))

    outcome = start(train, n=5)

    assert len(outcome.runs) == 5
    assert len(train.executed) == 6
    assert [trial["number"] for trial in trials(tmp_path)] == [0, 2, 3, 4, 5]


@pytest.mark.slow(everywhere=True)
def test_the_number_of_a_trial_whose_run_was_removed_is_not_used_again(start, tmp_path):
    train = Train()
    start(train, n=5)
    remove(tmp_path / "exp", [read_runs(tmp_path / "exp")[4]])

    for _ in range(2):
        start(train, n=5)

    assert len(set(train.executed)) == len(train.executed) == 6
    assert [trial["number"] for trial in trials(tmp_path)] == [0, 1, 2, 3, 5]


@pytest.mark.slow(everywhere=True)
def test_repeat_axes_are_not_searched_but_averaged(start, tmp_path, caplog):
    axes = {"height": Uniform(-1, 1), "seed": [0, 1, 2]}
    train = Train(worth=lambda run: run.height + run.seed)

    caplog.set_level("INFO", "runmanager")

    outcome = start(train, axes, n=4, repeats="seed")
    start(train, axes, n=5, repeats="seed")

    assert "suggests 5 settings for min:score · each is 3 runs · 4 of them before" in caplog.text
    assert len(outcome.runs) == 12
    assert len(train.executed) == 15
    assert [len(trial["runs"]) for trial in trials(tmp_path)] == [3] * 5


@pytest.mark.slow(everywhere=True)
def test_the_sampler_gets_the_mean_over_the_repeat_axes(start):
    seen: list[Any] = []

    class Reading(optuna.samplers.RandomSampler):  # type: ignore[misc] # Optuna is untyped for tests
        def before_trial(self, study, trial):
            seen.append([(each.params["height"], each.value) for each in study.get_trials()[:-1]])

    axes = {"height": Uniform(-1, 1), "seed": [0, 1, 2]}
    for n in (3, 4):
        train = Train(worth=lambda run: run.height + run.seed)
        start(train, axes, n=n, repeats="seed", sampler=Reading)

    assert [len(each) for each in seen if each][-1] == 3
    assert all(value == pytest.approx(height + 1) for each in seen for height, value in each[:3] if value != 0)


def test_a_pruned_run_is_a_pruned_trial_with_every_epoch(start):
    seen: list[Any] = []

    class Reading(optuna.samplers.RandomSampler):  # type: ignore[misc] # Optuna is untyped for tests
        def before_trial(self, study, trial):
            seen.append([(each.state.name, each.intermediate_values) for each in study.get_trials()[:-1]])

    def train(run, manager):
        with manager.run(run):
            for epoch in manager.epochs(4, checkpoint={}):
                manager.track(score=run.height + 2 + epoch)

    prune = optuna.pruners.ThresholdPruner(upper=4.5)
    for n in (5, 6):  # once as they end, once as they are read
        outcome = start(train, {"height": Uniform(-1, 1)}, n=n, prune=prune, sampler=Reading)

    runs = outcome.runs[:5]
    curves = [
        {e: h + 2 + e for e in range(1, k + 1)} for h, k in zip(runs["height"], runs["epochs"], strict=True)
    ]
    assert {"pruned"} <= set(runs["status"])
    assert seen[-1] == [
        ("PRUNED", curve) if status == "pruned" else ("COMPLETE", {})
        for status, curve in zip(runs["status"], curves, strict=True)
    ]


@pytest.mark.slow(everywhere=True)
def test_the_budget_of_seconds_ends_a_search_and_a_larger_one_goes_on(start, caplog):
    caplog.set_level("INFO", "runmanager")
    train = Train()

    assert start(train, n=12, most=1e-9).exit_code == 0
    executed = len(train.executed)
    start(train, n=12, most=1e9)

    assert executed == 1
    assert len(train.executed) == 12
    assert "max_seconds=1e-09 were spent after 1 of 12 suggestions" in caplog.text


@pytest.mark.slow(everywhere=True)
def test_lanes_share_a_search(start, tmp_path):
    outcome = start(Train(), n=10, executor="lanes", jobs=3)

    assert outcome.exit_code == 0
    assert outcome.runs["jobs"].tolist() == [3] * 10
    assert [trial["number"] for trial in trials(tmp_path)] == list(range(10))


def test_a_device_that_is_not_there_is_told_as_failed_and_its_runs_are_marked(start, tmp_path):
    axes = {"height": Uniform(-1, 1), "device": ["cpu", "cuda:77"]}
    train = Train(worth=lambda run: run.height)

    outcome = start(train, axes, n=10)

    statuses = outcome.runs["status"].value_counts().to_dict()
    assert outcome.exit_code == 0
    assert set(statuses) == {"completed", "unavailable"}
    assert len(train.executed) == statuses["completed"]
    assert len(load_runs(tmp_path / "exp")) == 10


def test_a_run_without_the_metric_of_the_goal_ends_the_search_with_its_name(start):
    with pytest.raises(InvalidArgumentError, match="the goal is 'min:scores', but run 1 has no such metric"):
        start(Train(), goal="min:scores")


def test_the_goal_of_the_experiment_is_kept(start):
    start(Train(), n=2)

    assert len(start(Train(), n=3, goal=None).runs) == 3


def test_a_plan_shows_what_is_there_and_writes_nothing(start, tmp_path, capsys):
    start(Train(), n=3, plan_only=True, display=True)
    assert capsys.readouterr().out == "TPESampler suggests 3 runs for min:score\n"
    assert not (tmp_path / "exp").exists()
    start(Train(), n=2)
    before = trials(tmp_path)

    outcome = start(Train(), n=3, plan_only=True, display=True)

    assert "TPESampler suggests 3 runs for min:score · 2 of them before\nrun" in capsys.readouterr().out
    assert len(outcome.runs) == 2
    assert trials(tmp_path) == before


@pytest.mark.slow(everywhere=True)
def test_one_run_of_a_search_is_executed_alone(start, tmp_path):
    train = Train(faults={1: RuntimeError("once")})
    with pytest.raises(GridError, match="only=2: this grid has no such run; its runs are none"):
        start(train, n=3, only=2)
    start(train, n=3)

    start(train, n=3, only=2)

    assert load_runs(tmp_path / "exp")["status"].tolist() == ["completed"] * 3


def test_a_script_passes_a_search_on(tmp_path):
    train = Train()

    code = main(
        AXES, train, search=OptunaSearch(n=4), goal="min:score", executor="inline", display=False,
        tensorboard=False, arguments=["--root", str(tmp_path), "--experiment", "exp", "--shape", "a", "b"],
    )  # fmt: skip

    assert code == 0
    assert len(train.executed) == 4
    assert {run.shape for run in train.executed} <= {"a", "b"}


@pytest.mark.slow(everywhere=True)
def test_several_goals_are_told_and_kept_with_the_experiment(start, tmp_path):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(first=run.height, second=-run.height)

    goals = ["max:first", "min:second"]
    start(train, {"height": Uniform(-1, 1)}, n=12, goal=goals, seed=4)
    outcome = start(train, {"height": Uniform(-1, 1)}, n=14, goal=None, seed=4)

    objective = lambda trial: (x := trial.suggest_float("height", -1, 1), -x)  # noqa: E731
    expected = searching.suggested(TPE, objective, 14, seed=4, directions=["maximize", "minimize"])
    assert [run.height for run, _ in outcome.outcomes] == [trial.params["height"] for trial in expected]
    grid = json.loads((tmp_path / "exp" / paths.GRID).read_text())
    assert (grid["goal"], grid["goals"]) == ("max:first", goals)
    text = str(outcome.panel)
    assert len(pareto(outcome.runs)) == 1
    assert " is best in both goals: first 0." in " ".join(text.split())
    assert re.search(r"\n +run +height +first +second +run duration\n", text)
    start(train, {"height": Uniform(-1, 1)}, n=15, goal="max:first")
    assert "goals" not in json.loads((tmp_path / "exp" / paths.GRID).read_text())


@pytest.mark.slow(everywhere=True)
def test_a_check_tries_each_listed_value_and_values_of_the_ranges(start, tmp_path, caplog):
    caplog.set_level("INFO", "runmanager")
    tried = []

    def train(run, manager):
        tried.append(run)
        if run.shape == "b":
            raise ValueError("no b")
        Train()(run, manager)

    with pytest.raises(GridError, match=r"one setting \(height=0 .* shape=b\): ValueError: no b"):
        start(train, n=5, check=True)

    assert [run.shape for run in tried] == ["a", "b", "c"]
    assert len({run.height for run in tried}) == len({run.rate for run in tried}) == 3
    assert not (tmp_path / "exp").exists()
    for is_first in (True, False):  # the second start has nothing to try
        caplog.clear()
        assert start(Train(), n=2, check=True).exit_code == 0
        assert ("checked 3 settings" in caplog.text) == is_first


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"goal": ["min:score", "max:score"]}, "names a metric twice"),
        ({"goal": None}, "search= has nothing to compare runs by: give run_grid"),
        (
            {"params": RunBuilder.get_runs({"width": [8]})},
            "search= chooses runs itself: give run_grid axes instead of runs",
        ),
        ({"params": {"width": [8], "device": ["cpu"]}}, "search= has nothing to choose from"),
        ({"params": {"width": IntRange(1, 8)}, "repeats": "width"}, "'width' is a range: list its values"),
    ],
    ids=["twice", "goal", "runs", "constant", "repeats"],
)
def test_what_cannot_be_searched_is_refused_and_nothing_is_written(start, tmp_path, options, problem):
    with pytest.raises(GridError, match=problem):
        start(Train(), **options)

    assert not (tmp_path / "exp").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"n": 0}, "n must be a whole number, 1 or more, got 0"),
        ({"n": 1, "seed": -1}, "seed must be a whole number from 0 to 4294967295, or None, got -1"),
        ({"n": 1, "sampler": "tpe"}, "sampler must be a class of Optuna's, a function of seed, .* got 'tpe'"),
        ({"n": 1, "sampler": TPE(seed=0)}, r"write sampler=lambda seed: TPESampler\(seed=seed\)"),
        ({"n": 1, "max_seconds": -5}, "max_seconds must be"),
    ],
    ids=["n", "seed", "sampler", "instance", "seconds"],
)
def test_arguments_of_a_search_are_checked(arguments, problem):
    with pytest.raises(InvalidArgumentError, match=problem):
        OptunaSearch(**arguments)


class Failing(optuna.samplers.RandomSampler):  # type: ignore[misc] # Optuna is untyped for tests
    """Fails once it has seen that many trials."""

    def __init__(self, seen, error, seed):
        super().__init__(seed)
        self.seen, self.error = seen, error

    def after_trial(self, study, *_):
        if len(study.trials) > self.seen:
            raise self.error


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize(
    ("sampler", "problem"),
    [
        (lambda seed: Failing(0, KeyError("mine"), seed), "Failing cannot search .* 'mine'; give OptunaSearch"),
        (lambda seed: Failing(1, ImportError("no", name="mine"), seed), "Failing needs mine: pip install mine"),
        (lambda seed: seed, r"sampler= cannot search .* TypeError: it returned \d+, not a sampler; give"),
        (
            lambda other: TPE(seed=other),
            "sampler= cannot search these axes: TypeError: .* argument 'seed'; give",
        ),
        (
            lambda seed: optuna.samplers.QMCSampler(seed=seed),
            "QMCSampler cannot resume, as its position is not stored with runs: give OptunaSearch another",
        ),
        (
            lambda seed: optuna.samplers.GridSampler({"shape": ["a"]}, seed=seed),
            "GridSampler cannot resume, as its position is not stored with runs: give OptunaSearch another",
        ),
        (optuna.samplers.BruteForceSampler, "BruteForceSampler cannot resume"),
    ],
    ids=["fails", "package", "no sampler", "no seed", "qmc", "grid", "brute force"],
)
def test_a_sampler_that_cannot_search_the_axes_is_refused_before_anything_is_written(
    start, tmp_path, sampler, problem
):
    train = Train()

    with pytest.raises(GridError, match=problem):
        start(train, sampler=sampler)

    assert not train.executed
    assert not (tmp_path / "exp").exists()


def test_a_sampler_that_fails_later_ends_the_search_and_another_goes_on(start, tmp_path):
    train = Train()

    with pytest.raises(GridError, match="Failing cannot search these axes: KeyError: 'mine'"):
        start(train, n=9, sampler=lambda seed: Failing(4, KeyError("mine"), seed))

    assert start(train, n=9).exit_code == 0
    assert len(train.executed) == len(set(train.executed)) == 9
    assert load_runs(tmp_path / "exp")["status"].tolist() == ["completed"] * 9


def test_optuna_that_is_not_installed_is_named(start, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'torch-runmanager\[optuna\]'"):
        start(Train())
