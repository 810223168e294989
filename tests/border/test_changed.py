"""What counts as a change: compared, noticed or named, and never silent; and what is none."""

import importlib.util
import sys
from pathlib import Path

import pytest

from runmanager import load_runs, run_grid

pytestmark = pytest.mark.usefixtures("own_folder")
HEAD = """
import dataclasses, enum, functools, random, threading, time, uuid
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
AGAIN = {  # program; "v1" becomes "v2"
    "S1 function": f"{FOCAL}GRID = {{'loss': [focal]}}\n" + READS.format("run.loss"),
    "S1 class": "class Net:\n    x = 'v1'\nGRID = {'model': [Net]}\n" + READS.format("run.model"),
    "S1 value": "V = 'v1'\ndef f(x):\n    return V\nGRID = {'f': [f]}\n" + READS.format("run.f"),
    "S1 list": "class Net:\n    x = 'v1'\nGRID = {'layers': [[Net, Net]]}\n" + READS.format("run.layers"),
    "S2 own dataset": "X = DATA = Own(torch.arange(5) * int('v1'[1]))\n" + X,
    "S2 ConcatDataset": "X = DATA = ConcatDataset([TensorDataset(torch.arange(5) * int('v1'[1]))])\n" + X,
    "S2 loader": "X = DATA = DataLoader(Own(torch.arange(5) * int('v1'[1])))\n" + X,
    "S2 table": "X = DATA = pandas.DataFrame({'a': [*range(99), 'v1']})\n" + X,
    "S2 path": "X = DATA = Path('data.txt')\n" + X,
    "S2 code": "class More(Own):\n    def f(self):\n        return 'v1'\nX = DATA = More([1])\n" + X,
    "S3 partial": "train = functools.partial(lambda r, m, act: step(r, m, act), act='v1')\n",
    "S3 path": "X = Path('v1')\n" + X,
    "S3 partial in a dict": "X = {'act': functools.partial(print, end='v1')}\n" + X,
    "S7 singledispatch": "@functools.singledispatch\ndef f(x):\n    return 0\n@f.register\ndef _(x: int):\n"
    "    return 'v1'\n" + READS.format("f(2)"),
    "S7 getattr": READS.format("getattr(helpers, 'f' + '1')"),
    "S7 attribute of a function": "def f(x):\n    return f.alpha\nf.alpha = 'v1'\n" + READS.format("f(1)"),
    "S7 file": "class Words:\n    def __init__(self, path):\n        self.words = Path(path).read_text()\n"
    "X = Words('data.txt')\n" + X,
    "S7 seed of data": "torch.manual_seed(int('v1'[1]))\nX = torch.randn(3)\n" + X,
    "trainer": "class T:\n    def __init__(self, w):\n        self.w = w\n    def fit(self, r, m):\n"
    "        step(r, m, self.w)\ntrain = T('v1').fit\n",
    "lock beside a value": "class T:\n    def __init__(self):\n        self.lock, self.n = "
    "threading.Lock(), 'v1'\nX = T()\n" + X,
}  # fmt: skip
SAID = {  # nothing is executed again, and the line has this text
    "S7 module-level seed": ("torch.manual_seed(int('v1'[1]))\n" + READS.format(1), "statements of program"),
    "S7 seed by a name": ("S = int('v1'[1])\nnp.random.seed(S)\n" + READS.format(1), "statements of program"),
    "S7 globals": ("def g1():\n    return 'v1'\n" + READS.format("globals()['g' + '1']"), "g1 in program"),
    "S7 file": (
        "def train(run, manager):\n    step(run, manager, Path('data.txt').read_text())\n",
        "train (what read_text",
    ),
    "random": ("X = torch.rand(3)\n" + X + "# v1\n", "X (random: give it a seed)"),
    "lock": ("X = threading.Lock()\n" + X + "# v1\n", "X (lock)"),
}
NONE = {
    "comment": "# v1\n" + READS.format(1),
    "clock": "X = {'lr': 1, 'id': uuid.uuid4().hex}\nX['t'] = time.time()\n# v1\n" + READS.format("X['lr']"),
    "value that train does not read": "TITLE = 'v1'\n" + READS.format(1),
    "other value of an axis": f"{FOCAL}def dice(x):\n    return x\nGRID = {{'loss': [dice]}}\n"
    + READS.format("run.loss"),
    "list that train fills": "X = []\ndef train(r, m):\n    X.append(1)\n    step(r, m, X)\n# v1\n",
    "annotation": "def train(run, manager: 'v1'):\n    step(run, manager)\n",
}


@pytest.fixture
def load(own_folder, monkeypatch):
    """Write a program of a version beside its helpers and its data, and import it."""
    kept = []

    def import_(code, version):
        for name, text in (("helpers", HELPERS.replace("RATE = 1", "RATE = 'v1'")), ("program", HEAD + code)):
            path = own_folder / str(len(kept)) / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.replace("v1", version))
            Path("data.txt").write_text(version)
            spec = importlib.util.spec_from_file_location(name, path)
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
        options = {"executor": "inline", "tensorboard": False, "display": False}
        run_grid({"lr": grid}, train, experiment=experiment, **options)
        return load_runs(f"runs/{experiment}")["attempts"].tolist()

    scale, train = 1, load(READS.format(CHOICES[choice]), "v1").train
    rows([0.2], "a", first)
    assert rows([0.1], "b", train) == rows([0.1], "b", train) == [1]

    scale = 0.5
    rows([0.2, 0.1], "a", first)

    assert rows([0.1], "b", train) == [2]
    assert rows([0.1], "b", train) == [2]
