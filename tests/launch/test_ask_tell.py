"""Loops of one's own that ask for runs: the same suggestions, and the same continuation."""

import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from typing import Any

import optuna
import pytest

from runmanager import (
    AskTell,
    ExperimentLockedError,
    GridError,
    InvalidArgumentError,
    LifecycleError,
    OptunaSearch,
    RunBuilder,
    RunManager,
    RunsWarning,
    Uniform,
    best,
    load_runs,
    run_grid,
)
from runmanager.storage import paths
from tests import searching
from tests.chaos.harness import is_alive

AXES: dict[str, Any] = {"height": Uniform(-1, 1), "shape": ["a", "b"]}
SEED = 1
"""With it, no height that is suggested makes `train` fail."""


@pytest.fixture
def search(tmp_path):
    """Begin a loop under tmp_path."""

    def begin(n=8, params=AXES, options=None, **others):
        usual: dict[str, Any] = {"experiment": "exp", "root": tmp_path, "goal": "min:score"}
        return AskTell(params, options or OptunaSearch(n, seed=SEED), **usual | others)

    return begin


def by_optuna(n):
    def objective(trial):
        return trial.suggest_float("height", -1, 1) ** 2 + 0 * len(
            trial.suggest_categorical("shape", ["a", "b"])
        )

    trials = searching.suggested(optuna.samplers.TPESampler, objective, n, seed=SEED)
    return [tuple(trial.params.values()) for trial in trials]


def seen_by_a_sampler(search):
    """Return what the next sampler of a loop sees: the states and values of the trials, by their number."""
    seen = []

    class Reading(optuna.samplers.RandomSampler):  # type: ignore[misc] # Optuna is untyped for tests
        def before_trial(self, study, trial):
            seen.append([(each.state.name, each.values) for each in study.get_trials()[:-1]])

    with search(options=OptunaSearch(1000, sampler=Reading)) as loop:
        for _ in range(3):  # the first ones may be runs without a result
            loop.ask()
    return [each for each in seen[-1] if each[0] != "RUNNING"]


def test_a_loop_gets_the_suggestions_of_optuna_alone_however_often_it_begins(search):
    runs = []
    for n in (3, 8, 15):
        with search(n) as loop:
            for run in loop:
                runs.append(tuple(run))
                loop.tell(run, run.height**2)

    assert runs == by_optuna(15)


def test_a_loop_that_was_left_gets_the_same_run_again(search):
    with search() as loop:
        first = loop.ask()
        second = loop.ask()
        loop.tell(second, 1.0)

    with search() as loop:
        assert loop.ask() == first
        assert loop.ask() not in (first, second)


def test_a_run_that_ended_before_it_was_told_has_its_own_metric(search, tmp_path):
    with search() as loop:
        first = loop.ask()
        with RunManager("exp", tmp_path, tensorboard=False, display=False).run(first) as manager:
            for _ in manager.epochs(1):
                manager.track(score=3)

    with search() as loop:
        assert loop.ask() != first

    assert load_runs(tmp_path / "exp")["status"].tolist() == ["completed", "pending"]
    assert load_runs(tmp_path / "exp")["score"].tolist()[0] == 3


def test_a_told_value_is_the_result_of_a_run_until_the_run_is_executed(search, tmp_path):
    with search() as loop:
        low, high, failed = map(loop.ask, (of_height(0.25), of_height(0.5), of_height(0.75)))
        loop.tell(low, 0.25)
        loop.tell(high, 0.5)
        loop.tell(failed, None)
        loop.ask()
    told = load_runs(tmp_path / "exp")

    assert told["status"].tolist() == ["completed", "completed", "failed", "pending"]
    assert told["score"].tolist()[:2] == [0.25, 0.5]
    assert told["error"].tolist() == ["", "", "tell() got no value", ""]
    assert best(told)["height"].iloc[0] == 0.25

    manager = RunManager("exp", tmp_path, tensorboard=False, display=False)
    assert list(manager.remaining([low, failed])) == [failed]
    for run in (low, failed):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(score=3)

    assert load_runs(tmp_path / "exp")["score"].tolist()[:3] == [3, 0.5, 3]
    assert load_runs(tmp_path / "exp")["error"].tolist() == [""] * 4


