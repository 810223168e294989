import json
import math
import os
import zlib
from contextlib import closing

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runmanager.core.journal import Attempt, Journal, NoJournal, end_abandoned_attempt, read_attempt, to_line
from runmanager.core.outcome import LARGEST, EpochRecord, Outcome, Status
from runmanager.core.values import COLUMNS
from runmanager.errors import StorageError

RECORDS = [
    EpochRecord(epoch, {"loss": 1.5 / epoch, "accuracy": epoch / 7}, {"phase_eval_s": 0.25})
    for epoch in range(1, 7)
]
# hypothesis draws words of the package, too, and the hooks refuse a metric called like a column
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9).filter(
    lambda name: name not in COLUMNS
)
OUTCOME = Outcome(Status.FAILED, 'ValueError: "ö"', 6)


def write_journal(folder, records=(), outcome=None, attempt=1, **details):
    journal = Journal(folder, attempt, details)
    for record in records:
        journal.epoch(record)
    if outcome:
        journal.end(outcome)
    journal.close()
    return folder / f"attempt-{attempt}.jsonl"


def line_of(body):
    """Give any JSON object the right checksum."""
    return f'{body[:-1]},"crc":"{zlib.crc32(body.encode()):08x}"}}\n'.encode()


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    return write_journal(tmp_path_factory.mktemp("journal"), RECORDS, OUTCOME)


def test_a_journal_is_read_back_as_it_was_written(tmp_path):
    path = write_journal(tmp_path, RECORDS, OUTCOME, attempt=3, after=2, device="cpu")

    attempt = read_attempt(path)

    assert list(attempt.epochs.values()) == RECORDS
    assert attempt.outcome == OUTCOME
    assert attempt.damaged == []
    expected = {"v": 1, "type": "start", "attempt": 3, "pid": os.getpid(), "after": 2, "device": "cpu"}
    assert expected.items() <= attempt.start.items()


def test_the_first_epoch_of_a_process_is_marked_and_old_journals_mark_none(tmp_path):
    records = [EpochRecord(1, {"loss": 0.5}, {}, cold=True), EpochRecord(2, {"loss": math.nan}, {}, cold=True)]

    path = write_journal(tmp_path, [*records, EpochRecord(3, {"loss": 0.5})])

    assert [record.cold for record in read_attempt(path).epochs.values()] == [True, True, False]
    assert ["cold" in json.loads(line) for line in path.read_text().splitlines()] == [False, True, True, False]
    finished = write_journal(tmp_path, records[:1], OUTCOME, attempt=2)
    assert read_attempt(finished).epochs[1].cold


def test_an_epoch_has_its_number_of_steps_and_those_of_old_journals_none(tmp_path):
    records = [EpochRecord(1, {"loss": 0.5}, {}, steps=7), EpochRecord(2, {"loss": math.nan}, {})]

    path = write_journal(tmp_path, records)
    finished = write_journal(tmp_path, records[:1], OUTCOME, attempt=2)

    assert [record.steps for record in read_attempt(path).epochs.values()] == [7, 0]
    assert ["steps" in json.loads(line) for line in path.read_text().splitlines()] == [False, True, False]
    assert read_attempt(finished).epochs[1].steps == 7


def test_nan_and_infinities_are_strict_json_and_come_back(tmp_path):
    metrics = {"loss": math.nan, "accuracy": math.inf, "f1": -math.inf, "mae": 1.0}
    path = write_journal(tmp_path, [EpochRecord(1, metrics)])

    def refuse(constant):
        raise AssertionError(constant)

    for line in path.read_bytes().splitlines():
        json.loads(line, parse_constant=refuse)
    found = read_attempt(path).epochs[1].metrics
    assert math.isnan(found["loss"])
    assert {name: value for name, value in found.items() if name != "loss"} == {
        "accuracy": math.inf, "f1": -math.inf, "mae": 1.0,
    }  # fmt: skip


