import json
import re

import pytest

from runmanager import RunManager, load_results, load_runs, run_grid
from runmanager.storage.lock import hold


@pytest.fixture
def experiment(tmp_path):
    """Two runs: one interrupted with a checkpoint, one pending; and a file of somebody else."""
    folder = start(tmp_path).folder
    (folder / "mine.txt").write_text("mine")
    return folder


def start(tmp_path):
    def train_(run, manager):
        state = {"best": 0.0}
        with manager.run(run):
            for epoch in manager.epochs(3, checkpoint={"state": state}):
                manager.track_loss(run.lr, 1)
                if epoch == 3 and run.lr == 0.1 and not (tmp_path / "go on").exists():
                    raise KeyboardInterrupt

    return run_grid(
        {"lr": [0.1, 0.2]}, train_, experiment="grid", root=tmp_path / "runs", executor="inline", display=False
    )


def files_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_whole_experiment_is_removed_once_that_is_confirmed(command, experiment, tmp_path):
    before = files_in(experiment)
    refused = command("rm", experiment, input="n\n")
    kept = files_in(experiment)

    removed = command("rm", experiment, input="y\n")

    assert (refused.exit_code, kept) == (1, before)
    assert removed.exit_code == 0
    assert "2 runs, " in removed.stderr
    assert "not removed: mine.txt" in removed.stderr
    assert "Remove 1 experiment?" in removed.stderr
    assert files_in(tmp_path / "runs") == {"grid/mine.txt"}
    assert command("rm", "--yes", experiment).exit_code == 2  # it is none any more


def test_an_experiment_of_ours_alone_leaves_nothing(command, experiment, tmp_path):
    (experiment / "mine.txt").unlink()
    (experiment / ".grid.json.7.0a1b2c3d.tmp").write_text("of a writer that died")
    (experiment / "001-lr=0.1" / "run.json").write_text("damaged")

    result = command("rm", "--yes", experiment)

    assert result.exit_code == 0
    assert list((tmp_path / "runs").iterdir()) == []


