"""What load_results and load_runs say of the files on disk, whole, damaged or half copied."""

import errno
import itertools
import json
import math
import os
import random
import shutil
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from runmanager import (
    RunManager,
    RunManagerError,
    RunsWarning,
    export,
    load_results,
    load_runs,
    load_table,
    run_grid,
)
from tests.border import reading
from tests.border.experiments import QUIET

COLUMNS = ["run", "epoch", "loss", "accuracy", "epoch duration", "run duration"]
STATUSES = {"completed", "failed", "diverged", "interrupted", "pending", "running"}
NUM_RUNS, NUM_EPOCHS = 24, 3


def write(root, params, losses=(0.5,), experiment="exp", error=None, **metrics):
    """Execute a run with one epoch per loss; return its folder."""
    manager = RunManager(experiment, root, display=False, tensorboard=False)
    with suppress(ValueError, KeyboardInterrupt), manager.run(params):
        for epoch in manager.epochs(len(losses)):
            manager.track_loss(losses[epoch - 1], 1)
            for name, value in metrics.items():
                if value is not None and epoch == 1:
                    manager.track(**{name: value})
        if error:
            raise error
    return Path(str(load_runs(root / experiment)["folder"].iloc[-1]))


def test_there_is_one_row_per_epoch_in_the_tutorials_columns(tmp_path):
    write(tmp_path, {"lr": 0.1, "batch_size": 64}, [0.5, 0.25], f1=1.0)
    write(tmp_path, {"lr": 0.2, "batch_size": 64}, [math.nan])

    table = load_results(tmp_path / "exp")

    assert list(table) == [*COLUMNS, "lr", "batch_size", "f1"]
    assert table[["run", "epoch"]].to_numpy().tolist() == [[1, 1], [1, 2], [2, 1]]
    assert table["loss"].fillna(-1).tolist() == [0.5, 0.25, -1]
    types = [str(table[name].dtype) for name in ("run", "loss", "lr", "batch_size")]
    assert types == ["int64", "float64", "float64", "int64"]
    folder = reading.run_folder(tmp_path / "exp")
    assert [each["loss"] for each in reading.epochs(folder).values()] == [0.5, 0.25]


def test_there_is_one_row_per_run_with_last_and_best_values(tmp_path):
    write(tmp_path, {"lr": 0.1}, [0.3, math.inf], error=ValueError("no"))
    write(tmp_path, {"lr": 0.2}, [0.3, 0.4], val_accuracy=0.75, error=KeyboardInterrupt())
    write(tmp_path, {"lr": 0.3}, [0.3])

    table = load_runs(tmp_path)

    assert table["status"].tolist() == ["failed", "interrupted", "completed"]
    assert table[["run", "epochs", "lr"]].to_numpy().tolist() == [[1, 2, 0.1], [2, 2, 0.2], [3, 1, 0.3]]
    assert table["loss"].tolist()[1:] == [0.4, 0.3]
    assert table["best loss"].tolist() == [0.3] * 3
    assert table["val_accuracy"][1] == 0.75  # the last epoch lacks it
    assert table["error"][0].startswith("ValueError: no")
    assert list(table)[:4] == ["run", "status", "lr", "val_accuracy"]  # what decides
    assert list(table)[-4:] == ["attempts", "mixed", "folder", "error"]
    assert [Path(folder).is_dir() for folder in table["folder"]] == [True] * 3


VALUES: list[Any] = [
    0.1, 1, True, "001", "None", "", None, math.inf, (3, 3), [1, "a"], {"a": (1,)}, 2**70,
    torch.device("cpu"), torch.float16, "=HYPERLINK()", "\x1b[2J\n\u202e", "../../etc",
]  # fmt: skip


@pytest.mark.parametrize("values", [[0.1], [1], [True], ["001"], VALUES], ids=repr)
def test_hyperparameters_come_back_with_their_types(tmp_path, values):
    for value in values:
        write(tmp_path, {"value": value})

    export(load_runs(tmp_path), tmp_path / "runs.csv")
    for table in (load_results(tmp_path), load_runs(tmp_path), load_table(tmp_path / "runs.csv")):
        assert [repr(value) for value in table["value"].tolist()] == [repr(value) for value in values]


