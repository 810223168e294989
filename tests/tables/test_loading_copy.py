import io
import math
import os
import shutil
import tracemalloc
import zipfile

import numpy as np
import pandas as pd
import pytest

from runmanager.outcome import EpochRecord, Outcome, Status
from runmanager.storage import run_state
from runmanager.storage.folders import Experiment
from runmanager.storage.journal import Journal
from runmanager.tables.loading import load_copy, load_results

NUM_RUNS = 200
GRID = [
    {"lr": 0.1 * number, "depth": number, "shape": (number, "a"), "name": None, "flag": number % 2 == 0}
    for number in range(NUM_RUNS)
]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    path = tmp_path_factory.mktemp("cache") / "exp"
    for run in Experiment(path).plan(GRID, {}):
        run.path.mkdir()
        write(run.path, 1, [1, 2] if run.number > 1 else [])
    return path


@pytest.fixture
def experiment(template, tmp_path):
    return shutil.copytree(template, tmp_path / "exp")


def write(folder, attempt, epochs, loss=0.5):
    journal = Journal(folder, attempt, {"after": 0, "jobs": 3})
    for epoch in epochs:
        extra = {"f1": 0.25} if epoch == 2 else {"oddity": math.inf}
        journal.epoch(EpochRecord(epoch, {"loss": loss, "epoch duration": 1e-7, "run duration": 2.0, **extra}))
    journal.end(Outcome(Status.COMPLETED, "", len(epochs)))


def first_run(experiment):
    return next(path for path in sorted(experiment.iterdir()) if path.name.startswith("002"))


def forbid_reading(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a journal was read")

    monkeypatch.setattr(run_state, "read_attempt", refuse)


@pytest.mark.slow(everywhere=True)
def test_an_unchanged_experiment_is_loaded_without_its_journals(experiment, monkeypatch):
    before = load_results(experiment)
    forbid_reading(monkeypatch)

    after = load_results(experiment)

    pd.testing.assert_frame_equal(after, before)
    assert after.attrs == before.attrs
    assert [type(value) for value in after["shape"]] == [tuple] * len(before)


def grow(folder):
    (journal,) = folder.glob("attempt-1.jsonl")
    with journal.open("ab") as file:
        file.write(b'{"half a line')


def damage(folder):
    journal = folder / "attempt-1.jsonl"
    content, times = bytearray(journal.read_bytes()), journal.stat()
    content[-5] ^= 1
    journal.write_bytes(content)
    os.utime(journal, ns=(times.st_atime_ns, times.st_mtime_ns + 1))


CHANGES = {
    "a journal grows": grow,
    "a journal is damaged": damage,
    "an attempt is added": lambda folder: write(folder, 2, [1], loss=0.75),
    "a journal is removed": lambda folder: (folder / "attempt-1.jsonl").unlink(),
    "a folder is removed": shutil.rmtree,
    "a folder is added": lambda folder: shutil.copytree(folder, folder.parent / "900-lr=copy"),
    "the grid is removed": lambda folder: (folder.parent / "grid.json").unlink(),
}


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.filterwarnings("ignore::runmanager.errors.RunsWarning")
def test_whatever_changes_is_read_anew(experiment, change):
    load_results(experiment)
    change(first_run(experiment))

    found = load_results(experiment)

    shutil.rmtree(experiment / ".cache")
    pd.testing.assert_frame_equal(found, load_results(experiment))


def flip(content):
    return content[:2000] + bytes([content[2000] ^ 1]) + content[2001:]


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("spoil", [lambda c: c[: len(c) // 2], lambda _: b"", lambda _: b"x" * 999, flip])
def test_a_copy_that_is_damaged_is_not_believed(experiment, spoil):
    before = load_results(experiment)
    path = experiment / ".cache" / "results.npz"
    path.write_bytes(spoil(path.read_bytes()))

    pd.testing.assert_frame_equal(load_results(experiment), before)


@pytest.mark.slow(everywhere=True)
def test_a_copy_with_objects_in_it_is_not_unpickled(experiment, tmp_path):
    load_results(experiment)
    canary = tmp_path / "canary"

    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(canary),)

    np.savez(experiment / ".cache" / "results.npz", document=np.array([Hostile()], dtype=object))

    assert load_copy(experiment) is None
    assert not canary.exists()


def test_no_copy_is_made_of_a_few_runs(tmp_path):
    run = Experiment(tmp_path / "exp").open({"lr": 0.1})
    write(run.path, 1, [1])

    load_results(tmp_path)

    assert not (tmp_path / "exp" / ".cache").exists()


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("size", [2**28, 2**40])
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_copy_cannot_ask_for_more_memory_than_it_has(experiment, size, compression):
    load_results(experiment)
    (copy,) = experiment.rglob("results.npz")
    with zipfile.ZipFile(copy) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": (size,)})
    content = bytes(2**26 if compression == zipfile.ZIP_DEFLATED else 8)
    with zipfile.ZipFile(copy, "w", compression) as archive:
        for name, member in members.items():
            archive.writestr(name, header.getvalue() + content if name == "epochs.npy" else member)

    tracemalloc.start()
    copied = load_copy(experiment)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert copied is None
    assert peak < copy.stat().st_size + 2**24
