import functools
import importlib
import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
import types
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

import runmanager
from runmanager.storage import fingerprint as module
from runmanager.storage.fingerprint import fingerprint, fingerprint_changes
from runmanager.training.loaders import ImageTensors

GIT = shutil.which("git") or ""
CODE = '''
import functools
from functools import cache, partial

import torch
from torch.nn import functional

def scale(value):
    return 2 * value

def loss_of(value):
    return scale(value)

@cache
def cached(value):
    return value - 1

def decorator(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        return function(*arguments)
    return wrapper

@decorator
def decorated(value):
    return value - 2

bound = partial(loss_of, 3)

class Base:
    def base(self):
        return 0

class Net(Base):
    """A network."""

    factor = 3

    def forward(self, value):
        return helper(value) * self.factor

    @property
    def depth(self):
        return deep(4)

    @classmethod
    def make(cls):
        return made(cls)

def helper(value):
    return value

def deep(value):
    return value

def made(kind):
    return kind

def default(value):
    return value

def never(value):
    return value

def train(run, manager, chosen=default):
    """Train."""
    # a comment
    loss = loss_of(run.lr) + cached(1) + decorated(2) + bound()
    network = Net()
    step = lambda value: functional.relu(torch.tensor(value))
    return [network.forward(step(item)) for item in range(3)]
'''


def code_of(train):
    return fingerprint(train)["code"]


def changed(load, *replacements, code=CODE):
    """Take the fingerprint before and after a change of the text, and say what differs."""
    before = fingerprint(load(code).train)
    for old, new in replacements:
        assert old in code
        code = code.replace(old, new)
    return fingerprint_changes(before, fingerprint(load(code).train))


def test_a_function_consists_of_all_of_the_users_that_it_names(load):
    names = set(code_of(load(CODE).train))

    assert names == {
        "train", "loss_of", "scale", "cached", "decorated", "Net", "Base", "helper", "deep", "made", "default",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    # a comment\n", ""),
        ('"""Train."""', '"""Train a network\n    very well."""'),
        ('    """A network."""\n', ""),
        ("2 * value", "(2\n            *value)  # twice"),
        ("run, manager, chosen", "run,manager,\n    chosen"),
        ("def scale", "\n\n\nEPOCHS = 3\n\n\ndef scale"),
        ("def never(value):\n    return value", "def never(value):\n    return 1"),
        ("'", '"'),
    ],
    ids=lambda text: text[:12],
)
def test_comments_docstrings_layout_and_what_is_not_named_do_not_count(load, old, new):
    code = CODE.replace("'", '"') if old == "'" else CODE

    assert changed(load, (old, new), code=f"{code}\nname = 'it'\n") == []


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("range(3)", "range(4)", "train"),
        ("2 * value", "3 * value", "scale"),
        ("return scale(value)", "return scale(value + 1)", "loss_of"),
        ("value - 1", "value - 3", "cached"),
        ("value - 2", "value - 3", "decorated"),
        ("factor = 3", "factor = 4", "Net"),
        ("return 0", "return 1", "Base"),
        ("def helper(value):\n    return", "def helper(value):\n    return -", "helper"),
        ("def deep(value):\n    return", "def deep(value):\n    return -", "deep"),
        ("def made(kind):\n    return", "def made(kind):\n    return not", "made"),
        ("def default(value):\n    return", "def default(value):\n    return -", "default"),
        ("functional.relu(", "functional.gelu(", "train"),
    ],
)
def test_a_changed_line_is_a_change_of_the_function_it_is_in(load, old, new, name):
    assert changed(load, (old, new)) == [f"code of {name}"]


