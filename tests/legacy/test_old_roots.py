"""A root that commit fa751bf wrote loads, continues and reports; write_old_root.py shows how it came about."""

import json
import math
import os
import platform
import shutil
import time
import zlib
from collections.abc import Iterator
from configparser import ConfigParser
from importlib.metadata import EntryPoint, PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner, Result

import runmanager
from runmanager import (
    RunBuilder,
    RunManager,
    available_devices,
    best,
    from_tensorboard,
    load_results,
    load_runs,
    load_table,
    run_grid,
    show,
    write_report,
)
from runmanager.board.tags import OF_GOAL
from tests.legacy.old_training import GRID, LOOP, loop, train

OLD_ROOT = Path(__file__).with_name("root")
PROJECT = Path(__file__).parents[2]
AN_HOUR = 3600.0

RUNS = [
    # experiment, run, status, epochs, error
    ("grid", 1, "completed", 4, ""),
    ("grid", 2, "diverged", 1, "loss became inf in epoch 1, step 3 (last finite 3.82e+37)"),
    ("grid", 3, "unavailable", 0, "device 'cuda:0' is not there; this machine has: cpu"),
    ("grid", 4, "interrupted", 2, ""),
    ("loop", 1, "completed", 2, ""),
    ("loop", 2, "completed", 2, ""),
]
EPOCHS = [
    # experiment, run, epoch, loss, accuracy, epoch duration
    ("grid", 1, 1, 0.3771280124783516, 0.75, 0.0059879719999571535),
    ("grid", 1, 2, 0.2856894906144589, 0.875, 0.07083664200001749),
    ("grid", 1, 3, 0.0028862340841442347, 1.0, 0.07241209500000423),
    ("grid", 1, 4, 0.006399688412386695, 1.0, 0.0742073770000502),
    ("grid", 2, 1, math.inf, 0.625, 0.06991219799999726),
    ("grid", 4, 1, 0.5244876481592655, 0.625, 0.06405061200001683),
    ("grid", 4, 2, 0.6752143048215657, 0.75, 0.07165076299997963),
    ("loop", 1, 1, 0.9909842014312744, 0.5, 0.018517201000008754),
    ("loop", 1, 2, 1.112438678741455, 0.5, 0.01869089500002019),
    ("loop", 2, 1, 1.145519495010376, 0.5, 0.01862374299997782),
    ("loop", 2, 2, 0.6701854467391968, 0.5, 0.014944878999983757),
]
PARAMS = {
    "grid": [
        {"lr": 0.5, "device": "cpu", "batch_size": 2, "seed": 0},
        {"lr": 1e38, "device": "cpu", "batch_size": 2, "seed": 0},
        {"lr": 0.5, "device": "cuda:0", "batch_size": 2, "seed": 0},
        {"lr": 0.25, "device": "cpu", "batch_size": 2, "seed": 0},
    ],
    "loop": [
        {"lr": 0.5, "bias": True, "betas": (0.9, 0.99), "warmup": None, "device": torch.device("cpu")},
        {"lr": 0.5, "bias": False, "betas": (0.9, 0.99), "warmup": None, "device": torch.device("cpu")},
    ],
}
COLUMNS = ["experiment", "run", "epoch", "loss", "accuracy", "epoch duration"]


@pytest.fixture(scope="module")
def losses_at_once(tmp_path_factory):
    """Those of the interrupted run, if it is executed here without an interruption."""
    results = continue_grid(tmp_path_factory.mktemp("at_once")).results
    return results.loc[results["run"] == 4, "loss"].tolist()


@pytest.fixture
def held_root(tmp_path):
    """A copy of the old root, as it was left behind: the killed grid still holds its folder."""
    root = tmp_path / "old"
    shutil.copytree(OLD_ROOT, root)
    # git keeps no times: in a fresh clone, another machine's files of this moment are those of a living process
    before = time.time() - AN_HOUR
    for path in root.rglob("*"):
        os.utime(path, (before, before))
    return root