def test_runs_without_a_hyperparameter_have_it_missing_and_those_without_an_epoch_change_no_column(tmp_path):
    write(tmp_path, {"lr": 0.1, "n": 1})
    write(tmp_path, {"lr": 0.2, "name": "x"})
    before = load_results(tmp_path)
    write(tmp_path, {"wd": "x"}, losses=(), error=ValueError("in the first epoch"), experiment="other")

    assert (before["n"].isna().tolist(), before["name"].isna().tolist()) == ([False, True], [True, False])
    pd.testing.assert_frame_equal(load_results(tmp_path)[list(before)], before)
    assert load_results(tmp_path)["wd"].isna().tolist() == [True, True]


def test_a_goal_or_another_column_never_takes_the_place_of_a_hyperparameter(tmp_path):
    write(tmp_path, {"lr": 0.1}, val_f1=0.5)
    columns = {"val_f1", *load_results(tmp_path), *load_runs(tmp_path)} - {"lr"}
    names = [name for name in columns if name.isidentifier()]
    write(tmp_path, {name: f"mine: {name}" for name in names})

    for table in (load_runs(tmp_path), load_results(tmp_path)):
        assert table["val_f1"].fillna(-1).tolist() == [0.5, -1]
        assert table["val_f1 (hyperparameter)"].isna().tolist() == [True, False]
        row = table.to_dict(orient="records")[1]
        assert {row[f"{name} (hyperparameter)"] for name in names} == {f"mine: {name}" for name in names}
        assert (row["run"], row["loss"]) == (2, 0.5)
    assert len(names) >= 8


def test_several_experiments_stand_in_one_table(tmp_path):
    for experiment in ("b", "a"):
        write(tmp_path, {"lr": 0.1}, experiment=experiment)
    (tmp_path / "notes").mkdir()
    shutil.copy(Path(__file__).parents[2] / "runs" / "README.md", tmp_path)

    assert load_results(tmp_path)["experiment"].tolist() == ["a", "b"]
    assert list(load_runs(str(tmp_path)))[:3] == ["experiment", "run", "status"]
    assert load_runs([tmp_path / "b", tmp_path / "a"])["experiment"].tolist() == ["b", "a"]
    assert "experiment" not in load_results(tmp_path / "a")


def test_a_runs_folder_gives_that_run_alone_also_as_a_copy_and_an_empty_one_an_empty_table(tmp_path):
    write(tmp_path, {"lr": 0.1})
    folder = write(tmp_path, {"lr": 0.2})
    shutil.copytree(folder, tmp_path / "copy" / "exp" / folder.name)
    (tmp_path / "empty").mkdir()

    for path in (folder, tmp_path / "copy"):
        assert load_results(path)[["run", "lr"]].to_numpy().tolist() == [[2, 0.2]]
    assert (len(load_results(tmp_path / "empty")), len(load_runs(tmp_path / "empty"))) == (0, 0)
    assert set(load_results(tmp_path / "empty")) >= set(COLUMNS)


@pytest.mark.parametrize("load", [load_results, load_runs])
def test_a_path_that_is_not_there_and_a_file_are_named(tmp_path, load):
    (tmp_path / "results.csv").touch()

    with pytest.raises(RunManagerError, match="missing"):
        load(tmp_path / "missing")
    with pytest.raises(RunManagerError, match="load_table"):
        load(tmp_path / "results.csv")


def test_tables_on_disk_are_whole_after_each_run_and_round_trip(tmp_path):
    for number in (1, 2):
        write(tmp_path, {"lr": number / 10, "name": "=1+1"})
        rows = json.loads((tmp_path / "exp" / "results.json").read_bytes())
        assert len(rows) == number

    table = load_table(tmp_path / "exp" / "results.csv")
    pd.testing.assert_frame_equal(table, load_results(tmp_path / "exp"), check_like=True)
    assert "'=1+1" in (tmp_path / "exp" / "results.csv").read_text()  # a spreadsheet does not execute it


