"""A journal line by line: what is written, what damage costs, and how an attempt that was killed is ended."""

import math
import os
import platform
import re
import shutil
import signal
import time
import warnings
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

import runmanager
from runmanager import load_results, load_runs, load_steps, run_grid
from tests.border import reading
from tests.border.experiments import complete, manager_in

LOSSES = [1.5, 0.75, 0.5, 0.375]
TOO_LONG = 65 * 2**20
"""Bytes; no line of a journal is so long."""


def load(path, function=load_results):
    """Load a table; return it, and the damaged lines of each file as the warning names them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = function(path)
    said = " ".join(str(warning.message) for warning in caught)
    lines = {name: [int(n) for n in ns.split(", ")] for name, ns in re.findall(r"(\S+) \(line ([\d, ]+)", said)}
    assert bool(lines) == bool(caught) == (len(caught) == 1)
    return table, {Path(name).name: numbers for name, numbers in lines.items()}


def changed(line, **facts):
    """Return the text of a line with other facts, and its checksum."""
    return reading.to_line(line | facts)


def of(body):
    """Return a line of any text, with its checksum."""
    return f'{body[:-1]},"crc":"{zlib.crc32(body.encode()):08x}"}}\n'.encode()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Write a run that others are copies of; return its folder."""
    root = tmp_path_factory.mktemp("written")
    complete({"lr": 0.1}, manager_in(root), LOSSES)
    return reading.run_folder(root / "exp")


@pytest.fixture
def folder(written, tmp_path):
    """Copy the run into a root of its own; return its folder."""
    shutil.copytree(written.parent, tmp_path / "exp")
    return tmp_path / "exp" / written.name


def test_a_journal_says_where_and_with_what_its_run_was_trained_and_is_strict_json(manager, tmp_path):
    values = [0.5, math.inf, -math.inf, math.nan, 5e-324]
    with manager.run({"lr": 0.1}):
        for epoch in manager.epochs(5):
            manager.track(f1=values[epoch - 1], n=1)

    start, *epochs, end = reading.lines(reading.run_folder(tmp_path / "exp") / "attempt-1.jsonl")
    versions = start["versions"]
    assert (start["v"], start["after"], start["device"], end["status"]) == (1, 0, "cpu", "completed")
    assert [*versions][:3] == ["python", "runmanager", "torch"]
    assert "settings" not in start  # which change numbers on accelerators alone
    assert (versions["python"], versions["runmanager"]) == (platform.python_version(), runmanager.__version__)
    assert torch.__version__.startswith(versions["torch"])
    assert abs(start["t_wall"] - time.time()) < 60
    nonfinite = [{"f1": str(value)} for value in values[1:4]]
    assert [line.get("nonfinite") for line in epochs] == [None, *nonfinite, None]
    assert [line["metrics"]["f1"] for line in epochs] == [0.5, None, None, None, 5e-324]
    assert not any("cold" in line for line in epochs[1:])  # as the first of a process may be
    assert repr(load_results(tmp_path)["f1"].tolist()) == repr(values)


def test_an_epoch_is_in_its_journal_when_its_end_returns(manager, tmp_path):
    with manager.run({"lr": 0.1}):
        for epoch in (1, 2, 3):
            manager.begin_epoch()
            manager.track_loss(0.5 * epoch, 1)
            manager.end_epoch()

            assert [*reading.epochs(reading.run_folder(tmp_path / "exp"))] == [*range(1, epoch + 1)]
            assert load(tmp_path)[0]["loss"].tolist() == [0.5 * number for number in range(1, epoch + 1)]


def test_a_torn_last_line_is_left_out_silently(folder):
    path = folder / "attempt-1.jsonl"
    content = path.read_bytes()
    for length in range(content.rindex(b"\n", 0, -1) + 1, len(content), 5):
        path.write_bytes(content[:length])
        table, damaged = load(folder.parent)

        assert (table["loss"].tolist(), damaged) == (LOSSES, {})
    assert load_runs(folder.parent)["status"].tolist() == ["running"]  # its process, this one, lives


