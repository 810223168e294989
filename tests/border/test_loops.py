"""Loops over epochs: when they end early, where one's own continues, and with how many threads."""

import math
import os
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

from runmanager import (
    CheckpointError,
    InvalidArgumentError,
    LifecycleError,
    RunBuilder,
    RunsWarning,
    SuccessiveHalving,
    load_results,
    load_runs,
)
from tests.border import reading
from tests.border.experiments import manager_in
from tests.border.work import announce, meet, start, statuses, trained

pytestmark = pytest.mark.usefixtures("own_folder")
RUN = {"lr": 0.1}
by_night = pytest.mark.slow(everywhere=True)


def epochs_of(values, goal="min:score", **options):
    """Track a value in each epoch; return the number of epochs, and why the loop ended."""
    manager = manager_in("runs", goal=goal)
    with manager.run(RUN):
        for epoch in manager.epochs(len(values), **options):
            manager.track(score=values[epoch - 1])
        is_over = manager.should_stop
    runs = load_runs("runs")
    reason = runs.get("stopped early", [""])[0]
    assert is_over is bool(reason)
    return runs["epochs"][0], reason


NAN = math.nan


@pytest.mark.parametrize(
    ("values", "options", "epoch"),
    [
        ([3, 2, 2, 2, 1], {"patience": 2}, 4),
        ([3, 2, 2.5, 1.9, 2, 1.8, 1.8], {"patience": 2}, None),  # each time just in time
        ([3, 2.95, 2.9, 2.85], {"patience": 2, "min_delta": 0.1}, 3),
        ([3, 2.95, 2.85], {"patience": 2, "min_delta": 0.1}, None),  # 0.15 below the best one
        ([1, 1, 1], {"patience": 1}, 2),
        ([NAN, NAN, NAN, NAN], {"patience": 2}, 3),
        ([NAN, 1, 2], {"patience": 2}, None),  # a number is better than none
        ([1, 2, 3], {"patience": 2, "goal": "max:score"}, None),
        ([3, 2, 1, 1], {"patience": 2, "goal": "max:score"}, 3),
        ([1, 2, 3], {"max_seconds": 1e-9}, 1),
    ],
)
def test_a_loop_ends_after_epochs_without_a_better_value_or_when_its_time_is_over(values, options, epoch):
    num_epochs, reason = epochs_of(values, **options)

    assert num_epochs == epoch or len(values)
    assert bool(reason) == (epoch is not None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *[({"patience": value}, f"patience must be .* 1 or more, got {value}") for value in (0, 2.5)],
        ({"patience": 3}, "keep='best:validation_loss', or give"),
        ({"patience": 3, "keep": "last"}, "patience=3 without a metric to watch"),
        *[({"patience": 3, "min_delta": value}, f"min_delta .* got {value}") for value in (-1, NAN)],
        *[({"max_seconds": value}, f"max_seconds .* above 0, got {value!r}") for value in (0, "1h")],
    ],
)
def test_arguments_that_cannot_be_used_are_refused_before_the_first_epoch(options, message):
    manager = manager_in("runs")

    with pytest.raises(InvalidArgumentError, match=message), manager.run(RUN):
        manager.epochs(3, **options)


def test_an_epoch_without_the_metric_is_named_with_those_that_it_has():
    with pytest.raises(CheckpointError, match=r"patience= watches 'val_loss', which epoch 1 .*has: .*score"):
        epochs_of([1, 2], goal="min:val_loss", patience=2)


LOSSES = (0.9, 0.5, 0.6, 0.4, 0.45, 0.41, 0.42, 0.1, 0.0, 0.2)


def patient(run, manager):
    with manager.run(run, nn.Linear(1, 1)):
        for epoch in manager.epochs(10, checkpoint={"state": {}}, keep="best:loss", patience=3):
            manager.track_loss(LOSSES[epoch - 1], 1)
            meet(run, epoch)


