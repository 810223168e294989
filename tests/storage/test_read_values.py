import argparse
import dataclasses
import types
from collections import OrderedDict, deque

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from runmanager.storage import read_values
from runmanager.storage.fingerprint import fingerprint, fingerprint_changes, note_changes_by_runs

HEAD = """
import argparse
import dataclasses
import enum
import types
from collections import namedtuple, OrderedDict
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

"""


@pytest.fixture
def load(load):
    """Import a text as a module of the user's, below what all of them import."""
    return lambda code, name="experiment": load(HEAD + code, name)


def changed(load, code, old, new):
    """Take the fingerprint before and after a change of the text, and say what differs."""
    assert old in code
    before = fingerprint(load(code).train)
    again = fingerprint(load(code).train)
    assert fingerprint_changes(before, again) == []
    return fingerprint_changes(before, fingerprint(load(code.replace(old, new)).train))


READ = "\ndef train(run, manager):\n    return SETTINGS\n"
KINDS = {
    "dict": ("SETTINGS = {'epochs': 2}", "2", "4"),
    "key": ("SETTINGS = {'epochs': 2}", "epochs", "rounds"),
    "order of a dict": ("SETTINGS = {'a': 1, 'b': 2}", "'a': 1, 'b': 2", "'b': 2, 'a': 1"),
    "nested": ("SETTINGS = {'a': [{'b': (1, [2])}]}", "[2]", "[3]"),
    "list": ("SETTINGS = [16, 32]", "32", "64"),
    "order of a list": ("SETTINGS = [16, 32]", "16, 32", "32, 16"),
    "list to tuple": ("SETTINGS = [[16], 32]", "[16]", "(16,)"),
    "number": ("SETTINGS = [1]", "1", "1.0"),
    "tuple of lists": ("SETTINGS = ([16], 32)", "16", "17"),
    "set": ("SETTINGS = {'a', 'b'}", "'b'", "'c'"),
    "OrderedDict": ("SETTINGS = OrderedDict(a=1)", "a=1", "a=2"),
    "tensor": ("SETTINGS = torch.arange(2000.0)", "2000.0)", "2000.0) * (1 + 1e-6)"),
    "type": ("SETTINGS = torch.zeros(3)", "zeros(3)", "zeros(3).double()"),
    "shape": ("SETTINGS = torch.zeros(6)", "zeros(6)", "zeros(2, 3)"),
    "complex": ("SETTINGS = torch.zeros(3, dtype=torch.cfloat)", "zeros(3", "ones(3"),
    "bfloat16": ("SETTINGS = torch.zeros(3).bfloat16()", "zeros", "ones"),
    "array": ("SETTINGS = np.arange(2000)", "2000)", "2000)[::-1]"),
    "array of texts": ("SETTINGS = np.array(['a', 'b'], dtype=object)", "'b'", "'c'"),
    "scalar of NumPy": ("SETTINGS = np.float32(1)", "(1)", "(2)"),
    "dict of tensors": ("SETTINGS = {'x': torch.zeros(3)}", "zeros", "ones"),
    "TensorDataset": ("SETTINGS = TensorDataset(torch.zeros(3))", "zeros", "ones"),
    "dataclass": (
        "@dataclasses.dataclass\nclass S:\n    epochs: int\n    sizes: list\nSETTINGS = S(2, [1])", "[1]", "[2]"
    ),
    "slots": ("@dataclasses.dataclass(slots=True)\nclass S:\n    epochs: int\nSETTINGS = S(2)", "S(2)", "S(3)"),
    "namedtuple": ("S = namedtuple('S', 'sizes')\nSETTINGS = S([2])", "[2]", "[3]"),
    "enum": ("class S(enum.Enum):\n    A = 1\n    B = 2\nSETTINGS = [S.A]", "S.A", "S.B"),
    "namespace": ("SETTINGS = types.SimpleNamespace(epochs=2)", "=2", "=3"),
    "argparse": ("SETTINGS = argparse.Namespace(epochs=2)", "=2", "=3"),
    "object": ("class S:\n    def __init__(self, n):\n        self.n = n\nSETTINGS = S(2)", "S(2)", "S(3)"),
    "function by name": ("SETTINGS = {'act': torch.relu}", "relu", "tanh"),
    "class by name": ("SETTINGS = {'act': nn.ReLU}", "ReLU", "GELU"),
    "dtype": ("SETTINGS = {'dtype': torch.float32}", "float32", "float16"),
    "bytearray": ("SETTINGS = bytearray(b'a')", "b'a'", "b'b'"),
    "range": ("SETTINGS = [range(3)]", "3", "4"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_train_reads_is_compared_by_content(load, kind):
    code, old, new = KINDS[kind]

    assert changed(load, code + READ, old, new) == ["content of SETTINGS"]


HOLDERS = {
    "called function": ("X = [1]\ndef f():\n    return X\ndef train(r, m):\n    return f()", "content of X"),
    "method": ("X = [1]\nclass N:\n    def f(s):\n        return X\ndef train(r, m):\n    N()", "content of X"),
    "class attribute": ("class N:\n    x = [1]\ndef train(r, m):\n    N()", "content of N.x"),
    "default": ("def train(r, m, x=[1]):\n    return x", "content of x"),
    "keyword default": ("def train(r, m, *, x=[1]):\n    return x", "content of x"),
    "closure": (
        "def make(x):\n    def train(r, m):\n        return x\n    return train\ntrain = make([1])",
        "content of x",
    ),
    "comprehension": ("X = [1]\ndef train(r, m):\n    return [x for _ in r for x in X]", "content of X"),
    "lambda": ("X = [1]\ndef train(r, m):\n    return (lambda: X)()", "content of X"),
    "partial": (
        "import functools\ndef f(r, m, x):\n    return x\ntrain = functools.partial(f, x=[1])",
        "content of x",
    ),
    "argument of a partial": (
        "import functools\ndef f(x, r, m):\n    return x\ntrain = functools.partial(f, {'a': [1]})",
        "content of argument 1",
    ),
    "attribute": (
        "A = types.SimpleNamespace(n=[1], jobs=3)\ndef train(r, m):\n    return A.n", "content of A.n"
    ),
    "number in an attribute": (
        "A = argparse.Namespace(n=[1][0], jobs=3)\ndef train(r, m):\n    return A.n", "content of A.n"
    ),
    "class of an object": (
        "class S:\n    def __init__(self):\n        self.n = [1][0]\nA = S()\ndef train(r, m):\n    return A.n",
        "content of A.n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("holder", HOLDERS)
def test_values_count_wherever_code_reads_them_from(load, holder):
    code, said = HOLDERS[holder]

    assert said in changed(load, code, "[1]", "[2]")


def test_a_value_in_another_module_of_the_users_counts(load):
    code = "import conf\n\ndef train(run, manager):\n    return conf.SETTINGS['lr']\n"
    load("SETTINGS = {'lr': 1}\nOTHER = [1]\n", "conf")
    before = fingerprint(load(code).train)
    load("SETTINGS = {'lr': 1}\nOTHER = [2]\n", "conf")
    same = fingerprint(load(code).train)
    load("SETTINGS = {'lr': 2}\nOTHER = [2]\n", "conf")

    assert fingerprint_changes(before, same) == []
    assert fingerprint_changes(before, fingerprint(load(code).train)) == ["content of SETTINGS"]


RECORDS = {
    "append": "X.append(1)",
    "append to an item": "X[0]['a'].append(1)",
    "item": "X[len(r)] = 1",
    "item of an item": "X[0][1] = 2",
    "added to an item": "X[0] += 1",
    "deleted": "del X[0]",
    "slice": "X[1:] = [1]",
    "another name": "x = X; x.append(1)",
    "loop": "\n    for x in X:\n        x.append(1)",
    "setdefault": "X.setdefault(1, []).append(1)",
    "in a branch": "y = X.append(1) if r else None",
    "in a function inside": "\n    def f():\n        X.append(1)\n    f()",
    "in a try": "\n    try:\n        X.append(1)\n    except ValueError:\n        pass",
}


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_of_what_was_done_does_not_count(load, record):
    code = f"X = [[1]]\n\ndef train(r, m):\n    print(X)\n    {RECORDS[record]}\n"

    assert changed(load, code, "X = [[1]]", "X = [[1], [2]]") == []


@pytest.mark.parametrize(
    ("code", "old", "new"),
    [
        ("X = torch.zeros(3)\ndef train(r, m):\n    X.add_(1)\n", "zeros", "ones"),
        ("X = np.zeros(3)\ndef train(r, m):\n    X.fill(1)\n", "zeros", "ones"),
        ("X = torch.zeros(3)\ndef train(r, m):\n    X[0] = 1\n", "zeros", "ones"),
        ("class N:\n    x = [1]\n    def f(s):\n        s.x.append(2)\ndef train(r, m):\n    N", "[1]", "[2]"),
        ("class N:\n    x = [1]\ndef train(r, m):\n    N.x.append(2)", "[1]", "[2]"),
        ("def train(r, m, cache={1: 2}):\n    cache[r] = 1", "{1: 2}", "{}"),
        ("class T:\n    n = 1\n    def f(s):\n        s.n += 1\nA = T()\nA.n = 5\ndef train(r, m):\n    A.n",
         "A.n = 5", "A.n = 6"),
        ("A = types.SimpleNamespace(n=1)\ndef train(r, m):\n    A.n += 1", "n=1", "n=2"),
    ],
)  # fmt: skip
def test_what_code_changes_otherwise_does_not_count(load, code, old, new):
    assert changed(load, code, old, new) == []


@pytest.mark.parametrize(
    ("code", "old", "new"),
    [
        ("from os import environ\nenviron['X'] = '1'\ndef train(r, m):\n    return environ\n", "'1'", "'2'"),
        ("X = [1]\ndef train(r, m):\n    return r\n", "[1]", "[2]"),
        ("def train(r, m):\n    return __file__\n", "r, m", "r,m"),
        ("X = nn.Linear(1, 1)\nnn.init.ones_(X.weight)\ndef train(r, m):\n    return X\n", "ones_", "zeros_"),
        ("X = torch.zeros(1, requires_grad=True)\ndef train(r, m):\n    return X\n", "zeros", "ones"),
        ("X = Path('here')\ndef train(r, m):\n    return X\n", "here", "there"),
        ("X = object()\ndef train(r, m):\n    return [X]\n", "object", "Exception"),
        ("A = types.SimpleNamespace(n=2, jobs=1)\ndef train(r, m):\n    return A.n\n", "jobs=1", "jobs=4"),
    ],
    ids=["environment", "not read", "own path", "network", "trained", "path", "object", "other attribute"],
)  # fmt: skip
def test_what_does_not_count(load, monkeypatch, code, old, new):
    monkeypatch.setenv("X", "0")
    assert changed(load, code, old, new) == []


@pytest.mark.parametrize(
    "clock",
    [
        "time.time() - LAG",
        "time.perf_counter() - LAG",
        "time.monotonic() - LAG",
        "time.strftime('run-%Y%m%d-%H%M%S', time.localtime(time.time() - LAG))",
        "(datetime.datetime.now() - datetime.timedelta(seconds=LAG)).isoformat()",
        "time.strftime('%Y-%m-%d_%H-%M', time.gmtime(time.time() - LAG))",
    ],
)
@pytest.mark.parametrize(
    "holder",
    [
        "X = {}\ndef train(r, m):\n    return X\n",
        "X = {{'begun': {}}}\ndef train(r, m):\n    return X\n",
        "X = types.SimpleNamespace(begun={}, other=[])\ndef train(r, m):\n    return X\n",
        "def train(r, m, begun={}):\n    return begun\n",
        "class T:\n    begun = {}\ndef train(r, m):\n    return T\n",
        "class T:\n    def __init__(s, t):\n        s.t = t\nX = T({})\ndef train(r, m):\n    return X.t\n",
    ],
)
def test_a_reading_of_a_clock_does_not_count(load, clock, holder):
    code = "import datetime, time\n" + holder

    one, other = (fingerprint(load(code.format(clock.replace("LAG", lag))).train) for lag in ("0", "61"))

    assert fingerprint_changes(one, other) == []
    assert fingerprint_changes(fingerprint(load(code.format("'no clock'")).train), one) != []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1700000000.25", "1700000001.25"),
        ("'run-20200101-120000'", "'run-20200101-120001'"),
        ("'model-2026-a'", "'model-2027-a'"),
        ("int(time.time())", "int(time.time()) + 1"),
    ],
)
def test_another_time_counts(load, old, new):
    code = "import time\nX = [VALUE]\ndef train(r, m):\n    return X\n"

    one, other = (fingerprint(load(code.replace("VALUE", value)).train) for value in (old, new))

    assert fingerprint_changes(one, other) == ["content of X"]


def test_a_value_that_holds_itself_has_a_content(load):
    code = "X = [1]\nX.append(X)\ndef train(r, m):\n    return X\n"

    assert changed(load, code, "[1]", "[2]") == ["content of X"]


def test_values_of_one_name_both_count(load):
    load("X = [1]\ndef first():\n    return X\n", "first")
    load("X = [2]\ndef second():\n    return X\n", "second")
    train = load("import first, second\n\ndef train(r, m):\n    return first.first(), second.second()\n").train

    assert set(fingerprint(train)["values"]) == {"X", "X (2)"}


DATA = torch.arange(6.0)
DATASET = TensorDataset(DATA)


def train_on_data(run, manager):
    return DATA, DATASET


@pytest.mark.parametrize("data", [DATASET, {"train": DATASET, "x": DATA}, [DATASET, DATA]])
def test_what_is_given_as_data_is_compared_as_that(data):
    assert set(fingerprint(train_on_data)["values"]) == {"DATA", "DATASET"}
    assert "DATASET" not in fingerprint(train_on_data, data)["values"]
    assert "DATA" not in fingerprint(train_on_data, data)["values"]


@pytest.mark.parametrize("value", ["torch.zeros(1000)", "list(range(100))", "{1: 'a' * 4000}", "{*range(100)}"])
def test_what_is_too_large_is_named(load, monkeypatch, value):
    monkeypatch.setattr(read_values, "MOST_BYTES", 3000)
    code = f"X = {value}\nY = [1]\ndef train(r, m):\n    return X, Y\n"
    too_large: list[str] = []

    values = fingerprint(load(code).train, None, too_large)["values"]

    assert too_large == ["X"]
    assert set(values) == {"Y"}


def test_a_list_that_code_puts_into_another_name_does_not_count(load):
    code = "X = [1]\n\ndef train(r, m):\n    global X\n    X = [*X, 2]\n"

    assert changed(load, code, "X = [1]", "X = [2]") == []


def equal(one, other):
    return read_values.hash_of_content(one) == read_values.hash_of_content(other)


def test_content_is_told_apart():
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    point = dataclasses.make_dataclass("Point", ["x"])
    different = [
        [], {}, (), set(), [[]], [[], []], [1], ["1"], [True], [None], {1: 2}, {2: 1}, deque(), OrderedDict(),
        np.zeros(2), np.zeros(2, int), torch.zeros(2), torch.zeros(2, 1), frame, frame["a"], frame.iloc[:1],
        frame.rename(columns={"a": "c"}), frame.astype({"a": float}), pd.DataFrame({"a": [[1], [2]]}),
        Subset(TensorDataset(DATA), [1]), Subset(TensorDataset(DATA), [2]), DataLoader(TensorDataset(DATA)),
        point(1), point(2), types.SimpleNamespace(x=1), argparse.Namespace(x=1), nn.Linear(1, 1), ["a", "b"],
        ["ab"], torch.ones(2).to_sparse(), torch.zeros(2, device="meta"),
    ]  # fmt: skip

    hashes = [read_values.hash_of_content(value) for value in different]

    assert len(set(hashes)) == len(different)
    assert equal({1, 2, 3}, {3, 2, 1})
    assert equal(frame, frame.copy())


def test_what_runs_change_in_this_process_is_no_longer_compared(load):
    code = (
        "X = [1]\nY = [1]\ndef note(to, x):\n    to.append(x)\ndef train(r, m):\n    note(X, 2)\n    return Y\n"
    )
    module = load(code)
    before = fingerprint(module.train)

    module.train(None, None)
    assert fingerprint_changes(before, fingerprint(module.train)) == ["content of X"]
    note_changes_by_runs(module.train, before)
    module.train(None, None)
    assert fingerprint_changes(before, fingerprint(module.train)) == []
    module.Y.append(2)

    assert fingerprint_changes(before, fingerprint(module.train)) == ["content of Y"]
