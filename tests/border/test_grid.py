"""From a mapping of axes to runs: RunBuilder, Run, ranges, samples, configurations, and what is refused."""

import argparse
import copy
import dataclasses
import itertools
import keyword
import math
import pickle
import random
import subprocess
import sys
from collections import Counter, OrderedDict
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from runmanager import (
    GridError,
    IntRange,
    InvalidArgumentError,
    LogUniform,
    Run,
    RunBuilder,
    Uniform,
    expand,
    run_grid,
)
from tests.border.experiments import complete
from tests.border.work import start, statuses

TUTORIAL: OrderedDict[str, list[Any]] = OrderedDict(
    lr=[0.01, 0.001], batch_size=[1000, 10000], device=["cuda", "cpu"]
)
HUGE = {f"p{number}": range(10) for number in range(12)}
NAMES = st.text("abcxyz_", min_size=1, max_size=6).filter(
    lambda name: not name.startswith("_") and not keyword.iskeyword(name)
)
AXES = st.lists(st.integers() | st.text(), min_size=1, max_size=4, unique_by=repr)
GRIDS = st.dictionaries(NAMES, AXES, max_size=4)
SPACE = {
    "lr": LogUniform(1e-5, 1e-1),
    "dropout": Uniform(0, 0.5),
    "width": IntRange(16, 512, log=True),
    "network": ["mlp", "cnn"],
}


def problems_of(make, *given_, **options):
    with pytest.raises(GridError) as caught:
        make(*given_, **options)
    assert isinstance(caught.value, ValueError)
    return caught.value.problems


@given(GRIDS)
def test_a_grid_is_the_product_of_its_axes_the_last_one_fastest(params):
    runs = RunBuilder.get_runs(params)

    assert [tuple(run) for run in runs] == list(itertools.product(*params.values()))
    assert len(set(runs)) == len(runs) == RunBuilder.num_runs(params)


@given(GRIDS, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_a_run_comes_back_from_a_pickle_as_it_was(params, protocol):
    run = RunBuilder.get_runs(params)[-1]

    restored = pickle.loads(pickle.dumps(run, protocol))

    assert (type(restored), restored._asdict()) == (type(run), run._asdict())


def test_a_run_is_unpickled_by_a_process_that_never_saw_its_grid():
    content = pickle.dumps(RunBuilder.get_runs(TUTORIAL)[0])
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer), 'torch' in sys.modules)"

    printed = subprocess.run([sys.executable, "-c", program], input=content, capture_output=True, check=True)

    assert printed.stdout == b"Run(lr=0.01, batch_size=1000, device='cuda') False\n"


def test_a_run_is_a_namedtuple():
    run = RunBuilder.get_runs(TUTORIAL)[1]

    lr, batch_size, device = run

    assert (lr, batch_size, device) == (run.lr, run.batch_size, run.device) == (0.01, 1000, "cpu")
    assert isinstance(run, Run)
    assert isinstance(run, tuple)
    assert (type(run).__name__, repr(run)) == ("Run", "Run(lr=0.01, batch_size=1000, device='cpu')")
    assert run._fields == ("lr", "batch_size", "device")
    assert run._asdict() == {"lr": 0.01, "batch_size": 1000, "device": "cpu"}
    assert run == RunBuilder.get_runs(TUTORIAL)[1] == copy.deepcopy(run)
    assert run._replace(lr=1.0).lr == 1.0
    match run:
        case Run(device=device):
            assert device == "cpu"


def test_runs_of_other_fields_or_types_of_values_are_other_runs():
    (by_lr,), (by_decay,) = RunBuilder.get_runs({"lr": [0.1]}), RunBuilder.get_runs({"decay": [0.1]})

    assert len({by_lr, by_decay, *RunBuilder.get_runs({"lr": [0.1]})}) == 2
    assert len(RunBuilder.get_runs({"n": [1, True, "1", None]})) == 4


