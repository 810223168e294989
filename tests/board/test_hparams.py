import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.plugins.hparams import metadata

from runmanager import RunBuilder, RunManager, RunsWarning, TensorBoard, load_runs, run_grid
from runmanager.core import files, lock
from runmanager.core.experiment import Experiment
from runmanager.core.journal import to_line
from runmanager.core.values import TEXT
from runmanager.errors import StorageError
from runmanager.tensorboard import event_file, hparams
from runmanager.tensorboard.server import page_of
from tests.board.reading import event_files, scalars_in, sessions_in, train
from tests.damaging import as_if_killed, journals


def run(root: Path, experiment: str, grid: dict[Any, Any], **options: Any) -> None:
    """Execute a grid in this process."""
    options = {"executor": "inline", "display": False, "tensorboard": TensorBoard(histogram_every=0), **options}
    run_grid(grid, lambda run, manager: train(manager, run), experiment=experiment, root=root, **options)


def sessions(root: Path) -> dict[str, Any]:
    """Read the beginning of the HParams session of each run."""
    return {
        f"{path.parent.parent.name}/{path.parent.name[:3]}": metadata.parse_session_start_info_plugin_data(
            value.metadata.plugin_data.content
        )
        for path in event_files(root)
        for event in LegacyEventFileLoader(str(path)).Load()
        for value in event.summary.value
        if value.tag == metadata.SESSION_START_INFO_TAG
    }


def shown(root: Path) -> dict[str, dict[str, Any]]:
    """Read the hyperparameters that HParams shows of each run."""
    return {
        name: {key: getattr(value, value.WhichOneof("kind")) for key, value in session.hparams.items()}
        for name, session in sessions(root).items()
    }


@pytest.mark.slow
def test_two_grids_of_an_experiment_with_different_axes_have_every_hyperparameter_in_every_run(tmp_path):
    run(tmp_path, "e", {"lr": [0.1, 0.01], "momentum": [0.9]})
    run(tmp_path, "e", {"lr": [1], "dropout": [True]})

    assert shown(tmp_path) == {
        "e/001": {"lr": 0.1, "momentum": "0.9", "dropout": "none"},
        "e/002": {"lr": 0.01, "momentum": "0.9", "dropout": "none"},
        "e/003": {"lr": 1, "momentum": "none", "dropout": "True"},
    }


@pytest.mark.slow
def test_no_other_experiment_is_locked_or_written(tmp_path):
    run(tmp_path, "first", {"lr": [0.1]})
    before = states(tmp_path / "first")

    run(tmp_path, "second", {"dropout": [0.5]})
    train(RunManager("third", tmp_path, display=False), {"amp": True})
    page_of(tmp_path)

    assert states(tmp_path / "first") == before
    assert shown(tmp_path) == {
        "first/001": {"lr": 0.1}, "second/001": {"dropout": 0.5}, "third/001": {"amp": True},
    }  # fmt: skip


def states(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Read when everything in a folder was changed, and the content of its files."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in (folder, *folder.rglob("*"))
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.1, 1, np.int64(2)], [0.1, 1, 2]),
        ([True, False], [True, False]),
        ([0.1, None], ["0.1", "none"]),
        ([1, True], ["1", "True"]),
        ([1, float("inf")], ["1", "inf"]),
        (["a", (1, 2)], ["a", "(1, 2)"]),
    ],
)
def test_an_axis_has_one_type(tmp_path, values, expected):
    run(tmp_path, "e", {"x": values})

    found = [hparams["x"] for hparams in shown(tmp_path).values()]
    assert found == expected
    assert [type(value) for value in found] == [
        float if isinstance(value, int) and not isinstance(value, bool) else type(value) for value in expected
    ]


@pytest.mark.slow
def test_long_values_are_cut_and_stay_different(tmp_path):
    run(tmp_path, "e", {"note": [300 * "a" + "b", 300 * "a" + "c"]})

    first, second = (hparams["note"] for hparams in shown(tmp_path).values())
    assert (len(first), len(second)) == (64, 64)
    assert first != second


@pytest.mark.slow
def test_an_update_changes_nothing_else(tmp_path):
    run(tmp_path, "first", {"lr": [0.1]}, tensorboard=True)
    (path,) = event_files(tmp_path)
    with path.open("ab") as file:
        file.write(b"\x40\0\0\0")  # a record that was being written
    before, start = path.read_bytes(), sessions(tmp_path)["first/001"].start_time_secs

    run(tmp_path, "first", {"dropout": [0.5]})

    record, _, old = event_file.read_session(before) or pytest.fail("no session")
    new_record, _, new = event_file.read_session(path.read_bytes()) or pytest.fail("no session")
    after = path.read_bytes()
    assert (after[: new_record.start], after[new_record.stop :]) == (
        before[: record.start],
        before[record.stop :],
    )
    assert new.start_time_secs == old.start_time_secs == start
    names = [path.name, "attempt-1.jsonl", "run.json"]
    assert sorted(p.name for p in path.parent.iterdir()) == sorted(names)


