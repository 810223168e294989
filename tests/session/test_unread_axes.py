import copy
import functools
import importlib
import json
import pickle
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from runmanager import RunBuilder, expand, run_grid
from runmanager.errors import GridError
from runmanager.session.unread_axes import Reads, missing_axes, unread_axes, without_named

GRID = {"opt": {"lr": [0.1], "deep": {"x": [1]}}, "width": [3], "device": ["cpu"]}
(RUN,) = RunBuilder.get_runs(GRID)
ALL = ("opt.lr", "opt.deep.x", "width")


def unread(read):
    reads = Reads(RUN)
    read(reads.run)
    return reads.unread


@pytest.mark.parametrize(
    ("read", "left"),
    [
        (lambda _: None, ALL),
        (lambda run: run.width, ("opt.lr", "opt.deep.x")),
        (lambda run: (run.width, run.width, run.opt.lr), ("opt.deep.x",)),
        (lambda run: getattr(run, "opt.lr"), ("opt.deep.x", "width")),
        (lambda run: run.opt, ALL),
        (lambda run: getattr(run, "momentum", 1), ALL),
        (lambda run: dict(run.opt._asdict()), ("width",)),
        (lambda run: list(run.opt.deep), ("opt.lr", "width")),
    ],
)
def test_the_hyperparameters_that_are_not_read_are_left(read, left):
    assert unread(read) == left


@pytest.mark.parametrize(
    "read",
    [
        pickle.dumps, copy.copy, copy.deepcopy, list, tuple, repr, str, hash, json.dumps,
        lambda run: run._asdict(), lambda run: f"{run}", lambda run: run == RUN, lambda run: run[0],
        lambda run: (*run.opt, *run), lambda run: [getattr(run, name) for name in run._fields],
    ],
)  # fmt: skip
def test_what_uses_all_values_reads_all_of_them(read):
    assert unread(read) == ()


def test_a_run_that_is_watched_is_the_run_that_was_given():
    (given,) = RunBuilder.get_runs(GRID)  # a process keeps the types of the latest runs
    run = Reads(given).run

    assert run == given
    assert repr(run) == repr(given)
    assert (run.width, run.opt.deep.x, run.opt.lr) == (3, 1, 0.1)
    assert type(pickle.loads(pickle.dumps(run))) is type(given)
    assert not hasattr(run, "momentum")


@dataclass
class Config:
    lr: float = 0.1
    width: int = 8


def test_a_configuration_that_is_read_reads_all():
    (run,) = expand(Config(), {"lr": [1]})
    reads = Reads(run)

    assert reads.unread == ("lr", "width")
    assert reads.run.config.lr == 1
    assert not reads.unread


def build(run):
    return {"sgd": lambda: run.momentum, "adam": lambda: run["beta"]}[run.name]


def train(run, manager, marker=0, **_):
    """Train; the axes `beta`, `momentum`, `gamma` and `decay` are read by some runs."""
    names = ["lr", "name"]
    later = ("gamma", "decay")
    with manager.run(run):
        if run.lr < 0:
            build(run), [getattr(run, name) for name in later]
        for _ in manager.epochs(1):
            manager.track_loss(sum(getattr(run, name) for name in names[:1]), 1)
        getattr(run, "batch_size", 64)


@pytest.mark.slow
def test_axes_that_the_code_does_not_have_are_named_and_those_that_it_may_read_are_not():
    assert (
        unread_axes(["momentum", "beta", "gamma", "decay", "marker", "seed"], train, repeats=["seed", "marker"])
        == ""
    )
    assert unread_axes(["bacth_size", "momentum"], partial(train, marker=1), number=7) == (
        "run 7 never read the axis 'bacth_size' (did you mean 'batch_size'?): its values change nothing; "
        "read run.bacth_size, or leave it out"
    )
    assert unread_axes(["bacth_size", "opt.z"], train) == (
        "run 1 never read the axes 'bacth_size' (did you mean 'batch_size'?), 'opt.z': their values change "
        "nothing; read them, or leave them out"
    )


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", pytest.param("lanes", marks=pytest.mark.slow)])
def test_a_grid_names_them_once_after_its_first_run(tmp_path, caplog, executor):
    grid = {"lr": [1, 2], "bacth_size": [8], "seed": [0], "name": ["sgd"], "device": ["cpu"]}
    options = {"executor": executor, "tensorboard": False, "display": False, "repeats": "seed"}

    with caplog.at_level("WARNING", "runmanager"):
        outcome = run_grid(grid, train, experiment="e", root=tmp_path, **options)

    assert outcome.exit_code == 0
    assert [record.message for record in caplog.records if "never read" in record.message] == [
        (
            "! run 1 never read the axis 'bacth_size' (did you mean 'batch_size'?): its values change nothing; "
            "read run.bacth_size, or leave it out"
        )
    ]