@pytest.mark.parametrize("at", [1, 7])
def test_early_stopping_resumes_as_if_nothing_had_happened(at):
    whole = start({"lr": [0.1]}, patient, experiment="whole")
    announce("stop", 0.1, at)
    start({"lr": [0.1]}, patient)

    resumed = start({"lr": [0.1]}, patient)

    for outcome in (whole, resumed):
        assert outcome.results["loss"].tolist() == list(LOSSES[:7])
        assert statuses(outcome) == [("completed", 7)]
        (reason,) = outcome.runs["stopped early"]
        assert [part in reason for part in ("loss", "0.4", "epoch 4", "3 epochs")] == [True] * 4


def leaving(run, manager):
    """Leave the loop by a state that is saved with it."""
    state: dict[str, float] = {"best": math.inf}
    with manager.run(run):
        for epoch in manager.epochs(10, checkpoint={"state": state}):
            meet(run, epoch)
            manager.track_loss(LOSSES[epoch - 1], 1)
            if LOSSES[epoch - 1] > state["best"]:
                break
            state["best"] = LOSSES[epoch - 1]


def test_a_run_that_was_killed_after_its_break_has_no_further_epoch(monkeypatch):
    real = os.write
    written: list[bytes] = []

    def stop_once(descriptor, content):
        if b'"type":"end"' in bytes(content) and not written:
            written.append(content)
            raise KeyboardInterrupt
        return real(descriptor, content)

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(os, "write", stop_once)
        start({"lr": [0.1]}, leaving)
    assert load_runs("runs")["status"].tolist() == ["interrupted"]
    reading.as_killed(reading.run_folder("runs/exp"))
    trained()

    assert statuses(start({"lr": [0.1]}, leaving)) == [("completed", 3)]
    assert trained() == []


def test_a_loop_of_ones_own_may_go_on_as_one_over_epochs():
    with (manager := manager_in("runs")).run(RUN):
        assert manager.resume_epoch == 0
        manager.begin_epoch()
        manager.end_epoch()
        assert list(manager.epochs(3)) == [2, 3]


def by_hand(run, manager, num_epochs=4, every=1):
    """Train with files of its own: the sum of the epochs so far, which is the loss."""
    with manager.run(run):
        states = {int(path.stem): path for path in manager.folder.glob("*.sum")}
        if every > 1:  # the last state may be older than the last epoch
            manager.resume_epoch = max(states, default=0)
        first = manager.resume_epoch + 1
        total = float(states[first - 1].read_text()) if first > 1 else 0.0
        for epoch in range(first, num_epochs + 1):
            manager.begin_epoch()
            assert manager.epoch_count == epoch
            total += epoch * run.lr
            manager.track_loss(total, 1)
            meet(run, epoch)
            if epoch % every == 0:
                (manager.folder / f"{epoch}.sum").write_text(str(total))
            manager.end_epoch()
            if manager.should_stop:
                break


def in_pairs(run, manager):
    by_hand(run, manager, every=2)


@pytest.mark.parametrize("train", [by_hand, in_pairs])
def test_a_loop_with_files_of_its_own_continues_and_has_each_row_once(train):
    start({"lr": [0.1]}, train, experiment="whole")
    announce("stop", 0.1, 4)
    before = start({"lr": [0.1]}, train).results["epoch"].tolist()

    after = start({"lr": [0.1]}, train).results

    assert before == [1, 2, 3]
    assert after[["epoch", "loss"]].equals(load_results("runs/whole")[["epoch", "loss"]])
    assert after["run duration"].is_monotonic_increasing


def interrupted(num_epochs=2):
    """Execute epochs of a run by hooks, which is then interrupted."""
    manager = manager_in("runs")
    with suppress(KeyboardInterrupt), manager.run(RUN):
        for _ in range(num_epochs):
            manager.begin_epoch()
            manager.track_loss(1.0, 1)
            manager.end_epoch()
        raise KeyboardInterrupt
    return manager


def test_a_loop_over_epochs_continues_there_too():
    interrupted()
    manager = manager_in("runs")

    with manager.run(RUN):
        assert manager.resume_epoch == 2
        for epoch in manager.epochs(4):
            manager.track_loss(epoch, 1)

    assert manager.results["loss"].tolist() == [1.0, 1.0, 3.0, 4.0]


def test_a_loop_that_does_not_ask_starts_over():
    interrupted()

    assert interrupted(num_epochs=1).results["epoch"].tolist() == [1]