@pytest.mark.slow
def test_a_run_that_is_being_executed_is_left_alone_and_updated_later(tmp_path):
    manager = RunManager("first", tmp_path, display=False)

    train(manager, {"lr": 0.1}, at_end=lambda _: run(tmp_path, "first", {"dropout": [0.5]}))
    during = shown(tmp_path)
    run(tmp_path, "first", {"dropout": [0.5]})

    assert during["first/001"] == {"lr": 0.1}
    assert shown(tmp_path)["first/001"] == {"lr": "0.1", "dropout": "none"}
    assert list(scalars_in(tmp_path / "first" / "001-lr=0.1")["loss/train"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "age_s", "is_updated"),
    [("another", 0, False), ("another", 3600, True), (lock._host(), 0, True)],
)
def test_a_run_without_an_end_is_updated_if_it_is_not_being_executed(tmp_path, host, age_s, is_updated):
    train(RunManager("first", tmp_path, display=False), {"lr": 0.1})
    as_if_killed(tmp_path / "first" / "001-lr=0.1")
    (journal,) = journals(tmp_path / "first" / "001-lr=0.1")
    lines = [json.loads(line) for line in journal.read_bytes().splitlines()]
    lines[0]["host"] = host
    lines[0]["boot"] = "another" if host == "another" else lines[0]["boot"]
    journal.write_bytes(b"".join(to_line({k: v for k, v in line.items() if k != "crc"}) for line in lines))
    last_epoch = time.time() - age_s
    os.utime(journal, (last_epoch, last_epoch))

    run(tmp_path, "first", {"dropout": [0.5]})

    assert shown(tmp_path)["first/001"] == ({"lr": "0.1", "dropout": "none"} if is_updated else {"lr": 0.1})


def no_space() -> bool:
    raise StorageError(errno.EROFS, "read-only", "another")


def test_an_own_experiment_that_cannot_be_written_is_refused_before_the_first_run(tmp_path, monkeypatch):
    write = files.write_file
    monkeypatch.setattr(
        files,
        "write_file",
        lambda path, *rest, **options: (
            no_space() if path.name == files.HPARAMS else write(path, *rest, **options)
        ),
    )

    with pytest.raises(StorageError):
        run(tmp_path, "own", {"dropout": [0.5]})

    assert event_files(tmp_path) == []


@pytest.mark.slow
def test_runs_whose_device_is_not_here_change_nothing_and_pending_ones_do(tmp_path):
    run(tmp_path, "e", {"lr": [0.1]})
    run(tmp_path, "e", {"dropout": [0.5], "device": ["cuda:99"]})
    before = shown(tmp_path)
    Experiment(tmp_path / "e").plan([{"lr": None}], {})
    hparams.decide(Experiment(tmp_path / "e"))

    assert before == {"e/001": {"lr": 0.1}}
    assert shown(tmp_path)["e/001"] == {"lr": "0.1"}


@pytest.mark.slow
def test_what_is_as_it_should_be_is_not_written_again(tmp_path, monkeypatch):
    for axis in ("lr", "dropout"):
        run(tmp_path, "e", {axis: [0.1]})
    written: list[Path] = []
    monkeypatch.setattr(files, "write_file", lambda path, *_: written.append(path))
    monkeypatch.setattr(event_file, "replace", lambda path, _: written.append(path))

    hparams.decide(Experiment(tmp_path / "e"))
    hparams.decide(Experiment(tmp_path / "e"))

    assert written == []


def test_a_bare_loop_over_the_runs_of_a_grid_has_its_kinds(tmp_path):
    manager = RunManager("e", tmp_path, display=False)

    for run_ in RunBuilder.get_runs({"lr": [0.1, None], "amp": [True], "note": [1, "a"]}):
        train(manager, run_)

    assert list(shown(tmp_path).values()) == [
        {"lr": lr, "amp": True, "note": note} for lr in ("0.1", "none") for note in ("1", "a")
    ]


