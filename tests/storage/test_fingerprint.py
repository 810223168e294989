import threading
import types

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from runmanager.checks import changed as module
from runmanager.checks.changed import fingerprint, note_changes_by_runs
from runmanager.core.loaders import ImageTensors
from tests.storage.comparing import fingerprint_changes

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

    said = changed(load, code + READ, old, new)
    assert said
    assert all(change.startswith(("SETTINGS was ", "SETTINGS.", "source of SETTINGS")) for change in said)


HOLDERS = {
    "called function": ("X = [1]\ndef f():\n    return X\ndef train(r, m):\n    return f()", "X was"),
    "method": ("X = [1]\nclass N:\n    def f(s):\n        return X\ndef train(r, m):\n    N()", "X was"),
    "class attribute": ("class N:\n    x = [1]\ndef train(r, m):\n    N()", "source of N"),
    "default": ("def train(r, m, x=[1]):\n    return x", "source of train"),
    "keyword default": ("def train(r, m, *, x=[1]):\n    return x", "source of train"),
    "closure": (
        "def make(x):\n    def train(r, m):\n        return x\n    return train\ntrain = make([1])",
        "x was",
    ),
    "comprehension": ("X = [1]\ndef train(r, m):\n    return [x for _ in r for x in X]", "X was"),
    "lambda": ("X = [1]\ndef train(r, m):\n    return (lambda: X)()", "X was"),
    "partial": (
        "import functools\ndef f(r, m, x):\n    return x\ntrain = functools.partial(f, x=[1])",
        "train.x was",
    ),
    "argument of a partial": (
        "import functools\ndef f(x, r, m):\n    return x\ntrain = functools.partial(f, {'a': [1]})",
        "train.arguments was",
    ),
    "attribute": (
        "A = types.SimpleNamespace(n=[1], jobs=3)\ndef train(r, m):\n    return A.n", "A.n was"
    ),
    "number in an attribute": (
        "A = argparse.Namespace(n=[1][0], jobs=3)\ndef train(r, m):\n    return A.n", "A.n was"
    ),
    "class of an object": (
        "class S:\n    def __init__(self):\n        self.n = [1][0]\nA = S()\ndef train(r, m):\n    return A.n",
        "A.n was",
    ),
}  # fmt: skip


@pytest.mark.parametrize("holder", HOLDERS)
def test_values_count_wherever_code_reads_them_from(load, holder):
    code, said = HOLDERS[holder]

    assert any(change.startswith(said) for change in changed(load, code, "[1]", "[2]"))


def test_a_value_in_another_module_of_the_users_counts(load):
    code = "import conf\n\ndef train(run, manager):\n    return conf.SETTINGS['lr']\n"
    load("SETTINGS = {'lr': 1}\nOTHER = [1]\n", "conf")
    before = fingerprint(load(code).train)
    load("SETTINGS = {'lr': 1}\nOTHER = [2]\n", "conf")
    same = fingerprint(load(code).train)
    load("SETTINGS = {'lr': 2}\nOTHER = [2]\n", "conf")

    assert fingerprint_changes(before, same) == []
    assert fingerprint_changes(before, fingerprint(load(code).train)) == ["SETTINGS.lr was 1, is 2"]


RECORDS = {
    "append": ("[]", "X.append(1)"),
    "item": ("[1]", "X[len(r)] = 2"),
    "setdefault": ("{}", "X.setdefault(1, []).append(1)"),
}


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_of_what_was_done_does_not_count(load, record):
    initial, statement = RECORDS[record]
    module = load(f"X = {initial}\n\ndef train(r, m):\n    print(X)\n    {statement}\n")
    before = fingerprint(module.train)

    module.train([], None)
    note_changes_by_runs(module.train, before)

    assert repr(module.X) != initial
    assert fingerprint_changes(before, fingerprint(module.train)) == []


@pytest.mark.parametrize(
    ("code", "old", "new"),
    [
        ("from os import environ\nenviron['X'] = '1'\ndef train(r, m):\n    return environ\n", "'1'", "'2'"),
        ("X = [1]\ndef train(r, m):\n    return r\n", "[1]", "[2]"),
        ("def train(r, m):\n    return __file__\n", "r, m", "r,m"),
        ("X = nn.Linear(1, 1)\nnn.init.ones_(X.weight)\ndef train(r, m):\n    return X\n", "ones_", "zeros_"),
        ("A = types.SimpleNamespace(n=2, jobs=1)\ndef train(r, m):\n    return A.n\n", "jobs=1", "jobs=4"),
    ],
    ids=["environment", "not read", "own path", "network", "other attribute"],
)  # fmt: skip
def test_what_does_not_count(load, monkeypatch, code, old, new):
    monkeypatch.setenv("X", "0")
    assert changed(load, code, old, new) == []


