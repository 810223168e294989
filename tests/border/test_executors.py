"""What every executor promises; a new one is a further `param` of the fixture."""

import itertools
import os
import resource
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runmanager import (
    EpochRecord,
    GridError,
    InlineExecutor,
    LanesExecutor,
    Outcome,
    RayExecutor,
    RunBuilder,
    Status,
    StorageError,
    SuccessiveHalving,
    load_runs,
    run_grid,
)
from tests.border.work import statuses

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


def test_each_run_is_reported_from_its_start_to_its_one_outcome_and_executed_again_if_it_is_added(executor):
    watch, due, outcomes = Watcher(), deque(RUNS), []

    for run, outcome in executor.execute(due, work, watch):
        watch.seen.append((run, "end"))
        if outcome.status is Status.FAILED and (run, outcome) not in outcomes:
            due.append(run)
        outcomes.append((run, outcome))

    attempts = [*RUNS, RUNS[1]]
    assert sorted(outcomes) == sorted((run, work(run, lambda *_: None)) for run in attempts)
    for run in RUNS:
        epochs = [(run, epoch, run.lr) for epoch in ((1,) if run.lr == 0.2 else (1, 2))]
        attempt = [(run, "start"), *epochs, (run, "end")]
        assert [event for event in watch.seen if event[0] == run] == attempt * attempts.count(run)
    assert list(execute(executor, [], work)) == []


def test_values_may_be_of_classes_that_no_other_process_can_import_and_it_says_whether_there_is_one(executor):
    @dataclass
    class Block:
        width: int

    def block_work(run, _report):
        is_its_own = run.block is Block or isinstance(run.block, Block)
        return Outcome(Status.COMPLETED, f"{is_its_own} {getattr(run.block, 'width', 0)}", os.getpid())

    runs = RunBuilder.get_runs({"block": [Block(3), Block]})  # as of a script
    outcomes = [outcome for _, outcome in execute(executor, runs, block_work)]

    assert sorted(outcome.error for outcome in outcomes) == ["True 0", "True 3"]
    assert {outcome.epochs == os.getpid() for outcome in outcomes} == {executor.is_in_process}


