import gc
import math
import os
import shutil

import pytest
import torch

from runmanager import RunManager
from runmanager.errors import InvalidArgumentError, RunsWarning
from runmanager.hyperparameters import check_names
from runmanager.outcome import Outcome, Status
from runmanager.storage.folders import Experiment
from runmanager.storage.identity import identity
from runmanager.tables.loading import _without_collection, load_results, load_runs
from tests.tables.run_tables import record, write_run

COLUMNS = ["run", "epoch", "loss", "accuracy", "epoch duration", "run duration"]
NO_PROCESS = 2**22 + 1  # above the largest number of a process


def test_there_is_one_row_per_epoch_in_the_tutorials_columns(tmp_path):
    write_run(tmp_path / "exp", {"lr": 0.1, "batch_size": 64}, [record(1), record(2, test_loss=0.7, f1=1.0)])
    write_run(tmp_path / "exp", {"lr": 0.2, "batch_size": 64}, [record(1, loss=math.nan)])

    table = load_results(tmp_path / "exp")

    assert list(table) == [*COLUMNS, "lr", "batch_size", "test_loss", "f1"]
    assert table["run"].tolist() == [1, 1, 2]
    assert table["epoch"].tolist() == [1, 2, 1]
    assert table["loss"].fillna(-1).tolist() == [0.5, 0.5, -1]
    assert table["lr"].tolist() == [0.1, 0.1, 0.2]
    assert table["test_loss"].fillna(-1).tolist() == [-1, 0.7, -1]
    assert [str(table[name].dtype) for name in ("run", "loss", "lr", "batch_size")] == [
        "int64", "float64", "float64", "int64",
    ]  # fmt: skip


def test_there_is_one_row_per_run_with_last_and_best_values(tmp_path):
    records = [record(1, loss=0.3), record(2, loss=math.inf), record(3, loss=0.4)]
    write_run(tmp_path, {"lr": 0.1}, records, Outcome(Status.FAILED, "ValueError: no", 3))

    table = load_runs(tmp_path)

    folder = table.pop("folder")[0]
    assert folder.endswith("001-lr=0.1")
    table.insert(len(list(table)) - 1, "folder", "")
    assert table.to_dict(orient="records") == [
        {
            "run": 1, "status": "failed", "epochs": 3, "loss": 0.4, "accuracy": 0.75,
            "best accuracy": 0.75, "best loss": 0.3, "epoch duration": 4.0, "run duration": 9.0,
            "lr": 0.1, "parameters": 12, "attempts": 1, "mixed": False, "folder": "", "error": "ValueError: no",
        }
    ]  # fmt: skip
    assert list(table)[-5:] == ["parameters", "attempts", "mixed", "folder", "error"]


def test_rows_of_runs_that_shared_the_machine_say_so(tmp_path):
    write_run(tmp_path, {"lr": 0.1}, [record(1, f1=1.0), record(2)], jobs=2)
    write_run(tmp_path, {"lr": 0.2}, [record(1)])

    results, runs = load_results(tmp_path), load_runs(tmp_path)

    assert list(results) == [*COLUMNS, "lr", "f1", "jobs"]
    assert results["jobs"].tolist() == [2, 2, 1]
    assert list(runs)[-6:] == ["jobs", "parameters", "attempts", "mixed", "folder", "error"]
    assert runs["jobs"].tolist() == [2, 1]
    assert results["jobs"].dtype == runs["jobs"].dtype == "int64"


def test_a_run_that_was_continued_alone_says_that_it_shared_the_machine_before(tmp_path):
    path = write_run(tmp_path, {"lr": 0.1}, [record(1)], None, jobs=4)
    write_run(tmp_path, {"lr": 0.1}, [record(2)], attempt=2, after=1)

    assert load_results(path)["jobs"].tolist() == [4, 4]


