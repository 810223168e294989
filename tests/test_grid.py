import copy
import dataclasses
import keyword
import math
import pickle
import random
import re
import subprocess
import sys
from collections import Counter, OrderedDict
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from runmanager.errors import GridError
from runmanager.grid import RunBuilder
from runmanager.hyperparameters import DEVICE_TYPES, RESERVED, check_device, column
from runmanager.run import Run, device_of, kinds_of

TUTORIAL: OrderedDict[str, list[Any]] = OrderedDict(
    lr=[0.01, 0.001], batch_size=[1000, 10000], device=["cuda", "cpu"]
)
HUGE = {f"p{number}": range(10) for number in range(12)}

NAMES = st.text("abcxyz_", min_size=1, max_size=6).filter(
    lambda name: not name.startswith("_") and not keyword.iskeyword(name)
)
AXES = st.lists(st.integers() | st.text(), min_size=1, max_size=4, unique_by=repr)
GRIDS = st.dictionaries(NAMES, AXES, max_size=4)


def problems_of(params, **options):
    with pytest.raises(GridError) as caught:
        RunBuilder.get_runs(params, **options)
    return caught.value.problems


@given(GRIDS)
def test_a_grid_has_as_many_runs_as_the_product_of_its_axes(params):
    runs = RunBuilder.get_runs(params)

    assert len(runs) == len(set(runs)) == math.prod(map(len, params.values()))
    assert RunBuilder.num_runs(params) == len(runs)


