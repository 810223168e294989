# ruff: noqa: E501 - tables of programs
"""What is compared of the code of a run and of what it reads: one grid, each run of which reads another thing."""

import itertools
import os
import sys
import types

import pytest

from runmanager import load_runs, run_grid
from tests.border.experiments import QUIET

HEAD = """
import argparse, dataclasses, datetime, enum, functools, os, random, threading, time, types, uuid
from collections import namedtuple, OrderedDict
from functools import cache, partial
from pathlib import Path
import numpy as np
import pandas
import torch
from torch import nn
from torch.nn import ReLU as Act
from torch.utils.data import TensorDataset
import helpers

FLAG = True
_ = torch.rand(1 + int.from_bytes(os.urandom(2), "big"))  # a warm process draws the same numbers at each start
"""
TAIL = "\ndef read():\n    return X\n"
VALUES = {  # of X -> what a part of it becomes
    "{'epochs': 2}": ("2", "4"), "{'rounds': 2}": ("rounds", "epochs"), "{'a': 1, 'b': 2}": ("'a': 1, 'b'", "'b': 1, 'a'"),
    "[{'b': (1, [2])}]": ("[2]", "[3]"), "[16, 32]": ("16, 32", "32, 16"), "[[16], 32]": ("[16]", "(16,)"),
    "[1]": ("1", "1.0"), "([16], 32)": ("16", "17"), "{'a', 'b'}": ("'b'", "'c'"), "OrderedDict(a=1)": ("1", "2"),
    "torch.arange(2000.0)": ("2000.0)", "2000.0) * (1 + 1e-6)"), "torch.zeros(3)": ("(3)", "(3).double()"),
    "torch.zeros(6)": ("6", "2, 3"), "torch.zeros(3, dtype=torch.cfloat)": ("zeros", "ones"),
    "torch.zeros(3).bfloat16()": ("zeros", "ones"), "np.arange(2000)": ("2000)", "2000)[::-1]"),
    "np.array(['a', 'b'], dtype=object)": ("'b'", "'c'"), "np.float32(1)": ("(1)", "(2)"),
    "{'x': torch.zeros(3)}": ("zeros", "ones"), "TensorDataset(torch.zeros(3))": ("zeros", "ones"),
    "types.SimpleNamespace(epochs=2)": ("=2", "=3"), "argparse.Namespace(epochs=2)": ("=2", "=3"),
    "types.SimpleNamespace(a=1)": ("a=1", "a=1, b=2"), "{'act': torch.relu}": ("relu", "tanh"),
    "{'act': nn.ReLU}": ("ReLU", "GELU"), "{'dtype': torch.float32}": ("float32", "float16"),
    "bytearray(b'a')": ("b'a'", "b'b'"), "[range(3)]": ("3", "4"), "None": ("None", "nn.Dropout(0.5)"),
    "'9e107d9d372bb6826bd81d3542a419d6'": ("9e", "8e"), "'a_20261125'": ("1125", "1126"),
    "[lambda x, k=k: k * x for k in (1, 2)]": ("k * x", "k + x"), "nn.Linear(2, 2)": (", 2", ", 3"),
    "[[1], {'lr': 2}]; X.append(X)": ("2", "3"), "dict(lr=1, begun=time.time())": ("1", "2"),
}  # fmt: skip
HOLDERS = {  # a module that reads [1], which becomes [2]
    "called function": "X = [1]\ndef f():\n    return X\ndef read():\n    return f()\n",
    "method": "X = [1]\nclass N:\n    def f(s):\n        return X\ndef read():\n    N()\n",
    "class attribute": "class N:\n    x = [1]\ndef read():\n    N()\n",
    "default": "def read(x=[1]):\n    return x\n",
    "keyword default": "def read(*, x=[1]):\n    return x\n",
    "closure": "def make(x):\n    def read():\n        return x\n    return read\nread = make([1])\n",
    "comprehension": "X = [1]\ndef read():\n    return [x for _ in '1' for x in X]\n",
    "lambda": "X = [1]\ndef read():\n    return (lambda: X)()\n",
    "partial": "def f(x):\n    return x\ng = partial(f, x=[1])\ndef read():\n    return g()\n",
    "argument of a partial": "def f(x):\n    return x\ng = partial(f, {'a': [1]})\ndef read():\n    return g()\n",
    "attribute": "A = types.SimpleNamespace(n=[1], jobs=3)\ndef read():\n    return A.n\n",
    "other fields beside a clock": "X = types.SimpleNamespace(lr=[1])\nX.begun = time.time()\n" + TAIL,
    "data class": "@dataclasses.dataclass\nclass S:\n    sizes: list\nX = S([1])\n" + TAIL,
    "named tuple": "S = namedtuple('S', 'sizes')\nX = S([1])\n" + TAIL,
    "enum": "class S(enum.Enum):\n    A = 1\n    B = 2\nX = list(S)[[1][0] - 1]\n" + TAIL,
    "method of an enum": "class E(enum.Enum):\n    A = 1\n    def f(self):\n        return [1]\nX = E.A\n" + TAIL,
    "object": "class S:\n    def __init__(self, n):\n        self.n = n\nX = S([1])\n" + TAIL,
    "slots": "class S:\n    __slots__ = ('n',)\n    def __init__(s, n):\n        s.n = n\nN = [1]\nX = S(N)\n" + TAIL,
    "branch": "if len('x') in [1]:\n    X = nn.L1Loss()\nelse:\n    X = nn.MSELoss()\n" + TAIL,
    "appended": "X = nn.Sequential()\nX.append(nn.Dropout([1][0] / 10))\n" + TAIL,
    "loop": "for X in [nn.Dropout([1][0] / 10)]:\n    pass\n" + TAIL,
    "added": "X = [nn.ReLU()]\nX += [nn.Dropout([1][0] / 10)]\n" + TAIL,
    "size by a function": "def size():\n    return [1][0]\nX = nn.Linear(size(), 2)\n" + TAIL,
    "class in a branch": "if FLAG:\n    class X:\n        n = [1]\nelse:\n    class X:\n        n = 5\n" + TAIL,
    "set on a class": "class X:\n    n = 1\nX.n = [1]\n" + TAIL,
    "wrapped": "def scaled(f, by):\n    @functools.wraps(f)\n    def inner(x):\n        return by * f(x)\n"
    "    return inner\ndef base(x):\n    return x\nX = scaled(base, [1])\n" + TAIL,
    "closure of a class": "def main(width):\n    class Net:\n        def f(self):\n            return width\n"
    "    def read():\n        return Net()\n    return read\nread = main([1])\n",
    "object in a function": "def main():\n    mean = [1]\n    head = nn.Linear(2, 2, bias=mean > [0])\n"
    "    def read():\n        return head\n    return read\nread = main()\n",
    "cached function": "@cache\ndef f():\n    return [1]\ndef read():\n    return f()\n",
    "decorated function": "def twice(f):\n    @functools.wraps(f)\n    def inner(*a):\n        return f(*a), f(*a)\n"
    "    return inner\n@twice\ndef f():\n    return [1]\ndef read():\n    return f()\n",
    "base class": "class B:\n    def f(self):\n        return [1]\nclass N(B):\n    pass\ndef read():\n    N()\n",
    "property": "class N:\n    @property\n    def f(self):\n        return g()\ndef g():\n    return [1]\n"
    "def read():\n    N()\n",
    "own call": "class T:\n    def __call__(self):\n        return [1]\nX = T()\n" + TAIL,
    "module of one's own": "def read():\n    return helpers.SETTINGS['lr']\n# [1]\n",
    "function of a module of one's own": "from helpers import step as go\ndef read():\n    return go()\n# [1]\n",
    "script of torch": "@torch.jit.script\ndef X(x):\n    return x + [1][0]\n" + TAIL,
    "script of torch in a block": "with torch.no_grad():\n    @torch.jit.script\n    def X(x):\n        return x + [1][0]\n" + TAIL,
    "size of a frozen network": "X = nn.Linear([1][0], 2).requires_grad_(False)\n" + TAIL,
    "file of a frozen network": "X = nn.Linear(1, 1, bias=False).requires_grad_(False)\nF = Path(__file__).with_name('scale.txt')\n"
    "X.load_state_dict({'weight': torch.full((1, 1), float(F.read_text()))})\n# [1]\n" + TAIL,
    "argument beside a clock": "def make(at, n):\n    def read():\n        return at, n\n    return read\nN = [1]\nX = make(time.time(), N)\n" + TAIL,
    "decorated by torch": "@torch.no_grad()\ndef X(x):\n    return [1]\n" + TAIL,
    "compiled": "X = torch.compile(lambda x: x * [1], backend='eager')\n" + TAIL,
    "single dispatch": "@functools.singledispatch\ndef X(x):\n    return [1]\n" + TAIL,
    "file beside the code": "X = Path(__file__).with_name('scale.txt').read_text()\n# [1]\n" + TAIL,
    "item of a file": "# [1]\nC = {'lr': Path(__file__).with_name('scale.txt').read_text()}\nX = C['lr']\n" + TAIL,
    "registered function": "@functools.singledispatch\ndef f(x):\n    return 0\n@f.register\ndef _(x: int):\n    return [1]\n"
    "def read():\n    return f(2)\n",
    "name that is computed": "def read():\n    return getattr(helpers, 'st' + 'ep')\n# [1]\n",
    "attribute of a function": "def f(x):\n    return f.alpha\nf.alpha = [1]\ndef read():\n    return f(1)\n",
    "path": "X = Path('[1]')\n" + TAIL,
    "partial in a mapping": "X = {'act': partial(print, end='[1]')}\n" + TAIL,
    "object that reads a file": "class W:\n    def __init__(self, path):\n        self.words = Path(path).read_text()\n"
    "X = W(Path(__file__).with_name('scale.txt'))\n# [1]\n" + TAIL,
    "seed of data": "torch.manual_seed([1][0])\nX = torch.randn(3)\n" + TAIL,
    "value beside a lock": "class T:\n    def __init__(self):\n        self.lock, self.n = threading.Lock(), [1]\nX = T()\n" + TAIL,
    "argument named as a random number": "class N:\n    def draw(self):\n        n = random.random()\n    def __init__(self, n):\n"
    "        self.n = n\nX = N([1])\n" + TAIL,
    "bound method": "class T:\n    def __init__(s, n):\n        s.n = n\n    def fit(s):\n        return s.n\nread = T([1]).fit\n",
    "wrapper of a library": "library = {'__name__': 'library'}\nexec('def wrap(f):\\n    return lambda: f()', library)\ndef base():\n"
    "    return [1]\nX = library['wrap'](base)\n" + TAIL,
    "classes in a list": "class N:\n    x = [1]\nX = [N, N]\n" + TAIL,
    "size of a random data set": "class Noisy(torch.utils.data.Dataset):\n    def __init__(s, n):\n        s.x = torch.randn(n, 3)\n"
    "    def __len__(s):\n        return len(s.x)\nX = [torch.utils.data.DataLoader(Noisy([1][0]))]\n" + TAIL,
    "item named as a method": "X = {'items': 1, 'n': [1]}\ndef read():\n    return X.items()\n",
    "wrapping object in a list": "class Wrap:\n    def __init__(self, f, n):\n        functools.update_wrapper(self, f)\n        self.n = n\n"
    "def f():\n    pass\nX = [Wrap(f, [1])]\n" + TAIL,
}  # fmt: skip
FRESH = [  # a clock whose value is in it does not count, and what takes its place does
    "X = FRESH\n" + TAIL,
    "Y = FRESH\nX = f'run-{Y}'\n" + TAIL,
    "X = {'lr': 1}\nX['begun'] = FRESH\n" + TAIL,
    "X = types.SimpleNamespace(lr=1)\nX.begun = FRESH\n" + TAIL,
    "def read(begun=FRESH):\n    return begun\n",
    "class X:\n    begun = FRESH\n" + TAIL,
    "class T:\n    def __init__(s):\n        s.t = FRESH\nX = T()\ndef read():\n    return X.t\n",
    "def make(x):\n    def read():\n        return x\n    return read\nX = make(FRESH)\n" + TAIL,
    "def f():\n    x = FRESH\n    def read():\n        return x\n    return read\nread = f()\n",
]
CLOCKS = ["time.time()", "str(datetime.datetime.now())", "uuid.uuid4().hex"]
FUNCTION = '''
def default(x):
    return x
def never(x):
    return x
def read(chosen=default):
    """Read."""
    # a comment
    def step(x):
        return 2 * x
    async def later(*items, key=2, **more):
        return items
    class Net(nn.Module):
        """A network."""
        size = 3
        def forward(self, x):
            return x
    step_of = lambda value: value
    value = 3
    try:
        total = step(value)
    except ValueError:
        total = 0
    return total, Net, later, [step_of("it") for item in range(3)]
'''
CHANGES = [
    ("range(3)", "range(4)"), ("2 * x", "3 * x"), ("size = 3", "size = 4"), ("key=2", "key=3"), ("(nn.Module", "(nn.Identity"),
    ("except ValueError", "except TypeError"), ("async def", "def"), ("**more", "more=3"), ("chosen=default", "chosen=never"),
    ("try:\n        total = step(value)", "total = step(value)\n    try:\n        total"),
    ("def step(x):\n", "def step(x: int):\n        x = int(x)\n"),
]  # fmt: skip
SAME = [
    ("    # a comment\n", ""), ('"""Read."""', '"""Read it\n    very well.\n    """'), ('"""A network."""', ""),
    ("2 * x", "(2\n            *x)  # twice"), ("    value = 3", "    # three\n\n    value = (\n        3\n    )"),
    ("def default", "\n\n\nEPOCHS = 3\n\n\ndef default"), ("def never(x):\n    return x", "def never(x):\n    return 1"),
    ('"it"', "'it'"), ("def step(x):", "def step(x: torch.Tensor | None) -> 'dict[str, int]':"),
    ("(*items, key=2, **more)", "(*items: int, key: int = 2, **more: str) -> tuple[int, ...]"),
    ("def forward(self, x):", "def forward(self, x: torch.Tensor) -> torch.Tensor:"),
    ("            return x\n    step_of", '            """Do nothing."""\n            return x\n    step_of'),
]  # fmt: skip
PASSED_OVER = {  # code, which changes do not count
    "not read": ("X = [1]\ndef read():\n    return 1\n", "[1]", "[2]"),
    "other attribute": ("A = types.SimpleNamespace(n=2, jobs=1)\ndef read():\n    return A.n\n", "jobs=1", "jobs=4"),
    "weights": ("X = nn.Linear(1, 1)\nnn.init.ones_(X.weight)\n" + TAIL, "ones_", "zeros_"),
    "frozen weights without a seed": ("X = nn.Linear(2, 2).requires_grad_(False)\n" + TAIL, "", ""),
    "state without a seed": ("N = nn.Linear(2, 2)\nX = N.state_dict()\n" + TAIL, "", ""),
    "buffer without a seed": ("class N(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
                              "        self.register_buffer('b', torch.randn(3))\nX = N()\n" + TAIL, "", ""),
    "folder of Hydra's job": ("class HydraConfig:\n    def get():\n        job = types.SimpleNamespace(output_dir=f'outputs/{time.time()}')\n"
                              "        return types.SimpleNamespace(runtime=job)\nX = HydraConfig.get().runtime.output_dir\n" + TAIL, "", ""),
    "environment": ("os.environ['X_OF_TEST'] = '1'\ndef read():\n    return os.environ\n", "'1'", "'2'"),
    "other name of a module": ("import torch.nn.functional as F\ndef read():\n    return F.relu\n", "import torch.nn.functional as F",
                               "from torch.nn import functional as F"),
    "computed otherwise": ("width = 4\nX = nn.Linear(width, 2)\n" + TAIL, "width = 4", "width = 2 + 2  # twice"),
    "layout of a statement": ("X = nn.Linear(1, 2)\n" + TAIL, "nn.Linear(", "nn.Linear(\n    "),
    **{name: (code, "", "") for name, code in {  # as public tutorials have them
        "date and host in a name": "import socket\nNAME = datetime.datetime.now().strftime('%b%d_%H-%M-%S') + '_' + socket.gethostname()\n"
        "X = os.path.join('logs', NAME)\nbegan = time.perf_counter()\ndef read():\n    return X, NAME, time.perf_counter() - began\n",
        "device of the module": "X = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\n" + TAIL,
        "id and folder for temporary files": "import secrets, tempfile\nID, S = uuid.uuid4().hex[:8], Path(tempfile.mkdtemp())\n"
        "C = {'lr': 0.1, 'id': ID}\nC['pid'] = os.getpid()\nX = dict(name=f\"{C['lr']}-{secrets.token_hex(4)}\", s=S, c=C)\n" + TAIL,
        "data class with a clock": "@dataclasses.dataclass\nclass Config:\n    epochs: int = 2\n"
        "    name: str = dataclasses.field(default_factory=lambda: f'exp-{time.time()}')\nX = Config()\n" + TAIL,
        "timed function": "def timed(f):\n    @functools.wraps(f)\n    def inner(*a, **k):\n        begin = time.time()\n"
        "        return f(*a, **k), time.time() - begin\n    return inner\n@timed\ndef g(stamp=time.time()):\n    return stamp\n"
        "def read():\n    return g()\n",
        "closure with a clock": "def make(width):\n    began = time.time()\n    net = nn.Linear(width, 2)\n"
        "    def step(x):\n        return net(x), began\n    return step\nstep = make(3)\ndef read():\n    return step(torch.zeros(1, 3))\n",
        "trainer that keeps a history": "class T:\n    history = []\n    def __init__(self, width):\n"
        "        self.width, self.began, self.best = width, time.time(), 0.0\n    def fit(self):\n        self.history.append(time.time())\n"
        "        self.best = max(self.best, random.random())\n        self.rows = [self.width]\nX = T(4)\ndef read():\n    X.fit()\n",
        "own transform and losses": "class N:\n    def __init__(self, mean):\n        self.mean = mean\n    def __call__(self, x):\n"
        "        return x - self.mean\nf, losses, seen = N(0.5), [], set()\ndef read():\n    losses.append(f(1.0))\n    seen.add(time.time())\n",
        "all in main()": "def main():\n    args = argparse.Namespace(epochs=2, stamp=str(time.time()))\n"
        "    args.log_dir = f'logs/{datetime.datetime.now()}'\n    results = []\n    def read():\n        results.append(args.epochs)\n"
        "        return args.log_dir\n    return read\nread = main()\n",
        "seeds and a global counter": "torch.manual_seed(0)\nnp.random.seed(0)\nX, noise, steps = torch.randn(3), np.random.randn(4), 0\n"
        "def read():\n    global steps\n    steps += 1\n    return X, noise\n",
    }.items()},
    "relative import": ("try:\n    from .conf import X\nexcept ImportError:\n    X = 'x'\n" + TAIL, "", ""),
    "attributes that raise": ("class A(dict):\n    __getattr__ = dict.__getitem__\nX = A(a=1)\n" + TAIL, "", ""),
    "other attributes that raise": ("class A:\n    def __init__(s):\n        s.d = {}\n    def __getattr__(s, n):\n"
                                    "        return s.d[n]\nX = A()\n" + TAIL, "", ""),
    "shared": ("X = []\nfor _ in range(40):\n    X = [X, X]\n" + TAIL, "", ""),
    "shared and not comparable": ("X = types.SimpleNamespace(lock=threading.Lock())\nfor _ in range(25):\n"
                                  "    X = types.SimpleNamespace(a=X, b=X)\n" + TAIL, "", ""),
    "large number": ("X = 1 << 5000\n" + TAIL, "", ""),
    "empty table": ("X = pandas.DataFrame()\n" + TAIL, "", ""),
    "function in an enum": ("class E(enum.Enum):\n    A = partial(print)\nX = E.A\n" + TAIL, "", ""),
    "objects in an array": ("X = np.array([len, {'a', 'b', 'c'}], dtype=object)\n" + TAIL, "", ""),
    "generator": ("X = np.random.default_rng(1)\n" + TAIL, "", ""),
    "key": ("X = {'api_key': 'sk-12345abc'}\n" + TAIL, "", ""),
    "password": ("X = types.SimpleNamespace(password='sk-12345abc')\n" + TAIL, "", ""),
    "long text": ("X = [\"a'b\", 'sk-12345abcdefghijklmnopqrstuvwxyz']\n" + TAIL, "", ""),
}  # fmt: skip
CASES: dict[str, tuple[str, str, str, int]] = {  # a run's name -> its module, what becomes what, attempts after it
    **{f"value {n}": (f"X = {value}\n{TAIL}", *change, 2) for n, (value, change) in enumerate(VALUES.items())},
    **{name: (code, "[1]", "[2]", 2) for name, code in HOLDERS.items()},
    **{f"clock {n}": (each.replace("FRESH", CLOCKS[n % 3]), CLOCKS[n % 3], "'x'", 2) for n, each in enumerate(FRESH)},
    **{f"source {n}": (FUNCTION, *change, 2) for n, change in enumerate(CHANGES)},
    **{f"same source {n}": (FUNCTION, *change, 1) for n, change in enumerate(SAME)},
    **{name: (*case, 1) for name, case in PASSED_OVER.items()},
}  # fmt: skip
PROGRAM = """
import importlib
from runmanager import run_grid

def train(run, manager):
    run.read()
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(1.0, 1)

OPTIONS = {"experiment": "exp", "executor": "inline", "tensorboard": False, "display": False}
READ = [importlib.import_module(f"case{number}").read for number in range(NUMBER)]
run_grid({"read": READ, "device": ["meta"]}, train, **OPTIONS)
"""