@pytest.mark.slow
def test_what_the_grid_of_an_experiment_has_decided_holds_for_a_bare_loop(tmp_path):
    run(tmp_path, "e", {"lr": [0.1, None], "momentum": [0.9]})

    train(RunManager("e", tmp_path, display=False), RunBuilder.get_runs({"lr": [0.5], "amp": [True]})[0])

    assert shown(tmp_path)["e/003"] == {"lr": "0.5", "amp": True, "momentum": "none"}


@pytest.mark.slow
def test_a_grid_updates_the_runs_of_a_bare_loop_in_its_experiment(tmp_path):
    train(RunManager("e", tmp_path, display=False), {"lr": 0.1})

    run(tmp_path, "e", {"lr": [0.1, None]})

    assert [hparams["lr"] for hparams in shown(tmp_path).values()] == ["0.1", "none"]


@pytest.mark.slow
def test_runs_of_one_root_alone_are_looked_at(tmp_path):
    (tmp_path / "notes").mkdir()
    run(tmp_path / "deeper", "e", {"lr": [0.1]})
    run(tmp_path, "e", {"dropout": [0.5]})

    assert shown(tmp_path / "deeper") == {"e/001": {"lr": 0.1}}


@pytest.mark.slow
def test_what_cannot_be_decided_is_one_warning_and_the_grid_goes_on(tmp_path, monkeypatch):
    def fail(*_: Any) -> None:
        raise ValueError("cannot be shown")

    monkeypatch.setattr(hparams, "varying", fail)

    with pytest.warns(RunsWarning, match="HParams may miss runs .*cannot be shown") as caught:
        run(tmp_path, "e", {"lr": [0.1]})

    assert {str(warning.message) for warning in caught} == {str(caught[0].message)}
    assert load_runs(tmp_path)["status"].tolist() == ["completed"]


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"kinds": 1}', b"\xff"])
def test_a_damaged_file_of_kinds_is_written_again(tmp_path, content):
    run(tmp_path, "e", {"lr": [0.1, None]})
    (tmp_path / "e" / files.HPARAMS).write_bytes(content)

    run(tmp_path, "e", {"lr": [0.1, None]})

    assert files.read_json(tmp_path / "e" / files.HPARAMS)["kinds"] == {"lr": TEXT}


@pytest.mark.slow
def test_repeats_of_a_setting_share_a_trial_and_are_no_hyperparameter(tmp_path):
    grid: dict[Any, Any] = {"lr": [0.1, 0.01], "device": ["cpu"], "seed": [1, 2]}

    run(tmp_path, "e", grid)

    assert [session.group_name for session in sessions(tmp_path).values()] == [
        *(2 * ["e/lr=0.1"]),
        *(2 * ["e/lr=0.01"]),
    ]
    assert {frozenset(hparams) for hparams in shown(tmp_path).values()} == {frozenset({"lr"})}


@pytest.mark.slow
def test_runs_of_a_later_grid_share_no_trial_with_other_hyperparameters(tmp_path):
    for lr in (0.1, 0.01):
        run(tmp_path, "e", {"lr": [lr], "seed": [1, 2]})

    assert [session.group_name for session in sessions(tmp_path).values()] == [
        *(2 * ["e/lr=0.1"]),
        *(2 * ["e/lr=0.01"]),
    ]


@pytest.mark.slow
def test_seeds_that_are_all_that_varies_are_one_trial(tmp_path):
    run(tmp_path, "e", {"lr": [0.1], "seed": [1, 2]})

    assert {session.group_name for session in sessions(tmp_path).values()} == {"e/all"}


@pytest.mark.slow
def test_grouping_can_be_changed_after_the_runs(tmp_path):
    grid: dict[Any, Any] = {"lr": [0.1], "seed": [1, 2]}
    run(tmp_path, "e", grid, repeats=())
    apart = {session.group_name for session in sessions(tmp_path).values()}

    run(tmp_path, "e", grid, repeats="seed")
    together = {session.group_name for session in sessions(tmp_path).values()}

    assert apart == {"e/001", "e/002"}
    assert together == {"e/all"}


@pytest.mark.slow
def test_a_grid_without_tensorboard_decides_nothing(tmp_path):
    run(tmp_path, "e", {"lr": [0.1]}, tensorboard=False)

    assert not (tmp_path / "e" / files.HPARAMS).exists()


@pytest.mark.slow
def test_a_continued_run_is_shown_as_the_others(tmp_path):
    run(tmp_path, "e", {"lr": [0.1]})
    run(tmp_path, "e", {"lr": [0.1, None]})

    assert [hparams["lr"] for hparams in shown(tmp_path).values()] == ["0.1", "none"]
    assert len(sessions_in(tmp_path / "e" / "001")) == 2