def test_a_run_that_began_anew_alone_has_shared_nothing(tmp_path):
    path = write_run(tmp_path, {"lr": 0.1}, [record(1)], None, jobs=4)
    write_run(tmp_path, {"lr": 0.1}, [record(1)], attempt=2)

    assert "jobs" not in load_results(path)


def test_runs_on_an_accelerator_tell_how_much_memory_they_took(tmp_path):
    write_run(tmp_path / "gpu", {"lr": 0.1}, [record(1)], facts={"peak_memory": 3 * 2**19}, jobs=2)
    write_run(tmp_path / "gpu", {"lr": 0.2}, [record(1)], None)
    write_run(tmp_path / "cpu", {"lr": 0.1}, [record(1)])

    gpu, both = load_runs(tmp_path / "gpu"), load_runs(tmp_path)

    for table in (gpu, both):
        assert list(table)[-7:] == ["jobs", "peak memory", "parameters", "attempts", "mixed", "folder", "error"]
        assert table["peak memory"].dtype == "float64"
    assert gpu["peak memory"].fillna(0).tolist() == [1.5, 0]
    assert both["peak memory"].fillna(0).tolist() == [0, 1.5, 0]
    assert "peak memory" not in load_runs(tmp_path / "cpu")
    assert "peak memory" not in load_results(tmp_path)


def test_a_run_in_two_attempts_took_as_much_memory_as_the_larger(tmp_path):
    path = write_run(
        tmp_path, {}, [record(1)], Outcome(Status.INTERRUPTED, "", 1), facts={"peak_memory": 2**22}
    )
    write_run(tmp_path, {}, [record(2)], attempt=2, after=1, facts={"peak_memory": 2**20})

    assert load_runs(path)["peak memory"].tolist() == [4.0]


@pytest.mark.parametrize("end", [{"peak_memory": "much"}, {"peak_memory": None}, {}])
def test_a_peak_that_is_no_number_is_not_shown(tmp_path, end):
    assert "peak memory" not in load_runs(write_run(tmp_path, {}, [record(1)], facts=end))


def test_experiments_whose_runs_were_alone_join_those_whose_were_not(tmp_path):
    write_run(tmp_path / "alone", {"lr": 0.1}, [record(1, f1=1.0)])
    write_run(tmp_path / "shared", {"net": "a"}, [record(1)], jobs=3)

    results, runs = load_results(tmp_path), load_runs(tmp_path)

    assert list(results) == ["experiment", *COLUMNS, "lr", "net", "f1", "jobs"]
    assert list(runs)[-6:] == ["jobs", "parameters", "attempts", "mixed", "folder", "error"]
    for table in (results, runs):
        assert table["jobs"].tolist() == [1, 3]
        assert table["jobs"].dtype == "int64"


VALUES = [
    0.1, 1, True, "001", "None", "", None, math.inf, (3, 3), [1, "a"], {"a": (1,)}, 2**70,
    torch.device("cpu"), torch.float16,
]  # fmt: skip


@pytest.mark.parametrize("values", [[value] for value in VALUES] + [VALUES], ids=repr)
def test_hyperparameters_come_back_with_their_types(tmp_path, values):
    for value in values:
        write_run(tmp_path, {"value": value}, [record(1)])

    for table in (load_results(tmp_path), load_runs(tmp_path)):
        assert [repr(value) for value in table["value"].tolist()] == [repr(value) for value in values]


def test_runs_without_a_hyperparameter_have_it_missing(tmp_path):
    write_run(tmp_path, {"lr": 0.1, "n": 1}, [record(1)])
    write_run(tmp_path, {"lr": 0.2, "name": "x"}, [record(1)])

    table = load_results(tmp_path)

    assert list(table) == [*COLUMNS, "lr", "n", "name"]
    assert table["n"].isna().tolist() == [False, True]
    assert table["name"].isna().tolist() == [True, False]


