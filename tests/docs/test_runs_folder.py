"""runs/README.md, which is in the repository, is in nobody's way."""

import shutil
import warnings
from pathlib import Path

import pytest

from runmanager import RunManager, RunManagerError, load_results, load_runs, open_tensorboard, write_report
from tests.border.screens import command

SOURCE = Path(__file__).parents[2] / "runs" / "README.md"
COMMANDS = ("list", "list --json", "best", "export --csv a.csv", "report", "tensorboard")


@pytest.fixture
def roots(tmp_path, monkeypatch):
    """Two folders with the same content in `runs`, the second with the file beside it."""
    folders = [tmp_path / "without", tmp_path / "with"]
    for folder in folders:
        (folder / "runs").mkdir(parents=True)
    shutil.copy(SOURCE, folders[1] / "runs")

    def each(action):
        results = []
        for folder in folders:
            monkeypatch.chdir(folder)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                results.append(action())
        return results

    return each


def message_of(action):
    try:
        return action()
    except RunManagerError as error:
        return f"{type(error).__name__}: {error}"


def test_the_file_says_in_three_lines_what_appears_there():
    assert len(SOURCE.read_text().splitlines()) == 3


def test_a_folder_with_that_file_alone_has_no_runs_as_an_empty_one(roots):
    for action in (lambda: load_results().shape, lambda: load_runs().shape, open_tensorboard, write_report):
        without, with_file = roots(lambda action=action: message_of(action))

        assert with_file == without

    for words in COMMANDS:
        without, with_file = roots(lambda words=words: command(*words.split()))

        assert with_file == without


def test_runs_beside_that_file_are_read_as_ever(roots):
    def log():
        manager = RunManager("exp", display=False)
        with manager.run({"lr": 0.1}):
            for _ in manager.epochs(1):
                manager.track_loss(0.5, 1)

    roots(log)

    without, with_file = roots(lambda: (load_results()["loss"].tolist(), load_runs()["status"].tolist()))
    assert with_file == without == ([0.5], ["completed"])
    without, with_file = roots(lambda: command("list", "--json").code)
    assert with_file == without == 0