def test_links_are_not_followed(command, experiment, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("grid.json", "run.json", "attempt-1.jsonl", "checkpoint.pt"):
        (outside / name).write_text("{}")
    (experiment / "007-linked=1").symlink_to(outside, target_is_directory=True)
    (tmp_path / "runs" / "link").symlink_to(experiment, target_is_directory=True)

    linked = command("rm", "--yes", tmp_path / "runs" / "link")
    checkpoints = command("rm", "--yes", "--checkpoints", experiment)
    removed = command("rm", "--yes", experiment)

    assert (linked.exit_code, checkpoints.exit_code, removed.exit_code) == (2, 0, 0)
    assert "is a link, which is not followed" in linked.stderr
    assert len(list(outside.iterdir())) == 4
    assert files_in(experiment) - {f"007-linked=1/{path.name}" for path in outside.iterdir()} == {"mine.txt"}


@pytest.mark.parametrize("flags", [[], ["--checkpoints"]])
def test_nothing_is_removed_while_the_experiment_is_held(command, experiment, monkeypatch, flags):
    before = files_in(experiment)

    with hold(experiment):
        monkeypatch.setattr("os.getpid", lambda: 1)
        result = command("rm", "--yes", *flags, experiment)
        monkeypatch.undo()

    assert result.exit_code == 2
    assert "is in use by" in result.stderr
    assert files_in(experiment) == before


@pytest.mark.parametrize("target", ["runs", "runs/grid", "runs/grid/1"])
def test_checkpoints_are_removed_and_rows_and_weights_are_kept(command, experiment, tmp_path, target):
    (experiment / "001-lr=0.1" / "weights.pt").write_text("the best")
    rows = load_results(experiment)
    before = files_in(experiment)

    asked = command("rm", "--checkpoints", tmp_path / target, input="n\n")
    result = command("rm", "--checkpoints", tmp_path / target, input="y\n")

    gone = before - files_in(experiment)
    assert asked.exit_code == 1
    assert result.exit_code == 0
    assert gone
    assert all(re.fullmatch(r"001-lr=0.1/checkpoint(\.prev)?\.pt", name) for name in gone)
    assert "rows, journals and weights.pt are kept; 1 run can no longer be resumed" in result.stderr
    assert "1 (interrupted after epoch 2)" in result.stderr
    assert re.search(r"Remove \d checkpoints?, \d+\.\d MiB\?", result.stderr)
    assert result.stderr.endswith(" MiB freed\n")
    assert load_results(experiment).equals(rows)


@pytest.mark.parametrize("flags", [["--checkpoints"], []])
def test_checkpoints_of_another_trainer_are_removed_too(command, experiment, tmp_path, flags):
    saved = experiment / "001-lr=0.1" / "trainer" / "checkpoint-7"
    saved.mkdir(parents=True)
    (saved / "optimizer.pt").write_bytes(b"weights")
    (saved.parent / "link").symlink_to(tmp_path)

    result = command("rm", "--yes", *flags, experiment)

    assert result.exit_code == 0
    assert [path.name for path in saved.parent.iterdir()] == ["link"]
    (saved.parent / "link").unlink()


def test_a_run_without_its_checkpoint_is_executed_from_the_first_epoch(command, experiment, tmp_path):
    command("rm", "--yes", "--checkpoints", experiment)
    (tmp_path / "go on").touch()

    outcome = start(tmp_path)
    again = command("rm", "--checkpoints", experiment)

    assert outcome.exit_code == 0
    assert load_runs(experiment)["epochs"].tolist() == [3, 3]
    assert (again.exit_code, again.stderr) == (
        0, "there are no checkpoints: completed runs keep none, and weights.pt is none\n",
    )  # fmt: skip


def test_what_is_removed_is_named_as_it_is_written(command, experiment):
    near = command("rm", "--yes", experiment.parent / "gird")
    root = command("rm", "--yes", experiment.parent)

    assert near.exit_code == root.exit_code == 2
    assert f"did you mean '{experiment}'?" in near.stderr.replace("\n", "")
    assert "is no experiment; " in root.stderr
    assert files_in(experiment)


@pytest.fixture
def logged(tmp_path):
    """A run with artifacts and steps, and another one."""
    manager = RunManager("grid", tmp_path / "runs", display=False)
    for lr in (0.1, 0.2):
        with manager.run({"lr": lr}):
            for _ in manager.epochs(1):
                manager.log(score=lr)
            manager.artifact("x" * 2**20, "large.txt")
            manager.artifact("text", "deep/er/notes.txt")
    return tmp_path / "runs" / "grid"


def test_artifacts_and_steps_are_listed_and_removed_with_their_run(command, logged):
    shown = command("show", logged / "1")
    sizes = json.loads(command("show", logged / "1", "--json").stdout)["files"]
    (logged / "001-lr=0.1" / "artifacts" / "deep" / ".leftover").write_text("of a copied folder")

    removed = command("rm", "--yes", logged / "1")

    assert {"artifacts/deep/er/notes.txt": 4, "artifacts/large.txt": 2**20}.items() <= sizes.items()
    assert "artifacts" not in sizes
    assert "artifacts/deep/er/notes.txt" in shown.stdout
    assert "attempt-1.steps.jsonl" in shown.stdout
    assert "7 files, 1.0 MiB" in removed.stderr
    assert "not removed" not in removed.stderr
    assert [path.name for path in logged.glob("0*")] == ["002-lr=0.2"]
    assert command("rm", "--yes", logged).exit_code == 0
    assert not logged.exists()


def test_links_among_artifacts_are_not_followed_and_stay(command, logged, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("mine")
    artifacts = logged / "001-lr=0.1" / "artifacts"
    (artifacts / "link").symlink_to(tmp_path / "outside")
    (logged / "002-lr=0.2" / "artifacts").rename(tmp_path / "moved")
    (logged / "002-lr=0.2" / "artifacts").symlink_to(tmp_path / "moved")

    removed = command("rm", "--yes", logged / "1", logged / "2")

    assert "not removed: link" in removed.stderr
    assert "not removed: artifacts" in removed.stderr
    assert (artifacts / "link").is_symlink()
    assert (tmp_path / "outside" / "file").read_text() == "mine"
    assert (tmp_path / "moved" / "large.txt").exists()
