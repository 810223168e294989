import functools
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from runmanager.checks.changed import fingerprint
from runmanager.core.loaders import ImageTensors
from tests.storage.comparing import fingerprint_changes

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
        "train", "loss_of", "scale", "cached", "decorator", "decorated", "Net", "Base", "helper", "deep",
        "made", "default", "decorator.<locals>.wrapper",
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
    assert f"source of {name}" in changed(load, (old, new))


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
        ("import torch\n", "from __future__ import annotations\nimport torch\n"),
        ("        return x + 1", '        """Add one."""\n        return x + 1'),
        ("        size = 3", '        """A network."""\n\n        size = 3'),
        ("            return x\n", '            """Do nothing."""\n            return x\n'),
        ("def train(run, manager):", 'def train(run, manager):\n    """Train.\n\n    Long.\n    """\n'),
        ("    value = 3", "    # three\n\n    value = (\n        3\n    )"),
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
    assert changed(load, (old, new), code=NESTED) == ["source of train"]


def test_a_source_that_changes_while_its_code_is_executed_does_not_count(load):
    annotated = load(NESTED.replace("def step(x):", "def step(x: int):"))
    before = fingerprint(annotated.train)
    Path(annotated.__file__).write_text("")

    assert fingerprint_changes(before, fingerprint(annotated.train)) == []


TWO_MODULES = {
    "import helpers\n\ndef train(run, manager):\n    return helpers.step(run)\n": ["source of step"],
    "from helpers import step as go\n\ndef train(run, manager):\n    return go(run)\n": ["source of step"],
    "import helpers\n\ndef step(x):\n    return x\n\ndef train(r, m):\n    return helpers.step(step(r))\n": [
        "source of step"
    ],
}


@pytest.mark.parametrize("code", TWO_MODULES, ids=["module", "name", "same name"])
def test_functions_of_other_modules_of_the_users_count(load, code):
    load("def step(x):\n    return x + 1\n", "helpers")
    before = fingerprint(load(code).train)
    load("def step(x):\n    return x + 2\n", "helpers")
    after = fingerprint(load(code).train)

    (said,) = fingerprint_changes(before, after)
    assert said.startswith("source of step")


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
    assert {"Trainer", "factor_one", "factor_two"} < set(code_of(Trainer().train))  # it may call the others


def test_lambdas_can_train():
    one = code_of(lambda run, manager: factor_one((run, manager)))
    two = code_of(lambda run, manager: factor_two((run, manager)))

    assert [min(names) for names in (one, two)] == ["factor_one", "factor_two"]
    assert one != two


def test_a_name_that_a_closure_has_not_bound_yet_is_passed_over():
    def train(run, manager):
        return later(run)

    assert "factor_one" in code_of(train)  # by the statement
    later = factor_one
    assert "factor_one" in code_of(train)


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
    """Execute texts as the cells of a new notebook, and return the fingerprint of its function."""
    number = 0

    def execute(*cells):
        nonlocal number
        main = types.ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", main)
        vars(main)["In"] = [""]
        for code in cells:
            number += 1
            vars(main)["In"].append(code)
            exec(compile(code, f"<ipython-input-{number}-abc>", "exec"), vars(main))  # noqa: S102
        return fingerprint(main.train)

    return execute


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [('"d"}', '"e"}', "inner"), ("x + 1", "x + 2", "Net"), ("forward(2)", "forward(3)", "train")],
)
def test_the_cells_of_a_notebook_are_compared_by_their_source(in_a_notebook, old, new, name):
    before = in_a_notebook(CELL)

    assert set(before["code"]) == {"train", "inner", "Net"}
    assert fingerprint_changes(before, in_a_notebook(f"# a comment\n\n{CELL}")) == []
    assert fingerprint_changes(before, in_a_notebook(CELL.replace(old, new))) == [f"source of {name}"]