def foreign(epoch, end):
    """Return lines that nobody of us wrote: with wrong checksums, and with right ones."""
    metrics = [
        {"loss": None}, {"loss": "0.5"}, {"loss": True}, {"loss": [1]}, {"loss": 10**400}, {"status": 1.0},
        {"\ud800": 1.0}, {1: {}}, [], None,
    ]  # fmt: skip
    return [
        b"\n", b"{}\n", b"[]\n", b"\0\xff\xfe\n", b'{"type":"epoch","epoch":1,"metrics":{},"times":{}}\n',
        changed(epoch).replace(b"1.5", b"2.5"), changed(end).replace(b"completed", b"failed"),
        of('{"type":' + "[" * 100_000 + "]" * 100_000 + "}"), of('{"type":"epoch"}'), of('{"type":["epoch"]}'),
        of('{"type":"epoch","epoch":1e999,"metrics":{},"times":{}}'),
        *(changed(epoch, metrics=each) for each in metrics),
        *(changed(epoch, epoch=number) for number in (-1, 1.5, "1", None)),
        *(changed(end, status=each) for each in ("running", "pending", "stale", "changed", "well", 1, None)),
        changed(end, epochs=-1), changed(end, error=None),
    ]  # fmt: skip


@pytest.mark.parametrize("first", range(0, 33, 10))
def test_a_line_that_nobody_of_us_wrote_costs_itself_and_is_named(folder, first):
    path = folder / "attempt-1.jsonl"
    start, *epochs, end = (changed(line) for line in reading.lines(path))
    lines = foreign(reading.lines(path)[1], reading.lines(path)[-1])[first : first + 10]
    path.write_bytes(b"".join([start, *lines, *epochs, end]))

    table, damaged = load(folder.parent)

    assert table["loss"].tolist() == LOSSES
    assert damaged == {"attempt-1.jsonl": [*range(2, len(lines) + 2)]}
    assert load(folder.parent, load_runs)[0]["status"].tolist() == ["completed"]


def test_a_damaged_line_costs_one_epoch_a_damaged_end_the_end_and_a_damaged_start_no_epoch(folder):
    path = folder / "attempt-1.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for number, old in enumerate((b'"attempt"', b'"epoch"', b'"loss"', b'"metrics"', b'"v"', b"completed")):
        broken = [line.replace(old, old.title()) if n == number else line for n, line in enumerate(lines)]
        path.write_bytes(b"".join(broken))
        table, damaged = load(folder.parent)

        assert table["epoch"].tolist() == [epoch for epoch in (1, 2, 3, 4) if epoch != number]
        assert damaged == {"attempt-1.jsonl": [number + 1]}
        status = load(folder.parent, load_runs)[0]["status"].tolist()
        assert status == ["running" if number == 5 else "completed"]


def test_lines_and_facts_of_a_later_version_are_passed_over(folder):
    path = folder / "attempt-1.jsonl"
    start, *others = (changed(line, later=[1]) for line in reading.lines(path))
    path.write_bytes(b"".join([start, reading.to_line({"v": 2, "type": "note", "text": "hello"}), *others]))

    assert load(folder.parent)[1] == {}
    assert load_results(folder.parent)["loss"].tolist() == LOSSES


def test_a_line_too_long_to_be_ours_ends_the_reading_and_is_named(folder):
    path = folder / "attempt-1.steps.jsonl"
    path.write_bytes(block() + block(2))
    os.truncate(path, TOO_LONG)  # a hole of the file system

    steps, damaged = load(folder.parent, load_steps)

    assert (steps["epoch"].tolist(), damaged) == ([1, 1, 2, 2], {path.name: [3]})


@pytest.mark.slow
def test_the_time_to_read_a_journal_is_linear_in_its_size(folder):
    path = folder / "attempt-1.jsonl"
    path.write_bytes(path.read_bytes() + b"\n" * 5 * 2**20)

    before = time.process_time()
    table, damaged = load(folder.parent)

    assert time.process_time() - before < 25  # linear: 7 s; quadratic: minutes
    assert (table["loss"].tolist(), damaged["attempt-1.jsonl"]) == (LOSSES, [*range(7, 17)])


# Steps


def block(epoch=1, **facts):
    metrics = {"score": [[1, 2], [0.5, 0.25]]}
    return reading.to_line({"v": 1, "type": "steps", "attempt": 1, "epoch": epoch, "metrics": metrics, **facts})