def test_a_missing_hyperparameter_is_named_beside_those_that_are_there():
    run = RunBuilder.get_runs(TUTORIAL)[0]

    with pytest.raises(AttributeError, match=r"'momentum'.*lr, batch_size, device"):
        run.momentum  # noqa: B018
    with pytest.raises(AttributeError, match=r"expand\(\)"):
        run.config  # noqa: B018

    assert getattr(run, "momentum", 0.9) == 0.9
    for name in ("momentum", "lr"):
        with pytest.raises(AttributeError):
            setattr(run, name, 0.9)


def test_any_iterable_with_an_order_is_an_axis_and_scalars_of_numpy_and_torch_are_numbers():
    params: dict[Any, Any] = {
        "a": range(2), "b": (value for value in "xy"), "c": np.array([0.5]), "d": {"key": None}.keys(),
        ("e", "f"): [(np.int64(1), np.bool_(True))], "g": torch.tensor([8]), "h": [torch.tensor(0.25)],
    }  # fmt: skip

    runs = RunBuilder.get_runs(params)

    assert [tuple(run) for run in runs] == [
        (a, b, 0.5, "key", 1, True, 8, 0.25) for a, b in itertools.product([0, 1], "xy")
    ]
    assert [type(value) for value in runs[0]] == [int, str, float, str, int, bool, int, float]


def test_a_paired_axis_varies_its_names_together():
    params: dict[Any, list[Any]] = {("lr", "momentum"): [(0.1, 0.9), [0.01, 0.99]], "seed": [0, 1]}

    assert [tuple(run) for run in RunBuilder.get_runs(params)] == [
        (0.1, 0.9, 0), (0.1, 0.9, 1), (0.01, 0.99, 0), (0.01, 0.99, 1),
    ]  # fmt: skip


def test_where_keeps_the_runs_for_which_it_is_true():
    runs = RunBuilder.get_runs(TUTORIAL, where=lambda run: run.device == "cpu" or run.lr < 0.01, max_runs=6)

    assert len(runs) == 6
    assert ("cuda", 0.01) not in {(run.device, run.lr) for run in runs}
    assert len(problems_of(RunBuilder.get_runs, TUTORIAL, where=lambda run: run.lr > 1)) == 1


def test_a_grid_that_is_too_large_is_refused_at_once_with_its_size():
    (problem,) = problems_of(RunBuilder.get_runs, HUGE)

    assert "1,000,000,000,000 runs" in problem
    assert RunBuilder.num_runs(HUGE) == 10**12


@dataclasses.dataclass
class Optimizer:
    lr: Any = 0.1
    name: Any = "sgd"

    def __post_init__(self):
        if isinstance(self.lr, float) and self.lr < 0:
            raise ValueError("lr is negative")


@dataclasses.dataclass
class Config:
    opt: Optimizer = dataclasses.field(default_factory=Optimizer)
    width: int = 64


@pytest.mark.parametrize(
    "grid",
    [
        {"opt": {"lr": [0.1, 0.2], "name": ["sgd"]}, "device": ["cpu"]},
        {"opt": Optimizer([0.1, 0.2], ["sgd"]), "device": ["cpu"]},
        {"opt": {("lr", "name"): [(0.1, "sgd"), (0.2, "sgd")]}, "device": ["cpu"]},
        MappingProxyType({"opt": MappingProxyType({"lr": (0.1, 0.2), "name": ["sgd"]}), "device": ["cpu"]}),
    ],
)
def test_a_nested_grid_is_that_of_its_dotted_axes(grid):
    runs = RunBuilder.get_runs(grid)

    assert runs == RunBuilder.get_runs({"opt.lr": [0.1, 0.2], "opt.name": ["sgd"], "device": ["cpu"]})
    run = runs[1]
    assert repr(run) == "Run(opt.lr=0.2, opt.name='sgd', device='cpu')"
    assert (run.opt.lr, run.opt._asdict()) == (0.2, {"lr": 0.2, "name": "sgd"})
    assert run._asdict() == {"opt.lr": 0.2, "opt.name": "sgd", "device": "cpu"}
    assert pickle.loads(pickle.dumps(run)).opt == run.opt
    with pytest.raises(AttributeError, match=r"opt.*'rl'.*'lr'"):
        run.opt.rl  # noqa: B018