@given(st.floats())
@example(5e-324)
def test_every_float_survives_a_line(value):
    line = to_line({"value": str(value), "number": value if math.isfinite(value) else None})

    content = json.loads(line)

    assert line.endswith(b'"}\n')
    assert str(content["number"] if math.isfinite(value) else float(content["value"])) == str(value)


def test_each_epoch_is_in_the_file_when_its_commit_returns(tmp_path):
    journal = Journal(tmp_path, 1, {})

    counts = []
    for record in RECORDS:
        journal.epoch(record)
        counts.append(len(read_attempt(tmp_path / "attempt-1.jsonl").epochs))
    journal.close()

    assert counts == [1, 2, 3, 4, 5, 6]


def test_an_attempt_that_exists_is_not_written_over(tmp_path):
    write_journal(tmp_path, RECORDS)

    with closing(Journal(tmp_path, 1, {})) as journal:
        assert journal.attempt == 2

    assert len(read_attempt(tmp_path / "attempt-1.jsonl").epochs) == 6


def test_a_torn_last_line_is_left_out_silently(journal, tmp_path):
    content = journal.read_bytes()
    start_of_last = content.rindex(b"\n", 0, -1) + 1
    path = tmp_path / "attempt-1.jsonl"

    for length in range(start_of_last, len(content)):
        path.write_bytes(content[:length])
        attempt = read_attempt(path)

        assert (list(attempt.epochs.values()), attempt.outcome, attempt.damaged) == (RECORDS, None, [])


def test_one_damaged_line_costs_one_epoch_and_is_named(journal, tmp_path):
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"epoch":2', b'"epoch":8')
    path = tmp_path / "attempt-1.jsonl"
    path.write_bytes(b"".join(lines))

    attempt = read_attempt(path)

    assert list(attempt.epochs) == [1, 3, 4, 5, 6]
    assert attempt.damaged == [3]


POSITIONS = st.floats(0, 1, exclude_max=True)
DAMAGES = st.one_of(
    st.tuples(st.just("flip"), POSITIONS, st.integers(1, 255)),
    st.tuples(st.just("cut"), POSITIONS, POSITIONS),
    st.tuples(st.just("insert"), POSITIONS, st.binary(min_size=1, max_size=40)),
    st.tuples(st.just("repeat"), POSITIONS, POSITIONS),
    st.tuples(st.just("zero"), POSITIONS, POSITIONS),
)


def damaged(content, kind, place, detail):
    at = int(place * len(content))
    if kind == "flip":
        return content[:at] + bytes([content[at] ^ detail]) + content[at + 1 :] if content else content
    if kind == "insert":
        return content[:at] + detail + content[at:]
    end = at + int(detail * (len(content) - at))
    middle = {"cut": b"", "repeat": content[at:end] * 2, "zero": bytes(end - at)}[kind]
    return content[:at] + middle + content[end:]


@given(st.lists(DAMAGES, min_size=1, max_size=4))
def test_damage_never_raises_and_never_invents_an_epoch(journal, tmp_path_factory, damages):
    content = journal.read_bytes()
    for kind, place, detail in damages:
        content = damaged(content, kind, place, detail)
    path = tmp_path_factory.getbasetemp() / "damaged.jsonl"
    path.write_bytes(content)

    attempt = read_attempt(path)

    assert all(record == RECORDS[number - 1] for number, record in attempt.epochs.items())
    assert attempt.outcome in (None, OUTCOME)


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"\x00\xff\xfe\n",
        b'{"type":"epoch","epoch":1,"metrics":{},"times":{}}\n',
        b"[]\n",
        line_of('{"type":' + "[" * 100_000 + "]" * 100_000 + "}"),
        line_of('{"type":"epoch"}'),
        line_of('{"type":"epoch","epoch":"one","metrics":{},"times":{}}'),
        line_of('{"type":"epoch","epoch":1,"metrics":{"loss":null},"times":{}}'),
        line_of('{"type":"epoch","epoch":1e999,"metrics":{},"times":{}}'),
        line_of('{"type":"epoch","epoch":1,"metrics":{"loss":1' + "0" * 400 + '},"times":{}}'),
        line_of('{"type":"end","status":"well","error":"","epochs":1}'),
        line_of('{"type":["epoch"]}'),
    ],
    ids=lambda line: line[:30].decode(errors="replace").strip() or "empty",
)
def test_foreign_lines_are_named_and_yield_nothing(tmp_path, line):
    path = tmp_path / "attempt-1.jsonl"
    path.write_bytes(line)

    attempt = read_attempt(path)

    assert (attempt.epochs, attempt.outcome) == ({}, None)
    assert attempt.damaged == [1]


