"""Where a run has failed: the line of the user's code, as people find it."""

import json
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from runmanager import RunManager, run_grid
from tests.border.work import line_with


def in_a_library():
    return nn.Linear(4, 3)(torch.zeros(2, 5))  # here: in_a_library


def in_the_standard_library():
    return json.loads("{")  # here: in_the_standard_library


def in_a_child():
    return subprocess.run([sys.executable, "-c", "exit(3)"], check=True)  # here: in_a_child


def in_generated_code():
    @dataclass
    class Point:
        x: int

    return Point()  # type: ignore[call-arg] # here: in_generated_code


def in_typed_code():
    exec("1 / 0")  # noqa: S102 # here: in_typed_code


def instead_of_another():
    try:
        in_a_library()
    except RuntimeError as error:
        raise ValueError("wrong shape") from error  # here: instead_of_another


def because_of_memory():
    try:
        raise MemoryError  # noqa: TRY301 # here: because_of_memory
    except MemoryError as error:
        raise ValueError("too large") from error


def of_this_package():
    RunManager("a/b")  # here: of_this_package


def in_another_process():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(in_a_library).result()


IN_FILES = [  # file of a function that fails in line 7 -> how people find it
    (Path.cwd() / "nets" / "small.py", "nets/small.py:7"),
    ("/elsewhere/nets/small.py", "small.py:7"),
    ("/tmp/ipykernel_17/3845.py", "notebook cell of train(), line 7"),  # noqa: S108
    ("<ipython-input-3-abc>", "cell 3 of train(), line 7"),
    ("/elsewhere/site-packages/nets/train.py", "test_locations.py:"),  # whose caller is the user's
    ("/elsewhere/a\nb\x1b[31m.py", "a\\nb\\x1b[31m.py:7"),
    (json.__file__, "test_locations.py:"),
    ("/tmp/torchinductor_me/ab/cab.py", "test_locations.py:"),  # noqa: S108
]


def failing_in(file):
    scope: dict[str, Any] = {}
    exec(compile("\n" * 6 + "def train(*_): raise ValueError('no')", str(file), "exec"), scope)  # noqa: S102
    return scope["train"]


def compiled():
    raise RuntimeError('Failed:\nfrom user code:\n   File "/x/net.py", line 5, in forward\n    return a @ b\n')


FUNCTIONS = [
    in_a_library, in_the_standard_library, in_a_child, in_generated_code, in_typed_code, instead_of_another,
    because_of_memory, of_this_package,
]  # fmt: skip


def start(train, number, root):
    options: dict[str, Any] = {"tensorboard": False, "display": False, "on_error": "continue"}
    grid = run_grid({"number": range(number)}, train, experiment="exp", root=root, executor="inline", **options)
    return grid.runs["error"].tolist()


def errors_of(functions, root):
    """Execute a run for each function; return what each has failed of."""

    def train(run, manager):
        with manager.run(run):
            functions[run.number]()

    return start(train, len(functions), root)


def test_a_failure_names_the_innermost_line_of_the_users_code(tmp_path):
    errors = dict(zip(FUNCTIONS, errors_of(FUNCTIONS, tmp_path), strict=True))

    lines = {function: line_with(f"# here: {function.__name__}") for function in FUNCTIONS}
    assert {function: error for function, error in errors.items() if lines[function] not in error} == {}
    assert errors[because_of_memory].startswith("out of main memory in ")


def test_a_line_is_named_as_people_find_it(tmp_path):
    functions = [*(failing_in(file) for file, _ in IN_FILES), compiled]

    errors = errors_of(functions, tmp_path)

    expected = [*(words for _, words in IN_FILES), "net.py:5"]
    assert [(error, words) for error, words in zip(errors, expected, strict=True) if words not in error] == []


@pytest.mark.slow  # the other process imports torch
def test_an_error_of_another_process_names_its_line_in_there(tmp_path):
    assert line_with("# here: in_a_library") in errors_of([in_another_process], tmp_path)[0]


def test_a_failed_run_of_an_installed_function_names_its_line(tmp_path):
    assert start(failing_in("/elsewhere/site-packages/nets/train.py"), 1, tmp_path)[0].endswith("train.py:7)")