def test_a_mapping_in_a_list_is_a_value():
    config = OmegaConf.create({"lr": 3})

    runs = RunBuilder.get_runs({"opt": {"extra": [{"lr": 1}, Optimizer(2), config]}})

    assert [run.opt.extra for run in runs] == [{"lr": 1}, Optimizer(2), config]
    assert runs[2].opt.extra.lr == 3


def test_a_name_below_a_dot_may_begin_with_an_underscore():
    (run,) = RunBuilder.get_runs({"opt": {"_target_": ["SGD"], "inner": {"_": [1]}}})

    assert (run.opt._target_, run.opt.inner._) == ("SGD", 1)


CYCLIC: list[Any] = []
CYCLIC += [CYCLIC, CYCLIC]
REFUSED: list[tuple[Any, list[str]]] = [
    ([0.1], ["[0.1]", "{'lr': [...]}"]), ({"device": "cpu"}, ["'device'", "device=['cpu']"]),
    ({"lr": 0.1}, ["'lr'", "lr=[0.1]"]), ({("a", "b"): 3}, ["'a, b'", "[(...)]"]),
    ({"opt": {"lr": [0.1], "wd": 0}}, ["'opt.wd': [0]"]), ({"opt": {}}, ["'opt'", "no values"]),
    ({"opt": {"lr": [1]}, "opt.lr": [2]}, ["'opt.lr'", "keep one"]),
    ({"opt": [1], "opt.lr": [2]}, ["'opt'", "'opt.lr'", "rename"]),
    ({("a", "b"): {(1, 2): 0.5}}, ["('a', 'b')", "list of tuples"]),
    ({("a", 3): [(1, 2)]}, ["text", "got 3"]), ({"lr": {0.1, 0.2}}, ["'lr'", "a set", "list"]),
    ({"lr": []}, ["'lr'", "no values"]), ({3: [1]}, ["text", "got 3"]),
    ({"learning rate": [1]}, ["'learning_rate'"]), ({"lambda": [1]}, ["'lambda_'"]),
    ({"_lr": [1]}, ["'lr'"]), ({"lr": [1], ("lr", "n"): [(2, 3)]}, ["'lr'", "keep one"]),
    ({("a", "b"): [(1, 2), 3]}, ["('a', 'b')", "got 3"]),
    ({"device": ["CUDA:0"]}, ["'CUDA:0'", "'cuda:0'"]), ({"device": ["gpu"]}, ["'gpu'", "'cuda'"]),
    ({"device": ["cpu:3"]}, ["'cpu:3'", "'cpu'"]),
    ({"device": [torch.device("cpu", 3)]}, ["'cpu:3'", "'cpu'"]), ({"device": ["cuda:01"]}, ["'cuda:1'"]),
    ({"device": ["MIG-6b1c1a6e-77"]}, ["write one of: cpu, cuda, mps, xpu"]),
    ({"device": ["cuda:MIG-6b1c1a6e"]}, ["did you mean 'cuda'?"]),
    ({"device": ["abacus"]}, ["'abacus'", "cpu, cuda, mps, xpu"]), ({"device": [0]}, ["got 0", "'cuda:0'"]),
    ({(): [()]}, ["without names", "('a', 'b')"]),
    ({"p": [np.longdouble(1)]}, ["'p'", "longdouble", "name"]),
    ({"p": [{"n": 10**5000}]}, ["'p'", "4,300 digits", "text"]), ({"p": [CYCLIC]}, ["'p'", "50 deep"]),
]  # fmt: skip


def test_an_integer_of_any_size_up_to_4300_digits_is_a_value():
    assert [run.p for run in RunBuilder.get_runs({"p": [10**400]})] == [10**400]