def test_lines_of_a_later_version_are_passed_over(tmp_path):
    path = tmp_path / "attempt-1.jsonl"
    path.write_bytes(to_line({"v": 2, "type": "note", "text": "hello"}))

    attempt = read_attempt(path)

    assert (attempt.epochs, attempt.damaged) == ({}, [])


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_cannot_be_read(tmp_path, make):
    make(tmp_path / "attempt-1.jsonl")

    with pytest.raises(OSError, match="not a file"):
        read_attempt(tmp_path / "attempt-1.jsonl")


@given(st.lists(st.dictionaries(NAMES, st.floats(), max_size=4), min_size=1, max_size=5))
def test_a_finished_journal_says_the_same_of_its_epochs_as_before_it_was_finished(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("finished")
    journal = Journal(folder, 1, {})
    for epoch, metrics in enumerate(rows, 1):
        journal.epoch(EpochRecord(epoch, metrics, {"phase_eval_s": 0.5}))

    before = read_attempt(folder / "attempt-1.jsonl")
    journal.end(Outcome(Status.COMPLETED, "", len(rows)))
    after = read_attempt(folder / "attempt-1.jsonl")

    assert before.damaged == after.damaged == []
    assert repr(before.epochs) == repr(after.epochs)
    assert after.outcome == Outcome(Status.COMPLETED, "", len(rows))


def test_a_damaged_line_of_a_finished_journal_is_found_though_its_end_is_whole(tmp_path):
    journal = Journal(tmp_path, 1, {})
    for record in RECORDS:
        journal.epoch(record)
    journal.end(Outcome(Status.COMPLETED, "", len(RECORDS)))
    path = tmp_path / "attempt-1.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"loss":', b'"lass":')
    path.write_bytes(b"".join(lines))

    attempt = read_attempt(path)

    assert attempt.damaged == [3]
    assert 2 not in attempt.epochs
    assert len(attempt.epochs) == len(RECORDS) - 1
    assert attempt.outcome is not None


def rewritten(path, change):
    """Change the lines of a journal, and give all of them, and its end, the right checksums."""
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines:
        del line["crc"]
        change(line)
    path.write_bytes(b"".join(map(to_line, lines)))
    return path


def test_a_damaged_end_line_ends_nothing(tmp_path):
    path = write_journal(tmp_path, RECORDS, OUTCOME)
    path.write_bytes(
        path.read_bytes().replace(b'"epochs":6', b'"epochs":5').replace(b"ValueError", b"ValveError")
    )

    attempt = read_attempt(path)

    assert (attempt.outcome, attempt.end, attempt.damaged) == (None, {}, [len(RECORDS) + 2])
    assert list(attempt.epochs.values()) == RECORDS


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_metric_that_is_called_like_another_column_is_damage(tmp_path, is_finished):
    path = write_journal(tmp_path, RECORDS[:2], OUTCOME if is_finished else None)

    def add(line):
        if line.get("epoch") == 2:
            line["metrics"]["status"] = 1.0

    attempt = read_attempt(rewritten(path, add))

    assert (list(attempt.epochs), attempt.damaged) == ([1], [3])
    assert (attempt.outcome is not None) == is_finished


@pytest.mark.parametrize("status", ["running", "pending", "stale"])
def test_no_run_ends_as_something_that_is_no_end(tmp_path, status):
    path = rewritten(
        write_journal(tmp_path, [], OUTCOME),
        lambda line: line.update(status=status) if line["type"] == "end" else None,
    )

    assert (read_attempt(path).outcome, read_attempt(path).damaged) == (None, [2])


def test_a_journal_is_closed_by_its_end(tmp_path):
    journal = Journal(tmp_path, 1, {})
    journal.end(OUTCOME)

    with pytest.raises(StorageError, match="Bad file descriptor"):
        journal.epoch(RECORDS[0])


def test_nothing_is_in_an_empty_journal(tmp_path):
    (tmp_path / "attempt-1.jsonl").touch()

    attempt = read_attempt(tmp_path / "attempt-1.jsonl")

    assert attempt == Attempt(attempt.path, version=attempt.version)
    assert attempt.size == 0
    assert Attempt().version == (0, 0, 0)


def test_lines_too_short_for_a_checksum_are_named_where_they_are(tmp_path):
    path = write_journal(tmp_path, RECORDS[:2])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([b"{}\n", lines[0], b"\n", b"[]\n", *lines[1:]]))

    attempt = read_attempt(path)

    assert (attempt.damage, list(attempt.epochs)) == ("line 1, 3, 4", [1, 2])