@pytest.mark.slow(everywhere=True)
def test_a_search_executes_told_failures_on_request_alone(search, tmp_path):
    with search() as loop:
        loop.tell(loop.ask(of_height(0.5)), 0.5)
        loop.tell(loop.ask(of_height(0.25)), None)
    options: dict[str, Any] = {"experiment": "exp", "root": tmp_path, "goal": "min:score"}
    options |= {"search": OptunaSearch(1, seed=SEED), "executor": "inline", "tensorboard": False}

    tables = [
        run_grid(AXES, train, retry_failed=is_retried, **options).runs[:2] for is_retried in (False, True)
    ]

    assert [runs["status"].tolist() for runs in tables] == [["completed", "failed"], ["completed", "completed"]]
    assert tables[1]["score"].tolist() == [0.5, 0.0625]
    assert tables[1]["attempts"].tolist() == [0, 1]


def test_a_setting_is_asked_for_once_however_often_it_is_suggested(search):
    with search(n=30, params={"width": [1, 2], "depth": [1, 2]}) as loop:
        runs = []
        for run in loop:
            runs.append(run)
            loop.tell(run, None if run.width == 1 else run.depth)

    assert len(runs) == len(set(runs)) <= 4


@pytest.mark.slow
def test_a_grid_goes_on_with_the_search_of_a_loop(search, tmp_path):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(score=run.height**2)

    manager = RunManager("exp", tmp_path, tensorboard=False, display=False)
    with search(3) as loop:
        for run in loop:
            train(run, manager)
            loop.tell(run, run.height**2)

    options: dict[str, Any] = {"display": False, "tensorboard": False, "executor": "inline", "changed": "keep"}
    outcome = run_grid(
        AXES,
        train,
        search=OptunaSearch(8, seed=SEED),
        experiment="exp",
        root=tmp_path,
        goal="min:score",
        **options,
    )

    assert [tuple(run) for run, _ in outcome.outcomes] == by_optuna(8)


def test_what_was_not_asked_for_cannot_be_told(search):
    (other,) = RunBuilder.get_runs({"height": [0.5], "shape": ["a"]})
    with search() as loop:
        run = loop.ask()
        loop.tell(run, 1)
        for each in (run, other):
            with pytest.raises(InvalidArgumentError, match="was not asked for in this block, or has its value"):
                loop.tell(each, 1)
        with pytest.raises(
            InvalidArgumentError, match="takes a number, or None for a run that failed, got 'a'"
        ):
            loop.tell(loop.ask(), "a")


def test_outside_its_block_a_loop_refuses(search):
    loop = search()

    with pytest.raises(LifecycleError, match="AskTell outside its block"):
        loop.ask()


def test_one_loop_at_a_time_holds_an_experiment(search, tmp_path, monkeypatch):
    with search(), pytest.raises(ExperimentLockedError):
        search().__enter__()

    with search() as loop:
        assert loop.ask() is not None


def test_what_cannot_be_searched_is_refused(search, tmp_path):
    with pytest.raises(GridError) as raised:
        search(params={"width": [1]}, goal="entropy", experiment="a/b")

    assert len(raised.value.problems) == 3
    assert not any(tmp_path.iterdir())


def train(run, manager):
    """Track a score, or end in another way: at the upper end of the axis."""
    with manager.run(run):
        for _ in manager.epochs(2):
            if run.height > 0.9:
                raise ValueError("too high")
            if run.height < -0.9:
                raise optuna.TrialPruned
            manager.track(score=run.height**2 if run.shape == "a" else float("nan"), pid=os.getpid())


def of_height(height, shape="a"):
    return {"height": height, "shape": shape}


@pytest.fixture
def started(search):
    """Begin a loop whose runs are executed here."""

    def begin(n=8, train=train, **options):
        return search(
            n, train=train, **{"executor": "inline", "display": False, "tensorboard": False} | options
        )

    return begin


