"""The axes of a search: points to runs and back."""

import json

import pytest

from runmanager import GridError, IntRange, LogUniform, Uniform
from runmanager.search.space import SearchSpace
from runmanager.storage.folders import Experiment
from runmanager.storage.identity import identity

AXES = {
    "lr": LogUniform(1e-5, 1),
    "opt": {"width": IntRange(1, 9), "kind": ["a", dict, None, (1, 2)]},
    ("left", "right"): [(1, 2), (3, "x")],
    "device": ["cpu", "cuda:0"],
    "num_epochs": [5],
    "seed": [0, 1],
}
SPACE = SearchSpace(AXES, ["seed"])
POINT = {"lr": 0.01, "opt.width": 3, "opt.kind": [1, 2], "left, right": [3, "x"], "device": "cpu"}


def test_a_point_has_what_varies_and_its_runs_have_everything():
    runs = SPACE.runs(POINT)

    assert [run._asdict() for run in runs] == [
        {"lr": 0.01, "opt.width": 3, "opt.kind": (1, 2), "left": 3, "right": "x", "device": "cpu",
         "num_epochs": 5, "seed": seed}
        for seed in (0, 1)
    ]  # fmt: skip
    assert SPACE.num_repeats == 2
    assert SPACE.varying == ["lr", "opt.width", "opt.kind", "left", "right", "device", "seed"]


@pytest.mark.parametrize("kind", ["a", None, [1, 2], {"name": "builtins.dict"}], ids=repr)
def test_a_run_in_its_folder_leads_back_to_its_point(tmp_path, kind):
    point = {**POINT, "opt.kind": kind}
    experiment = Experiment(tmp_path / "exp")
    for run in SPACE.runs(point):
        experiment.add(run._asdict(), ["lr"], {})

    read = Experiment(tmp_path / "exp")
    points = [SPACE.point(folder.params, folder.id) for folder in read.runs.values()]

    assert json.loads(json.dumps(points)) == [point, point]
    assert [run for run, _ in SPACE.runs_of(read)] == SPACE.runs(point)


@pytest.mark.parametrize(
    "change",
    [{"lr": 2.0}, {"lr": True}, {"opt.width": 2.5}, {"opt.kind": "b"}, {"left": 1, "right": "x"}, {"more": 1}],
    ids=repr,
)
def test_a_run_outside_of_the_axes_is_no_point(change):
    (run, _) = SPACE.runs(POINT)
    params = {**run._asdict(), **change}

    assert SPACE.point(run._asdict(), identity(run._asdict())) == POINT
    assert SPACE.point(params, identity(params)) is None


def test_a_run_with_another_constant_is_no_point():
    (run, _) = SPACE.runs(POINT)
    params = {**run._asdict(), "num_epochs": 6}

    assert SPACE.point(params, identity(params)) is None


def test_a_sample_has_each_device_and_each_repeat():
    assert [(run.device, run.seed) for run in SPACE.samples()] == [
        ("cpu", 0), ("cpu", 1), ("cuda:0", 0), ("cuda:0", 1),
    ]  # fmt: skip


def test_axes_of_one_value_leave_nothing_to_choose():
    SearchSpace({"x": Uniform(0, 1), "n": [1]}).check()

    with pytest.raises(GridError, match="nothing to choose from"):
        SearchSpace({"n": [1]}).check()