@given(GRIDS)
def test_the_last_axis_is_the_fastest(params):
    runs = RunBuilder.get_runs(params)

    stride = len(runs)
    for name, values in params.items():
        stride //= len(values)
        assert [getattr(run, name) for run in runs] == [
            values[number // stride % len(values)] for number in range(len(runs))
        ]


def test_the_tutorials_grid_is_expanded_as_in_the_tutorial():
    runs = RunBuilder.get_runs(TUTORIAL)

    assert [tuple(run) for run in runs] == [
        (0.01, 1000, "cuda"), (0.01, 1000, "cpu"), (0.01, 10000, "cuda"), (0.01, 10000, "cpu"),
        (0.001, 1000, "cuda"), (0.001, 1000, "cpu"), (0.001, 10000, "cuda"), (0.001, 10000, "cpu"),
    ]  # fmt: skip


@given(GRIDS, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_a_run_comes_back_from_a_pickle_as_it_was(params, protocol):
    run = RunBuilder.get_runs(params)[-1]

    restored = pickle.loads(pickle.dumps(run, protocol))

    assert type(restored) is type(run)
    assert restored._asdict() == run._asdict()
    assert kinds_of(restored) == kinds_of(run)


@pytest.mark.parametrize("expand", [RunBuilder.get_runs, lambda grid: RunBuilder.sample(grid, 2, seed=0)])
def test_a_run_knows_the_kinds_of_its_whole_grid(expand):
    grid = {"lr": [0.1, None], ("amp", "n"): [(True, 1), (False, 2.5)], "x": [1, True]}

    kinds = [kinds_of(run) for run in expand(grid)]

    assert kinds == [{"lr": "text", "amp": "bool", "n": "number", "x": "text"}] * len(kinds)
    assert kinds_of({"lr": 0.1}) == {}


def test_a_run_is_unpickled_by_a_process_that_never_saw_its_grid():
    content = pickle.dumps(RunBuilder.get_runs(TUTORIAL)[0])
    program = "import pickle, sys; print(pickle.load(sys.stdin.buffer), 'torch' in sys.modules)"

    shown = subprocess.run([sys.executable, "-c", program], input=content, capture_output=True, check=True)

    assert shown.stdout == b"Run(lr=0.01, batch_size=1000, device='cuda') False\n"


def test_a_run_is_a_namedtuple():
    run = RunBuilder.get_runs(TUTORIAL)[1]

    lr, batch_size, device = run

    assert (lr, batch_size, device) == (run.lr, run.batch_size, run.device) == (0.01, 1000, "cpu")
    assert isinstance(run, Run)
    assert isinstance(run, tuple)
    assert repr(run) == "Run(lr=0.01, batch_size=1000, device='cpu')"
    assert run._fields == ("lr", "batch_size", "device")
    assert run._asdict() == {"lr": 0.01, "batch_size": 1000, "device": "cpu"}
    assert run == RunBuilder.get_runs(TUTORIAL)[1]
    assert hash(run) == hash((0.01, 1000, "cpu"))
    assert copy.deepcopy(run) == copy.copy(run) == run


def test_a_run_can_be_replaced_in_part_and_matched():
    run = RunBuilder.get_runs(TUTORIAL)[0]

    changed = run._replace(lr=1.0)

    assert repr(changed) == "Run(lr=1.0, batch_size=1000, device='cuda')"
    match changed:
        case Run(device=device):
            assert device == "cuda"


def test_runs_with_other_fields_are_other_runs_whatever_their_values():
    (by_lr,), (by_decay,) = RunBuilder.get_runs({"lr": [0.1]}), RunBuilder.get_runs({"decay": [0.1]})

    assert by_lr != by_decay
    assert len({by_lr, by_decay, *RunBuilder.get_runs({"lr": [0.1]})}) == 2
    assert by_lr == (0.1,)


def test_a_missing_hyperparameter_is_named_beside_those_that_are_there():
    run = RunBuilder.get_runs(TUTORIAL)[0]

    with pytest.raises(AttributeError) as caught:
        run.momentum  # noqa: B018

    assert str(caught.value) == "run has no hyperparameter 'momentum'; it has: lr, batch_size, device"
    assert getattr(run, "momentum", 0.9) == 0.9
    assert not hasattr(run, "momentum")


def test_names_of_tuples_own_methods_can_be_hyperparameters():
    (run,) = RunBuilder.get_runs({"count": [3], "index": [4]})

    assert (run.count, run.index) == (3, 4)  # type: ignore[comparison-overlap]


@given(GRIDS, st.integers(), st.data())
def test_a_sample_is_so_many_different_runs_of_the_grid_and_grows_from_a_smaller_one(params, seed, data):
    runs = RunBuilder.get_runs(params)
    fewer, more = sorted(data.draw(st.lists(st.integers(1, len(runs)), min_size=2, max_size=2)))

    sample = RunBuilder.sample(params, more, seed)

    assert len(set(sample)) == len(sample) == more
    assert set(sample) <= set(runs)
    assert RunBuilder.sample(params, fewer, seed) == sample[:fewer]


@pytest.mark.slow(everywhere=True)
def test_every_run_of_a_grid_is_equally_likely_to_be_drawn_and_at_each_place():
    params = {"a": [1, 2], ("b", "c"): [(3, 4), (5, 6), (7, 8)]}

    samples = [RunBuilder.sample(params, 2, seed) for seed in range(1200)]

    for place in (0, 1):
        drawn = Counter(sample[place] for sample in samples)
        assert len(drawn) == 6
        assert all(150 < count < 250 for count in drawn.values())  # 200 expected, 4 standard deviations


def test_a_grid_too_large_to_be_expanded_can_be_sampled():
    vast = HUGE | {f"q{number}": range(10) for number in range(12)}

    sample = RunBuilder.sample(vast, 3, seed=1)

    assert len(set(sample)) == 3
    assert sample != RunBuilder.sample(vast, 3, seed=2)


def test_a_sample_leaves_out_what_where_drops():
    params = {"a": range(20), "b": range(20)}

    sample = RunBuilder.sample(params, 190, seed=0, where=lambda run: run.a < run.b)

    assert len(set(sample)) == 190
    assert all(run.a < run.b for run in sample)


def test_a_sample_is_drawn_without_the_global_random_state():
    random.seed(0)
    expected = random.random()  # noqa: S311 - the state that users draw from

    random.seed(0)
    RunBuilder.sample(TUTORIAL, 3, seed=0)

    assert random.random() == expected  # noqa: S311


@pytest.mark.parametrize(
    ("n", "seed", "where", "problems"),
    [
        (9, 0, None, ["a sample of 9 runs was asked for, this grid has 8: write n=8"]),
        (3, 0, lambda run: run.lr > 1, [
            "where= keeps 0 of all 8 runs of this grid, a sample of 3 was asked for: lower n",
        ]),
        (0, 1.5, None, [
            "n must be a whole number, 1 or more, got 0",
            "seed must be a whole number, so that the same runs are drawn again, got 1.5",
        ]),
    ],
)  # fmt: skip
def test_a_sample_that_cannot_be_drawn_is_refused(n, seed, where, problems):
    with pytest.raises(GridError) as caught:
        RunBuilder.sample(TUTORIAL, n, seed, where=where)

    assert caught.value.problems == problems


def test_what_is_wrong_with_a_sample_and_with_its_grid_is_told_at_once():
    with pytest.raises(GridError) as caught:
        RunBuilder.sample({"lr": 0.1}, -1, seed=0)

    assert len(caught.value.problems) == 2


def test_a_grid_without_axes_is_one_run_without_hyperparameters():
    assert [repr(run) for run in RunBuilder.get_runs({})] == ["Run()"]


def test_any_iterable_with_an_order_is_an_axis():
    params: dict[str, Any] = {
        "a": range(2),
        "b": (value for value in "xy"),
        "c": np.array([0.5]),
        "d": {"key": None}.keys(),
    }

    runs = RunBuilder.get_runs(params)

    assert [tuple(run) for run in runs] == [
        (0, "x", 0.5, "key"), (0, "y", 0.5, "key"), (1, "x", 0.5, "key"), (1, "y", 0.5, "key")
    ]  # fmt: skip


def test_numpy_scalars_become_plain_python():
    params: dict[Any, Any] = {"lr": np.logspace(-2, -1, 2), ("a", "b"): [(np.int64(1), np.bool_(True))]}

    run = RunBuilder.get_runs(params)[0]

    assert [type(value) for value in run] == [float, int, bool]
    assert repr(run) == "Run(lr=0.01, a=1, b=True)"


def test_a_paired_axis_varies_its_names_together():
    params: dict[Any, list[Any]] = {("lr", "momentum"): [(0.1, 0.9), [0.01, 0.99]], "seed": [0, 1]}

    runs = RunBuilder.get_runs(params)

    assert list(map(repr, runs)) == [
        "Run(lr=0.1, momentum=0.9, seed=0)",
        "Run(lr=0.1, momentum=0.9, seed=1)",
        "Run(lr=0.01, momentum=0.99, seed=0)",
        "Run(lr=0.01, momentum=0.99, seed=1)",
    ]


@pytest.mark.parametrize("make", [RunBuilder.get_runs, partial(RunBuilder.sample, n=1, seed=0)])
def test_a_where_that_is_no_function_is_told_with_the_other_problems(make):
    with pytest.raises(GridError) as caught:
        make({"lr": 0.1}, where="lr > 0.01")

    assert caught.value.problems[0] == (
        "where must be a function of a run, such as lambda run: run.lr > 0.01, got 'lr > 0.01'"
    )
    assert len(caught.value.problems) == 2


def test_where_keeps_the_runs_for_which_it_is_true():
    runs = RunBuilder.get_runs(TUTORIAL, where=lambda run: run.device == "cpu" or run.lr < 0.01, max_runs=6)

    assert len(runs) == 6
    assert ("cuda", 0.01) not in {(run.device, run.lr) for run in runs}


def test_values_that_python_takes_for_equal_are_different_runs_if_they_mean_something_else():
    assert len(RunBuilder.get_runs({"n": [1, True, "1", None]})) == 4


def test_the_size_of_a_huge_grid_is_known_at_once():
    assert RunBuilder.num_runs(HUGE) == 10**12


@pytest.mark.parametrize(
    ("params", "options", "runs", "limit"),
    [
        (HUGE, {}, f"1,000,000,000,000 runs ({' x '.join(['10'] * 12)})", "1,000,000"),
        (HUGE, {"max_runs": 1000}, f"1,000,000,000,000 runs ({' x '.join(['10'] * 12)})", "1,000"),
        (HUGE, {"where": bool}, f"1,000,000,000,000 runs ({' x '.join(['10'] * 12)})", "1,000,000"),
        (TUTORIAL, {"max_runs": 7}, "8 runs (2 x 2 x 2)", "7"),
        (TUTORIAL, {"max_runs": 7, "where": bool}, "8 runs (2 x 2 x 2)", "7"),
    ],
)
def test_a_grid_that_is_too_large_is_refused_at_once(params, options, runs, limit):
    size = RunBuilder.num_runs(params)

    problems = problems_of(params, **options)

    assert problems == [
        (
            f"this grid has {runs}, the limit is {limit}: shorten an axis, or write "
            f"RunBuilder.get_runs(params, max_runs={size})"
        )
    ]


def test_a_grid_of_which_where_keeps_nothing_is_refused():
    problems = problems_of(TUTORIAL, where=lambda run: run.lr > 1)

    assert problems == ["where= keeps none of 8 runs: keep at least one"]


def test_as_many_runs_as_are_allowed_are_expanded(monkeypatch):
    monkeypatch.setattr("runmanager.grid._MOST_RUNS", 100)
    params = {"a": range(11), "b": range(10)}

    runs = RunBuilder.get_runs(params, where=lambda run: run.a == run.b, max_runs=110)

    assert len(runs) == 10


@dataclasses.dataclass
class Optimizer:
    lr: Any
    name: Any = ("sgd",)


NESTED = RunBuilder.get_runs({"opt": {"lr": [0.1, 0.2], "name": ["sgd"]}, "device": ["cpu"]})


@pytest.mark.parametrize(
    "grid",
    [
        {"opt.lr": [0.1, 0.2], "opt.name": ["sgd"], "device": ["cpu"]},
        {"opt": Optimizer([0.1, 0.2]), "device": ["cpu"]},
        {"opt": {("lr", "name"): [(0.1, "sgd"), (0.2, "sgd")]}, "device": ["cpu"]},
        MappingProxyType({"opt": MappingProxyType({"lr": (0.1, 0.2), "name": ["sgd"]}), "device": ["cpu"]}),
    ],
)
def test_a_nested_grid_is_that_of_its_dotted_axes(grid):
    runs = RunBuilder.get_runs(grid)

    assert runs == NESTED
    assert RunBuilder.num_runs(grid) == len(NESTED)
    assert sorted(RunBuilder.sample(grid, 2, seed=0)) == NESTED


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


def test_a_mapping_in_a_list_is_a_value():
    runs = RunBuilder.get_runs({"opt": {"extra": [{"lr": 1}, Optimizer(2)]}})

    assert [run.opt.extra for run in runs] == [{"lr": 1}, Optimizer(2)]


def test_a_data_class_that_yields_values_is_a_range():
    @dataclasses.dataclass
    class Powers:
        most: int

        def __iter__(self):
            return (10**power for power in range(self.most))

    assert [run.lr for run in RunBuilder.get_runs({"lr": Powers(3)})] == [1, 10, 100]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([0.1], "a grid is a mapping of name -> list of values, got [0.1]: write {'lr': [...]}"),
        (
            {"device": "cpu"},
            "values of 'device' must be a list or tuple, got 'cpu'; write device=['cpu'] for a single value",
        ),
        (
            {"lr": 0.1},
            "values of 'lr' must be a list or tuple, got 0.1; write lr=[0.1] for a single value",
        ),
        (
            {"lr": np.array(0.1)},
            "values of 'lr' must be a list or tuple, got array(0.1); write lr=[array(0.1)] for a single value",
        ),
        (
            {("a", "b"): 3},
            "values of 'a, b' must be a list or tuple, got 3; write ('a', 'b'): [(...)] for a single value",
        ),
        (
            {"opt": {"lr": [0.1], "wd": 0}},
            "values of 'opt.wd' must be a list or tuple, got 0; write 'opt.wd': [0] for a single value",
        ),
        ({"opt": {}}, "axis 'opt' has no values: give it at least one, or leave it out"),
        ({"opt": {"lr": [1]}, "opt.lr": [2]}, "'opt.lr' is in two axes: keep one"),
        ({"opt": [1], "opt.lr": [2]}, "'opt' is an axis, and 'opt.lr' is below it: rename one"),
        ({"opt": {3: [1]}}, "a hyperparameter name must be text, got 3"),
        ({"opt": {"a-b": [1]}}, "'opt.a-b' cannot be read as run.opt.a-b: write 'opt.a_b'"),
        ({"opt._fields": [1]}, "'opt._fields' cannot be read as run.opt._fields: write 'opt.fields'"),
        ({"opt..lr": [1]}, "'opt..lr' cannot be read as run.opt..lr: write 'opt.lr'"),
        ({("a", "b"): {"c": 1}}, "values of the paired axis ('a', 'b') are a mapping: write a list of tuples"),
        ({"lr": {0.1, 0.2}}, "values of 'lr' are a set, which has no order: write a list"),
        ({"lr": []}, "axis 'lr' has no values: give it at least one, or leave it out"),
        ({"n": range(10**12)}, "axis 'n' has more than 1,000,000 values: write a shorter list"),
        ({3: [1]}, "a hyperparameter name must be text, got 3"),
        ({"learning rate": [1]}, "'learning rate' cannot be read as run.learning rate: write 'learning_rate'"),
        ({"lambda": [1]}, "'lambda' cannot be read as run.lambda: write 'lambda_'"),
        ({"2nd": [1]}, "'2nd' cannot be read as run.2nd: write 'p2nd'"),
        ({"_lr": [1]}, "'_lr' cannot be read as run._lr: write 'lr'"),
        ({"": [1]}, "'' cannot be read as run.: write 'name'"),
        ({"lr": [1], ("lr", "n"): [(2, 3)]}, "'lr' is in two axes: keep one"),
        ({("lr", "lr"): [(1, 2)]}, "('lr', 'lr') has a name twice: keep one"),
        ({("a", "b"): [(1, 2), 3]}, "each value of the paired axis ('a', 'b') must be a tuple of 2, got 3"),
    ],
)  # fmt: skip
def test_a_grid_that_cannot_be_run_is_refused(params, message):
    problems = problems_of(params)

    assert problems == [message]
    with pytest.raises(GridError):
        RunBuilder.num_runs(params)