NESTED = """
import torch
from torch import nn

def train(run, manager):
    def step(x):
        return x + 1

    async def later(*items, key=2, **more):
        return items

    class Net(nn.Module):
        size = 3

        def forward(self, x):
            return x

    value = 3
    try:
        total = step(value)
    except ValueError:
        total = 0
    return total, Net, later
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def step(x):", "def step(x: 'torch.Tensor') -> int:"),
        ("def step(x):", "def step(x: torch.Tensor | None) -> dict[str, int]:"),
        ("(*items, key=2, **more)", "(*items: int, key: int = 2, **more: str) -> tuple[int, ...]"),
        ("def forward(self, x):", "def forward(self, x: torch.Tensor) -> torch.Tensor:"),
        ("def train(run, manager):", "def train(run: object, manager: object) -> None:"),
        ("value = 3", "value: int = 3"),
        ("import torch\n", "from __future__ import annotations\nimport torch\n"),
        ("        return x + 1", '        """Add one."""\n        return x + 1'),
        ("        size = 3", '        """A network."""\n\n        size = 3'),
        ("            return x\n", '            """Do nothing."""\n            return x\n'),
        ("def train(run, manager):", 'def train(run, manager):\n    """Train.\n\n    Long.\n    """\n'),
        ("    value = 3", "    # three\n\n    value = (\n        3\n    )"),
        ("value", "number"),
        ("total = step(value)", "total = step(\n            value,\n        )"),
    ],
)
def test_what_cannot_change_numbers_does_not_count(load, old, new):
    assert changed(load, (old, new), code=NESTED) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x + 1", "x - 1"),
        ("x + 1", "x + 2"),
        ("size = 3", "size = 4"),
        ("key=2", "key=3"),
        ("    try:\n        total = step(value)", "    total = step(value)\n    try:\n        total"),
        ("except ValueError", "except TypeError"),
        ("async def", "def"),
        ("**more", "more=3"),
        ("def step(x):\n", "def step(x: int):\n        x = int(x)\n"),
        ("nn.Module", "nn.Identity"),
    ],
)
def test_what_can_change_numbers_counts(load, old, new):
    assert changed(load, (old, new), code=NESTED) == ["code of train"]


STOPS = """
import torch

def limit(x):
    return x

def train(run, manager):
    total = 0
    for epoch in range(3):
        loss = limit(epoch)
        total += loss
    return total