def add_attempt(folder, number, after, losses):
    """Write a further attempt by hand, which began after an epoch."""
    start, epoch, *_ = reading.lines(folder / "attempt-1.jsonl")
    lines = [{**start, "attempt": number, "after": after}]
    for index, loss in enumerate(losses, after + 1):
        metrics = {**epoch["metrics"], "loss": loss}
        lines.append({**epoch, "attempt": number, "epoch": index, "metrics": metrics})
    reading.write(folder / f"attempt-{number}.jsonl", lines)


@pytest.mark.parametrize(("after", "is_damaged"), [(0, False), (1, False), (3, False), (1, True)])
@pytest.mark.filterwarnings("ignore:.*attempt-2")
def test_a_later_attempt_supersedes_what_came_after_its_beginning(tmp_path, after, is_damaged):
    folder = write(tmp_path, {"lr": 0.1}, [0.1, 0.2, 0.3], error=KeyboardInterrupt())
    add_attempt(folder, 2, after, [0.9])
    if is_damaged:  # its first line, which says after which epoch it began
        reading.flip(folder / "attempt-2.jsonl", 0.1)

    table = load_results(tmp_path)

    assert table["loss"].tolist() == [*[0.1, 0.2, 0.3][:after], 0.9]
    assert table["epoch"].tolist() == list(range(1, after + 2))
    assert load_runs(tmp_path)["attempts"].tolist() == [2]


@pytest.mark.parametrize(
    "facts",
    [{"command": "\udce9.py"}, {"loaded": {"\udce9": "0"}}, {"commit": None, "peak_memory": -1, "loaded": [0]}],
)
def test_no_fact_costs_its_line(tmp_path, facts):
    path = write(tmp_path, {"lr": 0.1}, [0.1, math.nan]) / "attempt-1.jsonl"
    reading.write(path, [{**line, **facts} for line in reading.lines(path)])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_runs(tmp_path)["status"].tolist() == ["diverged"]
        assert load_results(tmp_path)["epoch"].tolist() == [1, 2]


def test_an_unreadable_experiment_hides_no_other(tmp_path, monkeypatch):
    for name in ("a", "locked", "z"):
        write(tmp_path, {"lr": 0.1}, experiment=name)

    def refusing(call, prefix):
        def refuse(path, *rest, **options):
            if str(path).startswith(prefix):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return call(path, *rest, **options)

        return refuse

    # as without its permissions, which root does not need: what is in the folder is neither listed nor seen
    monkeypatch.setattr(os, "scandir", refusing(os.scandir, f"{tmp_path}/locked"))
    monkeypatch.setattr(os, "stat", refusing(os.stat, f"{tmp_path}/locked/"))
    assert load_runs(tmp_path)["experiment"].tolist() == ["a", "z"]