@pytest.fixture
def root(held_root):
    """A copy of the old root without the killed grid's hold, so that its last run is judged by its age."""
    (held_root / "grid" / "holder.json").unlink()
    return held_root


def rows(table: Any, columns: list[str]) -> list[tuple[Any, ...]]:
    return list(table[columns].astype(object).itertuples(index=False, name=None))


def params_in(table: Any, names: list[str]) -> list[dict[str, Any]]:
    # one column at a time: of a row, pandas makes one type
    columns = [table[name].tolist() for name in names]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def typed(params: list[dict[str, Any]]) -> list[dict[str, tuple[type, Any]]]:
    return [{name: (type(value), value) for name, value in run.items()} for run in params]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def as_drawn(epochs: list[tuple[Any, ...]]) -> list[float]:
    """Return the losses of epochs as event files have them: one that TensorBoard cannot draw is NaN."""
    return [row[3] if math.isfinite(row[3]) else math.nan for row in epochs]


def run_folder(experiment: Path, number: int) -> Path:
    (folder,) = experiment.glob(f"{number:03}_*")
    return folder


def invoke(*arguments: object) -> Result:
    """Invoke the command line, wherever setup.cfg says that it is."""
    config = ConfigParser()
    config.read(PROJECT / "setup.cfg")
    script = config["options.entry_points"]["console_scripts"]
    app = EntryPoint("runmanager", script.partition("=")[2].strip(), "console_scripts").load()
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result


def continue_grid(root: Path, grid: Any = GRID, **options: Any) -> Any:
    return run_grid(grid, train, experiment="grid", root=root, executor="inline", display=False, **options)


def test_old_runs_load_as_they_were_recorded(root):
    runs = load_runs(root)

    assert rows(runs, ["experiment", "run", "status", "epochs", "error"]) == RUNS
    assert runs["attempts"].tolist() == [1, 1, 0, 1, 1, 1]
    assert not runs["mixed"].any()


def test_old_epochs_load_as_they_were_recorded(root):
    assert rows(load_results(root), COLUMNS) == EPOCHS


@pytest.mark.parametrize("experiment", ["grid", "loop"])
def test_old_hyperparameters_have_the_types_they_went_in_with(root, experiment):
    expected = PARAMS[experiment]

    runs, epochs = load_runs(root / experiment), load_results(root / experiment)

    assert typed(params_in(runs, list(expected[0]))) == typed(expected)
    of_epochs = [expected[row[1] - 1] for row in EPOCHS if row[0] == experiment]
    assert typed(params_in(epochs, list(expected[0]))) == typed(of_epochs)


def test_old_tables_load(root):
    # that of the grid was written after its first run; the later ones took less than the table's next turn
    for experiment, numbers in (("grid", (1,)), ("loop", (1, 2))):
        for suffix in ("csv", "json"):
            table = load_table(root / experiment / f"results.{suffix}")

            expected = [row[1:] for row in EPOCHS if row[0] == experiment and row[1] in numbers]
            assert rows(table, COLUMNS[1:]) == expected


def test_old_event_files_have_what_the_journals_have(root):
    for experiment, number, _, num_epochs, _ in RUNS:
        if num_epochs:
            epochs = [row for row in EPOCHS if row[:2] == (experiment, number)]
            points = scalars(run_folder(root / experiment, number))["loss/train"]
            assert [step for step, _ in points] == [row[2] for row in epochs]
            assert [value for _, value in points] == pytest.approx(as_drawn(epochs), nan_ok=True)
    assert from_tensorboard(root)["loss"].tolist() == pytest.approx(as_drawn(EPOCHS), nan_ok=True)


def test_old_runs_are_listed(root):
    listed = json.loads(invoke("list", root, "--json").stdout)

    of_runs = [
        (experiment["experiment"], run["run"], run["status"], run["epochs"], run["error"])
        for experiment in listed
        for run in experiment["runs"]
    ]
    assert of_runs == RUNS
    for experiment in ("grid", "loop"):
        assert "completed" in invoke("list", root / experiment).stdout


