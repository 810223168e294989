"""What counts as a change: compared, noticed or named, and never silent; and what is none."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from runmanager import best, load_results, load_run, load_runs, run_grid
from tests.border import reading
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
NOISY = (
    "class Noisy(Own):\n    def __init__(self, n):\n        self.x = torch.randn(n, 3)\n"
    "        self.y = self.x.sum(1)\n"
)
WRAPPED = (
    "class Wrap:\n    def __init__(self, f, n):\n        functools.update_wrapper(self, f)\n"
    "        self.n = n\n"
)
FOCAL = "def focal(x):\n    return x + 'v1'\n"
AGAIN = {  # program; "v1" becomes "v2"
    "S1 function": f"{FOCAL}GRID = {{'loss': [focal]}}\n" + READS.format("run.loss"),
    "S1 list": "class Net:\n    x = 'v1'\nGRID = {'layers': [[Net, Net]]}\n" + READS.format("run.layers"),
    "S2 own dataset": "X = DATA = Own(torch.arange(5) * int('v1'[1]))\n" + X,
    "S2 ConcatDataset": "X = DATA = ConcatDataset([TensorDataset(torch.arange(5) * int('v1'[1]))])\n" + X,
    "S2 loader": "X = DATA = DataLoader(Own(torch.arange(5) * int('v1'[1])))\n" + X,
    "S2 table": "X = DATA = pandas.DataFrame({'a': [*range(99), 'v1']})\n" + X,
    "S2 masked array": "X = DATA = np.ma.array([1, 2], mask=[False, 'v1' == 'v' + '2'])\n" + X,
    "S2 path": "X = DATA = Path('data.txt')\n" + X,
    "S2 path deep in lists": "X = DATA = {'a': {'b': [[Path('data.txt')]]}}\n" + X,
    "S2 path that an object holds too": "P = Path('data.txt')\nX = DATA = [Own(P), P]\n" + X,
    "S2 code": "class More(Own):\n    def f(self):\n        return 'v1'\nX = DATA = More([1])\n" + X,
    "S3 argument by position": "train = functools.partial(lambda act, r, m: step(r, m, act), 'v1')\n",
    "trainer": "class T:\n    def __init__(self, w):\n        self.w = w\n    def fit(self, r, m):\n"
    "        step(r, m, self.w)\ntrain = T('v1').fit\n",
    "wrapper of a library": READS.format("'v1'") + "library = {'__name__': 'library'}\n"
    "exec('def wrap(f):\\n    return lambda run, manager: f(run, manager)', library)\n"
    "train = library['wrap'](train)\n",
    "size of a random dataset": f"{NOISY}X = [DataLoader(Noisy(len('v1' * int('v1'[1]))))]\n{X}",
    "size of random data": f"{NOISY}torch.manual_seed(0)\nX = DATA = Noisy(len('v1' * int('v1'[1])))\n{X}",
    "long data": "X = DATA = [0] * 1_000_001 + ['v1']\n" + READS.format("1"),
}  # fmt: skip
SAID = {  # nothing is executed again, and the line has this text
    "S7 module-level seed": ("torch.manual_seed(int('v1'[1]))\n" + READS.format(1), "statements of program"),
    "S7 seed by a name": ("S = int('v1'[1])\nnp.random.seed(S)\n" + READS.format(1), "statements of program"),
    "S7 globals": ("def g1():\n    return 'v1'\n" + READS.format("globals()['g' + '1']"), "g1 in program"),
    "S7 file": (
        "def train(run, manager):\n    step(run, manager, Path('data.txt').read_text())\n",
        "train (what read_text",
    ),
    "S7 seed in a loop": (
        "for seed in [int('v1'[1])]:\n    torch.manual_seed(seed)\n" + READS.format(1),
        "statements of program",
    ),
    "S7 array in a file": (READS.format("np.fromfile('data.txt', 'u1')"), "train (what fromfile() reads"),
    "S7 environment": (
        "os.environ['MODE'] = 'v1'\n" + READS.format("os.environ['MODE']"),
        "train (what environ",
    ),
    "random": ("X = torch.rand(3)\n" + X + "# v1\n", "X (random: give it a seed)"),
    "lock": ("X = threading.Lock()\n" + X + "# v1\n", "X (lock)"),
}
NONE = {
    "clock": "X = {'lr': 1, 'id': uuid.uuid4().hex}\nX['t'] = time.time()\n# v1\n" + READS.format("X['lr']"),
    "other value of an axis": f"{FOCAL}def dice(x):\n    return x\nGRID = {{'loss': [dice]}}\n"
    + READS.format("run.loss"),
    "list that train fills": "X = []\ndef train(r, m):\n    X.append(1)\n    step(r, m, X)\n# v1\n",
    "address in a compiled function": "@torch.compiler.disable\ndef f(x):\n    return x\n# v1\n"
    + READS.format("f(1)"),
    "clock among arguments": "import argparse\nX = argparse.ArgumentParser().parse_args([])\nX.lr = 1\n"
    "X.out = f'{time.time()}'\n# v1\n" + READS.format("X.lr, X"),
    "name in a text": "class N:\n    pass\nX = N()\nX.n, X.other = 1, 'v1'\n"
    + READS.format("'X', dict(X=X.n)"),
    "computed from random attributes": f"{NOISY}X = Noisy(10)\n# v1\n{X}",
    "docstring of a wrapped function": f"{WRAPPED}def f():\n    'v1'\nX = Wrap(f, 1)\n{X}",
    "clock in a state": "class N:\n    def __init__(self):\n        self.start = time.time()\n"
    "    def __getstate__(self):\n        return {**vars(self)}\nX = N()\n# v1\n" + X,
}


@pytest.fixture
def load(own_folder, monkeypatch):
    """Write a program of a version beside its helpers and its data, and import it."""
    kept: list[Any] = []

    def import_(code, version):
        for name, text in (("helpers", HELPERS.replace("RATE = 1", "RATE = 'v1'")), ("program", HEAD + code)):
            path = own_folder / str(len(kept)) / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.replace("v1", version))
            Path("data.txt").write_text(version)
            spec: Any = importlib.util.spec_from_file_location(name, path)
            module = importlib.util.module_from_spec(spec)
            monkeypatch.setitem(sys.modules, name, module)
            spec.loader.exec_module(module)
        kept.append(module)
        return module

    return import_


def start(module, experiment="exp", **options):
    options = {"executor": "inline", "tensorboard": False, **options}
    return run_grid(module.GRID, module.train, experiment=experiment, data=module.DATA, **options)


def attempts_of(load, capsys, code):
    """Start a program twice, and then its second version; return the attempts and what the starts said."""
    start(load(code, "v1"))
    said = [capsys.readouterr().out]
    attempts = []
    for version in ("v1", "v2"):
        start(load(code, version))
        said.append(capsys.readouterr().out)
        attempts += load_runs("runs/exp")["attempts"].tolist()
    return attempts, ["\n".join(line for line in text.splitlines() if line.startswith("!")) for text in said]


@pytest.mark.parametrize("kind", AGAIN)
def test_what_train_its_values_and_its_data_are_made_of_counts(load, capsys, kind):
    attempts, said = attempts_of(load, capsys, AGAIN[kind])

    assert (attempts, said[1]) == ([1, 2], "")
    assert "changed and is executed again" in said[2]


@pytest.mark.parametrize("kind", SAID)
def test_what_is_not_compared_is_named_once_and_other_changes_are_noticed(load, capsys, kind):
    code, text = SAID[kind]

    attempts, said = attempts_of(load, capsys, code)

    assert attempts == [1, 1]
    assert [text in line for line in said].count(True) == 1
    assert said[1] == ""


@pytest.mark.parametrize("kind", NONE)
def test_nothing_is_said_where_nothing_matters(load, capsys, kind):
    attempts, said = attempts_of(load, capsys, NONE[kind])

    assert attempts == [1, 1]
    assert said[:2] == ["", ""]
    assert kind.startswith("other") or said[2] == ""


def test_changes_that_were_noticed_count_if_that_is_said(load):
    code = SAID["S7 module-level seed"][0]
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


CHOICES = {
    "load_runs": "load_run(best(load_runs('runs/a'), 'min:value').iloc[0]).number",
    "load_results": "load_results('runs/a')['value'].min()",
    "load_run": "load_run('runs/a/1').summary['best']",
    "root": "len(load_runs('runs'))",
}


@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_among_other_runs_counts(load, choice):
    def first(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(value=run.lr * scale)
            manager.summary(best=run.lr * scale)

    def rows(grid, experiment, train):
        options: dict[str, Any] = {"executor": "inline", "tensorboard": False, "display": False}
        run_grid({"lr": grid}, train, experiment=experiment, **options)
        return load_runs(f"runs/{experiment}")["attempts"].tolist()

    scale, train = 1.0, load(READS.format(CHOICES[choice]), "v1").train
    rows([0.2], "a", first)
    assert rows([0.1], "b", train) == rows([0.1], "b", train) == [1]

    scale = 0.5
    rows([0.2, 0.1], "a", first)

    assert rows([0.1], "b", train) == [2]
    assert rows([0.1], "b", train) == [2]


HOURS = """
import os, sys, time
from pathlib import Path