"""
LOSS = "        total += loss"


@pytest.mark.parametrize(
    "stop",
    [
        "breakpoint()",
        "breakpoint(header='look')",
        "import pdb; pdb.set_trace()",
        "import ipdb as debugger\n        debugger.set_trace()",
        "from pdb import set_trace; set_trace()",
        "from IPython import embed\n        embed(colors='neutral')",
        "__import__('pdb').set_trace()",
        "pdb.Pdb().set_trace()",
        "if epoch == 2: breakpoint()",
        "if run.lr == 0.1 and torch.isnan(loss).any():\n            import pdb; pdb.set_trace()",
    ],
)
def test_a_stop_at_a_debugger_does_not_count(load, stop):
    assert changed(load, (LOSS, f"        {stop}\n{LOSS}"), code=STOPS) == []
    assert changed(load, (LOSS, f"{LOSS}\n        {stop}"), code=STOPS) == []


def test_a_debugger_that_the_module_imports_does_not_count(load):
    replaced = ("import torch", "import pdb\nimport torch"), (LOSS, f"        pdb.set_trace()\n{LOSS}")

    assert changed(load, *replaced, code=STOPS) == []


@pytest.mark.parametrize(
    "line",
    [
        "breakpoint(header=limit(3))",
        "if limit(epoch): breakpoint()",
        "if (loss := 3): breakpoint()",
        "if epoch:\n            breakpoint()\n            loss = 2",
        "loss = breakpoint()",
        "import pdb, math",
        "print(epoch)",
    ],
)
def test_what_a_stop_at_a_debugger_does_beside_counts(load, line):
    assert changed(load, (LOSS, f"        {line}\n{LOSS}"), code=STOPS) == ["code of train"]


def test_a_function_of_the_users_that_is_called_like_a_stop_counts(load):
    own = "def breakpoint():\n    return 1\n\ndef train("

    assert "code of train" in changed(
        load, ("def train(", own), (LOSS, f"        breakpoint()\n{LOSS}"), code=STOPS
    )


def test_a_source_that_changes_while_its_code_is_executed_does_not_count(load):
    annotated = load(NESTED.replace("def step(x):", "def step(x: int):"))
    before = fingerprint(annotated.train)
    Path(annotated.__file__).write_text("")

    assert fingerprint_changes(before, fingerprint(annotated.train)) == []


def test_several_changes_are_said_in_order(load):
    found = changed(load, ("2 * value", "3 * value"), ("range(3)", "range(4)"), ("cached", "cached_now"))

    assert found == ["code of cached", "code of cached_now", "code of scale", "code of train"]


TWO_MODULES = {
    "import helpers\n\ndef train(run, manager):\n    return helpers.step(run)\n": ["code of step"],
    "from helpers import step as go\n\ndef train(run, manager):\n    return go(run)\n": ["code of step"],
    "import helpers\n\ndef step(x):\n    return x\n\ndef train(r, m):\n    return helpers.step(step(r))\n": [
        "code of step"
    ],
}


@pytest.mark.parametrize("code", TWO_MODULES, ids=["module", "name", "same name"])
def test_functions_of_other_modules_of_the_users_count(load, code):
    load("def step(x):\n    return x + 1\n", "helpers")
    before = fingerprint(load(code).train)
    load("def step(x):\n    return x + 2\n", "helpers")
    after = fingerprint(load(code).train)

    (said,) = fingerprint_changes(before, after)
    assert said.startswith("code of step")


def test_a_constant_of_another_module_of_the_users_counts(load):
    code = "import conf\n\ndef train(run, manager):\n    return run.lr * conf.SCALE\n"
    load("SCALE = 1\nOTHER = 1\n", "conf")
    before = fingerprint(load(code).train)
    load("SCALE = 1\nOTHER = 2\n", "conf")
    same = fingerprint(load(code).train)
    load("SCALE = 3\nOTHER = 2\n", "conf")

    assert fingerprint_changes(before, same) == []
    assert fingerprint_changes(before, fingerprint(load(code).train)) == ["code of train"]


def test_a_global_with_the_name_of_an_attribute_does_not_count(load):
    code = "lr = 1\nrun = None\n\ndef train(run, manager):\n    manager.run(run.lr)\n"

    assert changed(load, ("lr = 1", "lr = 2"), ("run = None", "run = (1, 2)"), code=code) == []


def test_two_functions_of_one_name_both_count(load):
    load("def step(x):\n    return 1\n", "first")
    load("def step(x):\n    return 2\n", "second")
    train = load("import first, second\n\ndef train(r, m):\n    return first.step(r), second.step(r)\n").train

    assert set(code_of(train)) == {"train", "step", "step (2)"}


def test_code_of_libraries_does_not_count():
    names = code_of(train_with_libraries)

    assert set(names) == {"train_with_libraries"}


def train_with_libraries(run, manager):
    network = torch.nn.Linear(2, 2)
    loader = DataLoader(TensorDataset(torch.ones(2)))
    return network, loader, np.ones(3), Path(), ImageTensors, textwrap.dedent("")


def factor_one(value):
    return value


def factor_two(value):
    return 2 * value


def closed_over(inner):
    def train(run, manager):
        return inner(run)

    return train


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (lambda function: function, "factor_one"),
        (lambda function: functools.partial(function, 3), "factor_one"),
        (lambda function: functools.partial(functools.partial(function), 3), "factor_one"),
        (functools.cache, "factor_one"),
        (lambda function: types.MethodType(function, 3), "factor_one"),
        (closed_over, "closed_over.<locals>.train"),
        (lambda function: closed_over(functools.partial(function, 1)), "closed_over.<locals>.train"),
    ],
    ids=["plain", "partial", "partial of partial", "cache", "method", "closure", "closure of partial"],
)
def test_what_is_wrapped_is_found(wrap, name):
    first, second = (code_of(wrap(function)) for function in (factor_one, factor_two))

    assert name in first
    assert first != second
    assert first == code_of(wrap(factor_one))


class Trainer:
    def __call__(self, run, manager):
        return factor_one(run), manager

    def train(self, run, manager):
        return factor_two(run), manager


def test_objects_and_methods_can_train():
    assert set(code_of(Trainer())) == {"Trainer", "factor_one", "factor_two"}
    assert set(code_of(Trainer().train)) == {"Trainer.train", "factor_two"}


def test_lambdas_can_train():
    one = code_of(lambda run, manager: factor_one((run, manager)))
    two = code_of(lambda run, manager: factor_two((run, manager)))

    assert [min(names) for names in (one, two)] == ["factor_one", "factor_two"]
    assert one != two


def test_a_name_that_a_closure_has_not_bound_yet_is_passed_over():
    def train(run, manager):
        return later(run)

    before = set(code_of(train))
    later = factor_one

    assert before == set(code_of(train)) - {later.__name__}
    assert len(before) == 1


def test_functions_that_call_each_other_are_found_once(load):
    code = "def even(n):\n    return odd(n)\n\ndef odd(n):\n    return even(n)\n\n"
    code += "def train(r, m):\n    return even(r)\n"

    assert set(code_of(load(code).train)) == {"train", "even", "odd"}


CELL = """
def inner(value):
    return [item for item in value if item in {"a", "b", "c", "d"}]

