import enum
import errno
import json
import math
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from runmanager import GridError, RunManager, load_runs
from runmanager.core.experiment import Experiment, read_runs, varying
from runmanager.tables.roots import experiments, is_experiment


@dataclass(frozen=True)
class OneField:
    number: int


class Colour(enum.Enum):
    RED = 1


VALUES_OF_ALL_KINDS = [
    True, 3, 0.1, math.nan, math.inf, None, "text", (1, (2.0, None)), [1, "a"], {"a": (0.9, 0.99)},
    Colour.RED, Path("a/b"), np.float32(0.5), torch.tensor(0.25), torch.device("cpu"), torch.float16,
    torch.optim.SGD, OneField(3),
]  # fmt: skip
GRID = [{"lr": 0.1, "device": "cpu"}, {"lr": 0.01, "device": "cpu"}]


def started(path, grid):
    """Plan a grid and begin each of its runs."""
    experiment = Experiment(path)
    experiment.plan(grid, {})
    return [experiment.open(params) for params in grid]


def found(path):
    """Read the runs of an experiment in which nothing is damaged: number, folder, parameters."""
    damaged: list[str] = []
    runs = [(run.number, run.path.name, run.params) for run in read_runs(path, damaged)]
    assert damaged == []
    return runs


def test_a_damaged_record_is_named(tmp_path):
    started(tmp_path, GRID)
    (tmp_path / "grid.json").write_bytes(b"{")
    (tmp_path / "002-lr=0.01" / "run.json").write_bytes(b"{")
    damaged: list[str] = []

    runs = read_runs(tmp_path, damaged)

    assert [run.number for run in runs] == [1]
    assert [line.partition(" ")[0] for line in damaged] == [
        str(tmp_path / "grid.json"),
        str(tmp_path / "002-lr=0.01" / "run.json"),
    ]


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {},
        {"folder": "001-x=1", "id": "x", "params": []},
        {"folder": "../001-x=1", "id": "x", "params": {}},
        {"folder": "001-x=1/../../etc", "id": "x", "params": {}},
        {"folder": "001-x=\0", "id": "x", "params": {}},
        {"folder": "9" * 5000, "id": "x", "params": {}},
        {"folder": "001-x=1", "id": "x", "params": {"lr": {"$float": "1"}}},
        {"folder": "link", "id": "x", "params": {}},
        {"folder": "007-link=1", "id": "x", "params": {}},
    ],
)
def test_a_foreign_entry_of_a_grid_is_named_and_is_no_run(tmp_path, entry):
    started(tmp_path, GRID)
    (tmp_path / "007-link=1").symlink_to(tmp_path / "001-lr=0.1")
    grid = json.loads((tmp_path / "grid.json").read_bytes())
    grid["runs"].append(entry)
    (tmp_path / "grid.json").write_text(json.dumps(grid))
    damaged: list[str] = []

    runs = read_runs(tmp_path, damaged)

    assert [run.number for run in runs] == [1, 2]
    assert len(damaged) == 1


def test_a_folder_that_cannot_be_read_keeps_its_number(tmp_path):
    first = Experiment(tmp_path).open(GRID[0])
    (first.path / "run.json").write_bytes(b"{")

    again = Experiment(tmp_path).open(GRID[0])

    assert again.number == 2
    assert [run.number for run in read_runs(tmp_path)] == [2]


def test_links_and_foreign_folders_are_no_runs(tmp_path):
    started(tmp_path / "exp", GRID)
    (tmp_path / "exp" / "003-link=1").symlink_to(tmp_path / "exp" / "001-lr=0.1")
    (tmp_path / "exp" / "notes").mkdir()
    (tmp_path / "exp" / "004-file=1").touch()
    os.mkfifo(tmp_path / "exp" / "005-pipe=1")

    runs = found(tmp_path / "exp")

    assert [number for number, _, _ in runs] == [1, 2]


def test_a_pipe_in_the_place_of_a_record_is_not_waited_for(tmp_path):
    (run, _) = started(tmp_path, GRID)
    (tmp_path / "grid.json").unlink()
    (run.path / "run.json").unlink()
    os.mkfifo(run.path / "run.json")
    damaged: list[str] = []

    runs = read_runs(tmp_path, damaged)

    assert [run.number for run in runs] == [2]
    assert damaged == [f"{run.path / 'run.json'} ([Errno 22] not a file: '{run.path / 'run.json'}')"]


def test_a_folder_without_runs_is_no_experiment(tmp_path):
    (tmp_path / "notes").mkdir()

    assert [is_experiment(tmp_path), is_experiment(tmp_path / "missing")] == [False, False]


def test_folders_with_the_name_of_a_run_and_nothing_of_one_are_no_runs(tmp_path):
    for name in ("2024", "20231105_1200"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes.txt").touch()
    started(tmp_path / "exp", GRID)

    assert not is_experiment(tmp_path)
    assert experiments(tmp_path) == [tmp_path / "exp"]


def test_a_folder_that_cannot_be_read_hides_no_experiment(tmp_path, monkeypatch):
    started(tmp_path / "exp", GRID)
    (tmp_path / "private").mkdir()
    stat = Path.stat

    def refuse(path, **options):
        if path.parent.name == "private":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)  # root may read everything

    assert experiments(tmp_path) == [tmp_path / "exp"]


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=())), st.sampled_from([torch.float16, torch.device("cuda:1")]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.tuples(inner, inner), max_leaves=4
)


def test_only_what_differs_between_runs_varies():
    grid = [{"lr": 0.1, "seed": 0, "shuffle": True}, {"lr": 0.10, "seed": 1, "shuffle": 1}]

    assert varying(grid) == ["seed", "shuffle"]


def test_a_hyperparameter_that_not_all_runs_have_varies():
    assert varying([{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}]) == ["momentum"]


@pytest.mark.parametrize("name", ["grid.json", "run.json"])
def test_a_hyperparameter_that_was_damaged_is_not_believed(tmp_path, name):
    started(tmp_path, GRID)
    paths_ = [tmp_path / "grid.json"] if name == "grid.json" else list(tmp_path.glob("001*/run.json"))
    for path in [*paths_, tmp_path / "grid.json"]:
        path.write_text(path.read_text().replace('"lr": 0.1', '"lr": 0.5', 1))
    damaged: list[str] = []

    runs = read_runs(tmp_path, damaged)

    assert 0.5 not in [run.params["lr"] for run in runs]
    assert any("its checksum differs" in problem for problem in damaged)


@pytest.mark.parametrize("value", [*VALUES_OF_ALL_KINDS, *map(type, VALUES_OF_ALL_KINDS)], ids=str)
def test_values_are_in_memory_as_they_are_read_back(tmp_path, value):
    (planned,) = Experiment(tmp_path).plan([{"p": value}], {})

    (loaded,) = read_runs(tmp_path)

    assert repr(loaded.params) == repr(planned.params)


RUN = {"lr": 0.1}


@pytest.fixture
def plain(tmp_path):
    return RunManager("exp", tmp_path, display=False, tensorboard=False)


def runs_of(tmp_path):
    return load_runs(tmp_path / "exp").to_dict(orient="records")


@pytest.mark.parametrize("name", ["2024", "007"])
def test_an_experiment_cannot_be_taken_for_a_run(tmp_path, name):
    with pytest.raises(GridError, match=f"unlike a run's, got '{name}': write 'exp_{name}'"):
        RunManager(name, tmp_path)


@pytest.mark.slow(everywhere=True)
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