def test_the_smallest_facts_are_kept(tmp_path):
    path = write_journal(tmp_path, outcome=Outcome(Status.FAILED, "", 0), after=0)
    path = rewritten(path, lambda line: line.update(t_wall=0))
    lines = path.read_bytes().splitlines(keepends=True)

    whole = read_attempt(path)
    path.write_bytes(lines[0])
    growing = read_attempt(path)

    assert whole.outcome == Outcome(Status.FAILED, "", 0)
    assert [(each.start["after"], each.start["t_wall"]) for each in (whole, growing)] == [(0, 0)] * 2


def test_a_metric_whose_name_no_table_can_have_is_damage(tmp_path):
    path = write_journal(tmp_path, RECORDS[:2])

    def rename(line):
        if line.get("epoch") == 1:
            line["metrics"]["\ud800"] = 1.0

    attempt = read_attempt(rewritten(path, rename))

    assert (attempt.damaged, list(attempt.epochs)) == ([2], [2])


def test_times_are_rounded(tmp_path, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1.23456)
    monkeypatch.setattr("time.monotonic", lambda: 2.34567)
    path = write_journal(tmp_path, [EpochRecord(1, {}, {"phase_eval_s": 0.12345678})])

    attempt = read_attempt(path)

    assert (attempt.start["t_wall"], attempt.start["t_mono"]) == (1.235, 2.346)
    assert attempt.epochs[1].times == {"phase_eval_s": 0.123457}


def test_a_run_that_began_no_attempt_is_ended_by_a_journal_of_its_own(tmp_path):
    end_abandoned_attempt(tmp_path, OUTCOME, {"commit": "abc"})

    attempt = read_attempt(tmp_path / "attempt-1.jsonl")

    assert (attempt.outcome, attempt.start["after"], attempt.start["commit"]) == (OUTCOME, 6, "abc")


def test_an_attempt_that_has_ended_is_followed_by_another(tmp_path):
    path = write_journal(tmp_path, RECORDS[:1], OUTCOME)
    before = path.read_bytes()

    end_abandoned_attempt(tmp_path, Outcome(Status.KILLED, "", 1), {})

    assert path.read_bytes() == before
    assert read_attempt(tmp_path / "attempt-2.jsonl").outcome == Outcome(Status.KILLED, "", 1)


def test_a_process_that_writes_no_journal_commits_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    journal = NoJournal()

    journal.epoch(RECORDS[0])
    journal.end(OUTCOME)
    journal.close()

    assert journal.attempt == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [LARGEST, -LARGEST])
def test_the_largest_number_is_kept(tmp_path, number):
    path = write_journal(tmp_path, RECORDS[:1], note=number)

    attempt = read_attempt(path)

    assert (attempt.damaged, attempt.start["note"]) == ([], number)


def test_what_is_no_json_is_not_written():
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_line({"number": math.nan})
