"""What every executor promises; a new one is in EXECUTORS and so in here."""

from collections import deque

import pytest

from runmanager import RunBuilder, StorageError, SuccessiveHalving, run_grid
from runmanager.executors import EXECUTORS
from runmanager.outcome import EpochRecord, Outcome, Status

RUNS = RunBuilder.get_runs({"lr": [0.1, 0.2, 0.3]})


@pytest.fixture(params=EXECUTORS)
def name(request):
    if request.param == "ray":
        request.getfixturevalue("local_ray")
    return request.param


@pytest.fixture
def executor(name):
    return EXECUTORS[name]()


class Watcher:
    """Notes what it is told."""

    def __init__(self):
        self.seen: list[tuple[object, ...]] = []

    def run_started(self, run, lane, device):
        assert lane >= 0
        assert device in ("cpu", "cuda:0", "cuda:1")
        self.seen.append((run, "start"))

    def run_progressed(self, run, news):
        if isinstance(news, EpochRecord):
            self.seen.append((run, news.epoch, news.metrics["loss"]))

    def stopping(self):
        """Say nothing."""

    def say(self, line):
        self.seen.append((line,))


def work(run, report):
    """Commit an epoch or two; the second run fails."""
    num_epochs = 1 if run.lr == 0.2 else 2
    for epoch in range(1, num_epochs + 1):
        report(EpochRecord(epoch, {"loss": run.lr}))
    return Outcome(Status.FAILED, "no", 1) if run.lr == 0.2 else Outcome(Status.COMPLETED, "", 2)


def interrupted_work(run, report):
    if run.lr == 0.2:
        raise KeyboardInterrupt
    return work(run, report)


def full_disk_work(run, report):
    if run.lr == 0.2:
        raise StorageError(28, "No space left on device", "attempt-1.jsonl")
    return work(run, report)


class LostError(Exception):
    """An error of the user's own type."""


def lost_work(run, report):
    if run.lr == 0.2:
        raise LostError("map")
    return work(run, report)


def train(run, manager):
    with manager.run(run):
        for _ in manager.epochs(2):
            manager.track_loss(run.lr, 1)
            if run.lr == 0.2:
                raise ValueError("no")


def train_on(run, manager):
    with manager.run(run):
        for _ in manager.epochs(2, checkpoint={}):
            manager.track_loss(run.lr, 1)


def execute(executor, runs, work, watch=None):
    return executor.execute(deque(runs), work, watch or Watcher())


def test_each_run_gets_its_one_outcome(executor):
    outcomes = list(execute(executor, RUNS, work))

    expected = [(run, work(run, lambda _: None)) for run in RUNS]
    assert sorted(outcomes, key=lambda pair: pair[0]) == expected


def test_a_run_that_is_added_on_its_outcome_is_executed_again(executor):
    runs = deque(RUNS)
    executed: list[float] = []

    for run, outcome in executor.execute(runs, work, Watcher()):
        if outcome.status is Status.FAILED and run.lr not in executed:
            runs.append(run)
        executed.append(run.lr)

    assert sorted(executed) == [0.1, 0.2, 0.2, 0.3]


def test_no_runs_give_no_outcomes(executor):
    assert list(execute(executor, [], work)) == []


def test_each_run_is_reported_from_its_start_to_its_outcome(executor):
    watch = Watcher()

    for run, _ in execute(executor, RUNS, work, watch):
        watch.seen.append((run, "end"))

    for run in RUNS:
        epochs = [(run, epoch, run.lr) for epoch in ((1,) if run.lr == 0.2 else (1, 2))]
        assert [event for event in watch.seen if event[0] == run] == [(run, "start"), *epochs, (run, "end")]


@pytest.mark.parametrize(
    ("ending", "error"),
    [(interrupted_work, KeyboardInterrupt), (full_disk_work, OSError), (lost_work, LostError)],
)
def test_what_leaves_work_as_an_exception_passes_through(executor, ending, error):
    outcomes = []

    def gather():
        for run, _ in execute(executor, RUNS, ending):
            outcomes.append(run)

    with pytest.raises(error):
        gather()

    assert RUNS[1] not in outcomes


def test_nothing_is_started_after_the_iterator_is_closed(executor):
    watch = Watcher()

    outcomes = execute(executor, RUNS[:1] * 50, work, watch)
    next(outcomes)
    outcomes.close()

    assert sum(event[1:] == ("start",) for event in watch.seen) < 50


def test_runs_that_are_behind_are_stopped_and_the_best_goes_on(name, tmp_path):
    outcome = run_grid(
        {"lr": [0.1, 0.2, 0.3]}, train_on, experiment="exp", root=tmp_path, executor=name,
        prune=SuccessiveHalving("loss"), tensorboard=False, display=False,
    )  # fmt: skip

    ended = [("completed", 2), ("pruned", 1), ("pruned", 1)]
    assert list(zip(outcome.runs["status"], outcome.runs["epochs"], strict=True)) == ended


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