def test_several_experiments_stand_in_one_table(tmp_path):
    for experiment in ("b", "a"):
        write_run(tmp_path / experiment, {"lr": 0.1}, [record(1)])
    (tmp_path / "notes").mkdir()

    assert load_results(tmp_path)["experiment"].tolist() == ["a", "b"]
    assert list(load_runs(str(tmp_path)))[:3] == ["experiment", "run", "status"]
    assert "experiment" not in load_results(tmp_path / "a")


def test_a_runs_folder_gives_that_run_alone(tmp_path, monkeypatch):
    write_run(tmp_path / "exp", {"lr": 0.1}, [record(1)])
    path = write_run(tmp_path / "exp", {"lr": 0.2}, [record(1)])
    monkeypatch.chdir(path)

    tables = [load_results(place) for place in (path, ".", f"../{path.name}")]

    assert [table["run"].tolist() for table in tables] == [[2], [2], [2]]


def test_a_folder_without_runs_gives_an_empty_table(tmp_path):
    assert (len(load_results(tmp_path)), len(load_runs(tmp_path))) == (0, 0)
    assert list(load_results(tmp_path))[-6:] == COLUMNS


def test_experiments_and_how_runs_stand_are_categories_in_their_order(tmp_path):
    for experiment, ends in {"b": ("failed", "completed"), "a": ("interrupted",)}.items():
        for lr, end in enumerate(ends):
            write_run(tmp_path / experiment, {"lr": lr}, [record(1)], Outcome(Status(end), "", 1))

    runs, results = load_runs(tmp_path), load_results(tmp_path)

    assert runs["status"].cat.categories.tolist() == ["completed", "failed", "interrupted"]
    for table in (runs, results):
        assert table["experiment"].cat.categories.tolist() == ["a", "b"]
        assert table["experiment"].tolist() == ["a", "b", "b"]
    assert load_runs(tmp_path / "b")["status"].value_counts().to_dict() == {"failed": 1, "completed": 1}


def test_a_hyperparameter_with_the_name_of_a_column_has_a_column_of_its_own(tmp_path):
    write_run(tmp_path / "a", {}, [record(1)])
    write_run(tmp_path / "b", {}, [record(1)])
    names = [name for name in {*load_results(tmp_path), *load_runs(tmp_path)} if not check_names([name])]
    write_run(tmp_path / "c", {name: f"mine: {name}" for name in names}, [record(1)])

    for table in (load_results(tmp_path), load_runs(tmp_path)):
        (row,) = table[table["experiment"] == "c"].to_dict(orient="records")

        assert {row[f"{name} (hyperparameter)"] for name in names} == {f"mine: {name}" for name in names}
        assert (row["experiment"], row["run"], row["loss"]) == ("c", 1, record(1).metrics["loss"])
    assert len(names) == 12


@pytest.mark.parametrize("load", [load_results, load_runs])
def test_a_path_that_is_not_there_is_named(tmp_path, load):
    with pytest.raises(
        InvalidArgumentError, match=r"no results at '.*missing': give the folder that RunManager"
    ):
        load(tmp_path / "missing")


def test_a_file_is_not_taken_for_a_folder(tmp_path):
    (tmp_path / "results.csv").touch()

    with pytest.raises(
        InvalidArgumentError, match=r"got the file '.*results.csv': .* load the file with load_table"
    ):
        load_results(tmp_path / "results.csv")


@pytest.mark.parametrize(
    ("details", "outcome", "status"),
    [
        ({}, Outcome(Status.COMPLETED, "", 1), "completed"),
        ({}, Outcome(Status.DIVERGED, "loss became nan in epoch 1", 1), "diverged"),
        ({}, None, "running"),
        ({"pid": NO_PROCESS}, None, "interrupted"),
        ({"pid": "text"}, None, "interrupted"),
        ({"pid": -1}, None, "interrupted"),
        ({"boot": "another"}, None, "interrupted"),
        ({"pid_start": "1"}, None, "interrupted"),
        ({"host": "another"}, None, "running"),
    ],
)
def test_the_status_follows_from_the_journal_and_the_process(tmp_path, details, outcome, status):
    write_run(tmp_path, {"lr": 0.1}, [record(1)], outcome, **details)

    (row,) = load_runs(tmp_path).to_dict(orient="records")

    assert row["status"] == status
    assert row["error"] == (outcome.error if outcome else "")