@pytest.mark.parametrize(("params", "named"), REFUSED)
def test_a_grid_that_cannot_be_run_is_refused_with_what_to_write_instead(params, named):
    (problem,) = problems_of(RunBuilder.get_runs, params)

    assert [text for text in named if text not in problem] == []


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps", "cuda:10", torch.device("cuda", 1)])
def test_a_device_that_torch_has_a_name_for_is_accepted(device):
    assert len(RunBuilder.get_runs({"device": [device]})) == 1


@given(
    st.sampled_from(["cpu", "cuda", "mps", "xpu", "meta", "gpu", "CUDA"]),
    st.just("")
    | st.text()
    | st.integers().map(":{}".format)
    | st.sampled_from([":256", ":²", ":" + 5000 * "1"]),
)
def test_a_device_that_is_accepted_means_the_same_to_torch(kind, number):
    try:
        RunBuilder.get_runs({"device": [kind + number]})
    except GridError:
        return
    assert str(torch.device(kind + number)) == kind + number


def test_all_problems_of_a_grid_are_named_at_once():
    problems = problems_of(RunBuilder.get_runs, {"lr": 0.1, "device": ["gpu", "cpu:3"], "run": []})

    assert len(problems) == 4


@given(GRIDS, st.integers(), st.data())
def test_a_sample_is_so_many_runs_of_the_grid_and_grows_from_a_smaller_one(params, seed, data):
    runs = RunBuilder.get_runs(params)
    fewer, more = sorted(data.draw(st.lists(st.integers(1, len(runs)), min_size=2, max_size=2)))

    sample = RunBuilder.sample(params, more, seed)

    assert len(set(sample)) == len(sample) == more
    assert set(sample) <= set(runs)
    assert RunBuilder.sample(params, fewer, seed) == sample[:fewer]


def test_a_sample_draws_from_vast_grids_without_the_global_random_state():
    random.seed(0)
    expected = random.random()  # noqa: S311 - the state that users draw from

    random.seed(0)
    sample = RunBuilder.sample(HUGE, 3, seed=1, where=lambda run: run.p0 < run.p1)

    assert random.random() == expected  # noqa: S311
    assert all(run.p0 < run.p1 for run in sample)
    assert sample != RunBuilder.sample(HUGE, 3, seed=2, where=lambda run: run.p0 < run.p1)


@pytest.mark.parametrize(
    ("n", "options", "named"),
    [(9, {}, ["9", "n=8"]), (3, {"where": lambda run: run.lr > 1}, ["where=", "lower n"]), (0, {}, ["got 0"])],
)
def test_a_sample_that_cannot_be_drawn_is_refused(n, options, named):
    (problem,) = problems_of(RunBuilder.sample, TUTORIAL, n, 0, **options)

    assert [text for text in named if text not in problem] == []


@given(st.integers(1, 40), st.integers(0, 40), st.integers())
def test_a_sample_of_ranges_lies_within_bounds_and_grows_without_changing(n, more, seed):
    sample = RunBuilder.sample(SPACE, n + more, seed)

    assert RunBuilder.sample(SPACE, n, seed) == sample[:n]
    assert len(set(sample)) == n + more
    for run in sample:
        assert (1e-5 <= run.lr <= 0.1, 0 <= run.dropout <= 0.5, 16 <= run.width <= 512) == (True,) * 3
        assert [type(value) for value in run] == [float, float, int, str]


def test_each_order_of_magnitude_is_equally_likely_and_an_axis_does_not_depend_on_others():
    sample = RunBuilder.sample(SPACE, 2000, seed=0)

    decades = Counter(math.floor(math.log10(run.lr)) for run in sample)
    assert sorted(decades) == [-5, -4, -3, -2]
    assert all(420 < count < 580 for count in decades.values())
    assert 920 < sum(run.dropout < 0.25 for run in sample) < 1080
    alone = RunBuilder.sample({"lr": SPACE["lr"]}, 20, seed=0)
    assert [run.lr for run in alone] == [run.lr for run in sample[:20]]


