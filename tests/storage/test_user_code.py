import inspect
import json
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from runmanager import RunManager, load_runs, run_grid
from runmanager.core.failure import location_of
from runmanager.user_code import caller, is_users_file
from tests.locations import line_with


def caught(function, *arguments):
    try:
        function(*arguments)
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("nothing was raised")


def line_of(function):
    """Return the line of a function that says that it is meant."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [number for number, line in enumerate(lines, first) if "# here" in line]
    return f"{Path(__file__).relative_to(Path.cwd())}:{number}"


def in_a_library():
    return nn.Linear(4, 3)(torch.zeros(2, 5))  # here, in torch


def in_the_standard_library():
    return json.loads("{")  # here


def in_a_child():
    return subprocess.run([sys.executable, "-c", "exit(3)"], check=True)  # here


def in_generated_code():
    @dataclass
    class Point:
        x: int

    return Point()  # type: ignore[call-arg] # here


def in_typed_code():
    exec("1 / 0")  # noqa: S102 # here


def instead_of_another():
    try:
        in_a_library()
    except RuntimeError as error:
        raise ValueError("wrong shape") from error  # here


def of_this_package():
    RunManager("a/b")  # here


@pytest.mark.parametrize(
    "function",
    [
        in_a_library,
        in_the_standard_library,
        in_a_child,
        in_generated_code,
        in_typed_code,
        instead_of_another,
        of_this_package,
    ],
)
def test_an_exception_comes_from_the_innermost_line_of_the_users_code(function):
    assert location_of(caught(function)) == line_of(function)


@pytest.mark.slow  # the other process imports torch
def test_an_exception_of_another_process_comes_from_its_line_in_there():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        error = caught(lambda: pool.submit(in_a_library).result())

    assert location_of(error) == line_of(in_a_library)


def raised_in(file, line=1, name="train"):
    """Return an exception that was raised in a function of this name in a file."""
    scope: dict[str, Any] = {}
    exec(compile("\n" * (line - 1) + f"def {name}(): raise ValueError('no')", str(file), "exec"), scope)  # noqa: S102
    error = caught(scope[name])
    return error.with_traceback(error.__traceback__.tb_next)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (Path.cwd() / "nets" / "small.py", "nets/small.py:7"),
        ("/elsewhere/nets/small.py", "small.py:7"),
        ("/tmp/ipykernel_17/3845.py", "notebook cell of train(), line 7"),  # noqa: S108
        ("<ipython-input-3-abc>", "cell 3 of train(), line 7"),
        ("<string>", "<string>:7"),
        ("<stdin>", "<stdin>:7"),
        ("/elsewhere/site-packages/nets/train.py", "train.py:7"),
        ("/elsewhere/a\nb\x1b[31m.py", "a\\nb\\x1b[31m.py:7"),
        (json.__file__, ""),
        ("<frozen importlib._bootstrap>", ""),
        ("/tmp/torchinductor_me/ab/cab.py", ""),  # noqa: S108
    ],
)
def test_a_line_is_named_as_people_find_it(file, words):
    assert location_of(raised_in(file, line=7)) == words


@pytest.mark.parametrize(
    "file", [json.__file__, torch.__file__, pytest.__file__, sys.modules["runmanager"].__file__]
)
def test_what_is_installed_is_not_the_users(file):
    assert not is_users_file(file)
    assert is_users_file(__file__)


def test_a_traceback_in_the_text_of_an_exception_is_read():
    error = RuntimeError(
        'Failed:\nfrom user code:\n   File "/x/net.py", line 5, in forward\n    return a @ b\n'
    )

    assert location_of(error) == "net.py:5"


def test_the_line_of_the_cause_is_named_with_the_cause(tmp_path):
    def out_of_memory():
        raise MemoryError

    def train():
        with RunManager("exp", tmp_path, tensorboard=False, display=False).run({"lr": 0.1}):
            try:
                out_of_memory()
            except MemoryError as error:
                raise ValueError("too large") from error

    with suppress(ValueError):
        train()

    assert load_runs(tmp_path)["error"].tolist() == [f"out of main memory in {line_with('raise MemoryError')}"]


SCRIPT = """
import os
from runmanager import run_grid

def loss():
    raise ValueError("no")

def train(run, manager):
    with manager.run(run):
        for epoch in manager.epochs(1):
            loss()

if __name__ == "__main__":
    outcome = run_grid({"lr": [0.1]}, train, experiment="exp", tensorboard=False, executor=EXECUTOR)
    print(outcome.runs["error"].item())
"""


@pytest.mark.parametrize("executor", [pytest.param("lanes", marks=pytest.mark.slow), "inline"])
def test_a_grid_names_the_line_of_the_users_script(warm, tmp_path, executor):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("EXECUTOR", repr(executor)))

    done = warm.execute(script)

    cause = "ValueError: no (in epoch 1, script.py:6)"
    assert done.stdout.splitlines()[-1] == cause
    assert re.search(rf"^✗ 1/1 +1 .*failed · {re.escape(cause)}$", done.stdout, re.MULTILINE)


def test_the_caller_is_the_users_code():
    called = SimpleNamespace(location=caller)

    location = called.location()

    assert location == (__file__, int(line_with("= called.location()").rpartition(":")[2]))


@pytest.mark.slow(everywhere=True)
def test_a_failed_run_of_an_installed_function_names_its_line(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "installed_nets"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def train(run, manager):\n    raise ValueError('no')\n")
    monkeypatch.syspath_prepend(package.parent)
    import installed_nets  # type: ignore[import-not-found]

    outcome = run_grid(
        {"lr": [0.1]}, installed_nets.train, experiment="exp", root=tmp_path, executor="inline", display=False
    )

    assert outcome.runs["error"].tolist() == ["ValueError: no (in __init__.py:2)"]