@pytest.mark.parametrize(
    "code",
    [
        "X = FRESH\ndef train(r, m):\n    return X\n",
        "Y = FRESH\nX = f'run-{Y}'\ndef train(r, m):\n    return X\n",
        "X = {'lr': 1}\nX['begun'] = FRESH\ndef train(r, m):\n    return X\n",
        "X = types.SimpleNamespace(lr=1)\nX.begun = FRESH\ndef train(r, m):\n    return X\n",
        "def train(r, m, begun=FRESH):\n    return begun\n",
        "class T:\n    begun = FRESH\ndef train(r, m):\n    return T\n",
        "class T:\n    def __init__(s):\n        s.t = FRESH\nX = T()\ndef train(r, m):\n    return X.t\n",
        "def f():\n    x = FRESH\n    def train(r, m):\n        return x\n    return train\ntrain = f()\n",
    ],
)
@pytest.mark.parametrize("fresh", ["time.time()", "str(datetime.datetime.now())", "uuid.uuid4().hex"])
def test_a_value_that_a_statement_takes_from_a_clock_does_not_count(load, code, fresh):
    code = f"import datetime, time, uuid\n{code}"

    one, other = (fingerprint(load(code.replace("FRESH", fresh)).train) for _ in range(2))

    assert fingerprint_changes(one, other) == []
    assert fingerprint_changes(one, fingerprint(load(code.replace("FRESH", "'no clock'")).train)) != []


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("X = float((Path(__file__).parents[1] / 'scale.txt').read_text())", "X"),
        ("C = {'lr': float((Path(__file__).parents[1] / 'scale.txt').read_text())}\nX = C['lr']", "X"),
    ],
    ids=["file", "item"],
)
def test_values_that_come_from_a_file_beside_the_code_count(load, tmp_path, code, name):
    fingerprints = []
    for scale in ("1.0", "2.0"):
        (tmp_path / "scale.txt").write_text(scale)
        fingerprints.append(fingerprint(load(f"{code}\ndef train(r, m):\n    return {name}\n").train))

    assert [str(change).split()[0] for change in fingerprint_changes(*fingerprints)] == [name]


def test_a_clock_hides_no_other_field_of_the_settings(load):
    code = (
        "import time\nX = types.SimpleNamespace(lr=1)\nX.begun = time.time()\ndef train(r, m):\n    return X\n"
    )

    assert changed(load, code, "lr=1", "lr=2")[-1] == "X.lr was 1, is 2"


NAMED = {
    "{'lr': 1, 'begun': time.time()}": {},
    "dict(lr=1, begun=time.time())": {},
    "dict(lr=Path(os.devnull).read_text(), begun=time.time())": {"X": "what read_text() reads"},
    "threading.Lock()": {"X": "lock"},
    "nn.Linear(1, 1)": {"X": "weights"},
    "torch.rand(1)": {"X": "random: give it a seed"},
    "torch.rand(1, generator=torch.Generator())": {},
    "np.random.default_rng(1)": {},
    "time.time()": {},
}


@pytest.mark.parametrize("value", NAMED)
def test_content_that_is_not_compared_is_named(load, value):
    code = f"import os, threading, time\nX = {value}\ndef train(r, m):\n    return X\n"

    assert "1" not in value or changed(load, code, "1", "3")
    assert fingerprint(load(code).train)["named"] == NAMED[value]


def test_a_value_that_holds_itself_has_a_content(load):
    code = "X = [1]\nX.append(X)\ndef train(r, m):\n    return X\n"

    assert changed(load, code, "[1]", "[2]") == ["X was [1, ...], is [2, ...]"]


DATA = torch.arange(6.0)
DATASET = TensorDataset(DATA)


def train_on_data(run, manager):
    return DATA, DATASET


@pytest.mark.parametrize("data", [DATASET, {"train": DATASET, "x": DATA}, [DATASET, DATA]])
def test_what_is_given_as_data_is_compared_as_that(data):
    assert {name.partition(".")[0] for name in fingerprint(train_on_data)["values"]} >= {"DATA", "DATASET"}
    assert {*fingerprint(train_on_data, data)["values"]} == {"train"}


