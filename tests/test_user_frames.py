import os
import shlex
import subprocess
import sys

import pytest

from runmanager import RunBuilder, run_grid
from runmanager.user_code import user_frames


def names(traceback):
    found = []
    while traceback is not None:
        found.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    return found


def test_the_lines_of_the_user_are_left():
    def ask():
        run_grid({"lr": 3}, print, experiment="x")

    with pytest.raises(ValueError, match="must be a list") as raised:
        ask()

    before = names(raised.value.__traceback__)
    assert names(user_frames(raised.value.__traceback__)) == [before[0], "ask"]
    assert "run_grid" in before
    assert names(raised.value.__traceback__) == before


def test_code_of_the_user_that_is_called_is_left_too():
    def where(run):
        raise KeyError(run)

    with pytest.raises(KeyError) as raised:
        RunBuilder.get_runs({"lr": [1]}, where=where)

    assert names(user_frames(raised.value.__traceback__))[1:] == ["where"]


def test_without_a_line_of_the_user_nothing_is_left():
    assert user_frames(None) is None


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
