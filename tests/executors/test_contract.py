"""What every executor promises; a new one is in EXECUTORS and so in here."""

import os
from collections import deque

import pytest

from runmanager import RunBuilder, StorageError, SuccessiveHalving, run_grid
from runmanager.executors import EXECUTORS, executor_type
from runmanager.executors.inline import InlineExecutor
from runmanager.executors.lanes import LanesExecutor
from runmanager.outcome import BatchProgress, EpochRecord, Outcome, Question, Status
from tests.accelerators import Machine, installed

RUNS = RunBuilder.get_runs({"lr": [0.1, 0.2, 0.3]})
ON_ACCELERATORS = "lanes on accelerators"


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.slow if name in ("ray", ON_ACCELERATORS) else ())
        for name in (*EXECUTORS, ON_ACCELERATORS)
    ]
)
def name(request):
    if request.param == "ray":
        request.getfixturevalue("local_ray")
    return request.param


@pytest.fixture
def machine(name, tmp_path):
    """The machine that the executor is on, if it is a pretended one."""
    if name != ON_ACCELERATORS:
        yield None
        return
    (tmp_path / "devices").mkdir()
    machine = Machine(tmp_path / "devices")
    with installed(machine):
        yield machine


@pytest.fixture
def executor(name, machine):
    return LanesExecutor(jobs=2) if machine else executor_type(name)()


@pytest.fixture
def runs(machine):
    return RunBuilder.get_runs(on(machine, {"lr": [0.1, 0.2, 0.3]}))


def on(machine, params):
    return {**params, "device": ["cuda"]} if machine else params


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


def execute(executor, runs, work, watch=None, machine=None):
    return executor.execute(deque(runs), machine.on(work) if machine else work, watch or Watcher())


def test_each_run_gets_its_one_outcome(executor, runs, machine):
    outcomes = list(execute(executor, runs, work, machine=machine))

    expected = [(run, work(run, lambda _: None)) for run in runs]
    assert sorted(outcomes, key=lambda pair: pair[0]) == expected


def test_values_may_be_of_classes_that_another_process_cannot_import(executor, machine):
    class Block:
        def __init__(self, width):
            self.width = width

    blocks = [Block(3), Block]  # as of a script

    def block_work(run, _report):
        is_its_own = run.block is Block or isinstance(run.block, Block)
        return Outcome(Status.COMPLETED, str(is_its_own), getattr(run.block, "width", 0))

    runs = RunBuilder.get_runs(on(machine, {"block": blocks}))
    outcomes = [outcome for _, outcome in execute(executor, runs, block_work, machine=machine)]

    assert sorted((outcome.epochs, outcome.error) for outcome in outcomes) == [(0, "True"), (3, "True")]


def pid_work(_run, _report):
    return Outcome(Status.COMPLETED, "", os.getpid())


def test_it_says_whether_runs_are_executed_in_this_process(executor, runs, machine):
    pids = {outcome.epochs for _, outcome in execute(executor, runs, pid_work, machine=machine)}

    assert executor.is_in_process is (os.getpid() in pids)


def test_a_run_that_is_added_on_its_outcome_is_executed_again(executor, runs, machine):
    due = deque(runs)
    executed: list[float] = []

    for run, outcome in executor.execute(due, machine.on(work) if machine else work, Watcher()):
        if outcome.status is Status.FAILED and run.lr not in executed:
            due.append(run)
        executed.append(run.lr)

    assert sorted(executed) == [0.1, 0.2, 0.2, 0.3]


def test_no_runs_give_no_outcomes(executor, runs, machine):
    assert list(execute(executor, [], work, machine=machine)) == []


def test_each_run_is_reported_from_its_start_to_its_outcome(executor, runs, machine):
    watch = Watcher()

    for run, _ in execute(executor, runs, work, watch, machine):
        watch.seen.append((run, "end"))

    for run in runs:
        epochs = [(run, epoch, run.lr) for epoch in ((1,) if run.lr == 0.2 else (1, 2))]
        assert [event for event in watch.seen if event[0] == run] == [(run, "start"), *epochs, (run, "end")]