def test_a_run_whose_epochs_were_all_committed_is_completed_without_one():
    interrupted()
    manager = manager_in("runs")

    with manager.run(RUN):
        assert manager.resume_epoch == 2

    assert manager.results["epoch"].tolist() == [1, 2]
    assert load_runs("runs")["status"].tolist() == ["completed"]


def test_only_an_epoch_that_is_committed_can_be_continued_after():
    interrupted()
    manager = manager_in("runs")
    wrong: list[Any] = [3, -1, 1.5]

    with manager.run(RUN):
        for epoch in wrong:
            with pytest.raises(LifecycleError, match="a whole number from 0 to 2"):
                manager.resume_epoch = epoch
        manager.resume_epoch = 1
        manager.begin_epoch()
        assert (manager.epoch_count, manager.resume_epoch) == (2, 1)
        with pytest.raises(LifecycleError, match="before the first"):
            manager.resume_epoch = 0
        manager.track_loss(9.0, 1)
        manager.end_epoch()

    assert manager.results["loss"].tolist() == [1.0, 9.0]


@by_night
def test_loops_that_continue_by_themselves_are_pruned_and_retried_from_before_they_diverged():
    def diverge(run, manager):
        with manager.run(run):
            for epoch in range(manager.resume_epoch + 1, 5):
                manager.begin_epoch()
                manager.track_loss(NAN if epoch == diverges.pop() else 1.0, 1)
                manager.end_epoch()
                if manager.should_stop:
                    break

    diverges = [0, 0, 3, 0, 0]
    pruned = start({"lr": [0.1, 0.2, 0.3]}, by_hand, prune=SuccessiveHalving("min:loss", factor=2))
    first = start({"lr": [0.1]}, diverge, experiment="diverged")
    again = start({"lr": [0.1]}, diverge, experiment="diverged", retry_failed=True, changed="keep")

    assert statuses(pruned) == [("completed", 4), ("pruned", 1), ("pruned", 1)]
    assert (statuses(first), statuses(again)) == ([("diverged", 3)], [("completed", 4)])
    assert again.results["loss"].tolist() == [1.0] * 4


THREADS: list[int] = []


def noting_threads(run, manager):
    """Note the threads before the run and in each of its epochs, one of which may be interrupted."""
    THREADS.append(torch.get_num_threads())
    network = nn.Linear(2, 1)
    with manager.run(run, network):
        for epoch in manager.epochs(4, checkpoint={"network": network}):
            meet(run, epoch)
            THREADS.append(torch.get_num_threads())
            manager.track_loss(1.0, 1)


def by_manager(grid, train, **__):
    with suppress(KeyboardInterrupt):
        train(*RunBuilder.get_runs(grid), manager_in("runs"))


@pytest.fixture
def threads_after(monkeypatch):
    """On a machine of two cores, interrupt a run with so many threads in its third epoch; continue it with one.

    Return the threads of the second attempt, and what the table says: number of threads, and whether mixed.
    """
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)

    def execute(number, by, data="one"):
        torch.set_num_threads(number)
        announce("stop", 0.1, 3)
        by({"lr": [0.1]}, noting_threads, data="one")
        torch.set_num_threads(1)
        num_before = len(THREADS)
        by({"lr": [0.1]}, noting_threads, data=data)
        assert torch.get_num_threads() == 1
        row = load_runs("runs/exp").iloc[0]
        return THREADS[num_before:], row["threads"], row["mixed"]

    return execute


@pytest.mark.parametrize(
    ("by", "data", "threads"),
    [(start, "one", [2, 2, 2]), (by_manager, "one", [1, 2, 2]), (start, "two", [1, 1, 1, 1, 1])],
)
def test_a_resumed_run_keeps_the_threads_of_its_first_attempt_unless_it_starts_over(
    threads_after, by, data, threads
):
    assert threads_after(2, by, data) == (threads, threads[-1], False)


@pytest.mark.parametrize("by", [start, by_manager])
def test_a_run_with_more_threads_than_this_machine_has_cores_is_marked_as_mixed(threads_after, by):
    with pytest.warns(RunsWarning, match="began with 3 threads and continues with 1: there are 2 cores"):
        assert threads_after(3, by) == ([1, 1, 1], 3, True)
