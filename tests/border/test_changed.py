"""What counts as a change: compared, noticed or named, and never silent; and what is none."""

import importlib.util
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from runmanager import best, load_results, load_run, load_runs, run_grid
from tests.border import reading
from tests.border.experiments import QUIET
from tests.border.screens import command

pytestmark = pytest.mark.usefixtures("own_folder")
HEAD = """
import dataclasses, enum, functools, os, random, threading, time, uuid
from pathlib import Path
import numpy as np
import pandas
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, TensorDataset
from runmanager import best, load_results, load_run, load_runs
import helpers

GRID, DATA = {"lr": [0.1]}, None

class Own(Dataset):
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index]

def step(run, manager, *used):
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(1.0, 1)
"""
HELPERS = """
RATE = 1
def f1(x):
    return RATE
def other(x):
    return "other"
"""
READS = "def train(run, manager):\n    step(run, manager, {})\n"
X = READS.format("X")
FOCAL = "def focal(x):\n    return x + 'v1'\n"
DATA = {  # kind of data= -> its value; "v1" becomes "v2", also in the file
    "own dataset": "Own(torch.arange(5) * int('v1'[1]))",
    "ConcatDataset": "ConcatDataset([TensorDataset(torch.arange(5) * int('v1'[1]))])",
    "loader": "DataLoader(Own(torch.arange(5) * int('v1'[1])))",
    "table": "pandas.DataFrame({'a': [*range(99), 'v1']})",
    "masked array": "np.ma.array([1, 2], mask=[False, 'v1' == 'v' + '2'])",
    "path": "Path('path.txt')",
    "path deep in lists": "{'a': {'b': [[Path('path deep in lists.txt')]]}}",
    "path that an object holds too": "[Own(p := Path('path that an object holds too.txt')), p]",
    "code": "More([1])\nclass More(Own):\n    def f(self):\n        return 'v1'\n",
    "size of random data": "Noisy(len('v1' * int('v1'[1])))",
}  # fmt: skip
NOISY = (
    "class Noisy(Own):\n    def __init__(self, n):\n        self.x = torch.randn(n, 3)\n"
    "        self.y = self.x.sum(1)\ntorch.manual_seed(0)\n"
)
SAID = {  # a module that a run reads -> what is said of it when "v1" becomes "v2"
    "torch.manual_seed(int('v1'[1]))\ndef read():\n    return 1\n": "statements of case0",
    "S = int('v1'[1])\nnp.random.seed(S)\ndef read():\n    return 1\n": "statements of case1",
    "for s in [int('v1'[1])]:\n    torch.manual_seed(s)\ndef read():\n    return 1\n": "statements of case2",
    "def g1():\n    return 'v1'\ndef read():\n    return globals()['g' + '1']\n": "g1 in case3",
}
NAMED = {  # what is said of it at the first start
    "def file():\n    return Path('data.txt').read_text()\nread = file\n": "file (what read_text",
    "def array():\n    return np.fromfile('data.txt', 'u1')\nread = array\n": "array (what fromfile() reads",
    "def mode():\n    return os.environ['PATH']\nread = mode\n": "mode (what environ",
    "A = torch.rand(3)\ndef read():\n    return A\n# v1\n": "A (random: give it a seed)",
    "B = threading.Lock()\ndef read():\n    return B\n# v1\n": "B (lock)",
}
UNSAID = [
    "X = {'lr': 1, 'id': uuid.uuid4().hex}\nX['t'] = time.time()\n# v1\ndef read():\n    return X['lr']\n",
    "X = []\ndef read():\n    X.append(1)\n# v1\n",
    "@torch.compiler.disable\ndef f(x):\n    return x\n# v1\ndef read():\n    return f(1)\n",
    (
        "import argparse\nX = argparse.ArgumentParser().parse_args([])\nX.lr = 1\nX.out = f'{time.time()}'\n"
        "# v1\ndef read():\n    return X.lr, X\n"
    ),
    "class N:\n    pass\nX = N()\nX.n, X.other = 1, 'v1'\ndef read():\n    return 'X', dict(X=X.n)\n",
    f"{NOISY.rpartition('torch')[0]}X = Noisy(10)\n# v1\ndef read():\n    return X\n",
    (
        "class Wrap:\n    def __init__(self, f):\n        functools.update_wrapper(self, f)\n"
        "def f():\n    'v1'\nX = Wrap(f)\ndef read():\n    return X\n"
    ),
    (
        "class N:\n    def __init__(self):\n        self.start = time.time()\n    def __getstate__(self):\n"
        "        return {**vars(self)}\nX = N()\n# v1\ndef read():\n    return X\n"
    ),
]


