"""`search=OptunaSearch(...)`: suggestions that survive a kill, none executed twice (docs/grids.md)."""

import math
from typing import Any

import optuna
import pytest

from runmanager import (
    GridError,
    IntRange,
    InvalidArgumentError,
    LogUniform,
    OptunaSearch,
    RunBuilder,
    RunManager,
    Uniform,
    pareto,
)
from tests.border.experiments import Scored, execute
from tests.border.screens import command, terminal

AXES: dict[str, Any] = {
    "height": Uniform(-1, 1), "rate": LogUniform(1e-4, 1), "layers": IntRange(1, 8), "shape": ["a", "b", "c"],
}  # fmt: skip
HEIGHT: dict[str, Any] = {"height": Uniform(-1, 1)}
samplers: Any = optuna.samplers
RandomSampler: Any = samplers.RandomSampler

pytestmark = [
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def score(run):
    shape = {"a": 0.5, "b": 0, "c": 0.2}[run.shape]
    return {"score": (run.height - 0.3) ** 2 + (run.rate - 0.1) ** 2 + abs(run.layers - 5) / 10 + shape}


def height(run):
    return {"score": run.height**2}


@pytest.fixture
def start(tmp_path):
    """Start a search under tmp_path."""

    def start(scores, axes=HEIGHT, n=6, *, seed=0, sampler=None, most=None, **options):
        search = OptunaSearch(n, seed=seed, sampler=sampler, max_seconds=most)
        return execute(tmp_path, axes, scores, **{"search": search, "goal": "min:score", **options})

    return start


class Faulty(Scored):
    """Raises what `faults` has for the number of runs so far, once."""

    def __init__(self, scores, faults):
        super().__init__(scores)
        self.faults = faults

    def __call__(self, run, manager):
        if fault := self.faults.pop(len(self.executed), None):
            raise fault
        super().__call__(run, manager)


# Resuming


@pytest.mark.slow
def test_suggestions_are_within_the_axes_and_a_larger_number_continues_their_sequence(start):
    train, whole = Scored(score), Scored(score)
    for n in (4, 4, 7):
        start(train, AXES, n=n)

    assert len(start(whole, AXES, n=7, name="whole").runs) == 7
    assert train.executed == whole.executed
    for run in train.executed:
        assert -1 <= run.height <= 1
        assert 1e-4 <= run.rate <= 1
        assert isinstance(run.layers, int)
        assert run.shape in ("a", "b", "c")


SAME = {
    "tpe": lambda seed: samplers.TPESampler(seed=seed, n_startup_trials=2),
    "multivariate": lambda seed: samplers.TPESampler(seed=seed, n_startup_trials=2, multivariate=True),
    "random": samplers.RandomSampler,
    "gp": lambda seed: samplers.GPSampler(seed=seed, n_startup_trials=4),  # fits from the fifth on
}
CONTINUED = {
    "nsgaii": lambda seed: samplers.NSGAIISampler(population_size=3, seed=seed),
    "cmaes": lambda seed: samplers.CmaEsSampler(seed=seed, popsize=4),
}


def test_a_search_whose_runs_are_all_without_their_device_fails(start):
    outcome = start(Scored(height), {**HEIGHT, "device": ["cuda:9"]}, n=2)

    assert (outcome.exit_code, {*outcome.runs["status"]}) == (1, {"unavailable"})


class Attributed(samplers.RandomSampler):  # type: ignore[misc]
    """Notes of its trials what JSON does not have."""

    def before_trial(self, study, trial):
        study._storage.set_trial_system_attr(trial._trial_id, "odd", math.nan)


def test_what_a_sampler_notes_beyond_json_is_left_out(start):
    assert start(Scored(height), HEIGHT, n=2, sampler=Attributed).exit_code == 0


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] * (n in ("gp", "cmaes", "multivariate")))
        for n in SAME | CONTINUED
    ],
)
def test_a_stopped_search_resumes_with_the_same_run_and_executes_none_twice(start, name):
    if name == "cmaes":
        pytest.importorskip("cmaes")
    sampler = (SAME | CONTINUED)[name]
    axes = {"height": Uniform(-1, 1), "rate": LogUniform(1e-4, 1)}
    train, whole = Faulty(height, {3: KeyboardInterrupt()}), Scored(height)

    assert start(train, axes, n=6, sampler=sampler).exit_code == 130
    assert start(train, axes, n=6, sampler=sampler).exit_code == 0

    assert len(set(train.executed)) == len(train.executed) == 6
    if name in SAME:
        start(whole, axes, n=6, sampler=sampler, name="whole")
        assert train.executed == whole.executed


