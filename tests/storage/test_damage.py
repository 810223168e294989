"""Journals that are damaged in every way, many runs at a time."""

import itertools
import math
import os
import random
import shutil
import warnings
from pathlib import Path

import pytest

from runmanager import load_results, load_runs
from runmanager.errors import RunsWarning
from runmanager.outcome import EpochRecord, Outcome, Status
from runmanager.storage import paths
from runmanager.storage.folders import Experiment
from runmanager.storage.journal import Journal

NUM_RUNS = 500
NUM_EPOCHS = 4
METRICS = ["loss", "accuracy", "epoch duration", "run duration", "f1"]
STATUSES = {"completed", "failed", "diverged", "interrupted", "pending", "running"}


def record(run, epoch):
    """Return what no other epoch of no other run has."""
    loss = math.nan if (run + epoch) % 50 == 0 else run + epoch / 8
    metrics = {"loss": loss, "accuracy": run / 1024, "epoch duration": epoch / 4, "run duration": float(epoch)}
    return EpochRecord(epoch, {**metrics, "f1": run * epoch / 3}, {"phase_eval_s": 0.25})


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Make an experiment of many runs: of every third, the first attempt was interrupted."""
    root = tmp_path_factory.mktemp("written") / "exp"
    planned = Experiment(root).plan([{"lr": number, "name": f"n{number}"} for number in range(NUM_RUNS)], {})
    for run in planned:
        run.path.mkdir()
        breaks = [0, 2, NUM_EPOCHS] if run.number % 3 == 0 else [0, NUM_EPOCHS]
        for attempt, (after, end) in enumerate(itertools.pairwise(breaks), 1):
            journal = Journal(run.path, attempt, {"after": after})
            for epoch in range(after + 1, end + 1):
                journal.epoch(record(run.number, epoch))
            journal.end(Outcome(Status.COMPLETED if end == NUM_EPOCHS else Status.INTERRUPTED, "", end))
    return root


def flip(content, dice):
    place = dice.randrange(len(content))
    return content[:place] + bytes([content[place] ^ (1 << dice.randrange(8))]) + content[place + 1 :]


def cut(content, dice):
    return content[: dice.randrange(len(content))]


def lose_block(content, dice):
    start = dice.randrange(len(content))
    length = min(dice.choice([1, 64, 512, 4096]), len(content) - start)
    return content[:start] + bytes(length) + content[start + length :]


def repeat(content, dice):
    start, end = sorted(dice.randrange(len(content) + 1) for _ in range(2))
    return content[:end] + content[start:end] + content[end:]


def repeat_line(content, dice):
    lines = content.splitlines(keepends=True)
    return content + dice.choice(lines)


def insert(content, dice):
    place = dice.randrange(len(content) + 1)
    return content[:place] + dice.randbytes(dice.randrange(1, 40)) + content[place:]


def shuffle(content, dice):
    lines = content.splitlines(keepends=True)
    dice.shuffle(lines)
    return b"".join(lines)


def replace_all(content, dice):
    return dice.choice(
        [b"", b"\n" * 9, bytes(len(content)), dice.randbytes(300), b"{}\n[]\nnull\n", b"PK\3\4hello"]
    )


def with_other_numbers(content, dice):
    """Change a digit, as a hand would."""
    place = dice.choice([place for place, byte in enumerate(content) if chr(byte).isdigit()] or [0])
    return content[:place] + dice.choice(b"0123456789").to_bytes() + content[place + 1 :]


TO_CONTENT = [flip, cut, lose_block, repeat, repeat_line, insert, shuffle, replace_all, with_other_numbers]


def no_file(path, dice):
    """Put something else where a journal was."""
    path.unlink()
    kind = dice.choice(["gone", "folder", "link", "dangling", "loop", "pipe"])
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/etc/hostname")
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "pipe":
        os.mkfifo(path)


def damage(path, dice):
    """Damage a file once or several times; return whether it differs."""
    if dice.random() < 0.05:
        no_file(path, dice)
        return True
    content = before = path.read_bytes()
    for _ in range(dice.choice([1, 1, 1, 3])):
        if content:
            content = dice.choice(TO_CONTENT)(content, dice)
    path.unlink()  # it is a link to what was written
    path.write_bytes(content)
    return content != before


def load_all(root):
    """Load both tables, and what is said meanwhile by each."""
    tables, said = [], []
    for load in (load_results, load_runs):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tables.append(load(root))
        said.append([(warning.category, str(warning.message)) for warning in caught])
    return tables, said


def as_written(table):
    """Return the rows of a table by run and epoch, NaN as text."""
    rows = table[["run", "epoch", *METRICS]].to_numpy().tolist()
    return {(int(run), int(epoch)): list(map(str, values)) for run, epoch, *values in rows}


EXPECTED = {
    (run, epoch): [str(value) for value in record(run, epoch).metrics.values()]
    for run in range(1, NUM_RUNS + 1)
    for epoch in range(1, NUM_EPOCHS + 1)
}


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 10))]
)
def test_damaged_journals_cost_their_own_runs_and_invent_nothing(tmp_path, written, seed):
    dice = random.Random(seed)  # noqa: S311 - reproducible damage
    shutil.copytree(written, tmp_path / "exp", copy_function=os.link)
    spared = dice.sample(range(1, NUM_RUNS + 1), NUM_RUNS // 10)
    for folder in sorted((tmp_path / "exp").glob("[0-9]*")):
        if paths.run_number(folder.name) not in spared:
            for path in list(paths.journals_by_attempt(folder).values()):
                damage(Path(path), dice)

    (results, runs), said = load_all(tmp_path)

    found = as_written(results)
    assert len(found) == len(results)
    assert {place: row for place, row in found.items() if row != EXPECTED[place]} == {}
    assert {(run, epoch) for run in spared for epoch in range(1, NUM_EPOCHS + 1)} <= set(found)
    assert NUM_EPOCHS * len(spared) < len(found) < len(EXPECTED)
    assert runs["run"].tolist() == list(range(1, NUM_RUNS + 1))
    assert set(runs["status"]) <= STATUSES
    assert [[category for category, _ in each] for each in said] == [[RunsWarning]] * 2
    assert said[0] == said[1]


@pytest.mark.slow(everywhere=True)
def test_what_is_not_damaged_is_complete_and_nothing_is_said(written):
    (results, runs), said = load_all(written)

    assert as_written(results) == EXPECTED
    assert set(runs["status"]) == {"completed"}
    assert said == [[], []]


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("name", ["grid.json", "001-lr=0-name=n0/run.json"])
def test_damaged_descriptions_cost_no_more_than_their_runs(tmp_path, name):
    """A run without its run.json is in grid.json, and the other way round."""
    experiment = Experiment(tmp_path / "exp")
    experiment.plan([{"lr": number, "name": f"n{number}"} for number in range(3)], {})
    for number in range(3):
        run = experiment.open({"lr": number, "name": f"n{number}"})
        journal = Journal(run.path, 1, {"after": 0})
        journal.epoch(record(run.number, 1))
        journal.end(Outcome(Status.COMPLETED, "", 1))
    path = tmp_path / "exp" / name
    content = path.read_bytes()
    dice = random.Random(0)  # noqa: S311

    for _ in range(200):
        path.write_bytes(dice.choice([flip, cut, lose_block, insert, replace_all])(content, dice))
        (results, runs), _ = load_all(tmp_path)

        found = as_written(results)
        assert {place: row for place, row in found.items() if row != EXPECTED[place]} == {}
        assert len(runs) == 3
