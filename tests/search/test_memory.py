"""What a sampler has in memory: a start that takes it from the record goes on as one that repeats all."""

import itertools
import json
import random

import optuna
import pytest

from runmanager import IntRange, LogUniform, Uniform
from runmanager.goal import parse_goal
from runmanager.search import sampler as samplers
from runmanager.search.record import Tell
from runmanager.search.space import SearchSpace
from runmanager.search.trials import Trials
from runmanager.storage import paths
from runmanager.storage.journal import to_line

AXES = {
    "height": Uniform(-1, 1),
    "rate": LogUniform(1e-4, 1),
    "layers": IntRange(1, 8),
    "shape": ["a", "b", "c"],
}
TPE, GP = optuna.samplers.TPESampler, optuna.samplers.GPSampler
GAUSSIAN = "gaussian process"
SAVED = {
    "tpe": lambda: TPE(seed=3, n_startup_trials=3),
    "tpe of single axes": lambda: TPE(seed=3, n_startup_trials=3, multivariate=False),
    "tpe of groups": lambda: TPE(seed=3, n_startup_trials=3, multivariate=True, group=True),
    "tpe that ignores running trials": lambda: TPE(seed=3, n_startup_trials=3, constant_liar=False),
    GAUSSIAN: lambda: GP(seed=3, n_startup_trials=3),
}
REPEATED = {
    "without a seed": TPE,
    "with a function": lambda: TPE(seed=3, gamma=lambda n: min(n, 3)),
    "with constraints": lambda: TPE(seed=3, constraints_func=lambda _: [0.0]),
    "of another class": lambda: type("Mine", (TPE,), {})(seed=3),
    "with another sampler in it": lambda: GP(seed=3, independent_sampler=TPE(seed=3)),
    "of another version": lambda: without_kernels(GP(seed=3)),
    "that is quick": lambda: optuna.samplers.RandomSampler(seed=3),
}
pytestmark = [
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def without_kernels(sampler):
    """Take from a sampler what it begins with as this version has it; its first suggestions are random."""
    del sampler._gprs_cache_list
    return sampler


@pytest.fixture
def repeated(monkeypatch):
    """Count what the samplers of searches are asked; their memory is saved after every suggestion."""
    numbers = []
    ask = samplers.Sampler.ask

    def counted(self, number):
        numbers.append(number)
        return ask(self, number)

    monkeypatch.setattr(samplers, "SECONDS", 0)
    monkeypatch.setattr(samplers.Sampler, "ask", counted)
    return numbers


def search(path, sampler, starts, *, goals=("min:score",), lanes=1, draw=None, says=0):
    """Suggest until there are so many, start by start, with results of all kinds; return the points."""
    draw = draw or random.Random(0)  # noqa: S311
    points, sentences = [], []
    for n in starts:
        trials = Trials(SearchSpace(AXES), [parse_goal(goal) for goal in goals], sampler(), None, path)
        trials.begin({})
        while trials.num_asked < n:
            while len(trials.open) >= lanes:
                number = draw.choice(list(trials.open))
                trials.tell(result(number, trials.open[number].point, len(goals)))
            trial = trials.ask()
            assert trial
            points.append(trial.point)
            trials.write()
        trials.close()
        sentences += trials.sentences
    assert len(sentences) == says
    return points


def result(number, point, num_goals):
    """Return what became of a trial: some fail, some are pruned, with and without a value."""
    score = abs(point["height"] - 0.3) + abs(point["rate"] - 0.1) + point["layers"] / 10 + ord(point["shape"])
    values = [score, -point["layers"]][:num_goals]
    if number % 7 == 3:
        return Tell(number, "fail")
    if number % 5 == 4:
        return Tell(number, "pruned", values if number % 2 else (), 2)
    return Tell(number, "complete", values)


def types(path):
    """Return of which types the events of a record are."""
    return [json.loads(line)["type"] for line in (path / paths.SEARCH).read_text().splitlines()]


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize(
    "name", [*sorted(SAVED.keys() - {GAUSSIAN}), pytest.param(GAUSSIAN, marks=pytest.mark.slow)]
)
def test_a_search_that_goes_on_from_memory_suggests_what_an_undisturbed_one_does(
    tmp_path, repeated, name, lanes
):
    (tmp_path / "undisturbed").mkdir()
    n = 10 if name == GAUSSIAN else 16
    undisturbed = search(tmp_path / "undisturbed", SAVED[name], [n], lanes=lanes)
    repeated.clear()

    points = search(tmp_path, SAVED[name], range(1, n + 1), lanes=lanes)

    assert points == undisturbed
    # each start repeats the last suggestion, to see that the sampler does
    assert len(repeated) == n + n - 1


@pytest.mark.parametrize("name", ["tpe", "tpe of single axes"])
def test_several_goals_go_on_from_memory(tmp_path, repeated, name):
    goals = ("min:score", "max:layers")
    (tmp_path / "undisturbed").mkdir()
    undisturbed = search(tmp_path / "undisturbed", SAVED[name], [16], goals=goals, lanes=2)
    repeated.clear()

    assert search(tmp_path, SAVED[name], range(1, 17), goals=goals, lanes=2) == undisturbed
    assert len(repeated) == 31


def test_a_sampler_that_began_with_trials_goes_on_from_memory(tmp_path, repeated):
    points = []

    def before():
        return optuna.samplers.RandomSampler(seed=4)

    for name, starts in {"undisturbed": [20], "stopped": range(8, 21)}.items():
        (tmp_path / name).mkdir()
        draw = random.Random(1)  # noqa: S311
        search(tmp_path / name, before, [7], lanes=3, draw=draw)  # some are open at its end
        repeated.clear()
        points.append(search(tmp_path / name, SAVED["tpe"], starts, lanes=3, draw=draw, says=1))

    assert points[0] == points[1]
    assert len(repeated) == 1 + 13 + 12  # the first differs from that of the other sampler


@pytest.mark.parametrize("name", REPEATED)
def test_a_sampler_whose_memory_is_not_all_known_repeats_everything(tmp_path, repeated, name):
    says = 4 if name == "without a seed" else 0
    search(tmp_path, REPEATED[name], range(1, 6), says=says)

    assert "saved" not in types(tmp_path)
    assert len(repeated) == 9 if says else 15


@pytest.mark.parametrize("other", [{"seed": 4}, {"n_ei_candidates": 5}], ids=str)
def test_the_memory_of_another_sampler_is_not_taken(tmp_path, repeated, other):
    search(tmp_path, SAVED["tpe"], [8])
    repeated.clear()

    search(tmp_path, lambda: TPE(**{"seed": 3, "n_startup_trials": 3} | other), [9], says=1)

    assert 2 <= len(repeated) <= 9  # the first ones again, until one differs, and the new one


@pytest.mark.parametrize(
    "change",
    [
        {"sampler": "other"},
        {"generators": []},
        {"generators": [{"keys": "", "index": 3, "has_gauss": 0, "gauss": 0}] * 2},
        {"generators": [{"keys": "?", "index": 3, "has_gauss": 0, "gauss": 0}] * 2},
    ],
    ids=repr,
)
def test_memory_that_does_not_fit_is_not_taken(tmp_path, repeated, change):
    undisturbed = search(tmp_path, SAVED["tpe"], [9])
    record = tmp_path / paths.SEARCH
    events = [json.loads(line) for line in record.read_text().splitlines()]
    asked = [i for i, event in enumerate(events) if event["type"] == "ask"]
    events = [event | change if event["type"] == "saved" else event for event in events[: asked[8]]]
    record.write_bytes(b"".join(to_line({k: v for k, v in event.items() if k != "crc"}) for event in events))
    repeated.clear()

    assert search(tmp_path, SAVED["tpe"], [9]) == undisturbed[8:]
    assert len(repeated) == 9


def test_memory_is_saved_as_often_as_a_second_was_spent(tmp_path, monkeypatch):
    monkeypatch.setattr(samplers, "SECONDS", 1)
    clock = itertools.count(step=0.2)  # each suggestion takes that long
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))

    search(tmp_path, SAVED["tpe"], [20])

    assert types(tmp_path).count("saved") in (3, 4)  # 20 times 0.2 s, added up