# What happens to runs


def test_failed_and_diverged_runs_are_reported_and_executed_again_if_asked_for(start):
    def scores(run):
        if run.height > 0.5 and not train.executed[11:]:
            raise RuntimeError("too high")
        return {"loss": float("nan") if run.height < -0.5 else 1, "score": run.height}

    train = Scored(scores)
    first = start(train, n=12)
    statuses = set(first.runs["status"])
    again = start(train, n=13, retry_failed=True)

    assert (first.exit_code, len(first.outcomes)) == (1, 12)
    assert statuses == {"completed", "failed", "diverged"}
    assert "failed" not in set(again.runs["status"])
    assert len(again.runs) == 13


def test_a_setting_that_is_suggested_again_uses_the_existing_result(start):
    train = Scored(lambda run: {"score": run.width + run.depth})

    outcome = start(train, {"width": [1, 2], "depth": [3, 4], "device": ["cpu"]}, n=15)

    assert outcome.exit_code == 0
    assert len(train.executed) == len(set(train.executed)) <= 4


def test_runs_of_a_grid_and_of_an_own_loop_are_passed_to_the_sampler(start, tmp_path):
    seen = []

    class Reading(RandomSampler):  # type: ignore[misc]  # mypy does not follow optuna
        def before_trial(self, study, trial):
            seen.append([trial.value for trial in study.get_trials() if trial.values])

    train = Scored(height)
    execute(tmp_path, {"height": [-0.5, 0.5, 7]}, train)
    own_loop = RunManager("e", tmp_path, tensorboard=False, display=False)
    Scored(height)(RunBuilder.get_runs({"height": [0.25]})[0], own_loop)

    outcome = start(train, n=3, sampler=Reading)

    assert sorted(seen[-1][:3]) == [0.0625, 0.25, 0.25]  # not that outside the range
    assert len(train.executed) == 3 + 3
    assert len(outcome.runs) == 3 + 3


def test_other_ranges_keep_the_runs_within_them(start):
    train = Scored(height)
    start(train, n=10)
    inside = sum(run.height >= 0 for run in train.executed)

    outcome = start(train, {"height": Uniform(0, 2)}, n=10)

    assert (len(outcome.runs), len(train.executed)) == (10, 20 - inside)


def test_another_sampler_continues_from_the_runs(start):
    train = Scored(height)
    start(train, n=4)
    start(train, n=6, sampler=samplers.RandomSampler, seed=3)

    assert len(set(train.executed)) == len(train.executed) == 6


def test_changed_data_execute_the_earlier_suggestions_again_first(start):
    train = Scored(height)
    start(train, n=3)
    first = [*train.executed]

    outcome = start(train, n=5, data="other data")

    assert train.executed[3:6] == first
    assert len(outcome.runs) == 5


def test_a_removed_run_is_replaced_by_another_suggestion(start, tmp_path):
    train = Scored(height)
    start(train, n=4)
    assert command("rm", "--yes", tmp_path / "e/2").code == 0

    outcome = start(train, n=4)

    assert (len(outcome.runs), len(set(train.executed))) == (4, 5)


