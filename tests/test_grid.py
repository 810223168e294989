import copy
import dataclasses
import pickle
from collections import Counter, OrderedDict
from functools import partial
from typing import Any

import pytest
import torch

from runmanager.errors import GridError
from runmanager.grid import RunBuilder
from runmanager.hyperparameters import RESERVED, column
from runmanager.run import Run, device_of, kinds_of

TUTORIAL: OrderedDict[str, list[Any]] = OrderedDict(
    lr=[0.01, 0.001], batch_size=[1000, 10000], device=["cuda", "cpu"]
)
HUGE = {f"p{number}": range(10) for number in range(12)}


def problems_of(params, **options):
    with pytest.raises(GridError) as caught:
        RunBuilder.get_runs(params, **options)
    return caught.value.problems


@pytest.mark.parametrize("expand", [RunBuilder.get_runs, lambda grid: RunBuilder.sample(grid, 2, seed=0)])
def test_a_run_knows_the_kinds_of_its_whole_grid(expand):
    grid = {"lr": [0.1, None], ("amp", "n"): [(True, 1), (False, 2.5)], "x": [1, True]}

    kinds = [kinds_of(run) for run in expand(grid)]

    assert kinds == [{"lr": "text", "amp": "bool", "n": "number", "x": "text"}] * len(kinds)
    assert kinds_of({"lr": 0.1}) == {}


def test_a_run_can_be_replaced_in_part_and_matched():
    run = RunBuilder.get_runs(TUTORIAL)[0]

    changed = run._replace(lr=1.0)

    assert repr(changed) == "Run(lr=1.0, batch_size=1000, device='cuda')"
    match changed:
        case Run(device=device):
            assert device == "cuda"


def test_names_of_tuples_own_methods_can_be_hyperparameters():
    (run,) = RunBuilder.get_runs({"count": [3], "index": [4]})

    assert (run.count, run.index) == (3, 4)  # type: ignore[comparison-overlap]


@pytest.mark.slow(everywhere=True)
def test_every_run_of_a_grid_is_equally_likely_to_be_drawn_and_at_each_place():
    params = {"a": [1, 2], ("b", "c"): [(3, 4), (5, 6), (7, 8)]}

    samples = [RunBuilder.sample(params, 2, seed) for seed in range(1200)]

    for place in (0, 1):
        drawn = Counter(sample[place] for sample in samples)
        assert len(drawn) == 6
        assert all(150 < count < 250 for count in drawn.values())  # 200 expected, 4 standard deviations


def test_a_sample_leaves_out_what_where_drops():
    params = {"a": range(20), "b": range(20)}

    sample = RunBuilder.sample(params, 190, seed=0, where=lambda run: run.a < run.b)

    assert len(set(sample)) == 190
    assert all(run.a < run.b for run in sample)


def test_what_is_wrong_with_a_sample_and_with_its_grid_is_told_at_once():
    with pytest.raises(GridError) as caught:
        RunBuilder.sample({"lr": 0.1}, -1, seed=0)

    assert len(caught.value.problems) == 2


def test_a_grid_without_axes_is_one_run_without_hyperparameters():
    assert [repr(run) for run in RunBuilder.get_runs({})] == ["Run()"]


@pytest.mark.parametrize("make", [RunBuilder.get_runs, partial(RunBuilder.sample, n=1, seed=0)])
def test_a_where_that_is_no_function_is_told_with_the_other_problems(make):
    with pytest.raises(GridError) as caught:
        make({"lr": 0.1}, where="lr > 0.01")

    assert caught.value.problems[0] == (
        "where must be a function of a run, such as lambda run: run.lr > 0.01, got 'lr > 0.01'"
    )
    assert len(caught.value.problems) == 2


def test_values_that_python_takes_for_equal_are_different_runs_if_they_mean_something_else():
    assert len(RunBuilder.get_runs({"n": [1, True, "1", None]})) == 4


def test_the_size_of_a_huge_grid_is_known_at_once():
    assert RunBuilder.num_runs(HUGE) == 10**12


def test_a_grid_of_which_where_keeps_nothing_is_refused():
    problems = problems_of(TUTORIAL, where=lambda run: run.lr > 1)

    assert problems == ["where= keeps none of 8 runs: keep at least one"]


def test_as_many_runs_as_are_allowed_are_expanded(monkeypatch):
    monkeypatch.setattr("runmanager.grid._MOST_RUNS", 100)
    params = {"a": range(11), "b": range(10)}

    runs = RunBuilder.get_runs(params, where=lambda run: run.a == run.b, max_runs=110)

    assert len(runs) == 10


NESTED = RunBuilder.get_runs({"opt": {"lr": [0.1, 0.2], "name": ["sgd"]}, "device": ["cpu"]})


