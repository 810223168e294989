import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from runmanager import GridError, RunManager, load_runs

RUN = {"lr": 0.1}


@pytest.fixture
def plain(tmp_path):
    return RunManager("exp", tmp_path, display=False, tensorboard=False)


def runs_of(tmp_path):
    return load_runs(tmp_path / "exp").to_dict(orient="records")


@pytest.mark.parametrize("name", ["../x", "a b", ""])
def test_the_name_of_an_experiment_is_a_folder(name):
    with pytest.raises(GridError, match="an experiment's name is a folder"):
        RunManager(name)


@pytest.mark.parametrize("name", ["2024", "007"])
def test_an_experiment_cannot_be_taken_for_a_run(tmp_path, name):
    with pytest.raises(GridError, match=f"unlike a run's, got '{name}': write 'exp_{name}'"):
        RunManager(name, tmp_path)


def test_experiments_without_a_name_that_begin_at_once_have_folders_of_their_own(tmp_path):
    barrier = threading.Barrier(8)

    def begin(_):
        barrier.wait()
        manager = RunManager(root=tmp_path, display=False, tensorboard=False)
        with manager.run(RUN):
            return manager.results

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(begin, range(8)))

    assert [len(list(path.glob("*/run.json"))) for path in tmp_path.iterdir()] == [1] * 8


def test_an_experiment_without_a_name_gets_the_date_and_a_folder_of_its_own(tmp_path):
    for _ in range(3):
        with RunManager(root=tmp_path, display=False, tensorboard=False).run(RUN):
            pass

    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 3
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(_\d)?", name) for name in names)


def test_the_same_run_twice_in_one_manager_gets_two_numbers(plain, tmp_path):
    for _ in range(2):
        with plain.run(RUN):
            for _ in plain.epochs(1):
                pass

    assert [row["run"] for row in plain.run_data] == [1, 2]
    assert [row["attempts"] for row in runs_of(tmp_path)] == [1, 1]


def test_the_same_run_in_another_process_is_another_attempt(tmp_path):
    for loss in (0.5, 0.25):
        manager = RunManager("exp", tmp_path, display=False, tensorboard=False)
        with manager.run(RUN):
            for _ in manager.epochs(1):
                manager.track_loss(loss, 1)

    assert [(row["run"], row["attempts"], row["loss"]) for row in runs_of(tmp_path)] == [(1, 2, 0.25)]