@pytest.mark.slow
@pytest.mark.nightly
def test_runs_that_are_started_get_the_suggestions_of_optuna_alone_in_each_loop(started):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(score=run.height**2)

    seen = []
    for n in (3, 8, 15):
        with started(n, train, changed="keep") as loop:
            seen += [(tuple(result.run), result.value) for result in loop.results()]

    assert seen == [(point, point[0] ** 2) for point in by_optuna(15)]


@pytest.mark.slow
def test_lanes_stay_warm_from_one_run_to_the_next(started, tmp_path):
    with started(executor="lanes", jobs=2) as loop:
        for height in (0.1, 0.2):
            loop.start(loop.ask(of_height(height)))
        pids = {loop.wait().metrics["pid"] for _ in range(2)}
        for height in (0.3, 0.4, 0.5, 0.6):
            loop.start(loop.ask(of_height(height)))
            pids.add(loop.wait().metrics["pid"])
        assert loop.wait() is None

        children = {child.pid for child in multiprocessing.active_children()}

    assert len(pids) == 2
    assert pids <= children
    assert not pids & {child.pid for child in multiprocessing.active_children()}
    assert load_runs(tmp_path / "exp")["status"].tolist() == ["completed"] * 6
    assert (tmp_path / "exp" / "results.csv").exists()


@pytest.mark.slow
def test_a_run_begins_in_its_lane_while_the_loop_does_something_else(started, tmp_path):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                (tmp_path / str(run.height)).touch()
                manager.track(score=1)

    with started(train=train, executor="lanes", jobs=2) as loop:
        for height in (0.25, 0.5):
            loop.start(loop.ask(of_height(height)))
            until = time.monotonic() + 30
            while not (tmp_path / str(height)).exists() and time.monotonic() < until:
                time.sleep(0.01)  # the loop's own work
        assert (tmp_path / "0.5").exists()
        loop.start(loop.ask(of_height(0.75)))
        assert sorted(loop.wait().run.height for _ in range(3)) == [0.25, 0.5, 0.75]


@pytest.mark.slow
def test_a_loop_that_stops_asks_again_for_what_was_being_executed(started, tmp_path):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1 if run.height == 0 else 10_000, checkpoint={}):
                time.sleep(0.01)
                manager.track(score=1)

    with started(train=train, executor="lanes", jobs=2) as loop:
        for height in (0.5, 0):
            loop.start(loop.ask(of_height(height)))
        assert loop.wait().run.height == 0

    assert load_runs(tmp_path / "exp")["status"].tolist() == ["interrupted", "completed"]
    with started(train=train) as loop:
        assert loop.ask()._asdict() == of_height(0.5)


@pytest.mark.parametrize(
    ("params", "status", "error", "state"),
    [
        (of_height(0.5), "completed", "", "COMPLETE"),
        (of_height(0.5, "b"), "completed", "", "FAIL"),
        (of_height(0.95), "failed", "ValueError: too high", "FAIL"),
        (of_height(-0.95), "pruned", "", "PRUNED"),
    ],
    ids=["completed", "nan", "failed", "pruned"],
)
def test_a_loop_sees_how_each_run_ended_and_the_sampler_learns_it(
    started, search, params, status, error, state
):
    with started() as loop:
        loop.start(loop.ask(params))
        result = loop.wait()
        assert loop.ask() is not None

    assert (result.status, error in result.error) == (status, True)
    assert math.isnan(result.value) is (state != "COMPLETE")
    assert [each for each, _ in seen_by_a_sampler(search)] == [state]


def test_a_device_that_is_not_there_makes_its_run_unavailable(started):
    with started(params={**AXES, "device": ["cpu", "cuda:99"]}) as loop:
        loop.start(loop.ask({**of_height(0.5), "device": "cuda:99"}))
        result = loop.wait()

    assert result.status == "unavailable"
    assert "device 'cuda:99' is not there" in result.error


@pytest.mark.slow(everywhere=True)
def test_a_value_of_the_loop_counts_in_place_of_the_metric(started, search):
    points = []
    for _ in range(2):
        with started(15) as loop:
            for result in loop.results():
                points.append(tuple(result.run))
                loop.tell(result.run, result.run.height**2)

    assert points == by_optuna(15)
    assert seen_by_a_sampler(search) == [("COMPLETE", [point[0] ** 2]) for point in points]