@pytest.fixture
def load(own_folder, monkeypatch):
    """Write a program of a version beside its helpers and its data, and import it."""
    numbers = itertools.count()

    def import_(code, version, program="program"):
        for name, text in (("helpers", HELPERS.replace("RATE = 1", "RATE = 'v1'")), (program, HEAD + code)):
            path = own_folder / str(next(numbers)) / f"{name}.py"
            path.parent.mkdir()
            path.write_text(text.replace("v1", version))
            Path("data.txt").write_text(version)
            spec: Any = importlib.util.spec_from_file_location(name, path)
            module = importlib.util.module_from_spec(spec)
            monkeypatch.setitem(sys.modules, name, module)
            spec.loader.exec_module(module)
        return module

    return import_


def start(module, experiment="exp", **options):
    options = {"executor": "inline", "tensorboard": False, **options}
    return run_grid(module.GRID, module.train, experiment=experiment, data=module.DATA, **options)


def test_whatever_changes_of_the_data_of_a_grid_counts(load):
    def attempts(num_changed):
        values, classes = [], ""
        for number, (kind, text) in enumerate(DATA.items()):
            version = "v2" if number < num_changed else "v3"  # which load() leaves
            Path(f"{kind}.txt").write_text(version)
            value, _, code = text.replace("v1", version).partition("\n")
            values.append(value)
            classes += code
        start(load(f"{NOISY}{classes}DATA = [{', '.join(values)}]\n{READS.format(1)}", "v1"), display=False)
        return load_runs("runs/exp")["attempts"].item()

    assert [attempts(number) for number in (0, *range(len(DATA) + 1))] == [1, *range(1, len(DATA) + 2)]


def test_what_is_not_compared_is_named_once_and_nothing_is_said_where_nothing_matters(load, capsys):
    """Each run of one grid reads a module of its own."""
    attempts, said = [], []
    for version in ("v1", "v1", "v2"):
        cases = [load(code, version, f"case{n}") for n, code in enumerate([*SAID, *NAMED, *UNSAID])]
        names = [case.__name__ for case in cases]
        reads = ", ".join(f"{name}.read()" for name in names)
        start(load(f"import {', '.join(names)}\n{READS.format(reads)}", version))
        lines = capsys.readouterr().out.splitlines()
        said.append([line for line in lines if line.startswith("!")])
        attempts += load_runs("runs/exp")["attempts"].tolist()

    assert {*attempts} == {1}
    (first,), again, (second,) = said
    assert [text for text in NAMED.values() if text not in first] == []
    assert (first.count(" ("), "(what globals()" in first, again) == (len(NAMED) + 1, True, [])
    assert second.startswith(
        f"! {', '.join(sorted(SAID.values()))} changed, which train does not reach by name"
    )


def test_changes_that_were_noticed_count_if_that_is_said(load):
    code = "torch.manual_seed(int('v1'[1]))\n" + READS.format(1)
    start(load(code, "v1"))

    start(load(code, "v2"), changed="rerun")

    assert load_runs("runs/exp")["attempts"].tolist() == [2]
    start(load(code, "v2"), changed="rerun")
    assert load_runs("runs/exp")["attempts"].tolist() == [2]


def test_a_value_counts_for_its_runs_alone(load):
    grid = f"{FOCAL}def dice(x):\n    return x\nGRID = {{'loss': [focal, dice]}}\n" + READS.format("run.loss")
    start(load(grid, "v1"))

    start(load(grid, "v2"))

    assert load_runs("runs/exp")["attempts"].tolist() == [2, 1]


WRITES = "CFG = {'scale': 1, 'cache': None}\ndef train(run, manager):\n"
WRITES += "    CFG['cache'] = [1]\n    COUNTS.append(1)\n    step(run, manager, CFG)\nCOUNTS = []\n"


