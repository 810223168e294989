import multiprocessing
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext, suppress

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data._utils import signal_handling

from runmanager.executors.signals import Stop, signals_blocked, signals_wait


class Dropping:
    """Gets a signal where Python drops what is raised."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


@pytest.fixture
def stop():
    before = signal.getsignal(signal.SIGINT)
    with Stop.on_signals() as entered:
        yield entered
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture
def other_thread():
    """Gets a signal when it is told to: a function that waits for that."""
    told = threading.Event()

    def get():
        told.wait()
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=get, daemon=True)
    thread.start()

    def tell():
        told.set()
        thread.join()

    return tell


def done_in(block, *steps):
    """Do one step after the other in a block that is to be interrupted; return how many were done."""
    num_done = 0

    def do():
        nonlocal num_done
        with block:
            for step in steps:
                step()
                num_done += 1

    with pytest.raises(KeyboardInterrupt):
        do()
    return num_done


def interrupt():
    signal.raise_signal(signal.SIGINT)


def nothing():
    pass


def interrupted_later(stop, *steps):
    """Do steps in a part of a block that is not to be torn; return how many were done."""
    num_done = 0
    with suppress(KeyboardInterrupt), stop.at_once():
        num_done = done_in(stop.at_once(False), *steps)
    return num_done


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_block_at_once(stop, number, exit_code):
    assert done_in(stop.at_once(), lambda: signal.raise_signal(number)) == 0
    assert stop.exit_code == exit_code


def test_a_signal_outside_of_the_block_waits_for_it(stop):
    interrupt()

    assert done_in(stop.at_once(), nothing) == 0


def test_a_signal_waits_until_what_is_not_to_be_torn_is_done(stop):
    assert interrupted_later(stop, interrupt, nothing) == 2


def test_a_second_signal_ends_even_that(stop):
    assert interrupted_later(stop, interrupt, interrupt, nothing) == 1


def test_a_signal_whose_exception_python_drops_ends_the_block_nevertheless(monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)

    with Stop.on_signals() as stop:
        assert done_in(stop.at_once(), Dropping, nothing) == 2
        with pytest.raises(KeyboardInterrupt):
            stop.check()


@pytest.mark.parametrize("block", [signals_wait, signals_blocked])
def test_signals_wait_for_the_end_of_a_block(block):
    before = signal.getsignal(signal.SIGINT)

    assert done_in(block(), interrupt, nothing) == 2
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("block", [signals_wait, signals_blocked])
def test_signals_wait_whichever_thread_gets_them(block, other_thread):
    assert done_in(block(), other_thread, nothing) == 2


def test_a_second_signal_waits_for_nothing():
    assert done_in(signals_wait(), interrupt, interrupt, nothing) == 1


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("is_term", [False, True])
def test_once_a_signal_has_come_processes_of_loaders_may_end(monkeypatch, is_term):
    before = signal.getsignal(signal.SIGCHLD)
    monkeypatch.setattr(signal_handling, "_SIGCHLD_handler_set", False)
    loader = iter(DataLoader(TensorDataset(torch.ones(400, 1)), batch_size=1, num_workers=1))
    (process,) = multiprocessing.active_children()
    after = signal.getsignal(signal.SIGCHLD)
    expected = nullcontext() if is_term else pytest.raises(RuntimeError, match="killed by signal: Terminated")
    with expected, Stop.on_signals() as stop:
        if is_term:
            signal.raise_signal(signal.SIGTERM)
        subprocess.run(["/bin/kill", str(process.pid)], check=True)  # from its parent, it would end with 0
        for _ in range(25):  # a signal that waits for the main thread is handled in between
            time.sleep(0.02)

    assert stop.exit_code == (143 if is_term else 0)
    assert signal.getsignal(signal.SIGCHLD) is after
    signal.signal(signal.SIGCHLD, before)
    del loader


@pytest.mark.slow(everywhere=True)
def test_the_timer_of_a_grid_whose_time_is_over_already_forces_nothing():
    with Stop.on_signals() as stop:
        stop.end_after(time.monotonic(), 0.2)
        stop._end = time.monotonic() - 0.02  # an event came, before the timer; clocks may step by 16 ms
        with pytest.raises(KeyboardInterrupt):
            stop.check()
        for _ in range(20):  # the grid stops, and the timer sends its signal
            time.sleep(0.02)

    assert stop.exit_code == 75
