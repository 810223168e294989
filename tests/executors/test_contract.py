"""What every executor promises; a new one is in EXECUTORS and so in here."""

import pytest

from runmanager import RunBuilder, StorageError, run_grid
from runmanager.executors import EXECUTORS
from runmanager.storage.journal import EpochRecord, Outcome, Status

RUNS = RunBuilder.get_runs({"lr": [0.1, 0.2, 0.3]})


@pytest.fixture(params=EXECUTORS)
def name(request):
    return request.param


@pytest.fixture
def executor(name):
    return EXECUTORS[name]()


def work(run, on_epoch):
    """Commit an epoch or two; the second run fails."""
    num_epochs = 1 if run.lr == 0.2 else 2
    for epoch in range(1, num_epochs + 1):
        on_epoch(run, EpochRecord(epoch, {"loss": run.lr}))
    return Outcome(Status.FAILED, "no", 1) if run.lr == 0.2 else Outcome(Status.COMPLETED, "", 2)


def interrupted_work(run, on_epoch):
    if run.lr == 0.2:
        raise KeyboardInterrupt
    return work(run, on_epoch)


def full_disk_work(run, on_epoch):
    if run.lr == 0.2:
        raise StorageError(28, "No space left on device", "attempt-1.jsonl")
    return work(run, on_epoch)


def train(run, manager):
    with manager.run(run):
        for _ in manager.epochs(2):
            manager.track_loss(run.lr, 1)
            if run.lr == 0.2:
                raise ValueError("no")


def nothing(*_):
    """Ignore what is reported."""


def test_each_run_gets_its_one_outcome(executor):
    outcomes = list(executor.execute(RUNS, work, nothing, nothing))

    expected = [(run, work(run, nothing)) for run in RUNS]
    assert sorted(outcomes) == expected


def test_no_runs_give_no_outcomes(executor):
    assert list(executor.execute([], work, nothing, nothing)) == []


def test_each_run_is_reported_from_its_start_to_its_outcome(executor):
    seen: list[tuple[object, ...]] = []

    reported = executor.execute(
        RUNS,
        work,
        lambda run: seen.append((run, "start")),
        lambda run, record: seen.append((run, record.epoch, record.metrics["loss"])),
    )
    for run, _ in reported:
        seen.append((run, "end"))

    for run in RUNS:
        epochs = [(run, epoch, run.lr) for epoch in ((1,) if run.lr == 0.2 else (1, 2))]
        assert [event for event in seen if event[0] == run] == [(run, "start"), *epochs, (run, "end")]


@pytest.mark.parametrize(
    ("ending", "error"), [(interrupted_work, KeyboardInterrupt), (full_disk_work, OSError)]
)
def test_what_leaves_work_as_an_exception_passes_through(executor, ending, error):
    outcomes = []

    def execute():
        for run, _ in executor.execute(RUNS, ending, nothing, nothing):
            outcomes.append(run)

    with pytest.raises(error):
        execute()

    assert RUNS[1] not in outcomes


def test_nothing_is_started_after_the_iterator_is_closed(executor):
    started: list[object] = []

    outcomes = executor.execute(RUNS[:1] * 50, work, started.append, nothing)
    next(outcomes)
    outcomes.close()

    assert len(started) < 50


def test_a_grid_gives_the_same_table_as_inline(name, tmp_path):
    tables = []
    for place, executor in (("inline", "inline"), ("other", name)):
        outcome = run_grid(
            {"lr": [0.1, 0.2, 0.3]}, train, experiment="exp", root=tmp_path / place, executor=executor,
            tensorboard=False, display=False,
        )  # fmt: skip
        durations = ["epoch duration", "run duration"]
        tables.append((outcome.runs.drop(columns=durations), outcome.results.drop(columns=durations)))

    assert tables[0][0].equals(tables[1][0])
    assert tables[0][1].equals(tables[1][1])
    assert tables[1][0]["status"].tolist() == ["completed", "failed", "completed"]