@pytest.mark.slow
def test_a_module_may_have_any_variable(tmp_path, monkeypatch):
    (tmp_path / "codes.py").write_text("__code__ = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "codes", importlib.import_module("codes"))

    assert without_named(("width", "nowhere_named"), train_of_nothing) == ("nowhere_named",)


def train_of_nothing(run, manager):
    """Do nothing with run.width but name it."""
    return run.width


@pytest.mark.slow
def test_values_of_a_configuration_that_are_the_same_in_all_runs_are_no_axes(tmp_path, caplog):
    def train(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track_loss(1.0, 1)

    with caplog.at_level("WARNING", "runmanager"):
        run_grid(
            expand({"widht": 1, "heigth": 2}, {"widht": [1, 2]}), train, experiment="e", root=tmp_path,
            executor="inline", tensorboard=False, display=False,
        )  # fmt: skip

    (line,) = [record.message for record in caplog.records if "never read" in record.message]
    assert line.startswith("! run 1 never read the axis 'widht': its values change nothing")


SCRIPT = """
import sys
from runmanager import run_grid


class Trainer:
    def train(self, run, manager):
        self.build(run)
        with manager.run(run):
            manager.summary(ended=1.0)

    def build(self, run):
        if run.model == "mlp":
            self.units = run.width
        else:
            from layers import make
            make(run)


if __name__ == "__main__":
    grid = {"model": ["cnn", "mlp"], "width": [8], "kernel": [3], "dropout": [0.1], "heigth": [1]}
    run_grid(grid, Trainer().train, experiment="e", executor=sys.argv[1], tensorboard=False)
"""
LAYERS = """
def make(run):
    if run.model == "rnn":
        return run.kernel, [getattr(run, name) for name in ("dropout",)]
"""


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", pytest.param("lanes", marks=pytest.mark.slow)])
def test_what_methods_and_modules_imported_later_may_read_is_not_named(warm, tmp_path, executor):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "layers.py").write_text(LAYERS)

    warm.begin(tmp_path / "script.py", executor)

    assert warm.wait() == 0
    (line,) = [line for line in (tmp_path / "script.out").read_text().splitlines() if "never read" in line]
    assert line.startswith("! run 1 never read the axis 'heigth':")


RUNS = RunBuilder.get_runs({"lr": [0.1], "dropot": [0.5], "opt.decay": [0.0]})


def reads_dropout(run, manager, marker=0):
    return marker * run.dropout


def reads_in_its_block(run, manager):
    with manager.run(run):
        for _ in manager.epochs(run.num_epochs):
            manager.show(run.unknown)


def reads_by_another(run, manager):
    return [layer or run.unknown for layer in make_layers(3, run)]


def make_layers(number, config):
    return number, config.dropout


def reads_in_a_call(run, manager):
    manager.show(f"{run.dropout}", end="" if run.wd else run.unknown)


class Method:
    def reads(self, this, manager):
        return this.dropout or this.unknown


@pytest.mark.parametrize(
    ("train", "problems"),
    [
        (reads_dropout, ["'dropout'; did you mean 'dropot'?"]),
        (partial(reads_dropout, marker=1), ["'dropout'; did you mean 'dropot'?"]),
        (reads_in_its_block, ["'num_epochs'; it has: lr, dropot, opt"]),
        (reads_by_another, ["'dropout'; did you mean 'dropot'?"]),
        (reads_in_a_call, ["'dropout'; did you mean 'dropot'?", "'wd'; it has: lr, dropot, opt"]),
        (Method().reads, ["'dropout'; did you mean 'dropot'?"]),
    ],
)
def test_names_that_train_surely_reads_and_no_run_has_are_problems(train, problems):
    said = missing_axes(train, RUNS)

    beginning = "run has no hyperparameter "
    assert [problem.partition(" (in ")[0] for problem in said] == [beginning + problem for problem in problems]


def test_the_problem_is_what_the_run_would_fail_with(tmp_path):
    options: dict[str, Any] = {"experiment": "e", "root": tmp_path, "executor": "inline", "display": False}

    for further in ({}, {"plan_only": True}, {"check": True}):
        with pytest.raises(GridError) as refused:
            run_grid({"dropot": [0.5]}, reads_dropout, **{**options, **further})
        line = reads_dropout.__code__.co_firstlineno + 1
        place = f"tests/session/test_unread_axes.py:{line}"
        assert refused.value.problems == [
            f"run has no hyperparameter 'dropout'; did you mean 'dropot'? (in {place})"
        ]
    assert not (tmp_path / "e").exists()


def reads_if(run, manager):
    if run.lr:
        return run.dropout
    return run.dropout


def reads_in_expressions(run, manager):
    manager.show(run.dropout if run.lr else 0, run.lr and run.dropout, 3 < run.lr < run.dropout)
    manager.show([run.dropout for _ in range(3)], lambda: run.dropout)
    assert run.dropout


def reads_in_blocks(run, manager):
    with suppress(AttributeError):
        manager.show(run.dropout)
    try:
        manager.show(run.dropout)
    except AttributeError:
        manager.show(0)
    for _ in range(run.lr):
        manager.show(run.dropout)
    while run.lr:
        manager.show(run.dropout)

    def inner():
        return run.dropout


def reads_after_an_end(run, manager):
    if run.lr:
        raise ValueError
    manager.show(run.dropout)


def reads_what_it_tests(run, manager):
    if not hasattr(run, "dropout"):
        manager.stop()
    manager.show(run.dropout)


def reads_another_run(run, manager):
    run = manager.defaults(run)
    manager.show(run.dropout)


def reads_what_every_run_has(run, manager):
    manager.show(run._asdict(), run.count(1), run.opt.decay, run._fields, run.__doc__, run.opt.unknown)
    run.epochs_seen = 3


def reads_later(run, manager):
    yield run.dropout


def reads_of_a_local(run, manager):
    make_layers = manager.make
    make_layers(3, run)
    reads_later(run, manager)
    make_layers(*[3, run])


def wrapped(function):
    @functools.wraps(function)
    def call(run, manager):
        with suppress(AttributeError):
            function(run, manager)

    return call


class Callable:
    def __call__(self, run, manager):
        manager.show(run.dropout)


@pytest.mark.parametrize(
    "train",
    [
        reads_if, reads_in_expressions, reads_in_blocks, reads_after_an_end, reads_what_it_tests,
        reads_another_run, reads_what_every_run_has, reads_later, reads_of_a_local, wrapped(reads_dropout),
        Callable(), partial(make_layers, 3), lambda run, _: run.dropout, print,
    ],
)  # fmt: skip
def test_what_might_not_be_read_is_no_problem(train):
    assert missing_axes(train, RUNS) == []


def rebinds_by_a_pattern(run, manager):
    match manager:
        case {**run}:
            pass
    return run.dropout


def test_a_pattern_that_binds_the_name_is_seen():
    assert missing_axes(rebinds_by_a_pattern, RUNS) == []


def test_the_code_that_is_loaded_counts_and_not_a_file_that_was_edited_since(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "edited_later.py"
    path.write_text("def train(run, manager):\n    return run.lr\n")
    module = importlib.import_module("edited_later")
    path.write_text("def train(run, manager):\n    return run.dropout\n")

    assert missing_axes(module.train, RUNS) == []


def test_a_name_that_one_run_has_is_no_problem():
    others = RunBuilder.get_runs({"dropout": [0.5]})
    configured = expand(Config(), {"lr": [1]})

    assert missing_axes(reads_dropout, [*RUNS, *others]) == []
    assert missing_axes(reads_dropout, configured) == []
    assert missing_axes(reads_dropout, []) == []
