"""The record of a search: what was written is read, whatever happens to its end."""

import errno
import os
from types import SimpleNamespace

import msgspec
import pytest

from runmanager import StorageError
from runmanager.search import record as record_module
from runmanager.search.record import SYNC_S, Ask, Begin, Generator, Kernel, Record, Saved, Tell
from runmanager.storage import paths
from tests.fuzz import hostile


@pytest.fixture
def written(tmp_path):
    """Write a record with two trials, of which one has a result."""
    record = Record.read(tmp_path)
    record.add(Begin({"goals": ["min:loss"]}, []))
    record.add(Ask(0, {"x": 0.1}, ["a"]))
    record.write()
    record.add(Tell(0, "complete", [1.5]))
    record.add(Ask(1, {"x": [1, None]}, ["b", "c"], given=True))
    record.write()
    record.close()
    return record


def state(record):
    """Return what a record says."""
    return record.trials, record.begin, record.since, record.is_damaged, record.num_suggested


def test_what_was_written_is_read(tmp_path, written):
    assert state(Record.read(tmp_path)) == state(written)
    assert written.trials[0].told == Tell(0, "complete", [1.5])
    assert written.next_number == 2
    assert written.num_suggested == 1


def test_nothing_is_on_disk_before_it_is_written(tmp_path):
    record = Record.read(tmp_path)
    record.add(Begin({}, []))

    assert not (tmp_path / paths.SEARCH).exists()


def test_a_torn_last_line_is_left_out_and_cut_off(tmp_path, written):
    path = tmp_path / paths.SEARCH
    path.write_bytes(path.read_bytes()[:-3])

    record = Record.read(tmp_path)
    assert list(record.trials) == [0]
    assert not record.is_damaged
    record.add(Ask(1, {"x": 0.2}, ["d"]))
    record.write()
    record.close()

    again = Record.read(tmp_path)
    assert again.trials[1].runs == ["d"]
    assert not again.is_damaged


@pytest.mark.parametrize("line", [b"{}", b"\xff", b"[1]", b'{"type":"ask","crc":"00000000"}'], ids=repr)
def test_a_damaged_line_is_left_out_and_noticed(tmp_path, written, line):
    path = tmp_path / paths.SEARCH
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:2], line, *lines[2:]]))

    record = Record.read(tmp_path)

    assert record.is_damaged
    assert record.trials == written.trials


@pytest.mark.parametrize(
    "event",
    [
        Begin({}, [0, 7]),
        Begin({}, [0], skip=10**12),
        Ask(0, {"x": 0.7}, ["d"]),
        Tell(7, "complete", [1.0]),
        Tell(1, "complete", [float("inf")]),
        Saved("", [Generator("", 0, 0, float("nan"))]),
        Saved("", [], [Kernel([1.0, float("inf")], 1.0, 1.0)]),
        Saved("", [Generator("", 625, 0, 0.0)]),
    ],
    ids=repr,
)
def test_what_no_search_writes_is_damage(tmp_path, written, event):
    path = tmp_path / paths.SEARCH
    path.write_bytes(path.read_bytes() + hostile.to_line(msgspec.to_builtins(event)))

    record = Record.read(tmp_path)

    assert record.is_damaged
    assert (record.trials, record.begin) == (written.trials, written.begin)


def test_a_sampler_that_begins_keeps_the_trials_that_it_is_given(tmp_path, written):
    record = Record.read(tmp_path)
    record.add(Begin({}, [0], skip=1))
    record.write()

    again = Record.read(tmp_path)

    assert (list(again.trials), again.since, again.begin) == ([0], [], Begin({}, [0], 1))


def test_what_another_process_writes_meanwhile_is_not_cut_off(tmp_path, written):
    one, other = Record.read(tmp_path), Record.read(tmp_path)
    for record in (one, other):
        record.add(Ask(2, {"x": 0.3}, ["e"]))
    one.write()

    with pytest.raises(StorageError):
        other.write()


@pytest.fixture
def clock(monkeypatch):
    """Return the clock of the record, which does not go on by itself."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(record_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def syncs(monkeypatch, clock):
    """Count how often files are put on disk."""
    done: list[None] = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: done.append(sync(descriptor)))
    return done


def test_a_second_of_quick_suggestions_waits_for_the_disk_once(tmp_path, syncs, clock):
    record = Record.read(tmp_path)
    record.add(Begin({}, []))
    record.write()
    syncs.clear()

    for number in range(50):
        record.add(Ask(number, {"x": number}, [f"{number}"]))
        record.write()
        assert Record.read(tmp_path).trials.keys() == record.trials.keys()  # as after a kill
    assert syncs == []

    clock.now = SYNC_S
    record.add(Ask(50, {"x": 50}, ["50"]))
    record.write()
    assert len(syncs) == 1
    record.close()


def test_the_end_of_a_record_is_put_on_disk(tmp_path, syncs):
    record = Record.read(tmp_path)
    for number in range(2):
        record.add(Ask(number, {"x": number}, [f"{number}"]))
        record.write()
    syncs.clear()

    record.sync()
    assert len(syncs) == 1
    record.sync()
    assert len(syncs) == 1
    record.close()


def test_a_disk_that_fails_later_is_named(tmp_path, syncs, monkeypatch):
    record = Record.read(tmp_path)
    for number in range(2):
        record.add(Ask(number, {"x": number}, [f"{number}"]))
        record.write()
    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(StorageError, match="Input/output error"):
        record.sync()
    record.close()


def fail(_):
    raise OSError(errno.EIO, os.strerror(errno.EIO))