@pytest.mark.parametrize(
    ("ending", "error"),
    [(interrupted_work, KeyboardInterrupt), (full_disk_work, OSError), (lost_work, LostError)],
)
def test_what_leaves_work_as_an_exception_passes_through(executor, ending, error, runs, machine):
    outcomes = []

    def gather():
        for run, _ in execute(executor, runs, ending, machine=machine):
            outcomes.append(run)

    with pytest.raises(error):
        gather()

    assert runs[1] not in outcomes


def test_nothing_is_started_after_the_iterator_is_closed(executor, runs, machine):
    watch = Watcher()

    outcomes = execute(executor, runs[:1] * 50, work, watch, machine)
    next(outcomes)
    outcomes.close()

    assert sum(event[1:] == ("start",) for event in watch.seen) < 50


def asking_work(run, report):
    """Ask after each of three epochs whether to go on; answer how many there were, and the last answer."""
    for epoch in (1, 2, 3):
        report(BatchProgress(epoch, 1))
        why = report(Question(EpochRecord(epoch, {"loss": run.lr})))
        if why:
            return Outcome(Status.PRUNED, why, epoch)
    return Outcome(Status.COMPLETED, str(why), 3)


class Judge(Watcher):
    """Stops one run after its second epoch."""

    def run_progressed(self, run, news):
        if not isinstance(news, Question):
            return None
        self.seen.append((run, news.record.epoch))
        return "behind" if (run.lr, news.record.epoch) == (0.2, 2) else ""


def test_a_run_that_asks_gets_its_answer_after_each_epoch(executor, runs, machine):
    judge = Judge()
    outcomes = dict(execute(executor, runs, asking_work, judge, machine))

    assert outcomes == {
        runs[0]: Outcome(Status.COMPLETED, "", 3),
        runs[1]: Outcome(Status.PRUNED, "behind", 2),
        runs[2]: Outcome(Status.COMPLETED, "", 3),
    }
    for run in runs:
        epochs = [(run, epoch) for epoch in range(1, outcomes[run].epochs + 1)]
        assert [event for event in judge.seen if event[0] == run] == [(run, "start"), *epochs]


@pytest.mark.slow
def test_runs_that_are_behind_are_stopped_and_continued_by_a_grid_that_stops_none(executor, machine, tmp_path):
    def grid(prune):
        return run_grid(
            on(machine, {"lr": [0.1, 0.2, 0.3]}), machine.on(train_on) if machine else train_on,
            experiment="exp", root=tmp_path, executor=executor, prune=prune, tensorboard=False, display=False,
        )  # fmt: skip

    rule = SuccessiveHalving("loss")
    outcomes = [grid(rule), grid(rule), grid(None)]

    ended = [list(zip(outcome.runs["status"], outcome.runs["epochs"], strict=True)) for outcome in outcomes]
    assert ended[0][0] == ("completed", 2)  # no run is ever ahead of it
    assert set(ended[0][1:]) <= {("completed", 2), ("pruned", 1)}
    assert ended[0][2] == ("pruned", 1) or jobs_at_once(executor) > 1  # with one lane, it comes last
    assert ended[1] == ended[0]
    assert ended[2] == [("completed", 2)] * 3
    assert outcomes[2].results["epoch"].tolist() == [1, 2] * 3


def jobs_at_once(executor):
    return executor.num_lanes(RunBuilder.get_runs({"lr": [0.1, 0.2, 0.3], "device": ["cpu"]}))


@pytest.mark.slow(everywhere=True)
@pytest.mark.usefixtures("usual_threads")
def test_a_grid_gives_the_same_table_as_inline(executor, machine, tmp_path):
    tables = []
    for folder, one in (("inline", InlineExecutor()), ("other", executor)):
        outcome = run_grid(
            on(machine, {"lr": [0.1, 0.2, 0.3]}), machine.on(train) if machine else train, experiment="exp",
            root=tmp_path / folder, executor=one,
            tensorboard=False, display=False,
        )  # fmt: skip
        timing = ["epoch duration", "run duration", "jobs", "cold start", "peak memory", "folder"]
        timing += ["threads"] if machine else []  # one lane per device, which share the cores
        tables.append(
            [table.drop(columns=timing, errors="ignore") for table in (outcome.runs, outcome.results)]
        )

    assert tables[0][0].equals(tables[1][0])
    assert tables[0][1].equals(tables[1][1])
    assert tables[1][0]["status"].tolist() == ["completed", "failed", "completed"]