real, ahead = time.perf_counter, [0.0]
for name, module in list(sys.modules.items()):
    if name.startswith("runmanager.") and getattr(module, "perf_counter", None) is real:
        module.perf_counter = lambda: real() + ahead[0]

import torch
from runmanager import Decide, OptunaSearch, run_grid

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
    assert "2 runs changed and are executed again: source of score; changed='keep' keeps them" in said


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
    assert begin(SCORE, "grid={'lr': [1, 2, 0.1]}")[0] == 1  # asked again
    assert begin()[0] == 0  # the change is undone
    assert table()[:2] == [["completed", 1, False]] * 2


def test_a_panel_without_a_run_that_counts_names_those_that_wait(begin):
    begin()

    said = begin(SCORE)[1]

    assert "! Results of 2 runs wait, as the code changed" in said
    assert "No run has completed" not in said


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
    assert "1 run changed and is executed again" in said
    assert "1 run changed and waits" in said


def test_a_run_chosen_by_only_does_not_wait_and_the_others_stay_marked(begin):
    begin()
    begin(SCORE)

    assert begin(SCORE, "only=2")[0] == 0

    assert table() == [["changed", 1, False], ["completed", 2, False]]
    rows = json.loads(command("diff", "runs/exp/1", "runs/exp/2", "--json").out)
    lines = [[*row.values()][1:4] for row in rows if row["what"] == "line"]
    assert lines == [["score", "    return run.lr * 1", ""], ["score", "", "    return run.lr * 5"]]


