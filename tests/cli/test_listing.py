import pytest

from runmanager.cli.listing import overview
from runmanager.outcome import Outcome, Status
from runmanager.storage.run_state import read_experiment
from tests.report.reading import write_runs

FAILED = Outcome(Status.FAILED, "ValueError: no batch was left", 1)
GRID = [{"lr": lr, "net": net, "seed": s} for lr in (0.1, 0.01) for net in ("a_b", "c") for s in (1, 2, 3)]


def test_an_overview_sums_an_experiment_up(tmp_path):
    experiment = write_runs(
        tmp_path / "sweep", GRID, lambda run: run["lr"] + run["seed"] / 100, outcomes={4: FAILED}
    )

    summary = overview(experiment, read_experiment(experiment))

    assert summary.statuses == {Status.COMPLETED: 11, Status.FAILED: 1}
    assert str(summary.goal) == "max:test_accuracy"
    assert summary.best == pytest.approx(0.12)  # the mean of three seeds
    assert summary.run_seconds == 11 * 9.0 + 3.0
    assert summary.num_bytes == sum(path.stat().st_size for path in experiment.rglob("*") if path.is_file())


def test_an_experiment_without_results_has_an_overview_too(tmp_path):
    pending = Outcome(Status.PENDING)
    write_runs(tmp_path / "e", [{"lr": 0.1}], lambda _: 0.0, outcomes={0: pending})

    summary = overview(tmp_path / "e", read_experiment(tmp_path / "e"))

    assert (summary.statuses, summary.last_written, summary.run_seconds) == ({Status.PENDING: 1}, 0.0, 0.0)
    assert summary.goal is None