def test_names_of_several_cells_count_by_the_last_one_that_binds_them(in_a_notebook):
    cells = ["class Setting:\n    lr = 1\n", "import torch\n\nact = torch.nn.ReLU()\n"]
    cells += ["def train(run, manager):\n    return act, Setting.lr\n"]
    before = in_a_notebook(*cells)

    assert fingerprint_changes(before, in_a_notebook("3 + 4", *cells, "import torch")) == []
    other = in_a_notebook(*cells, "act = torch.nn.GELU()")
    assert fingerprint_changes(before, other)[0].startswith("act was ")
    other = in_a_notebook(*cells, "class Setting:\n    lr = 2\n")
    assert fingerprint_changes(before, other) == ["source of Setting", "Setting.lr was 1, is 2"]


def test_a_function_without_a_source_is_named_and_its_change_is_not_noticed():
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec("def train(run, manager):\n    return 1\n", scope)  # noqa: S102
    before = fingerprint(scope["train"])
    exec("def train(run, manager):\n    return 2\n", scope)  # noqa: S102

    assert fingerprint_changes(before, fingerprint(scope["train"])) == []
    assert before["named"] == {"train": "source"}


LIBRARIES = """
import contextlib, functools, torch

@torch.jit.script
def scripted(x):
    return x + 1

@torch.no_grad()
def evaluated(x):
    return x

@functools.singledispatch
def chosen(x):
    return x

@contextlib.contextmanager
def opened():
    yield

compiled = torch.compile(lambda x: x * 2)

def train(run, manager):
    return scripted, evaluated, chosen, opened, compiled
"""


@pytest.mark.slow(everywhere=True)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("x + 1", "x + 2", "scripted"),
        ("no_grad", "inference_mode", "evaluated"),
        ("def chosen(x):\n    return x", "def chosen(x):\n    return -x", "chosen"),
        ("    yield", "    yield 1", "opened"),
        ("x * 2", "x * 3", "<lambda>"),
    ],
)
def test_what_libraries_have_made_of_a_function_counts_by_its_source(load, old, new, name):
    assert f"source of {name}" in changed(load, (old, new), code=LIBRARIES)


STATEMENTS = """
import torch.nn.functional as F
from torch import nn
from torch.nn import ReLU as Act

width = 4

def size():
    return width

head = nn.Linear(size(), 2)
head2, loss = nn.Linear(3, 2), nn.MSELoss()
layers = [nn.ReLU()]
layers += [nn.Dropout(0.1)]

def train(run, manager):
    return head, head2, loss, layers, Act, F.relu
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("nn.Linear(size(), 2)", "nn.Linear(size(), 3)", ["source of head"]),
        ("return width", "return width + 1", ["source of size"]),
        ("width = 4", "width = 5", ["width was 4, is 5"]),
        ("Dropout(0.1)", "Dropout(0.2)", ["layers was "]),
        (
            "ReLU as Act",
            "GELU as Act",
            ["Act was torch.nn.modules.activation.ReLU, is torch.nn.modules.activation.GELU"],
        ),
        ("import torch.nn.functional as F", "from torch.nn import functional as F", []),
        ("width = 4", "width = 2 + 2  # twice", []),
        ("nn.Linear(size(), 2)", "nn.Linear(\n    size(), 2)", []),
    ],
)
def test_an_object_of_a_library_counts_by_the_statement_that_makes_it(load, old, new, said):
    changes = changed(load, (old, new), code=STATEMENTS)

    assert bool(changes) == bool(said)
    assert all(text in "; ".join(changes) for text in said)


IN_A_FUNCTION = """
import time
from torch import nn

def main():
    mean = 0.5
    head = nn.Linear(2, 2, bias=mean > 0)
    sizes = [1, 2]
    began = time.time()

    def train(run, manager):
        return head, sizes, began

    return train

train = main()
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("bias=mean > 0", "bias=mean > 1", ["source of head"]),
        ("mean = 0.5", "mean = 0.6", ["source of mean"]),
        ("[1, 2]", "[1, 3]", ["sizes was [1, 2], is [1, 3]"]),
        ("def main():", "def main() -> object:", []),
    ],
)
def test_what_a_function_inside_another_one_reads_counts(load, old, new, said):
    changes = changed(load, (old, new), code=IN_A_FUNCTION)

    assert bool(changes) == bool(said)
    assert all(text in "; ".join(changes) for text in said)