def test_some_runs_are_executed_by_the_loop_itself(started, tmp_path):
    manager = RunManager("exp", tmp_path, tensorboard=False, display=False)
    with started(6) as loop:
        for number, run in enumerate(loop):
            if number % 2:
                train(run, manager)
                loop.tell(run, run.height)
            else:
                loop.start(run)
                assert loop.wait().run == run

    assert len(load_runs(tmp_path / "exp")) == 6
    assert len(searching.trials(tmp_path / "exp")) == 6


def test_a_setting_of_the_loop_is_handed_out_until_it_has_its_result(started):
    first = of_height(0.5)
    with started(1) as loop:
        run = loop.ask(first)
        assert run._asdict() == first
        assert loop.ask(run) is None

    with started(1) as loop:
        loop.tell(loop.ask(first), 0.25)
        assert loop.ask(first) is None
        assert loop.ask() is not None
        assert loop.ask() is None


@pytest.mark.slow(everywhere=True)
def test_the_sampler_learns_from_settings_of_the_loop_whenever_they_end(search):
    make = lambda seed: optuna.samplers.TPESampler(seed=seed, n_startup_trials=2)  # noqa: E731
    study = optuna.create_study()
    space = {
        "height": optuna.distributions.FloatDistribution(-1, 1),
        "shape": optuna.distributions.CategoricalDistribution(["a", "b"]),
    }
    expected, suggested = [], []
    for number in range(12):
        study.sampler = make(seed=searching.seed_of(2 * number))
        trial = study.ask(space)
        expected.append(tuple(trial.params.values()))
        study.tell(trial, trial.params["height"] ** 2)
        own = optuna.create_trial(params=of_height(number / 12), distributions=space, value=number)
        study.add_trial(own)

    for number in range(12):
        with search(options=OptunaSearch(12, sampler=make)) as loop:
            run = loop.ask()
            suggested.append(tuple(run))
            loop.tell(run, run.height**2)
            loop.tell(loop.ask(of_height(number / 12)), number)

    assert suggested == expected


def test_a_setting_that_is_not_of_the_axes_is_refused_with_all_problems(search):
    with search(params={**AXES, "layers": [1, 2], "device": ["cpu"]}) as loop:
        with pytest.raises(InvalidArgumentError) as raised:
            loop.ask({"hight": 1, "height": 2, "layers": 3})
        with pytest.raises(InvalidArgumentError, match=r"ask\(\) takes a setting, as ask\("):
            loop.ask(0.5)

        run = loop.ask({"height": 1, "layers": 2, "shape": "a"})

    assert raised.value.problems == [
        "there is no axis 'hight'; did you mean 'height'?",
        "height=2 is not among its values: Uniform(-1, 1)",
        "a setting has a value for each axis: give shape one",
        "layers=3 is not among its values: 1, 2",
    ]
    assert run._asdict() == {"height": 1.0, "shape": "a", "layers": 2, "device": "cpu"}


def test_several_goals_are_told_as_a_list(search, tmp_path):
    with search(goal=["min:score", "max:speed"]) as loop:
        loop.tell(loop.ask(), [1, 2])
        loop.tell(loop.ask(), None)
        with pytest.raises(
            InvalidArgumentError, match=r"a value for each goal \(min:score, max:speed\), got 3"
        ):
            loop.tell(loop.ask(), 3)

    told = [trial["told"]["values"] for trial in searching.trials(tmp_path / "exp")[:2]]
    assert told == [{"score": 1, "speed": 2}, {"score": None, "speed": None}]


def test_runs_of_several_goals_have_all_their_values(started):
    with started(1, goal=["min:score", "max:pid"]) as loop:
        (result,) = loop.results()

    assert result.values == (result.metrics["score"], os.getpid())


