import math

import pytest

from runmanager import RunManager, load_results
from runmanager.board.rebuild import rebuild
from runmanager.board.tags import tag
from tests.board.reading import accumulated, event_files, scalars_in, train, values_in


@pytest.fixture
def experiment(tmp_path):
    manager = RunManager("exp", tmp_path, display=False)
    train(manager, {"lr": 0.1}, num_epochs=3)
    assert manager.outcome
    return tmp_path / "exp"


def run_folder(experiment):
    (folder,) = experiment.glob("001*")
    return folder


@pytest.mark.parametrize("spoil", ["whole", "cut", "gone"])
def test_rebuilt_scalars_equal_the_table(experiment, spoil):
    (file,) = event_files(experiment)
    if spoil == "cut":
        file.write_bytes(file.read_bytes()[:2000])
    if spoil == "gone":
        file.unlink()

    count = rebuild(experiment)

    table = load_results(experiment)
    shown = scalars_in(experiment)
    assert count == 1
    for column in ("loss", "accuracy", "epoch duration", "run duration", "test_loss", "test_accuracy"):
        points = shown[tag(column)]
        assert [step for step, _ in points] == [1, 2, 3]
        assert all(math.isclose(a, b, rel_tol=1e-6) for (_, a), b in zip(points, table[column], strict=True))


def test_what_journals_do_not_hold_is_kept_and_nothing_is_there_twice(experiment):
    before = accumulated(experiment)

    rebuild(experiment)
    rebuild(experiment)

    after = accumulated(experiment)
    assert after.Tags() == before.Tags() | {"scalars": after.Tags()["scalars"]}
    assert sorted(after.Tags()["scalars"]) == sorted(before.Tags()["scalars"])
    assert [step for step, value in values_in(experiment) if value.tag == "weights/1.weight"] == [1, 2, 3]
    assert len(after.Scalars("train/grad_norm")) == 3
    assert len(after.Tensors("run/config")) == 1
    assert sorted(path.name for path in run_folder(experiment).glob("*.evts")) == [
        "attempt-1-2.evts",
        "attempt-1.evts",
    ]


def test_what_was_added_by_batches_is_kept(tmp_path):
    manager = RunManager("exp", tmp_path, display=False)

    def add(epoch: int) -> None:
        assert manager.tb
        manager.tb.add_scalar("train_step/loss", epoch, 100 * epoch)

    train(manager, {"lr": 0.1}, num_epochs=3, at_end=add)
    rebuild(tmp_path / "exp")
    rebuild(tmp_path / "exp")

    assert scalars_in(tmp_path)["train_step/loss"] == [(100, 1), (200, 2), (300, 3)]


def test_a_run_that_is_being_executed_is_left_alone(tmp_path):
    manager = RunManager("exp", tmp_path, display=False)

    train(manager, {"lr": 0.1}, num_epochs=2, at_end=lambda _: rebuild(tmp_path / "exp"))

    assert [step for step, _ in scalars_in(tmp_path)["loss/train"]] == [1, 2]
    assert list(tmp_path.rglob("*.evts")) == []