@pytest.mark.parametrize("params", [{"lr": [0.1, 0.1]}, {"n": range(1500)}])
def test_what_run_grid_refuses_is_a_grid_for_a_loop_of_ones_own(params):
    ((_name, values),) = params.items()

    assert [run[0] for run in RunBuilder.get_runs(params)] == list(values)


def test_all_problems_of_a_grid_are_told_at_once():
    params = {"lr": 0.1, "device": ["gpu", "cpu:3"], "run": []}

    problems = problems_of(params)

    assert problems == [
        "values of 'lr' must be a list or tuple, got 0.1; write lr=[0.1] for a single value",
        "unknown device 'gpu': did you mean 'cuda'?",
        "the cpu has no numbers, got 'cpu:3': write 'cpu'",
        "axis 'run' has no values: give it at least one, or leave it out",
    ]


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_names_of_results_columns_are_hyperparameters_in_a_column_that_says_so(name):
    (run,) = RunBuilder.get_runs({name: [3]})

    assert getattr(run, name) == 3
    assert column(name) == f"{name} (hyperparameter)"


@pytest.mark.parametrize("device", [*DEVICE_TYPES, "cuda:0", "cuda:10", torch.device("cuda", 1)])
def test_a_device_that_torch_knows_is_accepted_whether_it_is_there_or_not(device):
    assert check_device(device) is None


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cpu:3", "the cpu has no numbers, got 'cpu:3': write 'cpu'"),
        (torch.device("cpu", 3), "the cpu has no numbers, got 'cpu:3': write 'cpu'"),
        ("CUDA:0", "unknown device 'CUDA:0': did you mean 'cuda:0'?"),
        ("gpu", "unknown device 'gpu': did you mean 'cuda'?"),
        ("GPU:1", "unknown device 'GPU:1': did you mean 'cuda:1'?"),
        ("Cpu", "unknown device 'Cpu': did you mean 'cpu'?"),
        ("cpu:x", "unknown device 'cpu:x': did you mean 'cpu'?"),
        ("cuda:01", "unknown device 'cuda:01': did you mean 'cuda:1'?"),
        ("cuda:00", "unknown device 'cuda:00': did you mean 'cuda:0'?"),
        ("cuda:-1", "unknown device 'cuda:-1': did you mean 'cuda'?"),
        ("cuda:256", "unknown device 'cuda:256': did you mean 'cuda'?"),
        ("cuda:", "unknown device 'cuda:': did you mean 'cuda'?"),
        ("cuda:0\n", "unknown device 'cuda:0\\n': did you mean 'cuda'?"),
        ("abacus", "unknown device 'abacus': write one of: cpu, cuda, mps, xpu"),
        ("", "unknown device '': write one of: cpu, cuda, mps, xpu"),
        (0, "a device is named by text, got 0: write 'cpu' or 'cuda:0'"),
        (True, "a device is named by text, got True: write 'cpu' or 'cuda:0'"),
        (None, "a device is named by text, got None: write 'cpu' or 'cuda:0'"),
    ],
)
def test_a_device_that_torch_does_not_know_or_misreads_is_refused(device, message):
    assert check_device(device) == message


@given(
    st.sampled_from([*DEVICE_TYPES, "gpu", "CUDA"]), st.just("") | st.text() | st.integers().map(":{}".format)
)
@example("cuda", ":256")  # torch reads cuda:0
@example("cuda", ":1\N{ARABIC-INDIC DIGIT THREE}")
@example("cuda", ":²")
@example("cuda", ":" + 5000 * "1")
def test_a_device_that_is_accepted_means_the_same_to_torch(kind, number):
    device = kind + number

    problem = check_device(device)

    if problem is None:
        assert str(torch.device(device)) == device
    else:
        hint = re.search(r"(did you mean|: write) '(.*)'", problem)
        assert hint is None or check_device(hint[2]) is None


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