@pytest.mark.parametrize(("experiment", "number", "status", "epochs", "error"), RUNS)
def test_an_old_run_is_shown(root, experiment, number, status, epochs, error):
    run = json.loads(invoke("show", root / experiment / str(number), "--json").stdout)

    assert (run["status"], run["epochs"], run["error"]) == (status, epochs, error)
    assert [epoch["epoch"] for epoch in run["per_epoch"]] == list(range(1, epochs + 1))
    text = invoke("show", root / experiment / str(number)).stdout
    assert status in text
    assert error in text


def test_the_best_old_runs_are_shown(root):
    runs = load_runs(root)

    assert rows(best(runs, n=1), ["experiment", "run"]) == [("grid", 1)]
    assert rows(show(runs, n=1).table, ["experiment", "run"]) == [("grid", 1)]
    assert json.loads(invoke("best", root, "--json").stdout)[0]["loss"] == 0.006399688412386695
    assert "0.0064" in invoke("best", root / "grid").stdout


def test_an_old_root_is_reported(root, tmp_path):
    write_report(root, tmp_path / "all.html")
    invoke("report", root / "grid", "--output", tmp_path / "grid.html")

    for name in ("all.html", "grid.html"):
        page = (tmp_path / name).read_text(encoding="utf-8")
        assert "loss became inf in epoch 1, step 3" in page
        assert "interrupted" in page


def test_an_old_grid_goes_on_where_it_was_killed(root, losses_at_once):
    check_that_the_old_grid_goes_on(root, losses_at_once, resume_anyway=True)


def test_an_old_grid_goes_on_though_the_killed_process_holds_it(held_root, losses_at_once):
    assert load_runs(held_root / "grid")["status"].tolist()[3] == "stale"  # its machine is not asked

    check_that_the_old_grid_goes_on(held_root, losses_at_once, resume_anyway=True)

    assert not (held_root / "grid" / "holder.json").exists()


@pytest.mark.skipif(
    platform.python_version_tuple()[:2] != ("3", "11"),
    reason="other Pythons compile the training function to other code than 3.11, which wrote the root",
)
def test_the_code_of_an_old_grid_does_not_count_as_changed(root, losses_at_once):
    for path in (root / "grid").rglob("attempt-*[0-9].jsonl"):
        pretend_that_versions_are_those_of_here(path)

    check_that_the_old_grid_goes_on(root, losses_at_once)

    assert not load_runs(root / "grid")["mixed"].any()


def test_other_code_executes_an_old_grid_again(root):
    def other(run: Any, manager: RunManager) -> None:
        train(run, manager)

    outcome = run_grid(GRID, other, experiment="grid", root=root, executor="inline", display=False)

    assert [outcome.runs["attempts"].tolist()[number] for number in (0, 1, 3)] == [2, 2, 2]
    assert outcome.runs["epochs"].tolist()[3] == 4


def test_an_old_grid_grows_and_each_run_has_every_hyperparameter_in_tensorboard_with_one_type(root):
    grown = {**GRID, ("lr", "device"): [*GRID["lr", "device"], (0.125, "cpu")]}

    continue_grid(root, grown, resume_anyway=True)

    assert load_runs(root / "grid")["run"].tolist() == [1, 2, 3, 4, 5]
    logged = from_tensorboard(root / "grid")
    assert {0.25, 0.125} < {*logged["lr"]}
    # TensorBoard draws a run only where it has every hyperparameter of the others
    for name in PARAMS["grid"][0]:
        assert logged[name].map(type).nunique() == 1
        assert logged[name].notna().all()