def test_a_run_without_the_metric_of_the_goal_needs_a_value(started):
    with started(goal="max:reward") as loop:
        loop.start(loop.ask(of_height(0.5)))
        result = loop.wait()
        assert math.isnan(result.value)
        with pytest.raises(InvalidArgumentError, match=r"has no such metric.* it has: .*, or tell\(\)"):
            loop.ask()

    with started(goal="max:reward") as loop:  # it was never told
        run = loop.ask()
        assert run == result.run
        loop.tell(run, 1)
        assert loop.ask() != run


@pytest.mark.slow
def test_code_that_changed_hands_out_its_runs_again(started, search):
    def other(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(score=17)

    with started(2) as loop:
        before = [result.run for result in loop.results()]
    with started(2, other, changed="keep") as loop:
        assert loop.ask() is None
    with started(2, other) as loop:
        again = [(result.run, result.value) for result in loop.results()]

    assert again == [(run, 17) for run in before]
    assert seen_by_a_sampler(search) == [("COMPLETE", [17])] * 2


def test_a_value_of_the_loop_counts_until_its_run_is_executed_again(started, search):
    def other(run, manager):
        train(run, manager)

    with started(2) as loop:
        for result in loop.results():
            loop.tell(result.run, 7)
    with started(2, other) as loop:
        assert len(list(loop.results())) == 2

    assert ("COMPLETE", [7]) not in seen_by_a_sampler(search)


@pytest.mark.slow
def test_a_loop_suggests_nothing_once_its_runs_have_taken_max_seconds(started):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                time.sleep(0.02)
                manager.track(score=1)

    options = OptunaSearch(1000, max_seconds=0.05)
    with started(options=options, train=train) as loop:
        assert 1 <= len(list(loop.results())) <= 3  # on a busy machine, one takes as long
    with started(options=options, train=train) as loop:
        assert loop.ask() is None


def test_a_run_is_started_once_at_a_time_and_told_once_it_has_ended(started, search):
    with started() as loop:
        run = loop.ask(of_height(0.5))
        loop.start(run)
        with pytest.raises(InvalidArgumentError, match="is being executed: start each run once"):
            loop.start(run)
        with pytest.raises(InvalidArgumentError, match=r"is being executed: wait\(\) for it"):
            loop.tell(run, 1)
        loop.wait()
        loop.tell(run, 1)
        with pytest.raises(InvalidArgumentError, match="was not asked for in this block, or has its value"):
            loop.start(run)
    with search() as loop, pytest.raises(LifecycleError, match=r"start\(\) executes runs: write AskTell"):
        loop.start(loop.ask())


def test_a_loop_that_is_opened_by_hand_is_closed_by_hand(search, tmp_path):
    loop = search().open()
    with pytest.raises(LifecycleError, match="this AskTell is open"):
        loop.open()
    loop.tell(loop.ask(), 1)
    loop.close()
    loop.close()
    with pytest.raises(LifecycleError, match="outside its block"):
        loop.ask()

    assert loop.open().ask() is not None
    loop.close()


def test_what_belongs_to_runs_that_are_started_needs_train(search, tmp_path):
    with pytest.raises(InvalidArgumentError) as raised:
        search(jobs=2, retries=1)
    with pytest.raises(InvalidArgumentError) as all_problems:
        search(train=lambda: None, jobs=0, retries=-1, changed="always", goal="entropy")

    rule = "is for runs that AskTell executes: give it train= too"
    assert raised.value.problems == [f"jobs= {rule}", f"retries= {rule}"]
    assert len(all_problems.value.problems) == 5
    assert not any(tmp_path.iterdir())


def test_a_train_that_cannot_be_sent_is_refused_before_anything_is_written(started, tmp_path):
    lock = threading.Lock()

    def train(run, manager):
        lock.acquire()

    with pytest.raises(GridError, match="lock"), started(train=train, executor="lanes"):
        pass

    assert not any(tmp_path.iterdir())


def test_a_loop_that_tells_nothing_is_warned_at_its_end(search):
    with search(3) as loop, pytest.warns(RunsWarning, match="3 runs were asked for and none was told"):
        list(loop)


def test_a_loop_that_is_opened_again_takes_over(search):
    first = search().open()
    run = first.ask()
    second = search().open()

    assert second.ask() == run
    with pytest.raises(LifecycleError, match="outside its block"):
        first.ask()
    second.close()


def test_values_of_another_goal_are_those_of_its_metric(started):
    with started(2) as loop:
        assert len(list(loop.results())) == 2
        loop.tell(loop.ask(of_height(0.5)), 7)  # executed nowhere

    with started(2, goal="min:pid") as loop:
        assert loop.ask()._asdict() == of_height(0.5)  # it has no value of this metric
        assert loop.ask() is None

    again = partial(started, goal="min:pid", changed="keep")
    assert seen_by_a_sampler(again) == [("COMPLETE", [os.getpid()])] * 2


def test_a_setting_may_be_nested_and_paired_as_in_a_grid(search):
    params = {"opt": {"lr": Uniform(0, 1)}, ("width", "depth"): [(1, 2), (3, 4)]}
    with search(params=params) as loop:
        run = loop.ask({"opt": {"lr": 0.5}, ("width", "depth"): (3, 4)})
        other = loop.ask({"opt.lr": 0.25, "width": 1, "depth": 2})

    assert (run.opt.lr, run.width, run.depth) == (0.5, 3, 4)
    assert (other.opt.lr, other.width, other.depth) == (0.25, 1, 2)


@pytest.mark.slow
def test_a_run_that_was_interrupted_is_asked_for_again_without_another_block(started):
    calls = []

    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                calls.append(run)
                if len(calls) == 1:
                    raise KeyboardInterrupt
                manager.track(score=1)

    with started(train=train, changed="keep") as loop:
        run = loop.ask()
        loop.start(run)
        with pytest.raises(KeyboardInterrupt):
            loop.wait()
        assert loop.ask() == run
        loop.start(run)
        assert loop.wait().status == "completed"


@pytest.mark.slow
def test_runs_that_are_behind_are_pruned_and_the_loop_sees_it(started):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(4, checkpoint={}):
                manager.track(score=run.height)

    with started(train=train, prune=optuna.pruners.MedianPruner(n_startup_trials=2)) as loop:
        statuses = {}
        for height in (0, 0.1, 0.9):
            loop.start(loop.ask(of_height(height)))
            result = loop.wait()
            statuses[height] = result.status, result.value

    assert statuses[0.9] == ("pruned", 0.9)
    assert statuses[0] == ("completed", 0)


PROGRAM = """
import multiprocessing, sys, time
from runmanager import AskTell, OptunaSearch, Uniform

def train(run, manager):
    with manager.run(run):
        for epoch in manager.epochs(10_000, checkpoint={}):
            time.sleep(0.01)
            manager.track(score=run.height)

if __name__ == "__main__":
    how = {"experiment": "exp", "goal": "min:score", "train": train, "jobs": 2, "tensorboard": False}
    search = AskTell({"height": Uniform(-1, 1)}, OptunaSearch(6), **how).open()
    for _ in range(2):
        search.start(search.ask())
    print("lanes", *(child.pid for child in multiprocessing.active_children()), flush=True)
    if sys.argv[1] != "end":
        search.wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "number", "code"),
    [
        ("end", None, 0),
        pytest.param("SIGINT", signal.SIGINT, -signal.SIGINT, marks=pytest.mark.nightly),
        pytest.param("SIGTERM", signal.SIGTERM, 128 + signal.SIGTERM, marks=pytest.mark.nightly),
    ],
    ids=["end", "SIGINT", "SIGTERM"],
)
def test_however_a_program_ends_its_lanes_do_and_its_runs_are_kept(tmp_path, how, number, code):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    command = [sys.executable, str(file), how]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        pids = next(line for line in process.stdout if line.startswith("lanes")).split()[1:]
        if number:
            time.sleep(1)
            process.send_signal(number)
        output = process.stdout.read()

    assert process.returncode == code, output
    assert len(pids) == 2
    assert not [pid for pid in pids if is_alive(int(pid))]
    assert (
        load_runs(tmp_path / "runs" / "exp")["status"].isin(["interrupted", "pending"]).tolist() == [True] * 2
    )
    assert (tmp_path / "runs" / "exp" / "results.csv").exists()
    assert not (tmp_path / "runs" / "exp" / paths.HOLDER).exists()
