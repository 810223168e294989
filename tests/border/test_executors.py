"""What every executor promises; a new one is a further `param` of the fixture."""

import os
import resource
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from runmanager import (
    EpochRecord,
    GridError,
    InlineExecutor,
    LanesExecutor,
    Listener,
    Outcome,
    RayExecutor,
    RunBuilder,
    Status,
    StorageError,
    SuccessiveHalving,
    load_runs,
    run_grid,
)

HOME = Path(__file__).parents[2]
PARAMS = {"lr": [0.1, 0.2, 0.3]}
RUNS = RunBuilder.get_runs(PARAMS)
EXECUTORS = {"inline": InlineExecutor, "lanes": LanesExecutor, "ray": RayExecutor}


@pytest.fixture(params=["inline", "lanes", pytest.param("ray", marks=pytest.mark.slow)])
def executor(request):
    if request.param == "ray":
        request.getfixturevalue("local_ray")
    return EXECUTORS[request.param]()


class Watcher:
    """Notes what it is told."""

    def __init__(self):
        self.seen: list[tuple[object, ...]] = []

    def run_started(self, run, lane, device):
        assert lane >= 0
        assert device
        self.seen.append((run, "start"))

    def run_progressed(self, run, news):
        if isinstance(news, EpochRecord):
            self.seen.append((run, news.epoch, news.metrics["loss"]))

    def stopping(self):
        """Say nothing."""

    def run_printed(self, run, line):
        self.say(line)

    def last_output(self, run):
        return ""

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


def test_values_may_be_of_classes_that_another_process_cannot_import(executor):
    @dataclass
    class Block:
        width: int

    blocks = [Block(3), Block]  # as of a script

    def block_work(run, _report):
        is_its_own = run.block is Block or isinstance(run.block, Block)
        return Outcome(Status.COMPLETED, str(is_its_own), getattr(run.block, "width", 0))

    runs = RunBuilder.get_runs({"block": blocks})
    outcomes = [outcome for _, outcome in execute(executor, runs, block_work)]

    assert sorted((outcome.epochs, outcome.error) for outcome in outcomes) == [(0, "True"), (3, "True")]


def pid_work(_run, _report):
    return Outcome(Status.COMPLETED, "", os.getpid())


def test_it_says_whether_runs_are_executed_in_this_process(executor):
    pids = {outcome.epochs for _, outcome in execute(executor, RUNS, pid_work)}

    assert executor.is_in_process is (os.getpid() in pids)


def test_a_run_that_is_added_on_its_outcome_is_executed_again(executor):
    due = deque(RUNS)
    executed: list[float] = []

    for run, outcome in executor.execute(due, work, Watcher()):
        if outcome.status is Status.FAILED and run.lr not in executed:
            due.append(run)
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