VALUES: list[Any] = [
    [[1, 2], [0.5]], [[0], [0.5]], [[-1], [0.5]], [[2**53 + 1], [0.5]], [[], []], [[1.5], [0.5]],
    [[1], ["NaN"]], [[1], [None]], [[1], [True]], [[1], [10**400]], [[True], [0.5]], [[1], [0.5], [1]], 1,
]  # fmt: skip
STEPS = [
    *(block(metrics={"score": each}) for each in VALUES),
    *(block(metrics={name: [[1], [0.5]]}) for name in ("run", "epoch", "a b", "", "\ud800", "\x1b[2J")),
    block(metrics=[]), block(metrics=None),
    *(block(epoch) for epoch in (0, -1, 2**53 + 1, 1.5, "1", None)),
    block(type="epoch"), b"\n", b"{}\n", b"\xff\0\n", b"[" * 100_000 + b"\n", block().replace(b"0.5", b"0.6"),
]  # fmt: skip


@pytest.mark.parametrize("first", range(0, len(STEPS), 10))
def test_a_line_of_steps_that_nobody_of_us_wrote_costs_itself_and_is_named(folder, first):
    lines = STEPS[first : first + 10]
    (folder / "attempt-1.steps.jsonl").write_bytes(b"".join([*lines, block(), block(2)[:-1]]))

    steps, damaged = load(folder.parent, load_steps)

    assert steps[["epoch", "step", "score"]].to_numpy().tolist() == [[1, 1, 0.5], [1, 2, 0.25]]
    assert damaged == {"attempt-1.steps.jsonl": [*range(1, len(lines) + 1)]}


@pytest.mark.parametrize("is_known", [True, False])
def test_an_attempt_supersedes_the_steps_after_the_epoch_that_it_resumes(folder, is_known):
    start, epoch, *_ = reading.lines(folder / "attempt-1.jsonl")
    for attempt, epochs, after, logged in ((1, [1, 2], 0, [1, 2, 3]), (2, [], 2, [3]), (3, [3], 2, [3, 4])):
        first = changed(start, attempt=attempt, after=after)
        if attempt == 3 and not is_known:
            first = first.replace(b'"after":2', b'"after":9')  # then its epochs say it
        lines = [first, *(changed(epoch, attempt=attempt, epoch=n) for n in epochs)]
        (folder / f"attempt-{attempt}.jsonl").write_bytes(b"".join(lines))
        blocks = [block(n, metrics={"score": [[n], [attempt]]}) for n in logged]
        (folder / f"attempt-{attempt}.steps.jsonl").write_bytes(b"".join(blocks))

    steps, _ = load(folder.parent, load_steps)

    rows = [[1, 1, 1], [2, 2, 1], [3, 3, 3], [4, 4, 3]]  # of epoch 4, which goes on
    assert steps[["epoch", "step", "score"]].to_numpy().tolist() == rows


# Attempts that were killed


def kill(run, manager):
    """Be killed at the place that the run says."""
    if run.place == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    with manager.run(run):
        for epoch in manager.epochs(3):
            manager.track_loss(0.5, 1)
            if run.place != "after" and epoch == 2:
                with (manager.folder / "attempt-1.jsonl").open("ab") as file:
                    file.write(b'{"v":1,"type":"epo')
                    file.truncate(TOO_LONG if run.place == "unread" else None)
                os.kill(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow(everywhere=True)
def test_an_attempt_whose_process_was_killed_is_ended_and_nothing_unread_is_cut_off(tmp_path):
    places = ["torn", "before", "unread", "after"]
    options: dict[str, Any] = {"tensorboard": False, "display": False, "executor": "lanes", "jobs": 1}

    outcome = run_grid({"place": places}, kill, experiment="exp", root=tmp_path, retries=0, **options)

    found = {}
    for place, folder in zip(places, reading.run_folders(tmp_path / "exp"), strict=True):
        paths = [path for path in reading.journals(folder) if path.stat().st_size < TOO_LONG]
        found[place] = [(path.name, [line["type"] for line in reading.lines(path)]) for path in paths]
    assert outcome.runs[["status", "epochs"]].to_numpy().tolist() == [
        ["killed", 1], ["killed", 0], ["interrupted", 1], ["completed", 3],
    ]  # fmt: skip
    assert found == {
        "torn": [("attempt-1.jsonl", ["start", "epoch", "end"])],
        "before": [("attempt-1.jsonl", ["start", "end"])],
        "unread": [("attempt-2.jsonl", ["start", "end"])],
        "after": [("attempt-1.jsonl", ["start", *["epoch"] * 3, "end"])],
    }
    (unread,) = (tmp_path / "exp").glob("003*/attempt-1.jsonl")
    assert unread.stat().st_size == TOO_LONG
    assert reading.lines(unread.with_name("attempt-2.jsonl"))[0]["after"] == 1