@pytest.mark.parametrize(
    ("statement", "attempts"),
    [("pass", 1), ("CFG['scale'] = 2", 2), ("CFG['cache'] = [2]", 2), ("COUNTS.append(2)", 2)],
)
def test_what_a_run_leaves_in_a_global_is_its_doing_and_any_other_change_counts(load, statement, attempts):
    module = load(WRITES, "v1")
    start(module)
    start(module)
    assert load_runs("runs/exp")["attempts"].tolist() == [1]
    exec(statement, vars(module))  # noqa: S102 - the next cell of a notebook

    start(module)

    assert load_runs("runs/exp")["attempts"].tolist() == [attempts]


def test_what_a_run_leaves_where_nothing_was_does_not_count(load):
    writes = "CFG = {}\ndef train(run, manager):\n    CFG['time'] = time.time()\n    step(run, manager, CFG)\n"
    for first in (0.1, 0.3):  # a notebook, and the same one opened again
        module = load(writes, "v1")
        for lr in (first, 0.2):
            module.GRID = {"lr": [lr]}
            start(module)

    assert load_runs("runs/exp")["attempts"].tolist() == [1, 1, 1]


def test_what_was_given_as_data_once_counts_in_a_grid_without_data(load):
    module = load("X = DATA = [1]\n" + X, "v1")
    start(module)
    module.DATA = None
    start(module, "other")
    module.X.append(2)

    start(module, "other")

    assert load_runs("runs/other")["attempts"].tolist() == [2]


def test_what_is_no_longer_given_or_there_is_named(load, capsys):
    module = load("DATA = [1]\n" + READS.format("load_run('runs/a/1').artifacts['a.txt']"), "v1")

    def first(run, manager):
        Path("a.txt").write_text("a")
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.artifact("a.txt")

    run_grid({"lr": [1]}, first, experiment="a", executor="inline", tensorboard=False)
    start(module)
    module.DATA = None
    next(Path("runs/a").glob("*/artifacts/a.txt")).unlink()
    capsys.readouterr()

    start(module)

    said = "! no longer compared: data= (not given now), files of a/001 (gone now); runs are kept"
    assert said in capsys.readouterr().out
    assert load_runs("runs/exp")["attempts"].tolist() == [1]


def test_a_value_that_runs_left_counts_if_the_user_sets_it_after_another_one(load):
    module = load(WRITES, "v1")
    start(module)
    module.CFG["cache"] = None
    start(module)
    assert load_runs("runs/exp")["attempts"].tolist() == [1]
    module.CFG["cache"] = [1]

    start(module)

    assert load_runs("runs/exp")["attempts"].tolist() == [2]


CHOICES = [
    "load_run(best(load_runs('runs/a'), 'min:value').iloc[0]).number", "load_results('runs/a')['value'].min()",
    "load_run('runs/a/1').summary['best']", "len(load_runs('runs'))",
]  # fmt: skip