class TwoPartsError(Exception):
    """An error that can be written, but not be read again."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


@pytest.mark.parametrize("of_lock", [False, True])
def test_an_exception_that_no_process_can_send_or_read_passes_through_as_its_text(executor, of_lock):
    def odd_work(_run, _report):
        raise RuntimeError(threading.Lock()) if of_lock else TwoPartsError("this", "that")

    with pytest.raises((RuntimeError, TwoPartsError), match="_thread.lock" if of_lock else "this and that"):
        list(execute(executor, RUNS, odd_work))


def test_nothing_is_started_after_the_iterator_is_closed(executor):
    watch = Watcher()

    outcomes = execute(executor, RUNS[:1] * 50, work, watch)
    next(outcomes)
    outcomes.close()

    assert sum(event[1:] == ("start",) for event in watch.seen) < 50


class Judge(Listener):
    """Stops one run after its second epoch."""

    may_stop = True

    def epoch_ended(self, record, network):
        return "behind" if (self.run.lr, record.epoch) == (0.2, 2) else ""


@pytest.mark.slow
def test_a_run_that_a_listener_stops_ends_after_that_epoch(executor, tmp_path):
    def train_longer(run, manager):
        with manager.run(run):
            for _ in manager.epochs(3):
                manager.track_loss(run.lr, 1)

    outcome = run_grid(
        PARAMS, train_longer, experiment="exp", root=tmp_path, executor=executor, listeners=[Judge()],
        tensorboard=False, display=False,
    )  # fmt: skip

    ended = [("completed", 3), ("pruned", 2), ("completed", 3)]
    assert list(zip(outcome.runs["status"], outcome.runs["epochs"], strict=True)) == ended
    assert "behind" in outcome.runs["error"][1]


@pytest.mark.slow
def test_runs_are_stopped_asynchronously_and_continued_by_a_grid_that_stops_none(executor, tmp_path):
    def grid(prune):
        return run_grid(
            PARAMS, train_on,
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
def test_a_grid_gives_the_same_table_as_inline(executor, tmp_path):
    tables = []
    for folder, one in (("inline", InlineExecutor()), ("other", executor)):
        outcome = run_grid(
            PARAMS, train, experiment="exp",
            root=tmp_path / folder, executor=one,
            tensorboard=False, display=False,
        )  # fmt: skip
        timing = ["epoch duration", "run duration", "jobs", "cold start", "peak memory", "folder"]
        tables.append(
            [table.drop(columns=timing, errors="ignore") for table in (outcome.runs, outcome.results)]
        )

    assert tables[0][0].equals(tables[1][0])
    assert tables[0][1].equals(tables[1][1])
    assert tables[1][0]["status"].tolist() == ["completed", "failed", "completed"]


def test_what_cannot_be_sent_to_workers_is_refused_before_it_starts_and_named(tmp_path):
    lock = threading.Lock()

    def locked(run, manager):
        with lock, manager.run(run):
            pass

    with pytest.raises(GridError, match="lock"):
        run_grid(PARAMS, locked, experiment="exp", root=tmp_path, executor="lanes", display=False)

    assert list(tmp_path.iterdir()) == []


SERVICE = """
import os, sys
from runmanager import RunBuilder, RunManager, run_grid

def train(run, manager):
    with manager.run(run):
        for _ in manager.epochs(2):
            print("words")
            os.write(1, b"words of a library")
            os.write(2, b"words of a library")
            manager.track_loss(run.lr, 1)

root, executor = sys.argv[1:]
if executor:
    sys.exit(run_grid({"lr": [1, 2]}, train, experiment="exp", root=root, executor=executor).exit_code)
manager = RunManager("exp", root=root)
for run in RunBuilder.get_runs({"lr": [1, 2]}):
    train(run, manager)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EXECUTORS, ""])
@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "2>&-"])
def test_closed_standard_streams_as_in_a_service_are_the_null_device(tmp_path, name, closed):
    script = tmp_path / "prog.py"
    script.write_text(SERVICE)

    command = f"exec {sys.executable} {script} {tmp_path / 'runs'} '{name}' {closed}"
    done = subprocess.run(["/bin/sh", "-c", command], cwd=HOME, check=False, timeout=120)

    assert done.returncode == 0
    runs = load_runs(tmp_path / "runs")
    assert list(zip(runs["status"], runs["loss"], strict=True)) == [("completed", 1.0), ("completed", 2.0)]
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file() and path.name != "output.log"]
    assert [path for path in files if b"words of a library" in path.read_bytes()] == []


def leaking_work(run, _report):
    """Leave descriptors open in the first run, which completes, and in the second, which fails."""
    if run.lr < 0.3:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        try:
            num = 100 if run.lr == 0.1 else soft
            LEAKED.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(num))
        except OSError as error:
            return Outcome(Status.FAILED, str(error), 1)
    return Outcome(Status.COMPLETED, "", len(list(Path("/dev/fd").iterdir())))


LEAKED: list[int] = []


def test_descriptors_that_a_run_leaks_are_closed_before_the_next_run_of_its_lane():
    (_, first), (_, second), (_, third) = execute(LanesExecutor(), RUNS, leaking_work)

    assert [first.status, second.status, third.status] == [Status.COMPLETED, Status.FAILED, Status.COMPLETED]
    assert third.epochs < first.epochs - 90
    assert third.epochs < 90


def faulty_work(run, _report, status=Status.FAILED):
    before, vars(sys)["left_behind"] = getattr(sys, "left_behind", 0), run.lr
    return Outcome(status if run.lr == 0.2 else Status.COMPLETED, str(before))


@pytest.mark.parametrize("status", [Status.FAILED, Status.OUT_OF_MEMORY])
def test_a_lane_is_replaced_after_a_fault_of_a_run(status):
    outcomes = execute(LanesExecutor(), RUNS, partial(faulty_work, status=status))

    assert [outcome.error for _, outcome in outcomes] == ["0", "0.1", "0"]