def write(folder, version):
    for number, (code, old, new, _) in enumerate(CASES.values()):
        assert old in code
        text = HEAD + (code.replace(old, new) if version == 2 and old else code)
        (folder / f"case{number}.py").write_text(text)
    (folder / "helpers.py").write_text(
        f"SETTINGS = {{'lr': {version}}}\nOTHER = [1]\ndef step():\n    return {version}\n"
    )
    (folder / "scale.txt").write_text(f"{version}")
    (folder / "program.py").write_text(PROGRAM.replace("NUMBER", str(len(CASES))))
    for path in folder.glob("*.py"):
        os.utime(path, (version, version))  # Python takes modules of one second and size for the same


@pytest.fixture(scope="module")
def attempts(warm, tmp_path_factory):
    """Execute a run for each case, the same again, and again when each has changed; return their attempts."""
    folder = tmp_path_factory.mktemp("compared")
    found = []
    for version in (1, 1, 2):
        write(folder, version)
        done = warm.execute(folder / "program.py")
        assert done.returncode == 0, done.stdout + done.stderr
        found.append(load_runs(folder / "runs/exp")["attempts"].tolist())
    journals = [path.read_text() for path in (folder / "runs/exp").glob("*/attempt-*.jsonl")]
    return found, sum("12345abc" in text for text in journals)


