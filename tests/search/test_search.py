"""The contract of searches, by a toy that decides after every single run."""

import signal
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from runmanager import SuccessiveHalving, load_results, run_grid, write_report
from runmanager.outcome import Status
from runmanager.search.search import AllRuns, Decision, Journals, Search
from runmanager.storage.folders import Experiment
from runmanager.storage.run_state import read_run
from tests.report.reading import by_id, parse, text_of

LRS = [3, 1, 4, 0, 2]
GRID = {"lr": LRS}


@dataclass(frozen=True)
class PromoteAtOnce(SuccessiveHalving):
    """Asynchronous, with two runs in progress: a run goes on once it is in the better half of its rung."""

    factor: int = 2

    def search(self):
        return Promoting(self)


class Promoting(Search):
    is_asynchronous = True

    def __init__(self, rule):
        self.rule = rule
        self.asked: list[set[str]] = []

    def begin(self, runs, executable):
        self.ids = [folder.id for folder in runs]
        self.executable = set(executable)
        self.handed_out: set[tuple[str, int]] = set()

    def next(self, results, in_progress):
        self.asked.append(set(in_progress))
        waiting = [key for key in self.candidates(results) if key[0] not in in_progress]
        chosen = [key for key in waiting if key not in self.handed_out][: 2 - len(in_progress)]
        self.handed_out |= set(chosen)
        sentences = [f"{results[id_].folder.params['lr']} goes on" for id_, epoch in chosen if epoch]
        return Decision([id_ for id_, _ in chosen], sentences=sentences)

    def candidates(self, results):
        """Return runs that may go on, with their last epochs: begun ones, promoted ones, new ones."""
        epochs = {id_: len(results[id_].epochs) for id_ in self.ids}
        is_open = {id_: id_ in self.executable and not self.is_final(results[id_]) for id_ in self.ids}
        begun = [id_ for id_ in self.ids if epochs[id_] and results[id_].status is Status.INTERRUPTED]
        promoted = [
            id_
            for rung in (4, 2, 1)
            for id_ in self.best([i for i in self.ids if epochs[i] >= rung], results, rung)
            if epochs[id_] == rung
        ]
        new = [id_ for id_ in self.ids if not epochs[id_]]
        return [(id_, epochs[id_]) for id_ in [*begun, *promoted, *new] if is_open[id_]]

    def best(self, ids, results, rung):
        values = sorted(ids, key=lambda id_: results[id_].epochs[rung - 1].metrics["test_loss"])
        return values[: len(ids) // 2]

    def is_final(self, result):
        return result.status is Status.COMPLETED or result.status.is_fault


class Train:
    """Train up to eight epochs; the least lr is the best run."""

    def __init__(self, faults=None):
        self.faults = faults or {}
        self.executed = []

    def __call__(self, run, manager):
        torch.manual_seed(run.lr)
        network = nn.Linear(2, 1)
        with manager.run(run, network):
            for epoch in manager.epochs(8, checkpoint={"network": network}):
                if self.faults.get(run.lr) == epoch:
                    raise KeyboardInterrupt
                self.executed.append((run.lr, epoch))
                manager.track(test_loss=run.lr + 1 / epoch)


def start(root, train, **options):
    quiet: dict[str, Any] = {"tensorboard": False, "display": False, "executor": "inline"} | options
    return run_grid(GRID, train, experiment="exp", root=root, prune=PromoteAtOnce("test_loss"), **quiet)


def kept(outcome):
    return dict(
        zip(outcome.runs["lr"], zip(outcome.runs["status"], outcome.runs["epochs"], strict=True), strict=True)
    )


def numbers(root):
    return load_results(root / "exp").drop(columns=["epoch duration", "run duration"]).to_csv()


EXPECTED = {3: ("pruned", 1), 1: ("pruned", 2), 4: ("pruned", 1), 0: ("pruned", 4), 2: ("pruned", 1)}
EXECUTED = [
    *[(3, 1), (1, 1), (4, 1)],  # 4 is handed out when 3 has ended; of 3 and 1, the better one goes on
    *[(1, 2), (0, 1), (2, 1)],
    *[(0, 2), (0, 3), (0, 4)],  # 0 is in the better half of 5 runs, then of 2; at the third rung it is alone
]


@pytest.mark.slow(everywhere=True)
def test_a_search_may_decide_after_every_single_run(tmp_path, capsys):
    train = Train()

    outcome = start(tmp_path, train, display=None)

    lines = capsys.readouterr().out.splitlines()
    assert (train.executed, kept(outcome), outcome.exit_code) == (EXECUTED, EXPECTED, 0)
    assert lines[0].endswith("5 runs, 2 to execute")
    assert [line.split(" · ")[0].lstrip("– ") for line in lines[1:12]] == [  # noqa: RUF001 - a dash
        "run 1 lr=3", "run 2 lr=1", "1 goes on", "run 3 lr=4", "run 2 lr=1", "run 4 lr=0",
        "0 goes on", "run 5 lr=2", "run 4 lr=0", "0 goes on", "run 4 lr=0",
    ]  # fmt: skip
    assert lines[13:15] == [
        "! Run 4 (lr=0) is best so far: test_loss 0.25",
        "    No run has completed; the last epoch of each of the 5 pruned runs counts.",
    ]
    page = parse(write_report(tmp_path / "exp", tmp_path / "page.html"))
    assert text_of(by_id(page, "headline")) == "Run 4 (lr=0) is best so far: test_loss 0.25"


def test_it_is_asked_while_other_runs_are_in_progress(tmp_path, monkeypatch):
    searches = []

    def search(rule):
        searches.append(Promoting(rule))
        return searches[-1]

    monkeypatch.setattr(PromoteAtOnce, "search", search)

    start(tmp_path, Train())

    assert [len(ids) for ids in searches[0].asked] == [0, 1, 1, 1, 1, 1, 1, 0, 0, 0]


@pytest.mark.slow(everywhere=True)
def test_in_lanes_it_decides_by_what_has_ended(tmp_path):
    outcome = start(tmp_path, Train(), executor="lanes", jobs=2)
    again = Train()
    same = start(tmp_path, again)

    assert {epochs for _, epochs in kept(outcome).values()} <= {1, 2, 4, 8}
    assert sum(epochs > 1 for _, epochs in kept(outcome).values()) >= len(LRS) // 2
    assert (again.executed, kept(same)) == ([], kept(outcome))


@pytest.mark.parametrize(("lr", "epoch"), EXECUTED)
def test_a_search_that_is_interrupted_goes_on_as_if_it_was_not(tmp_path, lr, epoch):
    train, rest = Train({lr: epoch}), Train()

    interrupted = start(tmp_path, train)
    outcome = start(tmp_path, rest)

    assert interrupted.exit_code == 130
    assert sorted(train.executed + rest.executed) == sorted(EXECUTED)
    assert kept(outcome) == EXPECTED


@pytest.mark.slow(everywhere=True)
def test_a_search_that_is_killed_decides_the_same(warm, tmp_path):
    start(tmp_path / "whole", Train())
    program = tmp_path / "program.py"
    program.write_text(f"""
import os, signal
from tests.search.test_search import Train, start

class Killed(Train):
    def __call__(self, run, manager):
        if self.executed[-1:] == [(0, 1)]:
            os.kill(os.getpid(), signal.SIGKILL)
        super().__call__(run, manager)

start({str(tmp_path)!r}, Killed(), changed="keep")
""")

    killed = warm.execute(program)
    outcome = start(tmp_path, Train(), changed="keep")

    assert killed.returncode == -signal.SIGKILL
    assert kept(outcome) == EXPECTED
    assert numbers(tmp_path) == numbers(tmp_path / "whole")


@dataclass(frozen=True)
class UntilGood(SuccessiveHalving):
    """Executes run after run until one has a test_loss below 2; ends no run early."""

    min_epochs: int = 100

    def search(self):
        return Trying()


class Trying(Search):
    is_asynchronous = True

    def begin(self, runs, executable):
        self.ids = [folder.id for folder in runs]

    def next(self, results, in_progress):
        epochs = {id_: results[id_].epochs for id_ in self.ids}
        if in_progress or any(records and records[-1].metrics["test_loss"] < 2 for records in epochs.values()):
            return Decision()
        return Decision([id_ for id_ in self.ids if not epochs[id_]][:1])


@pytest.mark.slow(everywhere=True)
def test_a_search_may_end_before_every_run_was_executed(tmp_path, capsys):
    train, again = Train(), Train()

    outcomes = [
        run_grid(
            GRID, each, experiment="exp", root=tmp_path, prune=UntilGood("test_loss"), executor="inline",
            tensorboard=False,
        )
        for each in (train, again)
    ]  # fmt: skip

    lines = capsys.readouterr().out.splitlines()
    assert [lr for lr, epoch in train.executed if epoch == 8] == [3, 1]
    assert again.executed == []
    assert [list(outcome.runs["status"]) for outcome in outcomes] == [["completed"] * 2 + ["pending"] * 3] * 2
    assert [outcome.exit_code for outcome in outcomes] == [0, 0]
    begin = lines.index(f"{tmp_path}/exp: 5 runs, 0 to execute, 2 done before")
    assert lines[begin + 1].startswith(f"━━ {tmp_path}/exp · 2 completed · 3 pending ━")
    assert not any("left to execute" in line and line.startswith("!") for line in lines[begin:])


@pytest.fixture
def results(tmp_path):
    """What the journals say of three runs that were executed for an epoch each."""
    grid = [{"lr": lr} for lr in (1, 2, 3)]
    run_grid({"lr": [1, 2, 3]}, train_once, experiment="exp", root=tmp_path, executor="inline", display=False)
    return [read_run(folder) for folder in Experiment(tmp_path / "exp").assign(grid, {})]


def train_once(run, manager):
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(run.lr, 1)


def test_journals_are_read_again_when_their_run_has_ended(results, monkeypatch):
    read = []

    def read_again(folder):
        read.append(folder)
        return results[1]

    monkeypatch.setattr("runmanager.search.search.read_run", read_again)
    first, second, third = (result.folder.id for result in results)
    journals = Journals(results, start_over={third})

    journals.run_ended(second)
    seen = [journals[id_] for id_ in journals for _ in range(2)]

    assert read == [results[1].folder]
    assert seen[:4] == [results[0]] * 2 + [results[1]] * 2
    assert (len(journals), list(journals)) == (3, [first, second, third])


def test_a_run_that_starts_over_is_pending_until_it_has_ended(results):
    third = results[2].folder.id
    journals = Journals(results, start_over={third})

    before = journals[third]
    journals.run_ended(third)

    assert (before.status, before.epochs, before.folder) == ("pending", [], results[2].folder)
    assert journals[third].status == "completed"


def test_all_runs_are_handed_out_once_in_their_order(results):
    search = AllRuns()
    ids = [result.folder.id for result in results]
    search.begin([result.folder for result in results], {ids[2], ids[0]})

    decisions = [search.next(Journals(results), ()) for _ in range(2)]

    assert decisions == [Decision([ids[0], ids[2]]), Decision([])]
    assert (search.introduction(), search.conclusion([])) == ("", "")
