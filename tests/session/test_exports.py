from dataclasses import dataclass

from runmanager import load_runs, run_grid
from runmanager.core.contracts import uncommitted
from runmanager.core.experiment import read_runs
from runmanager.core.journal import Journal
from runmanager.core.outcome import Status
from runmanager.executors import Executor
from tests.damaging import NO_PROCESS


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


class KillingExecutor(DyingExecutor):
    """Has processes that die in their first epoch."""

    def execute(self, runs, task, watch):
        for folder in read_runs(task.experiment.path):
            facts = {"after": 0, "pid": NO_PROCESS, "fingerprint": task.context.fingerprint}
            Journal(folder.path, 2, facts).close()
        yield from super().execute(runs, task, watch)


def test_a_changed_run_whose_process_died_in_its_first_epoch_is_not_completed(tmp_path):
    def complete(run, manager):
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track_loss(0.5, 1)

    options = {"experiment": "e", "root": tmp_path, "display": False}
    run_grid({"lr": [0.1]}, complete, executor="inline", data="old", **options)

    outcome = run_grid({"lr": [0.1]}, complete, executor=KillingExecutor(), data="new", **options)

    assert (outcome.exit_code, outcome.runs["status"].tolist()) == (1, ["killed"])
    assert load_runs(tmp_path)[["status", "loss", "attempts"]].to_numpy().tolist() == [["completed", 0.5, 2]]