class Net:
    def forward(self, value):
        return (lambda x: x + 1)(value)

def train(run, manager):
    return inner(run), Net().forward(2)
"""


@pytest.fixture
def in_a_notebook(monkeypatch):
    """Execute a text as a notebook does that keeps no source, and return its function."""

    def execute(code):
        main = types.ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", main)
        exec(code, vars(main))  # noqa: S102
        return fingerprint(main.train)

    return execute


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [('"d"}', '"e"}', "inner"), ("x + 1", "x + 2", "Net"), ("forward(2)", "forward(3)", "train")],
)
def test_functions_without_a_source_are_compared_by_what_they_do(in_a_notebook, old, new, name):
    before = in_a_notebook(CELL)

    assert set(before["code"]) == {"train", "inner", "Net"}
    assert fingerprint_changes(before, in_a_notebook(f"# a comment\n\n{CELL}")) == []
    assert fingerprint_changes(before, in_a_notebook(CELL.replace(old, new))) == [f"code of {name}"]


PROGRAM = f"""
import json
from runmanager.storage.fingerprint import fingerprint
{CELL}
print(json.dumps(fingerprint(train)["code"]))
"""


def test_the_fingerprint_of_a_function_without_a_source_is_the_same_in_every_process():
    found = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]

    assert found[0] == found[1]
    assert '"inner"' in found[0]


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


HOLDERS = list(one_of(numbers(5, 3)))


@pytest.mark.parametrize("holder", HOLDERS)
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


def test_an_address_in_a_repr_does_not_count():
    assert fingerprint_changes(fingerprint(factor_one, Silent()), fingerprint(factor_one, Silent())) == []


def test_a_large_tensor_is_sampled_evenly(monkeypatch):
    monkeypatch.setattr(module, "_MOST_BYTES", 400)
    other = numbers(1000)
    other[990:] = -1

    assert module._hash_of_tensor(numbers(1000)) != module._hash_of_tensor(other)


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({}, {"code": {"train": "1"}}, []),
        ({"code": {"train": "1"}}, {}, []),
        ({"code": {"train": "1"}}, {"code": {"train": "1"}, "data": {"data": "1"}}, []),
        (
            {"code": {"a": "1", "b": "1"}},
            {"code": {"a": "2", "c": "1"}},
            ["code of a", "code of b", "code of c"],
        ),
        ({"data": {"data": "1"}}, {"data": {"data": "2"}}, ["the data"]),
        ({"versions": {"torch": "1"}}, {"versions": {"numpy": "2"}}, ["numpy none -> 2", "torch 1 -> none"]),
        (
            {"versions": {"torch": "1"}, "data": {"data": "1"}, "code": {"train": "1"}},
            {"versions": {"torch": "2"}, "data": {"data": "2"}, "code": {"train": "2"}},
            ["code of train", "the data", "torch 1 -> 2"],
        ),
    ],
    ids=["new", "gone", "more", "code", "data", "versions", "all"],
)
def test_changes_are_said_in_words(before, now, said):
    assert fingerprint_changes(before, now) == said


def test_versions_are_part_of_it():
    assert fingerprint(factor_one)["versions"] == module.versions()
    assert set(fingerprint(factor_one)) == {"code", "values", "versions"}


EPOCHS = 2


class _Small:
    width = 3


NETWORKS = {"small": _Small}


def _train_by_name(run, manager):
    return NETWORKS[run.network], EPOCHS


def print_of(train):
    return fingerprint(train)["code"]


def test_constants_that_a_function_names_count(monkeypatch):
    before = print_of(_train_by_name)
    monkeypatch.setattr(sys.modules[__name__], "EPOCHS", 5)

    assert print_of(_train_by_name) != before


def test_what_is_looked_up_by_name_counts(monkeypatch):
    before = print_of(_train_by_name)
    monkeypatch.setattr(_Small, "width", 4)

    assert print_of(_train_by_name) != before


def test_the_arguments_of_a_partial_count_but_for_text():
    def train(run, manager, n=1, path=""):
        return n, path

    prints = [print_of(functools.partial(train, n=n, path=path)) for n, path in [(2, "a"), (2, "b"), (3, "a")]]

    assert prints[0] == prints[1] != prints[2]


def test_the_code_that_is_executed_counts_not_its_source(tmp_path, monkeypatch):
    path = tmp_path / "reloaded.py"
    path.write_text("def train(run, manager):\n    return 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    train = importlib.import_module("reloaded").train
    before = print_of(train)

    path.write_text("def train(run, manager):\n    return 9\n")

    assert print_of(train) == before


def test_what_is_recorded_in_a_list_does_not_count():
    executed: list[int] = []

    def train(run, manager):
        executed.append(1)

    before = print_of(train)
    train(None, None)

    assert print_of(train) == before


def test_builds_and_patches_of_a_version_are_the_same():
    assert fingerprint_changes({"versions": {"torch": "2.15.0+cpu"}}, {"versions": {"torch": "2.15.1"}}) == []


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Stand in a new git repository with one commit."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("lr = 0.1")
    for arguments in ("init -q", "add .", "-c user.name=a -c user.email=a@b.c commit -q -m first"):
        subprocess.run([GIT, *arguments.split()], check=True)
    return tmp_path


def test_versions_name_what_results_depend_on():
    versions = module.versions()

    assert list(versions)[:3] == ["python", "runmanager", "torch"]
    assert versions["python"] == platform.python_version()
    assert versions["runmanager"] == runmanager.__version__
    assert torch.__version__.startswith(versions["torch"])


def test_a_library_that_is_not_there_is_left_out(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(module, "version", missing)

    assert list(module.versions.__wrapped__()) == ["python", "runmanager"]


@pytest.mark.skipif(not GIT, reason="needs git")
def test_the_commit_says_whether_files_differ_from_it(repository):
    clean = module.git_commit.__wrapped__()
    (repository / "new.txt").touch()
    still_clean = module.git_commit.__wrapped__()
    (repository / "train.py").write_text("lr = 0.2")
    changed = module.git_commit.__wrapped__()

    assert re.fullmatch(r"[0-9a-f]{12}", clean)
    assert (still_clean, changed) == (clean, f"{clean}+changes")


@pytest.mark.parametrize("path", ["/nowhere", None], ids=["no git", "no repository"])
def test_there_is_no_commit_without_git(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    if path:
        monkeypatch.setenv("PATH", path)

    assert module.git_commit.__wrapped__() == ""


@pytest.mark.parametrize(
    ("arguments", "command"),
    [(["/home/me/train.py", "--token=secret"], "train.py"), (["-c"], "-c"), ([""], ""), ([], "")],
)
def test_the_command_is_the_program_without_its_arguments(monkeypatch, arguments, command):
    monkeypatch.setattr(sys, "argv", arguments)

    assert module.command() == command