@pytest.mark.parametrize("value", ["torch.zeros(1000)", "list(range(4000))", "{*range(4000)}"])
def test_what_is_too_large_is_named(load, monkeypatch, value):
    monkeypatch.setattr(module.Reached, "most_bytes", 3000)
    monkeypatch.setattr(module.Reached, "most_objects", 3000)
    code = f"X = {value}\nY = [1]\ndef train(r, m):\n    return X, Y\n"

    assert fingerprint(load(code).train)["named"] == {"X": "size"}
    assert changed(load, code, "000", "001")


def test_what_runs_change_in_this_process_is_no_longer_compared(load):
    code = (
        "X = [1]\nY = [1]\ndef note(to, x):\n    to.append(x)\ndef train(r, m):\n    note(X, 2)\n    return Y\n"
    )
    module = load(code)
    before = fingerprint(module.train)

    module.train(None, None)
    assert fingerprint_changes(before, fingerprint(module.train)) == ["X was [1], is [1, 2]"]
    note_changes_by_runs(module.train, before)
    assert fingerprint_changes(before, fingerprint(module.train)) == []
    module.Y.append(2)

    assert fingerprint_changes(before, fingerprint(module.train)) == ["Y was [1], is [1, 2]"]


def factor_one(value):
    return value


def numbers(*shape):
    return torch.arange(float(np.prod(shape))).reshape(shape)


class Folder:
    """What torchvision's data sets look like."""

    def __init__(self, root, length=3):
        self.root, self.length = root, length

    def __len__(self):
        return self.length

    def __repr__(self):
        return f"Folder\n    root: {self.root}"


class Silent:
    """What has no repr of its own."""

    def __len__(self):
        return 2


def one_of(tensor):
    """Make everything that can hold a tensor."""
    labels = torch.zeros(len(tensor))
    return {
        "tensor": tensor,
        "half": tensor.half(),
        "bool": tensor > 2,
        "transposed": tensor.t(),
        "array": tensor.numpy(),
        "TensorDataset": TensorDataset(tensor, labels),
        "ImageTensors": ImageTensors(tensor, labels),
        "Subset": Subset(TensorDataset(tensor), range(3)),
        "DataLoader": DataLoader(TensorDataset(tensor)),
        "tuple": (tensor, labels),
        "many": [tensor] * 20,
        "mapping": {"train": TensorDataset(tensor), "test": labels},
    }


DATA_HOLDERS = list(one_of(numbers(5, 3)))


@pytest.mark.parametrize("holder", DATA_HOLDERS)
def test_data_is_compared_by_its_content(holder):
    other = numbers(5, 3)
    other[2, 1] = -1.0

    hashes = [fingerprint(factor_one, one_of(data)[holder]) for data in (numbers(5, 3), numbers(5, 3), other)]

    assert fingerprint_changes(hashes[0], hashes[1]) == []
    assert fingerprint_changes(hashes[0], hashes[2]) == ["the data"]
    assert len(hashes[0]["data"]["data"]) < 200


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (numbers(2, 3), numbers(3, 2)),
        (numbers(2), numbers(2).int()),
        (torch.tensor([]), torch.zeros(1)),
        (TensorDataset(numbers(3)), TensorDataset(numbers(3), numbers(3))),
        (Subset(TensorDataset(numbers(9)), [1, 2, 3]), Subset(TensorDataset(numbers(9)), [1, 2, 4])),
        (Folder("data"), Folder("other")),
        (Folder("data"), Folder("data", 4)),
        ("fashion-mnist 1.0", "fashion-mnist 1.1"),
    ],
    ids=["shape", "kind", "empty", "more", "chosen", "folder", "length", "text"],
)
def test_other_data_is_told_apart(one, other):
    found = [fingerprint(factor_one, data) for data in (one, one, other)]

    assert fingerprint_changes(found[0], found[1]) == []
    assert fingerprint_changes(found[0], found[2]) == ["the data"]


