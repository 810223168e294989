import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from runmanager import (
    Decide,
    GridError,
    InlineExecutor,
    Listener,
    OptunaSearch,
    SuccessiveHalving,
    fit,
    main,
    run_grid,
)
from runmanager.errors import Problems
from runmanager.front.options import GridOptions
from runmanager.front.run_grid import DEFAULTS

DOCS = Path(__file__).parents[2] / "docs"


def do_nothing(run, manager):
    pass


def parameters_of(function, *others):
    parameters = inspect.signature(function).parameters
    return {name: one.default for name, one in parameters.items() if name not in others}


def arguments_in(function):
    """Return the names that the section Args of a docstring explains."""
    text = (inspect.getdoc(function) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    return re.findall(r"^    (\w+): ", text, re.MULTILINE)


def options_of(**options):
    return GridOptions(**DEFAULTS | {"experiment": "e"} | options)


def test_run_grid_explains_each_option():
    assert arguments_in(run_grid) == list(inspect.signature(run_grid).parameters)


def test_the_reference_has_a_row_for_each_flag_of_a_script(capsys):
    with pytest.raises(SystemExit):
        main({"lr": [0.1]}, do_nothing, arguments=["--help"])
    text = " ".join(capsys.readouterr().out.partition("execution:")[2].split())
    rows = re.findall(
        r"^\| `(--[\w-]+)` \| (.+?) \|", (DOCS / "training-function.md").read_text(), re.MULTILINE
    )

    flags = [*re.findall(r"(--[\w-]+) .*?(?= --|$)", text)]
    assert [flag for flag, _ in rows] == [each for each in flags if each in dict(rows)]
    assert flags[:3] + [flag for flag, _ in rows] + ["--sample"] == flags
    assert [flag for flag, about in rows if about not in text] == []


@pytest.mark.parametrize(("function", "page"), [(run_grid, "public-api.md"), (fit, "fit.md")])
def test_the_page_of_a_call_lists_each_argument_with_its_default(function, page):
    section = (DOCS / page).read_text().partition("\n## Arguments")[2].partition("\n## ")[0]
    heads = " ".join(re.findall(r"^- (.+?): ", section, re.MULTILINE))
    shown = dict(re.findall(r"`(\w+)(?:=(.+?))?`", heads))

    defaults = {name: str(default) for name, default in parameters_of(function).items()}
    assert shown.keys() == defaults.keys()
    assert [
        name for name, value in shown.items() if value.strip('"') not in ("", "lanes", defaults[name])
    ] == []


def test_all_that_is_wrong_with_options_is_said_at_once():
    wrong: dict[str, Any] = {
        "retries": -1, "on_error": "go", "changed": "never", "max_seconds": 0,
        "report": 3, "tensorboard": 2, "prune": "all", "decide": 1, "search": "grid",
    }  # fmt: skip

    with pytest.raises(GridError) as raised:
        run_grid({"lr": [0.1]}, do_nothing, experiment="e", **wrong)

    assert {problem.partition(" ")[0] for problem in raised.value.problems} == wrong.keys()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"prune": SuccessiveHalving("max:a"), "decide": Decide()}, "decide= compares whole runs"),
        ({"search": OptunaSearch(n=3), "decide": Decide()}, "decide= repeats all of them"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options, expected):
    problems = Problems()

    options_of(**options).check_values(problems)

    assert expected in "".join(problems)


def test_ranks_of_several_machines_are_not_checked(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    problems = Problems()

    options_of(executor="inline", check="resume").check_values(problems)

    assert any("torchrun --nnodes=1" in problem for problem in problems)


def test_an_executor_that_is_named_has_its_own_jobs():
    problems = Problems()
    executor = InlineExecutor()

    assert options_of(executor=executor, jobs=2).make_executor(problems) is executor
    assert problems == [
        "jobs, runs_per_device and timeout belong to the executor object: give them to InlineExecutor()"
    ]


def test_a_run_alone_is_executed_in_this_process_whatever_jobs_say():
    problems = Problems()

    assert isinstance(options_of(only=1, jobs=4).make_executor(problems), InlineExecutor)
    assert problems == []


def test_a_refused_grid_names_problems_of_its_axes_and_of_its_options_together(tmp_path):
    wrong: dict[str, Any] = {"retries": -1, "only": "all", "experiment": "a/b"}

    with pytest.raises(GridError) as raised:
        run_grid({"lr": [0.1, 0.1]}, do_nothing, root=tmp_path, **wrong)

    assert len(raised.value.problems) == 4
    assert not any(tmp_path.iterdir())


def test_listeners_that_are_none_are_refused(tmp_path):
    for given in (Listener(), [print]):
        with pytest.raises(GridError, match="listeners must be a list of objects of a subclass of Listener"):
            run_grid({"lr": [0.1]}, print, experiment="e", root=tmp_path, listeners=given)  # type: ignore[arg-type]
    assert not any(tmp_path.iterdir())


def test_a_grid_without_a_name_is_refused_with_all_problems(tmp_path):
    with pytest.raises(GridError, match="an experiment's name is a folder"):
        run_grid({"lr": [0.1]}, print, experiment=None, root=tmp_path)  # type: ignore[arg-type]
