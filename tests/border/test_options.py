"""What a grid may be given: its options, which are documented, and functions to train with."""

import inspect
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runmanager import (
    Decide,
    GridError,
    LanesExecutor,
    Listener,
    OptunaSearch,
    expand,
    fit,
    load_runs,
    main,
    run_grid,
)
from tests.border.experiments import QUIET

DOCS = Path(__file__).parents[2] / "docs"


def defaults_of(function):
    return {name: one.default for name, one in inspect.signature(function).parameters.items()}


@pytest.mark.parametrize(("function", "page"), [(run_grid, "public-api.md"), (fit, "fit.md")])
def test_the_page_of_a_call_lists_each_argument_with_its_default(function, page):
    section = (DOCS / page).read_text().partition("\n## Arguments")[2].partition("\n## ")[0]
    heads = " ".join(re.findall(r"^- (.+?): ", section, re.MULTILINE))
    shown = dict(re.findall(r"`(\w+)(?:=(.+?))?`", heads))

    defaults = {name: str(default) for name, default in defaults_of(function).items()}
    assert shown.keys() == defaults.keys()
    assert [name for name, text in shown.items() if text.strip('"') not in ("", "lanes", defaults[name])] == []


def test_the_help_of_a_script_has_each_flag_of_the_reference(capsys):
    page = (DOCS / "your-script.md").read_text()
    rows = re.findall(r"^\| `(--[\w-]+)[^`]*` \| (.+?) \|", page, re.MULTILINE)

    with pytest.raises(SystemExit):
        main({"lr": [0.1]}, print, arguments=["--help"])

    text = " ".join(capsys.readouterr().out.split())
    assert len(rows) > 10
    assert [flag for flag, about in rows if flag not in text or about not in text] == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"search": OptunaSearch(n=3), "decide": Decide()}, ["decide= repeats all of them"]),
        ({"listeners": Listener()}, ["listeners must be a list of objects of a subclass of Listener"]),
        ({"listeners": [print]}, ["listeners must be a list"]),
        ({"experiment": None}, ["an experiment's name is a folder"]),
        ({"report": 1.5}, ["report must be True, False or a file to write, got 1.5"]),
        (
            {"retries": -1, "report": 3, "tensorboard": 2, "prune": "all", "decide": 1, "search": "grid",
             "on_error": "ignore", "changed": "ask", "jobs": 0, "timeout": 0, "max_seconds": -1},
            ["retries", "report", "tensorboard", "prune", "decide", "search", "on_error", "changed", "jobs",
             "timeout", "max_seconds"],
        ),
        ({"lr": [0.1, 0.1], "only": "all", "experiment": "../e"}, ["lr", "only", "experiment's name"]),
        ({"executor": "lane", "jobs": 0, "timeout": -1}, ["executor", "jobs", "timeout"]),
        ({"executor": "inline", "jobs": 0, "timeout": -1}, ["got jobs=0 and timeout=-1: use executor='lanes'"]),
        ({"executor": LanesExecutor(), "jobs": 4}, ["LanesExecutor("]),
        (
            {"goal": "kl", "repeats": "sed"},
            ["write goal='max:kl' or goal='min:kl'", "no axis 'sed'; did you mean 'seed'?"],
        ),
        ({"goal": "max:lr"}, ["goal='max:lr', but 'lr' is a hyperparameter or a column"]),
        ({"goal": "max:status"}, ["'status' is a hyperparameter or a column"]),
        ({"repeats": 3}, ["repeats must be the names of axes, as repeats=('seed',), got 3"]),
        ({"check": "resumes"}, ["check must be True, False or 'resume', got 'resumes'"]),
        ({"repeats": ["x9"]}, ["no axis 'x9'; it has: lr, seed"]),
    ],
)  # fmt: skip
def test_options_that_cannot_be_used_are_refused_all_at_once(tmp_path, options, named):
    grid = {"lr": options.pop("lr", [0.1]), "seed": [1, 2]}

    with pytest.raises(GridError) as caught:
        run_grid(grid, print, **{"experiment": "e", "root": tmp_path, **options})

    assert [name for name in named if not any(name in problem for problem in caught.value.problems)] == []
    assert len(caught.value.problems) == len(named)
    assert list(tmp_path.iterdir()) == []


def test_parameters_get_the_values_of_the_run_or_their_defaults(tmp_path):
    def train(run, manager, lr, opt, width=8, *, num_epochs=2):
        with manager.run(run):
            for _ in manager.epochs(num_epochs):
                manager.track_loss(lr * width * opt.beta, 1)

    grid = {"lr": [0.5], "num_epochs": [1, 3], "opt": {"beta": [2.0]}}
    run_grid(grid, train, experiment="e", root=tmp_path, **QUIET)  # type: ignore[arg-type]

    assert load_runs(tmp_path)[["epochs", "loss"]].to_numpy().tolist() == [[1, 8.0], [3, 8.0]]


def needs_width(run, manager, lr, width):
    raise AssertionError


def takes_only_the_run(run):
    raise AssertionError


def takes_values_by_position(run, manager, lr, /):
    raise AssertionError


@pytest.mark.parametrize(
    ("train", "why"),
    [(needs_width, "'width'"), (takes_only_the_run, r"run\(run\): too"), (takes_values_by_position, "'lr'")],
)
def test_a_function_that_cannot_be_called_is_refused_before_anything_starts(tmp_path, train, why):
    with pytest.raises(GridError, match=f"train is called as.*{why}"):
        run_grid({"lr": [0.5]}, train, experiment="e", root=tmp_path, **QUIET)

    assert list(tmp_path.iterdir()) == []


def width_of(config):
    return config.width


def reads(run, manager, *, momentum=0.9, marker=0):
    with manager.run(run):
        return run.lr, getattr(run, "batch_size", 64), ["decay"], momentum, run.opt, width_of(manager)


def fits(run, manager):
    fit(run, manager.network, [], manager, optimizer=run.lr, epochs=1)


def passes_on(run, manager):
    return width_of(run)


def unpacks(run, manager):
    return dict(**run._asdict())


def iterates(run, manager):
    return list(run)


AXES = {"lr": [1], "bacth_size": [1, 2], "momentum": [1, 2], "decay": [1, 2], "width": [1], "other": [1, 2]}
FEW: Any = {"lr": [1], "widht": [1, 2], "seed": [0, 1]}
UNREAD = "train never reads 'bacth_size', 'other': read run.bacth_size, or leave it out"


@pytest.mark.parametrize(
    ("train", "grid", "said"),
    [
        (reads, {**AXES, "opt": {"beta": [1]}}, UNREAD),
        (partial(reads, marker=1), AXES, UNREAD),
        (fits, FEW, "train never reads 'widht': read run.widht, or leave it out"),
        (reads, expand({"lr": 1, "widht": 1, "heigth": 2}, {"widht": [1, 2]}), "train never reads 'widht'"),
        *[(train, AXES, "") for train in (passes_on, unpacks, iterates, print)],
    ],
)
def test_axes_that_train_never_reads_are_named_once(tmp_path, caplog, train, grid, said):
    with caplog.at_level("WARNING", "runmanager"):
        run_grid(grid, train, experiment="e", root=tmp_path, **QUIET)

    found = [line for line in caplog.messages if "never read" in line]
    assert len(found) == bool(said)
    assert all(said in line for line in found)
