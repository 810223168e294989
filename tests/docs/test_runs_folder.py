"""runs/README.md, which is in the repository, is in nobody's way."""

import contextlib
import shutil
import warnings
from pathlib import Path

import pytest

from runmanager import RunManager, RunManagerError, load_results, load_runs, open_tensorboard, write_report
from tests.border.experiments import complete
from tests.border.screens import command

SOURCE = Path(__file__).parents[2] / "runs" / "README.md"
COMMANDS = ("list", "list --json", "best", "export --csv a.csv", "report", "tensorboard")


@pytest.fixture
def roots(tmp_path):
    """Ask in two folders with the same content in `runs`, the second with the file beside it."""
    for name in ("without", "with"):
        (tmp_path / name / "runs").mkdir(parents=True)
    shutil.copy(SOURCE, tmp_path / "with/runs")

    def each(action):
        for name in ("without", "with"):
            with contextlib.chdir(tmp_path / name), warnings.catch_warnings(action="error"):
                try:
                    yield action()
                except RunManagerError as error:
                    yield f"{type(error).__name__}: {error}"

    return each


def test_a_folder_with_that_file_alone_has_no_runs_as_an_empty_one(roots):
    for action in (lambda: load_results().shape, lambda: load_runs().shape, open_tensorboard, write_report):
        without, with_file = roots(action)
        assert with_file == without
    for words in COMMANDS:
        without, with_file = roots(lambda words=words: command(*words.split()))
        assert with_file == without
    assert len(SOURCE.read_text().splitlines()) == 3


def test_runs_beside_that_file_are_read_as_ever(roots):
    def log():
        complete({"lr": 0.1}, RunManager("exp", display=False))
        return load_results()["loss"].tolist(), load_runs()["status"].tolist(), command("list", "--json").code

    assert [*roots(log)] == [([0.5], ["completed"], 0)] * 2