def test_runs_that_were_not_executed_are_listed(tmp_path):
    grid = [{"device": "cuda"}, {"device": "cpu"}]
    Experiment(tmp_path).plan(grid, {identity(grid[0]): "device 'cuda' is not there"})

    table = load_runs(tmp_path)

    assert table["status"].tolist() == ["unavailable", "pending"]
    assert table["error"].tolist() == ["device 'cuda' is not there", ""]
    assert table["attempts"].tolist() == [0, 0]
    assert len(load_results(tmp_path)) == 0


@pytest.mark.parametrize(
    ("after", "losses"), [(0, [0.9]), (1, [0.1, 0.9]), (3, [0.1, 0.2, 0.3, 0.9])], ids=["0", "1", "3"]
)
def test_a_later_attempt_supersedes_what_came_after_its_beginning(tmp_path, after, losses):
    first = [record(epoch, loss=epoch / 10) for epoch in (1, 2, 3)]
    write_run(tmp_path, {"lr": 0.1}, first, None, pid=NO_PROCESS)
    write_run(tmp_path, {"lr": 0.1}, [record(after + 1, loss=0.9)], attempt=2, after=after)

    table = load_results(tmp_path)

    assert table["loss"].tolist() == losses
    assert table["epoch"].tolist() == list(range(1, after + 2))
    assert load_runs(tmp_path)["attempts"].tolist() == [2]
    assert load_runs(tmp_path)["status"].tolist() == ["completed"]


def test_damaged_files_are_named_in_one_warning_and_cost_their_own_run(tmp_path):
    folders = [write_run(tmp_path, {"lr": lr}, [record(1), record(2)]) for lr in range(8)]
    for folder in folders[:7]:
        path = folder / "attempt-1.jsonl"
        path.write_bytes(path.read_bytes().replace(b'"epoch":2', b'"epoch":3'))
    os.mkfifo(folders[7] / "attempt-2.jsonl")

    with pytest.warns(RunsWarning) as caught:
        table = load_results(tmp_path)

    (message,) = [str(warning.message) for warning in caught]
    assert message.startswith(f"8 damaged under {tmp_path}, the rest is complete: ")
    assert f"{folders[0] / 'attempt-1.jsonl'} (line 3); " in message
    assert message.endswith(f"{folders[4] / 'attempt-1.jsonl'} (line 3) and 3 more")
    assert caught[0].filename == __file__
    assert table["epoch"].tolist() == [1] * 7 + [1, 2]


def test_foreign_content_in_a_start_line_costs_nothing(tmp_path):
    write_run(tmp_path, {"lr": 0.1}, [record(1)], parameters=[1])
    write_run(tmp_path, {"lr": 0.1}, [record(2)], attempt=2, after="the first")

    table = load_runs(tmp_path)

    assert (table["status"].tolist(), table["epochs"].tolist()) == (["completed"], [2])


def test_half_of_a_folder_copied_elsewhere_loads(tmp_path):
    write_run(tmp_path / "exp", {"lr": 0.1}, [record(1)])
    path = write_run(tmp_path / "exp", {"lr": 0.2}, [record(1)])

    shutil.copytree(path, tmp_path / "copy" / path.name)

    table = load_results(tmp_path / "copy")
    assert (table["run"].tolist(), table["lr"].tolist()) == ([2], [0.2])


