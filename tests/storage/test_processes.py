import os
import subprocess
import sys
from pathlib import Path

import pytest

from runmanager.core import lock
from tests.damaging import NO_PROCESS


def test_containers_of_one_machine_are_told_apart(monkeypatch):
    here = lock.this_process()
    lock._boot.cache_clear()

    with monkeypatch.context() as patch:
        patch.setattr(Path, "readlink", lambda _: "pid:[1]")
        there = lock.this_process()
    lock._boot.cache_clear()

    assert there["boot"] != here["boot"]


def test_this_process_lives():
    process = lock.this_process()

    assert process["pid"] == os.getpid()
    assert lock.lives(process) is True


@pytest.mark.parametrize(
    "change",
    [
        {"pid": NO_PROCESS}, {"pid": 2**80}, {"pid": 0}, {"pid": -1}, {"pid": "1"}, {"pid": None},
        {"boot": "another"}, {"pid_start": "1"}, {"pid_start": "dead"},
    ],
    ids=str,
)  # fmt: skip
def test_a_process_that_is_not_there_is_dead(change):
    assert lock.lives(lock.this_process() | change) is False


@pytest.mark.parametrize("process", [{}, {"host": "another"}, {"host": None, "pid": 1}], ids=str)
def test_of_a_process_elsewhere_nothing_is_known(process):
    assert lock.lives(process) is None


def test_a_boot_that_a_system_does_not_name_is_not_compared():
    process = lock.this_process()

    del process["boot"]

    assert lock.lives(process) is True


def test_of_a_process_without_its_start_nothing_is_known_as_its_number_may_be_used_again():
    process = lock.this_process()

    del process["pid_start"]

    assert lock.lives(process) is None


def test_a_process_of_another_user_lives(monkeypatch):
    def refuse(_pid, _signal):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)

    assert lock.lives(lock.this_process()) is True


def test_a_process_is_dead_when_it_has_ended_and_before_its_parent_asks():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = {**lock.this_process(), "pid": child.pid, "pid_start": lock._started(child.pid)}
        before = lock.lives(process)
        assert child.stdin is not None
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays as a zombie
        zombie = lock.lives(process)

    assert (before, zombie, lock.lives(process)) == (True, False, False)