def test_a_run_of_a_nested_grid_has_a_run_below():
    run = NESTED[1]

    assert repr(run) == "Run(opt.lr=0.2, opt.name='sgd', device='cpu')"
    assert (run.opt.lr, run.opt.name, getattr(run, "opt.lr"), run.device) == (0.2, "sgd", 0.2, "cpu")
    assert run.opt == RunBuilder.get_runs({"lr": [0.2], "name": ["sgd"]})[0]
    assert dict(zip(run.opt._fields, run.opt, strict=True)) == {"lr": 0.2, "name": "sgd"}
    assert run._asdict() == {"opt.lr": 0.2, "opt.name": "sgd", "device": "cpu"}
    assert run._replace(**{"opt.lr": 0.1}) == NESTED[0]
    with pytest.raises(ValueError, match="unexpected field names: \\['lr'\\]"):
        run._replace(lr=1)
    assert getattr(run.opt, "momentum", 0.9) == 0.9
    with pytest.raises(AttributeError, match=r"run\.opt has no hyperparameter 'rl'; did you mean 'lr'"):
        run.opt.rl  # noqa: B018
    with pytest.raises(AttributeError, match="run has no hyperparameter 'lr'; it has: opt, device"):
        run.lr  # noqa: B018


def test_a_nested_run_pickles_and_is_copied_with_its_kinds():
    run = NESTED[0]

    for again in (pickle.loads(pickle.dumps(run)), copy.deepcopy(run)):
        assert again == run
        assert type(again) is type(run)
        assert kinds_of(again) == {"opt.lr": "number", "opt.name": "text", "device": "text"}
    assert pickle.loads(pickle.dumps(run.opt)) == run.opt


def test_names_of_configurations_and_of_methods_can_be_nested():
    (run,) = RunBuilder.get_runs(
        {"opt": {"_target_": ["torch.optim.SGD"], "a": {"count": [2]}}, "index.x": [3]}
    )

    assert (run.opt._target_, run.opt.a.count, run.index.x) == ("torch.optim.SGD", 2, 3)  # type: ignore[attr-defined]
    match run:
        case Run(opt=Run(a=Run(count=count))):
            assert count == 2  # type: ignore[comparison-overlap]


def test_conditions_and_unions_read_nested_hyperparameters():
    grid = {"opt": {"lr": [0.1, 0.2], "name": ["sgd", "adam"]}}

    kept = RunBuilder.get_runs(grid, where=lambda run: run.opt.name == "sgd" or run.opt.lr < 0.2)

    assert [(run.opt.lr, run.opt.name) for run in kept] == [(0.1, "sgd"), (0.1, "adam"), (0.2, "sgd")]
    assert len({*kept, *RunBuilder.get_runs({"opt": ["sgd"]})}) == 4


def test_a_data_class_that_yields_values_is_a_range():
    @dataclasses.dataclass
    class Powers:
        most: int

        def __iter__(self):
            return (10**power for power in range(self.most))

    assert [run.lr for run in RunBuilder.get_runs({"lr": Powers(3)})] == [1, 10, 100]


@pytest.mark.parametrize("params", [{"lr": [0.1, 0.1]}, {"n": range(1500)}])
def test_what_run_grid_refuses_is_a_grid_for_a_loop_of_ones_own(params):
    ((_name, values),) = params.items()

    assert [run[0] for run in RunBuilder.get_runs(params)] == list(values)


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_names_of_results_columns_are_hyperparameters_in_a_column_that_says_so(name):
    (run,) = RunBuilder.get_runs({name: [3]})

    assert getattr(run, name) == 3
    assert column(name) == f"{name} (hyperparameter)"


def test_a_run_asks_for_its_device_and_without_one_for_the_cpu():
    devices = ["cuda:1", torch.device("cuda", 0), "meta"]

    with_one = RunBuilder.get_runs({"device": devices})
    (without,) = RunBuilder.get_runs({"lr": [0.1]})

    assert [device_of(run) for run in with_one] == ["cuda:1", "cuda:0", "meta"]
    assert device_of(without) == "cpu"


class Unwritable:
    def __repr__(self):
        raise ZeroDivisionError


def nested(depth):
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


def in_itself():
    value: list[object] = []
    value += [value, value]
    return value


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (10**5000, "a number of over 4,300 digits cannot be written: give it as text"),
        ([10**5000], "a number of over 4,300 digits cannot be written: give it as text"),
        (nested(400), "a value that is nested more than 50 deep cannot be read again"),
        (in_itself(), "a value that is nested more than 50 deep cannot be read again"),
        (Unwritable(), "a value of the class Unwritable has no identity in another process: give it a name"),
    ],
    ids=["digits", "digits in a list", "nested", "in itself", "repr"],
)
def test_a_value_that_cannot_be_written_is_refused_in_a_sentence(value, problem):
    with pytest.raises(GridError) as caught:
        RunBuilder.get_runs({"lr": [0.1], "p": [1, value]})

    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].startswith(f"'p': {problem}")


def test_odd_values_that_can_be_written_are_accepted():
    values = [10**400, 2**63, -(10**4000), nested(49), float("nan"), "\ud800", "\x1b[2J"]

    assert len(RunBuilder.get_runs({"p": values})) == len(values)