class TwoPartsError(Exception):
    """An error of the user's own, that can be written, but not be read again."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def locked_error():
    return RuntimeError(threading.Lock())


ERRORS: dict[str, tuple[Any, str]] = {
    "interrupted": (KeyboardInterrupt, ""),
    "full": (partial(StorageError, 28, "No space left on device", "attempt-1.jsonl"), "attempt-1.jsonl"),
    "unreadable": (partial(TwoPartsError, "this", "that"), "this and that"),
    "unsendable": (locked_error, "_thread.lock"),
}


ON_RAY = [
    pytest.param("ray", error, marks=[pytest.mark.slow, *[pytest.mark.nightly] * (error != "unreadable")])
    for error in ERRORS
]  # each in new processes


@pytest.mark.parametrize(
    ("executor", "error"), [*itertools.product(["inline", "lanes"], ERRORS), *ON_RAY], indirect=["executor"]
)
def test_what_leaves_work_as_an_exception_passes_through(executor, error):
    make, words = ERRORS[error]

    def odd_work(run, report):
        if run.lr == 0.2:
            raise make()
        return work(run, report)

    outcomes = []

    def gather():
        for run, _ in execute(executor, RUNS, odd_work):
            outcomes.append(run)

    with pytest.raises((KeyboardInterrupt, OSError, TwoPartsError, RuntimeError)) as caught:
        gather()

    assert words in str(caught.value)
    assert RUNS[1] not in outcomes


def test_nothing_is_started_after_the_iterator_is_closed(executor):
    watch = Watcher()

    outcomes = execute(executor, RUNS[:1] * 50, work, watch)
    next(outcomes)
    outcomes.close()

    assert sum(event[1:] == ("start",) for event in watch.seen) < 50


def grid(executor, folder, train, **options):
    quiet: dict[str, Any] = {"experiment": "exp", "tensorboard": False, "display": False}
    return run_grid(PARAMS, train, root=folder, executor=executor, **quiet, **options)


@pytest.mark.slow
def test_runs_are_stopped_asynchronously_and_continued_by_a_grid_that_stops_none(executor, tmp_path):
    pruned = grid(executor, tmp_path, train_on, prune=SuccessiveHalving("loss"))
    whole = grid(executor, tmp_path, train_on)

    assert statuses(pruned)[0] == ("completed", 2)  # no run is ever ahead of it
    assert set(statuses(pruned)[1:]) <= {("completed", 2), ("pruned", 1)}
    assert statuses(pruned)[2] == ("pruned", 1) or jobs_at_once(executor) > 1  # with one lane, it comes last
    assert statuses(whole) == [("completed", 2)] * 3
    assert whole.results["epoch"].tolist() == [1, 2] * 3


def jobs_at_once(executor):
    return executor.num_lanes(RunBuilder.get_runs({"lr": [0.1, 0.2, 0.3], "device": ["cpu"]}))


@pytest.mark.slow(everywhere=True)
@pytest.mark.usefixtures("usual_threads", "local_ray")
def test_a_grid_gives_the_same_tables_by_every_executor(tmp_path):
    timing = ["epoch duration", "run duration", "jobs", "cold start", "peak memory", "folder"]
    outcomes = [grid(name, tmp_path / name, train) for name in EXECUTORS]

    for outcome in outcomes[1:]:
        for table, expected in ((outcome.runs, outcomes[0].runs), (outcome.results, outcomes[0].results)):
            assert table.drop(columns=timing, errors="ignore").equals(
                expected.drop(columns=timing, errors="ignore")
            )
    assert outcomes[0].runs["status"].tolist() == ["completed", "failed", "completed"]


def test_what_cannot_be_sent_to_workers_is_refused_before_it_starts_and_named(tmp_path):
    lock = threading.Lock()

    def locked(run, manager):
        with lock, manager.run(run):
            pass

    with pytest.raises(GridError, match="lock"):
        run_grid(PARAMS, locked, experiment="exp", root=tmp_path, executor="lanes", display=False)

    assert list(tmp_path.iterdir()) == []


def test_only_in_their_own_process_do_ranks_execute_a_grid(monkeypatch, tmp_path):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "box"}.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(GridError, match="write executor='inline'"):
        run_grid({"lr": [1]}, print, experiment="exp", root=tmp_path)


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


ALL_CLOSED = "<&- >&- 2>&-"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "closed"),
    [
        ("", ALL_CLOSED),
        ("lanes", "2>&-"),
        *(pytest.param(*given, marks=pytest.mark.nightly) for given in (
            ("", "2>&-"), ("inline", ALL_CLOSED), ("lanes", ALL_CLOSED), ("ray", ALL_CLOSED),
        )),
    ],
)  # fmt: skip
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


LEAKED: list[int] = []


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


def test_descriptors_that_a_run_leaks_are_closed_before_the_next_run_of_its_lane():
    (_, first), (_, second), (_, third) = execute(LanesExecutor(), RUNS, leaking_work)

    assert [first.status, second.status, third.status] == [Status.COMPLETED, Status.FAILED, Status.COMPLETED]
    assert third.epochs < first.epochs - 90
    assert third.epochs < 90


def faulty_work(run, _report):
    before, vars(sys)["left_behind"] = getattr(sys, "left_behind", 0), run.lr
    return Outcome({0.2: Status.FAILED, 0.3: Status.OUT_OF_MEMORY}.get(run.lr, Status.COMPLETED), str(before))


def test_a_lane_is_replaced_after_a_fault_of_a_run():
    outcomes = execute(LanesExecutor(), RunBuilder.get_runs({"lr": [0.1, 0.2, 0.3, 0.4]}), faulty_work)

    assert [outcome.error for _, outcome in outcomes] == ["0", "0.1", "0", "0"]