WRAPPED = """
import functools

def base(x):
    return x

def scaled(f, by):
    @functools.wraps(f)
    def inner(x):
        return by * f(x)
    return inner

"""
MISSED = {
    "none that becomes an object": ("X = None\n", "None", "nn.Dropout(0.5)"),
    "one of two branches": (
        "if FLAG:\n    X = nn.L1Loss()\nelse:\n    X = nn.MSELoss()\n", "if FLAG", "if not FLAG"
    ),
    "settings with another field": ("X = types.SimpleNamespace(a=1)\n", "a=1", "a=1, b=2"),
    "appended": ("X = nn.Sequential()\nX.append(nn.Dropout(0.1))\n", "0.1", "0.2"),
    "loop": ("for X in [nn.Dropout(0.1)]:\n    pass\n", "0.1", "0.2"),
    "slots": (
        "class S:\n    __slots__ = ('n',)\n    def __init__(s, n):\n        s.n = n\nN = 1\nX = S(N)\n",
        "N = 1", "N = 2",
    ),
    "branch of a class": (
        "if FLAG:\n    class X:\n        n = [1][0]\nelse:\n    class X:\n        n = 5\n", "[1]", "[2]"
    ),
    "set on a class": ("class X:\n    n = 1\nX.n = [1][0]\n", "[1]", "[2]"),
    "wrapped": (f"{WRAPPED}X = scaled(base, 2)\n", "base, 2", "base, 3"),
    "lambda in a comprehension": ("X = [lambda x, k=k: k * x for k in (1, 2)]\n", "k * x", "k + x"),
    "hash": ("X = '9e107d9d372bb6826bd81d3542a419d6'\n", "9e", "8e"),
    "method of an enum": (
        "class E(enum.Enum):\n    A = 1\n    def f(self):\n        return 1\nX = E.A\n", "return 1", "return 2"
    ),
    "date by hand": ("X = 'a_20261125'\n", "1125", "1126"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISSED)
def test_changes_that_are_easily_missed_count(load, kind):
    code, old, new = MISSED[kind]

    assert changed(load, f"FLAG = True\n{code}\ndef train(run, manager):\n    return X\n", old, new)


def test_a_class_in_a_function_counts_with_what_its_methods_close_over(load):
    code = (
        "def main(width):\n    class Net:\n        def f(self):\n            return width\n"
        "    def train(run, manager):\n        return Net()\n    return train\ntrain = main(3)\n"
    )

    assert changed(load, code, "main(3)", "main(4)") == ["width was 3, is 4"]


HARD = {
    "relative import": "try:\n    from .conf import X\nexcept ImportError:\n    X = 'x'\n",
    "attributes that raise": "class A(dict):\n    __getattr__ = dict.__getitem__\nX = A(a=1)\n",
    "other attributes that raise": (
        "class A:\n    def __init__(s):\n        s.d = {}\n    def __getattr__(s, n):\n        return s.d[n]\n"
        "X = A()\n"
    ),
    "deep": "X = []\nfor _ in range(3000):\n    X = [X]\n",
    "shared": "X = []\nfor _ in range(40):\n    X = [X, X]\n",
    "large number": "X = 1 << 5000\n",
    "empty table": "import pandas\nX = pandas.DataFrame()\n",
    "function in an enum": "import functools\nclass E(enum.Enum):\n    A = functools.partial(print)\nX = E.A\n",
    "objects in an array": "X = np.array([len, {'a', 'b', 'c'}], dtype=object)\n",
}


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("kind", HARD)
def test_values_that_are_hard_to_compare_end_no_grid_and_are_the_same_again(load, kind):
    code = f"{HARD[kind]}\ndef train(run, manager):\n    return X\n"

    assert fingerprint_changes(fingerprint(load(code).train), fingerprint(load(code).train)) == []


@pytest.mark.parametrize(
    "code",
    [
        "X = {'api_key': 'sk-12345abc'}",
        "PASS = X = 'sk-12345abc'",
        "X = types.SimpleNamespace(password='sk-12345abc')",
        "X = [\"a'b\", 'sk-12345abcdefghijklmnopqrstuvwxyz']",
    ],
)
def test_what_may_be_a_key_is_not_written_in_clear(load, code):
    kinds = fingerprint(load(f"{code}\ndef train(run, manager):\n    return X\n").train)

    assert "12345abc" not in str({name: texts for name, texts in kinds.items() if name != "values"})
    assert "PASS" in code or "12345abc" not in str(kinds)


def test_an_object_that_cannot_be_compared_is_read_once_however_often_it_is_shared():
    part = types.SimpleNamespace(lock=threading.Lock())
    for _ in range(25):
        part = types.SimpleNamespace(a=part, b=part)

    def train(run, manager):
        return part

    assert "lock" in str(fingerprint(train)["named"])