def train(run, manager):
    with manager.run(run):
        for epoch in manager.epochs(NUM_EPOCHS):
            manager.track_loss(run.lr + epoch / 8, 1)
            manager.track(f1=run.lr * epoch / 3 if (run.lr + epoch) % 9 else math.nan)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Make an experiment of many runs; some values are not finite."""
    root = tmp_path_factory.mktemp("written")
    axes = {("lr", "name"): [(number, f"n{number}") for number in range(NUM_RUNS)]}
    run_grid(axes, train, experiment="exp", root=root, **QUIET)
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


def insert(content, dice):
    place = dice.randrange(len(content) + 1)
    return content[:place] + dice.randbytes(dice.randrange(1, 40)) + content[place:]


def shuffle(content, dice):
    lines = content.splitlines(keepends=True)
    dice.shuffle(lines)
    return b"".join(lines)


def replace_all(content, dice):
    return dice.choice([b"", b"\n" * 9, bytes(len(content)), dice.randbytes(300), b"{}\n[]\nnull\n", b"PK\3\4"])


def replace_by(make):
    def replace(path, _):
        path.unlink()
        make(path)

    return replace


def rewrite(way):
    return lambda path, dice: path.write_bytes(way(path.read_bytes(), dice))


WAYS = [
    *map(rewrite, [flip, flip, cut, lose_block, insert, shuffle, replace_all]),
    *map(replace_by, [str, Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path.name)]),
]


def rows_of(table):
    columns = ["lr", "name", "loss", "f1", "epoch duration", "run duration"]
    keys, values = table[["run", "epoch"]].to_numpy().tolist(), table[columns].to_numpy().tolist()
    return {tuple(key): list(map(str, row)) for key, row in zip(keys, values, strict=True)}


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_cost_their_own_runs_and_invent_nothing(tmp_path, written, seed):
    dice = random.Random(seed)  # noqa: S311 - reproducible damage
    expected = rows_of(load_results(written))
    shutil.copytree(written, tmp_path / "runs")
    folders = reading.run_folders(tmp_path / "runs/exp")
    spared = dice.sample(range(2, NUM_RUNS + 1), NUM_RUNS // 6)
    for number, folder in enumerate(folders, 1):
        if number not in spared:
            dice.choice(WAYS)(folder / "attempt-1.jsonl", dice)
    for path in (folders[0] / "run.json", tmp_path / "runs/exp/grid.json"):
        dice.choice(WAYS[:5])(path, dice)

    tables, said = [], []
    for load in (load_results, load_runs):
        with pytest.warns(RunsWarning) as caught:
            tables.append(load(tmp_path / "runs"))
        said += [str(warning.message) for warning in caught]

    rows, (results, runs) = rows_of(tables[0]), tables
    assert len(rows) == len(results)  # one row per run and epoch
    assert {key: row for key, row in rows.items() if row != expected[key]} == {}
    assert set(itertools.product(spared, range(1, NUM_EPOCHS + 1))) <= set(rows)
    assert runs["run"].tolist()[-NUM_RUNS + 1 :] == list(range(2, NUM_RUNS + 1))
    assert set(runs["status"]) <= STATUSES
    assert any("attempt-1.jsonl" in sentence for sentence in said)


def test_a_damaged_entry_of_a_design_costs_itself_alone(tmp_path):
    def start(**goal):
        return run_grid({("lr", "name"): [(1, "a")]}, train, experiment="exp", root=tmp_path, **QUIET, **goal)

    start(goal="min:loss")
    path = tmp_path / "exp" / "grid.json"
    goals, notes = ["min:loss", 3, "max:f1"], {"0": "kept", "1": 3}
    damaged = {**json.loads(path.read_text()), "decide": {"margin": math.inf}, "goals": goals, "notes": notes}
    path.write_text(json.dumps(damaged))
    leftover = path.with_name(f".results.csv.{os.getpid()}.0.tmp")  # of a process whose number is used again
    leftover.touch()
    os.utime(leftover, (0, 0))

    assert start().exit_code == 0
    content = json.loads(path.read_text())
    assert (content["goals"], content["notes"]) == (["min:loss", "max:f1"], {"0": "kept"})
    assert ("decide" in content, leftover.exists()) == (False, False)


@pytest.mark.parametrize(
    "value", ["../../etc/passwd", "a/b", "CON", "x" * 5000, "\x00", "Ω\u202e", "a b", "A", "a"]
)
def test_folders_have_safe_names_whatever_the_values_are(tmp_path, value):
    first, second = write(tmp_path, {"name": value}), write(tmp_path, {"name": f"{value}_"})

    for folder in (first, second):
        assert folder.parent == tmp_path / "exp"
        assert len(folder.name.encode()) <= 100
        assert folder.name.isascii()
    assert first.name.lower() != second.name.lower()
    assert load_runs(tmp_path)["name"].tolist() == [value, f"{value}_"]