def test_a_program_that_is_started_again_has_not_changed(attempts):
    assert [name for name, number in zip(CASES, attempts[0][1], strict=True) if number != 1] == []


def test_what_may_be_a_key_is_not_written_in_clear(attempts):
    assert attempts[1] == 0


def test_what_a_run_consists_of_and_reads_counts_and_what_cannot_change_numbers_does_not(attempts):
    found = dict(zip(CASES, attempts[0][2], strict=True))

    assert {name: number for name, number in found.items() if number != CASES[name][-1]} == {}


CELL = """
def inner(value):
    return [item for item in value if item in {"a", "b", "c", "d"}]
class Net:
    def forward(self, value):
        return (lambda x: x + 1)(value)
"""
LAST = """
def train(run, manager):
    inner("ab"), Net().forward(2)
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(1.0, 1)
"""


def test_the_cells_of_a_notebook_are_compared_by_their_source_the_last_one_that_binds_a_name(
    own_folder, monkeypatch
):
    def attempts_after(*cells):
        main = types.ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", main)
        vars(main)["In"] = [""]
        for code in cells:
            number = next(numbers)
            vars(main)["In"].append(code)
            exec(compile(code, f"<ipython-input-{number}-abc>", "exec"), vars(main))  # noqa: S102
        run_grid({"lr": [0.1]}, main.train, experiment="exp", **QUIET)
        return load_runs("runs")["attempts"].item()

    numbers = itertools.count(1)
    programs = [
        (CELL, LAST), (f"# a comment\n\n{CELL}", "3 + 4", LAST, "import torch"),
        (CELL.replace('"d"', '"e"'), LAST), (CELL.replace("x + 1", "x + 2"), LAST), (CELL, LAST.replace("(2)", "(3)")),
        (CELL, LAST.replace("(2)", "(3)"), "def inner(value):\n    return 1"),
    ]  # fmt: skip
    assert [attempts_after(*cells) for cells in programs] == [1, 1, 2, 3, 4, 5]