def test_a_choice_among_other_runs_counts(load):
    def first(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(value=run.lr * scale)
            manager.summary(best=run.lr * scale)

    def attempts():
        start(module, "b", display=False)
        return load_runs("runs/b")["attempts"].tolist()

    functions = "".join(f"def f{number}():\n    return {code}\n" for number, code in enumerate(CHOICES))
    grid = f"GRID = {{'choice': [{', '.join(f'f{number}' for number in range(4))}]}}\n"
    scale, module = 1.0, load(functions + grid + READS.format("run.choice()"), "v1")
    run_grid({"lr": [0.2]}, first, experiment="a", **QUIET)
    assert attempts() == attempts() == [1] * 4

    scale = 0.5
    run_grid({"lr": [0.2, 0.1]}, first, experiment="a", **QUIET)

    assert attempts() == [2] * 4
    assert attempts() == [2] * 4


HOURS = """
import os, sys, time
from pathlib import Path

real, ahead = time.perf_counter, [0.0]
for name, module in list(sys.modules.items()):
    if name.startswith("runmanager.") and getattr(module, "perf_counter", None) is real:
        module.perf_counter = lambda: real() + ahead[0]

import torch
from runmanager import OptunaSearch, run_grid

network = torch.nn.Linear(1, 1)

def score(run):
    return run.lr * 1

def train(run, manager):
    net = torch.nn.Linear(1, 1)
    with manager.run(run, net):
        for epoch in manager.epochs(2, checkpoint={"network": net}):
            ahead[0] += MINUTES * 30
            manager.track(score=score(run))
            if Path("stop").exists() and run.lr == 2 and epoch == 2:
                os._exit(9)
            if Path("fail").exists() and run.lr == 3:
                raise ValueError

MINUTES = 20
if __name__ == "__main__":
    for stream in (1, 2):
        os.dup2(os.open("said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    options = eval(f"dict({sys.argv[1]})")
    grid = options.pop("grid", {"lr": [1, 2]})
    options |= dict(executor='inline', goal='max:score', tensorboard=False)
    outcome = run_grid(grid, train, experiment="exp", **options)
    sys.exit(outcome.exit_code)
"""


@pytest.fixture
def begin(warm, own_folder):
    """Execute the program, with parts of its text replaced, in a process of its own; return code and output."""
    program = own_folder / "program.py"

    def begin_(edits=(), options=""):
        text = HOURS
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        program.write_text(text)
        warm.begin(program, options)
        return warm.wait(), Path("said.txt").read_text()

    return begin_


SCORE = [("run.lr * 1", "run.lr * 5")]
TABLE = ["status", "attempts", "mixed"]


def table():
    return load_runs("runs/exp")[TABLE].to_numpy().tolist()


def scores():
    return load_results("runs/exp")["score"].tolist()


def test_changed_runs_of_less_than_ten_minutes_are_executed_again(begin):
    short = [("MINUTES = 20", "MINUTES = 4.9")]
    begin(short)

    code, said = begin([*short, *SCORE])

    assert (code, table()) == (0, [["completed", 2, False]] * 2)
    assert "2 runs changed and will be executed again: source of score; changed='keep' keeps them" in said


def test_changed_runs_of_ten_minutes_wait_marked_until_the_user_has_chosen(begin):
    begin()

    code, said = begin(SCORE, "grid={'lr': [1, 2, 0.1]}")

    assert code == 1
    line = next(line for line in said.splitlines() if "wait" in line)
    for text in ("! 2 runs", "40 min", "source of score", "changed='rerun'", "changed='keep'"):
        assert text in line
    lines = [line.strip() for line in said.splitlines()]
    first = lines.index("score:")
    assert lines[first + 1 : first + 3] == ["-    return run.lr * 1", "+    return run.lr * 5"]
    assert any(line.startswith("! changed: 2 ") for line in lines)  # in the panel
    assert table() == [["changed", 1, False]] * 2 + [["completed", 1, False]]
    assert scores() == [1, 1, 2, 2, 0.5, 0.5]
    assert best(load_runs("runs/exp"), "max:score")["lr"].iloc[0] == 0.1  # 1 and 2 have scores of other code
    assert load_run("runs/exp/2").status == "changed"
    results = json.loads(Path("runs/exp/results.json").read_text())
    assert [row["lr"] for row in results] == [1, 1, 2, 2, 0.1, 0.1]
    assert begin()[0] == 0  # the change is undone
    assert table()[:2] == [["completed", 1, False]] * 2
    assert begin(SCORE)[0] == 1  # asked again
    assert begin(SCORE, "only=2")[0] == 0
    assert table()[:2] == [["changed", 1, False], ["completed", 2, False]]
    rows = json.loads(command("diff", "runs/exp/1", "runs/exp/2", "--json").out)
    lines = [[*row.values()][1:4] for row in rows if row["what"] == "line"]
    assert lines == [["score", "    return run.lr * 1", ""], ["score", "", "    return run.lr * 5"]]
    assert len(list(Path("runs/exp").glob("source-*.py.gz"))) == 2
    sources = [command("show", f"runs/exp/{number}", "--code").out for number in (1, 2)]
    assert "def score(run):\n    return run.lr * 1\n" in sources[0]
    assert sources[1] == sources[0].replace("* 1", "* 5")


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize(
    ("value", "runs", "values"),
    [
        ("keep", [["completed", 1, False], ["completed", 2, True]], [1, 1, 2, 10]),
        ("rerun", [["completed", 2, False]] * 2, [5, 5, 10, 10]),
    ],
)
def test_an_interrupted_run_goes_on_with_other_code_only_if_that_is_said(begin, value, runs, values):
    Path("stop").touch()
    assert begin()[0] == 9
    Path("stop").unlink()

    assert begin(SCORE)[0] == 1

    assert table() == [["changed", 1, False]] * 2
    assert scores() == [1, 1, 2]
    assert begin(SCORE, f"changed={value!r}")[0] == 0
    assert (table(), scores()) == (runs, values)
    second = [reading.lines(path) for path in Path("runs/exp").glob("*/attempt-2.jsonl")]
    assert [line["cold"] for lines in second for line in lines if "cold" in line] == [True]  # of a process
    assert begin(SCORE, f"changed={value!r}")[0] == 0
    assert (table(), scores()) == (runs, values)


def test_epochs_of_other_code_are_not_continued_after_an_attempt_that_failed_without_one(begin):
    loop = "        for epoch in manager.epochs("
    fails = f"        if Path('fail').exists() and run.lr == 2:\n            raise ValueError\n{loop}"
    short = [("MINUTES = 20", "MINUTES = 1"), (loop, fails)]
    Path("stop").touch()
    assert begin(short)[0] == 9
    Path("stop").rename("fail")

    for _ in range(2):
        assert begin([*short, *SCORE])[0] == 1
        assert (table()[1], scores()) == (["failed", 2, False], [5.0, 5.0, 2.0])
    Path("fail").unlink()

    assert begin([*short, *SCORE], "retry_failed=True")[0] == 0
    assert (table()[1], scores()) == (["completed", 3, False], [5.0, 5.0, 10.0, 10.0])


def test_the_code_of_a_library_in_a_folder_of_its_own_does_not_count(begin):
    library = Path("libs/scaling.py")  # as `pip install --target libs` leaves it
    Path("libs/scaling-1.0.dist-info").mkdir(parents=True)
    edits = [
        ("def score(run):\n    return run.lr * 1", "import scaling\nscore = scaling.score"),
        ("\nnetwork =", "\nimport sys\nsys.path.append('libs')\nnetwork ="),
    ]
    for factor in (1, 2):
        library.write_text(f"def score(run):\n    return run.lr * {factor}\n")
        code, said = begin(edits)

    assert (code, scores()) == (0, [1.0, 1.0, 2.0, 2.0])
    assert "changed" not in said


def test_a_run_without_a_result_is_executed_all_the_same(begin):
    Path("fail").touch()
    begin((), "grid={'lr': [1, 3]}")
    Path("fail").unlink()

    code, said = begin(SCORE, "grid={'lr': [1, 3]}")

    assert (code, table()) == (1, [["changed", 1, False], ["completed", 2, False]])
    assert "1 run changed and will be executed again" in said
    assert "1 run changed and will wait" in said


def test_the_next_choice_waits_for_the_runs_that_it_depends_on(begin):
    options = "search=OptunaSearch(n=3, seed=0), grid={'lr': [1, 2, 4]}"
    Path("stop").touch()
    begin((), options)
    Path("stop").unlink()
    before = table()

    assert begin(SCORE, options)[0] == 1
    assert [attempts for _, attempts, _ in table()] == [attempts for _, attempts, _ in before]
    assert begin(SCORE, f"{options}, changed='rerun'")[0] == 0
    assert {status for status, *_ in table()} == {"completed"}


def test_a_plan_asks_and_marks_nothing_and_a_source_that_is_lost_or_damaged_decides_nothing(begin):
    begin()

    code, said = begin(SCORE, "plan_only=True")

    assert code == 0
    assert "2 runs changed and will wait" in said
    assert table() == [["completed", 1, False]] * 2
    for path in Path("runs/exp").glob("source-*.py.gz"):
        path.write_bytes(b"x")
    code, said = begin(SCORE)
    assert (code, table()) == (1, [["changed", 1, False]] * 2)
    assert "2 runs changed and will wait" in said
    assert "! Results of 2 runs wait, as the code changed" in said
    assert "No run has completed" not in said
    assert command("show", "runs/exp/1", "--code").out.strip() == ""
    code, said = begin(SCORE, "display=False")
    assert (code, said.count("\n")) == (1, 1)
    assert "2 changed; changed='rerun'" in said