def test_a_bare_loop_adds_runs_to_an_old_one(root):
    manager = RunManager("loop", root, display=False)
    assert list(manager.remaining(RunBuilder.get_runs(LOOP))) == []

    loop(manager, {**LOOP, "lr": [0.25]})

    runs = load_runs(root / "loop")
    assert rows(runs, ["run", "status", "epochs", "lr", "bias"]) == [
        (1, "completed", 2, 0.5, True),
        (2, "completed", 2, 0.5, False),
        (3, "completed", 2, 0.25, True),
        (4, "completed", 2, 0.25, False),
    ]
    assert rows(load_results(root), COLUMNS)[: len(EPOCHS)] == EPOCHS
    assert rows(load_table(root / "loop" / "results.csv"), ["run"]) == [
        (n,) for n in (1, 2, 3, 4) for _ in "12"
    ]


def test_old_event_files_are_rebuilt_from_the_journals(root):
    folders = [run_folder(root / row[0], row[1]) for row in RUNS if row[3]]
    before = {folder: scalars(folder) for folder in folders}

    invoke("rebuild-tensorboard", root)

    for folder in folders:
        after = scalars(folder)
        # "tuning/best_..." is no longer written: the best value of any goal is
        kept = {tag: points for tag, points in before[folder].items() if not tag.startswith("tuning/best_")}
        assert after.keys() == {*kept, *OF_GOAL}
        for tag, points in kept.items():
            assert [step for step, _ in after[tag]] == [step for step, _ in points]
            values = [value for _, value in points]
            # of the parts of an epoch, journals keep microseconds
            assert [value for _, value in after[tag]] == pytest.approx(values, rel=1e-5, abs=1e-6, nan_ok=True)


def check_that_the_old_grid_goes_on(root: Path, losses_at_once: list[float], **options: Any) -> None:
    """Start the old grid again; it must execute what was missing, and nothing else.

    Args:
        root: A copy of the old root.
        losses_at_once: Those of its interrupted run without an interruption.
        **options: Those of `run_grid`.
    """
    cuda = ("completed", 1, 4) if "cuda:0" in available_devices() else ("unavailable", 0, 0)

    outcome = continue_grid(root, **options)

    runs = load_runs(root / "grid")
    assert rows(runs, ["status", "attempts", "epochs"]) == [
        ("completed", 1, 4),
        ("diverged", 1, 1),
        cuda,
        ("completed", 2, 4),
    ]
    assert [str(ended.status) for _, ended in outcome.outcomes] == runs["status"].tolist()
    assert outcome.exit_code == 1  # the diverged run stays so
    epochs = load_results(root)
    old = [row for row in rows(epochs, COLUMNS) if row in EPOCHS]
    assert old == EPOCHS
    going_on = epochs[(epochs["experiment"] == "grid") & (epochs["run"] == 4)]
    assert going_on["epoch"].tolist() == [1, 2, 3, 4]
    # the machine that began it may have rounded the last digits otherwise
    assert going_on["loss"].tolist() == pytest.approx(losses_at_once, rel=1e-4)
    assert going_on["run duration"].is_monotonic_increasing
    points = scalars(run_folder(root / "grid", 4))["loss/train"]
    assert [step for step, _ in points] == [1, 2, 3, 4]
    assert [value for _, value in points] == pytest.approx(going_on["loss"].tolist())


def pretend_that_versions_are_those_of_here(journal: Path) -> None:
    """Write the versions of this machine into a journal, so that its fingerprint differs in code alone."""
    written = b""
    for text in journal.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        del line["crc"]
        if line["type"] == "start":
            line["fingerprint"]["versions"] = dict(versions())
        if "whole" in line:
            line["whole"] = f"{zlib.crc32(written):08x}"
        body = json.dumps(line, separators=(",", ":"))
        written += f'{body[:-1]},"crc":"{zlib.crc32(body.encode()):08x}"}}\n'.encode()
    journal.write_bytes(written)


def versions() -> Iterator[tuple[str, str]]:
    yield "python", platform.python_version()
    yield "runmanager", runmanager.__version__
    for name in ("torch", "numpy"):
        try:
            yield name, version(name)
        except PackageNotFoundError:  # not installed, but on the path
            continue
