"""Journals that are longer than what is read at once, or of nothing but line ends."""

import time

import pytest

from runmanager import load_runs
from runmanager.core import journal
from runmanager.core.experiment import Experiment
from runmanager.core.files import AppendFile
from runmanager.core.journal import Journal, end_abandoned_attempt, read_attempt
from runmanager.core.outcome import EpochRecord, Outcome, Status
from runmanager.errors import RunsWarning, StorageError

NUM_EPOCHS = 50
DONE = Outcome(Status.COMPLETED, "", NUM_EPOCHS)
KILLED = Outcome(Status.KILLED, "its process was killed", NUM_EPOCHS)


@pytest.fixture
def small_pieces(monkeypatch):
    """Read journals in pieces in which about three lines have room."""
    monkeypatch.setattr(journal, "PIECE", 512)


def record(epoch):
    return EpochRecord(epoch, {"loss": 1 / epoch, "accuracy": epoch / 128}, {"phase_eval_s": 0.25})


def write(folder, outcome=DONE, num_epochs=NUM_EPOCHS):
    opened = Journal(folder, 1, {"after": 0})
    for epoch in range(1, num_epochs + 1):
        opened.epoch(record(epoch))
    if outcome:
        opened.end(outcome)
    opened.close()
    return folder / "attempt-1.jsonl"


def test_a_journal_is_read_to_its_end_however_long_it_is(tmp_path, small_pieces):
    path = write(tmp_path)
    assert path.stat().st_size > 10 * 512

    attempt = read_attempt(path)

    assert list(attempt.epochs.values()) == [record(epoch) for epoch in range(1, NUM_EPOCHS + 1)]
    assert (attempt.outcome, attempt.damage, attempt.is_read) == (DONE, "", True)
    assert attempt.size == path.stat().st_size


def test_a_damaged_line_has_its_number_in_a_later_piece_too(tmp_path, small_pieces):
    path = write(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"epoch":40', b'"epoch":41').replace(b'"epoch":9', b"\n"))

    attempt = read_attempt(path)

    assert attempt.damaged == [10, 11, 42]
    assert set(range(1, NUM_EPOCHS + 1)) - set(attempt.epochs) == {9, 40}


def test_the_end_of_an_abandoned_attempt_keeps_every_epoch_of_a_long_journal(tmp_path, small_pieces):
    path = write(tmp_path, outcome=None)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"v":1,"type":"epo')  # the writer died in the middle of a line

    end_abandoned_attempt(tmp_path, KILLED, {})

    assert path.read_bytes().startswith(whole)
    attempt = read_attempt(path)
    assert (len(attempt.epochs), attempt.outcome, attempt.damage) == (NUM_EPOCHS, KILLED, "")
    assert [path.name for path in tmp_path.iterdir()] == ["attempt-1.jsonl"]


def test_what_was_not_read_is_never_cut_off(tmp_path, small_pieces):
    path = write(tmp_path, outcome=None)
    path.write_bytes(path.read_bytes() + b"x" * 2000)
    before = path.read_bytes()

    end_abandoned_attempt(tmp_path, KILLED, {"commit": "abc"})

    assert path.read_bytes() == before
    assert read_attempt(path).damaged == [NUM_EPOCHS + 2]
    later = read_attempt(tmp_path / "attempt-2.jsonl")
    assert (later.outcome, later.start["after"], later.start["commit"]) == (KILLED, NUM_EPOCHS, "abc")


def test_what_another_process_has_written_meanwhile_is_never_cut_off(tmp_path):
    path = tmp_path / "records"
    path.write_bytes(b"first\nsecond\n")

    with pytest.raises(StorageError, match="another process writes it"):
        AppendFile(path, 6)

    assert path.read_bytes() == b"first\nsecond\n"


def test_a_line_too_long_to_be_ours_ends_the_reading_and_is_named(tmp_path, small_pieces):
    experiment = Experiment(tmp_path / "exp")
    path = write(experiment.open({"lr": 0.1}).path, outcome=None, num_epochs=2)
    path.write_bytes(path.read_bytes() + bytes(10**6))

    with pytest.warns(RunsWarning, match=r"attempt-1\.jsonl \(line 4\)$"):
        runs = load_runs(tmp_path)

    assert runs["epochs"].tolist() == [2]


@pytest.mark.slow
@pytest.mark.parametrize("line", [b"\n", b"{}\n", b"seventeen letters\n", b"a line that is longer than that\n"])
def test_the_time_to_read_a_journal_is_linear_in_its_size(tmp_path, line):
    path = write(tmp_path)
    size = 20 * 2**20
    path.write_bytes(path.read_bytes() + line * (size // len(line)))

    before = time.process_time()
    attempt = read_attempt(path)
    seconds = time.process_time() - before

    assert len(attempt.epochs) == NUM_EPOCHS
    assert attempt.damaged == list(range(NUM_EPOCHS + 3, NUM_EPOCHS + 3 + size // len(line)))
    assert attempt.damage.endswith(f" and {size // len(line) - 10} more")
    assert seconds < 15  # 10 s for 20 MiB, before, of line ends alone


@pytest.mark.nightly
@pytest.mark.slow
def test_a_completed_run_of_300_mb_is_complete(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)
    experiment = Experiment(tmp_path / "exp")
    folder = experiment.open({"lr": 0.1}).path
    opened = Journal(folder, 1, {"after": 0})
    for epoch in range(1, 8001):
        opened.epoch(
            EpochRecord(epoch, {f"long_metric_{number:06d}": epoch / (number + 3) for number in range(1004)})
        )
    opened.end(Outcome(Status.COMPLETED, "", 8000))
    size = (folder / "attempt-1.jsonl").stat().st_size

    attempt = read_attempt(folder / "attempt-1.jsonl")

    assert size > 256 * 2**20
    assert (len(attempt.epochs), attempt.outcome) == (8000, Outcome(Status.COMPLETED, "", 8000))
    end_abandoned_attempt(folder, KILLED, {})
    assert (folder / "attempt-1.jsonl").stat().st_size == size
