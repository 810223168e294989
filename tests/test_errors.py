import builtins
import os
import pickle
import re
import shlex
import subprocess
import sys

import pytest

from runmanager import errors

TREE = dict(re.findall(r"-- (\w+) \((\w+)\)", str(errors.__doc__)))


def test_every_error_is_in_the_documented_tree_and_is_the_builtin_one_that_a_user_expects():
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    names = [each.__name__ for each in classes if issubclass(each, errors.RunManagerError)]

    assert names == ["RunManagerError", *TREE]
    assert all(issubclass(getattr(errors, name), getattr(builtins, TREE[name])) for name in TREE)


@pytest.mark.parametrize("kind", [errors.GridError, errors.InvalidArgumentError, errors.MissingExtraError])
def test_problems_are_numbered_and_cross_a_process_border(kind):
    copy = pickle.loads(pickle.dumps(kind(["one", "two"])))

    assert (type(copy), copy.problems) == (kind, ["one", "two"])
    started = ", nothing was started" if kind is not errors.InvalidArgumentError else ""
    assert str(copy) == f"2 problems{started}:\n  1. one\n  2. two"
    assert str(kind(["one"])) == "one"


SCRIPT = """
import runmanager
def train(run, manager):
    raise ValueError("as the user wrote it")
runmanager.run_grid({"lr": []}, train, experiment="e")
"""


@pytest.mark.slow
def test_a_script_shows_its_own_line_and_the_sentence_alone(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False
    )

    frames = [line for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert [shlex.split(line)[1].rpartition("/")[2] for line in frames] == ["script.py,"]
    assert done.stderr.splitlines()[-1].endswith(
        "axis 'lr' has no values: give it at least one, or leave it out"
    )