def test_a_range_has_its_bounds_and_a_sample_can_have_all_its_runs():
    params = {"depth": IntRange(1, 3), "width": IntRange(1, 20, log=True), ("a", "b"): [(1, 2), (3, 4)]}

    sample = RunBuilder.sample(params, 120, seed=0)

    assert sorted(sample) == [
        (depth, width, *pair)
        for depth, width, pair in itertools.product(range(1, 4), range(1, 21), [(1, 2), (3, 4)])
    ]
    assert Uniform(100, 101).from_fraction(0.12345) == 100.123


@pytest.mark.parametrize("expand_", [RunBuilder.get_runs, RunBuilder.num_runs])
def test_a_grid_names_its_ranges_and_what_to_do(expand_):
    *_, problem = problems_of(expand_, {**SPACE, "device": "cpu"})

    assert "lr, dropout, width" in problem
    assert "RunBuilder.sample" in problem


UNUSABLE: list[tuple[Any, list[str]]] = [
    (lambda: Uniform(1, 0), ["Uniform(0, 1)"]), (lambda: Uniform(1, 1), ["[1]"]),
    (lambda: IntRange(1, 3, log="yes"), ["log", "'yes'"]),  # type: ignore[arg-type]
    (lambda: Uniform(0, math.nan), ["high", "nan"]), (lambda: LogUniform(0, 1), ["above 0"]),
    (lambda: IntRange(True, 8), ["low", "whole number"]), (lambda: IntRange(0, 8, log=True), ["log=True"]),
]  # fmt: skip


@pytest.mark.parametrize(("make", "named"), UNUSABLE)
def test_bounds_that_cannot_be_used_are_refused_at_once(make, named):
    with pytest.raises(InvalidArgumentError) as caught:
        make()

    assert [text for text in named if text not in str(caught.value)] == []


@pytest.mark.parametrize("text", ["Uniform(0, 0.5)", "LogUniform(1e-05, 0.1)", "IntRange(16, 512, log=True)"])
def test_a_range_is_written_as_it_was_made_pickles_and_compares(text):
    values = eval(text)  # noqa: S307 - the texts above

    assert repr(values) == text
    assert pickle.loads(pickle.dumps(values)) == values == eval(text)  # noqa: S307


@pytest.mark.parametrize("axes", [{"opt.lr": [0.5, 0.6]}, {"opt": {"lr": [0.5, 0.6]}}])
def test_each_run_of_expand_has_a_configuration_of_its_own(axes):
    runs = expand(Config(), {**axes, "device": ["cpu"]})

    assert [run.config for run in runs] == [Config(Optimizer(lr)) for lr in (0.5, 0.6)]
    assert runs[0]._asdict() == {"opt.lr": 0.5, "opt.name": "sgd", "width": 64, "device": "cpu"}
    again = pickle.loads(pickle.dumps(runs[0]))
    assert (again, again.config) == (runs[0], runs[0].config)


def test_parsed_arguments_are_a_configuration_whose_constants_identify_no_run():
    first, second = (
        expand(
            argparse.Namespace(lr=0.1, width=8, log_interval=interval, tags=[set()]),
            {"lr": [0.1, 0.2], "device": ["cpu"]},
            constants=["log_interval", "tags"],
        )
        for interval in (10, 50)
    )

    assert first == second
    assert first[1]._asdict() == {"lr": 0.2, "width": 8, "device": "cpu"}
    assert second[1].config == argparse.Namespace(lr=0.2, width=8, log_interval=50, tags=[set()])
    (problem,) = problems_of(expand, {"lr": 0.1}, {"lr": [0.1]}, constants=["log_intervall"])
    assert "'log_intervall'" in problem


def test_a_mapping_as_of_a_yaml_file_is_a_configuration():
    yaml = {"opt": {"_target_": "torch.optim.SGD", "lr": 0.1}, "layers": [1, 2]}

    (run,) = expand(yaml, {("opt.lr", "layers"): [(0.5, [3])]})

    assert run.config == {"opt": {"_target_": "torch.optim.SGD", "lr": 0.5}, "layers": [3]}
    assert yaml["layers"] == [1, 2]