def test_an_attempt_whose_first_line_is_damaged_still_supersedes(tmp_path):
    write_run(tmp_path, {"lr": 0.1}, [record(1), record(2), record(3)], attempt=1)
    folder = write_run(tmp_path, {"lr": 0.1}, [record(2, loss=0.25)], None, attempt=2, after=1)
    journal = folder / "attempt-2.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"start"', b'"sta-t"', 1))

    with pytest.warns(RunsWarning, match="line 1"):
        table = load_results(tmp_path)

    assert table["loss"].tolist() == [0.5, 0.25]


def test_metrics_that_the_last_epoch_lacks_are_in_the_row_of_the_run(tmp_path):
    write_run(tmp_path, {"lr": 0.1}, [record(1), record(2, val_accuracy=0.75), record(3)])

    (row,) = load_runs(tmp_path).to_dict(orient="records")

    assert (row["val_accuracy"], row["best val_accuracy"]) == (0.75, 0.75)


@pytest.mark.parametrize("spoil", ["copy", "run.json"])
def test_a_copied_folder_and_one_without_its_name_are_named(tmp_path, spoil):
    folder = write_run(tmp_path, {"lr": 0.1}, [record(1)])
    write_run(tmp_path, {"lr": 0.2}, [record(1)])
    if spoil == "copy":
        shutil.copytree(folder, folder.with_name(f"{folder.name}_backup"))
    else:
        (folder / "run.json").unlink()

    with pytest.warns(RunsWarning, match="a copy of" if spoil == "copy" else "no run.json"):
        table = load_results(tmp_path)

    assert table["lr"].tolist() == ([0.1, 0.2] if spoil == "copy" else [0.2])


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_garbage_collector_is_as_it_was_once_nobody_reads_any_more(was_enabled):
    first, second = _without_collection(), _without_collection()
    if not was_enabled:
        gc.disable()

    try:
        first.__enter__()  # one thread begins before, and ends before another
        second.__enter__()
        first.__exit__(None, None, None)
        meanwhile = gc.isenabled()
        second.__exit__(None, None, None)

        assert (meanwhile, gc.isenabled()) == (False, was_enabled)
    finally:
        gc.enable()


def test_experiments_and_runs_of_several_folders_are_one_table(tmp_path):
    for root in ("x", "y"):
        for lr in (0.1, 0.2):
            write_run(tmp_path / root / "e", {"lr": lr}, [record(1)])
    write_run(tmp_path / "x/f", {"lr": 0.3}, [record(1)])
    first, second, third = tmp_path / "x/e", tmp_path / "y/e", tmp_path / "x/f"

    for load in (load_runs, load_results):
        both = load([first, third])
        assert both["experiment"].tolist() == ["e", "e", "f"]
        assert both["run"].tolist() == [1, 2, 1]
        assert load([first, str(second)])["experiment"].nunique() == 2  # of one name, told apart by their paths
        assert len(load([first, tmp_path / "x"])) == 3  # each once
        assert load([first]).equals(load(first))

    runs = [next(first.glob("002*")), next(first.glob("001*")), next(third.glob("001*"))]
    assert load_runs(runs[:2])["run"].tolist() == [1, 2]
    assert load_runs([runs[0], runs[2]])[["experiment", "run"]].to_numpy().tolist() == [["e", 2], ["f", 1]]
    with pytest.raises(InvalidArgumentError, match="no results at"):
        load_runs([first, tmp_path / "z"])


def test_a_metric_that_is_called_like_a_hyperparameter_of_another_run_is_kept(tmp_path):
    manager = RunManager("e", tmp_path, display=False, tensorboard=False)
    for params in ({"lr": 0.1}, {"lr": 0.1, "margin": 0.5}):
        with manager.run(params):
            for epoch in manager.epochs(2):
                if "margin" not in params:
                    manager.track(margin=epoch / 4)

    assert load_results(tmp_path)["margin"].tolist() == [0.25, 0.5, 0.5, 0.5]
    assert load_runs(tmp_path)["margin"].tolist() == [0.5, 0.5]