@pytest.mark.parametrize(
    "options",
    [
        "search=OptunaSearch(n=3, seed=0), grid={'lr': [1, 2, 4]}",
        "decide=Decide(), repeats='seed', grid={'lr': [1, 2], 'seed': [0, 1, 2]}",
    ],
)
def test_the_next_choice_waits_for_the_runs_that_it_depends_on(begin, options):
    Path("stop").touch()
    begin((), options)
    Path("stop").unlink()
    before = table()

    code, said = begin(SCORE, options)

    assert code == 1
    assert "the search goes on after that" in said
    assert [attempts for _, attempts, _ in table()] == [attempts for _, attempts, _ in before]
    assert begin(SCORE, f"{options}, changed='rerun'")[0] == 0
    assert {status for status, *_ in table()} == {"completed"}


def test_a_plan_asks_and_marks_nothing_and_that_all_runs_wait_is_said_without_a_display(begin):
    begin()

    code, said = begin(SCORE, "plan_only=True")

    assert code == 0
    assert "2 runs changed and wait" in said
    assert table() == [["completed", 1, False]] * 2
    code, said = begin(SCORE, "display=False")
    assert (code, said.count("\n")) == (1, 1)
    assert "2 changed; changed='rerun'" in said


def test_the_source_of_each_version_is_kept_and_shown(begin):
    begin()
    begin(SCORE, "grid={'lr': [1, 2, 4]}, changed='keep'")

    assert len(list(Path("runs/exp").glob("source-*.py.gz"))) == 2
    texts = [command("show", f"runs/exp/{number}", "--code").out for number in (1, 2, 3)]
    assert texts[0] == texts[1]
    assert "def score(run):\n    return run.lr * 1\n" in texts[0]
    assert texts[2] == texts[0].replace("* 1", "* 5")
    command("rm", "--yes", "runs/exp")
    assert not Path("runs/exp").exists()


def test_a_source_that_is_lost_or_damaged_decides_nothing(begin):
    begin()
    for path in Path("runs/exp").glob("source-*.py.gz"):
        path.write_bytes(b"x")

    code, said = begin(SCORE)

    assert (code, table()) == (1, [["changed", 1, False]] * 2)
    assert "2 runs changed and wait" in said
    assert command("show", "runs/exp/1", "--code").out.strip() == ""