def test_repeat_axes_are_not_searched_and_the_sampler_gets_their_mean(start):
    seen: list[Any] = []

    class Reading(RandomSampler):  # type: ignore[misc]  # mypy does not follow optuna
        def before_trial(self, study, trial):
            seen.append([(each.params["height"], each.value) for each in study.get_trials()[:-1]])

    train = Scored(lambda run: {"score": run.height + run.seed})

    outcome = start(train, {**HEIGHT, "seed": [0, 1, 2]}, n=3, repeats="seed", sampler=Reading)

    assert len(outcome.runs) == len(train.executed) == 9
    assert len(seen[-1]) == 2
    assert all(value == pytest.approx(height + 1) for height, value in seen[-1])


def test_the_time_of_all_launches_is_limited_and_a_larger_limit_continues(start):
    train = Scored(height)

    start(train, n=5, most=1e-9)
    executed = len(train.executed)
    start(train, n=5, most=1e9)

    assert (executed, len(train.executed)) == (1, 5)


def test_a_pruned_run_counts_as_a_suggestion(start):
    train = Scored(lambda run: {"score": run.height + 2}, epochs=4)

    outcome = start(train, n=6, prune=optuna.pruners.ThresholdPruner(upper=2.1))

    assert set(outcome.runs["status"]) == {"pruned", "completed"}
    assert len(outcome.runs) == 6


def test_several_goals_are_kept_and_give_the_pareto_front(start):
    def scores(run):
        return {"first": run.height, "second": -run.height}

    start(scores, n=4, goal=["max:first", "max:second"])
    outcome = start(scores, n=6, goal=None)

    assert len(pareto(outcome.runs)) == 6
    assert "Pareto front" in str(outcome.panel)


def test_a_plan_counts_the_suggestions_and_writes_nothing(start, tmp_path):
    with terminal(80) as screen:
        start(height, n=3, plan_only=True, display=True)

    assert "3 runs" in screen.text
    assert "min:score" in screen.text
    assert list(tmp_path.iterdir()) == []


def test_a_check_tries_each_listed_value_before_the_search(start, tmp_path):
    tried = []

    def scores(run):
        tried.append(run.shape)
        if run.shape == "b":
            raise ValueError("no b")
        return score(run)

    with pytest.raises(GridError, match="no b"):
        start(scores, AXES, n=5, check=True)

    assert set(tried) == {"a", "b", "c"}
    assert not (tmp_path / "e").exists()


# What is refused


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"goal": ["min:score", "max:score"]}, "twice"),
        ({"goal": None}, "goal"),
        ({"axes": RunBuilder.get_runs({"width": [8]})}, "a mapping"),
        ({"axes": {"width": [8], "device": ["cpu"]}}, "nothing to choose"),
        ({"axes": {"width": IntRange(1, 8)}, "repeats": "width"}, "'width'"),
        ({"sampler": samplers.QMCSampler}, "QMCSampler"),
        ({"sampler": samplers.GridSampler}, "GridSampler"),
        ({"sampler": lambda seed: seed}, "sampler"),
    ],
    ids=["twice", "goal", "runs", "constant", "repeats", "qmc", "grid", "no sampler"],
)
def test_what_cannot_be_searched_is_refused_and_nothing_is_written(start, tmp_path, options, named):
    with pytest.raises(GridError, match=named):
        start(height, **options)

    assert not (tmp_path / "e").exists()


def test_a_goal_that_no_run_has_ends_the_search_with_its_name(start):
    with pytest.raises(InvalidArgumentError, match="min:scores"):
        start(height, goal="min:scores")


@pytest.mark.parametrize("options", [{"n": 0}, {"seed": -1}, {"sampler": "tpe"}, {"max_seconds": -5}])
def test_arguments_of_a_search_are_checked(options):
    ((name, value),) = options.items()

    with pytest.raises(InvalidArgumentError) as caught:
        OptunaSearch(**{"n": 1, **options})

    assert name in str(caught.value)
    assert repr(value) in str(caught.value)
