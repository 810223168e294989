from dataclasses import dataclass

from runmanager import load_runs, run_grid
from runmanager.executors import Executor
from runmanager.executors.base import uncommitted
from runmanager.outcome import Status


@dataclass(frozen=True)
class Block:
    """A value of a type that folders store as text."""

    width: int


class DyingExecutor(Executor):
    """Has processes that die before their run begins."""

    def num_lanes(self, _runs):
        return 1

    def execute(self, runs, _task, _watch):
        while runs:
            yield runs.popleft(), uncommitted(Status.KILLED, "its process crashed", "its last words")


def train(run, manager):
    raise AssertionError


def test_a_run_whose_process_died_before_it_began_has_its_end_in_its_own_folder(tmp_path):
    grid = {"block": [Block(8), Block(16)], "activation": [dict]}

    outcome = run_grid(grid, train, experiment="e", root=tmp_path, executor=DyingExecutor(), display=False)

    assert load_runs(tmp_path)["status"].tolist() == ["killed", "killed"]
    assert outcome.exit_code == 1
    assert len(list((tmp_path / "e").glob("*/error.log"))) == 2
    assert len(list((tmp_path / "e").glob("*/"))) == 2