def test_a_configuration_of_omegaconf_may_be_read_only_interpolate_and_lack_what_the_grid_gives():
    config = OmegaConf.create(
        {"opt": {"lr": "???"}, "width": 8, "double": "${width}", "home": "${oc.env:NOPE}"}
    )
    OmegaConf.set_readonly(config, True)

    (run,) = expand(config, {"opt.lr": [0.5], "home": ["here"]})

    assert run._asdict() == {"opt.lr": 0.5, "width": 8, "double": 8, "home": "here"}
    run.config.opt.lr = 0.6


def test_what_two_fields_share_changes_in_one_of_them():
    shared = {"lr": 1}
    linked = OmegaConf.create({"x": shared, "y": "${x}"})

    (run,) = expand({"x": shared, "y": shared}, {"y.lr": [2]})

    assert run.config == {"x": {"lr": 1}, "y": {"lr": 2}}
    assert len(problems_of(expand, linked, {"y.lr": [2]})) == 1


@pytest.mark.parametrize("params", [[], [{"lr": 0.1}], "opt.lr", RunBuilder.get_runs(TUTORIAL)[0]])
def test_what_is_neither_a_grid_nor_runs_expands_no_configuration(params):
    assert "a grid is a mapping" in problems_of(expand, Config(), params)[0]


def test_what_a_configuration_does_not_have_is_named_at_once():
    unknown = problems_of(expand, Config(), {"opt.rl": [1], "widht": [1], "z.z": [1]})

    for problem, name, meant in zip(
        unknown, ["opt.rl", "widht", "z.z"], ["opt.lr", "width", "opt.name"], strict=True
    ):
        assert name in problem
        assert meant in problem


TWICE: list[Any] = [
    {"lr": [0.1, 0.2, 0.1]}, {"n": [1, 1.0]}, {"n": [math.nan, math.nan]}, {("a", "b"): [(1, 2), [1, 2]]},
    RunBuilder.get_runs({"lr": [0.1]}) * 2, {"at": ["cpu", torch.device("cpu")]}, {"n": np.zeros(2)},
]  # fmt: skip


@pytest.mark.parametrize("params", [*TWICE, [], [{"lr": 1}], {"lr": 0.1}, {"lr": Uniform(0, 1)}], ids=str)
def test_run_grid_refuses_a_grid_before_anything_is_written(tmp_path, params):
    def train(run, manager):
        raise AssertionError

    assert len(problems_of(run_grid, params, train, experiment="e", root=tmp_path / "runs")) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("as_runs", [False, True])
def test_values_that_mean_nothing_in_another_process_are_refused_all_at_once(tmp_path, as_runs):
    axes = {"network": [lambda: 1, lambda: 2], "data": [{"x": object()}], "lr": [0.1]}

    problems = problems_of(lambda: start(RunBuilder.get_runs(axes) if as_runs else axes, root=tmp_path))

    assert ["'network': a lambda" in problems[0], "[run.data]" in problems[1]] == [True, True]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("own_folder")
def test_runs_are_identified_by_their_values_in_any_order_of_axes_and_runs():
    values: list[Any] = ["001", None, (3, 3), {"a": 1}, torch.float16, dict, math.sqrt]
    first = start({"value": values, "lr": [0.1]}, complete)

    again = start({"lr": [0.1], "value": values[::-1]}, complete)
    union = RunBuilder.get_runs({"lr": [0.1], "value": [None]}) + RunBuilder.get_runs({"lr": [0.1], "x": [1]})
    both = start(union, complete)

    assert statuses(first) == [("completed", 1)] * 7
    assert again.runs["run"].tolist() == list(range(7, 0, -1))
    assert again.runs["attempts"].tolist() == [1] * 7
    assert both.runs["run"].tolist() == [2, 8]
