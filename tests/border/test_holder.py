"""The holder of an experiment: who executes it, who is refused, and whose place a start takes over."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from runmanager import ExperimentLockedError, RunManager, load_runs
from tests.border import reading
from tests.border.experiments import complete
from tests.border.work import start as start_in_this_process

pytestmark = pytest.mark.usefixtures("own_folder")
EXP = Path("runs/exp")
HOLDER = EXP / "holder.json"
YEAR = 365 * 86_400


def start(function=complete, params=None, **options):
    return start_in_this_process({"lr": [0.1], "device": ["cpu"], **(params or {})}, function, **options)


def in_a_thread(call):
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(call)
        return future.exception() or future.result()


def started(pid):
    """Return when a process was started, in ticks since the machine was (proc_pid_stat(5))."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


@pytest.fixture
def this_process(own_folder):
    """What a holder's file says of this process; the experiment has a completed run."""

    def note(run, manager):
        complete(run, manager)
        found.append(json.loads(HOLDER.read_bytes()))

    found: list[dict[str, Any]] = []
    start(note)
    return found[0]


@pytest.fixture
def parent(this_process):
    """What it would say of the process that has started this one, which lives."""
    return {**this_process, "pid": os.getppid(), "pid_start": started(os.getppid()), "nonce": "theirs"}


def hold(process, age_s=0.0, path=HOLDER):
    """Write the file of a holder that was active some seconds ago."""
    path.write_text(json.dumps({**process, "user": "ada"}))
    os.utime(path, (time.time() - age_s,) * 2)


class Clock:
    """A clock that goes on while somebody sleeps, at once; meanwhile something may happen."""

    def __init__(self):
        self.seconds = time.monotonic()
        self.meanwhile: list[Callable[[], object]] = []

    def sleep(self, seconds):
        self.seconds += seconds
        if self.meanwhile:
            self.meanwhile.pop()()

    def monotonic(self):
        return self.seconds


@pytest.fixture
def clock(this_process, monkeypatch):
    clock = Clock()
    for name in ("sleep", "monotonic"):
        monkeypatch.setattr(time, name, getattr(clock, name))
    return clock


def refusal():
    """Start the grid, which is refused; return why, and make sure that nothing has changed."""
    before = HOLDER.read_bytes(), HOLDER.stat().st_mtime_ns, sorted(EXP.iterdir())
    with pytest.raises(ExperimentLockedError) as caught:
        start()
    assert (HOLDER.read_bytes(), HOLDER.stat().st_mtime_ns, sorted(EXP.iterdir())) == before
    return str(caught.value)


@pytest.mark.parametrize(("host", "age_s"), [("", 0), ("", 10_000), ("another", 80)])
def test_an_experiment_that_a_living_process_holds_is_refused_and_its_holder_named(parent, host, age_s):
    hold({**parent, **({"host": host, "boot": "another"} if host else {})}, age_s)

    said = refusal()

    who = f"ada@{host or socket.gethostname()}"
    names = [str(EXP), who, f"process {os.getppid()}", f"{age_s} s ago", "wait"]
    assert [name for name in names if name not in said] == []


def test_two_grids_of_one_process_do_not_share_an_experiment_and_the_second_can_follow(own_folder):
    refused: list[Any] = []

    def start_again(run, manager):
        refused.extend([in_a_thread(start), in_a_thread(lambda: [*RunManager("exp").remaining([])])])
        complete(run, manager)
        raise ZeroDivisionError

    assert start(start_again).exit_code == 1
    assert [type(error) for error in refused] == [ExperimentLockedError] * 2
    assert f"process {os.getpid()}" in str(refused[0])
    assert not list(EXP.glob("holder.json*"))
    assert start(retry_failed=True).exit_code == 0


GONE = {"elsewhere": {"host": "another", "boot": "another"}, "namesake": {"boot": "another"}}


@pytest.mark.parametrize("age_s", [-YEAR, 3600])
@pytest.mark.parametrize("where", GONE)
def test_a_holder_elsewhere_lives_if_it_is_renewed_while_it_is_watched_whatever_the_clocks_say(
    clock, parent, capsys, where, age_s
):
    hold({**parent, **GONE[where]}, age_s)
    time_ = time.time() - age_s + 1
    clock.meanwhile = [lambda: os.utime(HOLDER, (time_, time_)), str, str]
    with pytest.raises(ExperimentLockedError):
        start()
    assert json.loads(HOLDER.read_bytes())["nonce"] == "theirs"
    begin = clock.seconds

    start(display=True)

    assert 14 < clock.seconds - begin < 17
    who = f"ada@{GONE[where].get('host', socket.gethostname())} (process {os.getppid()})"
    assert who in capsys.readouterr().out
    assert not list(EXP.glob("holder.json*"))


def test_a_holders_file_that_says_nothing_holds_nothing(clock, this_process):
    torn = [b"", b"[]", b"\xff"]
    nonces: list[Any] = ["torn by Ctrl-C", [], None]
    for content in (*torn, *(json.dumps({**this_process, "nonce": nonce}).encode() for nonce in nonces)):
        HOLDER.write_bytes(content)
        assert start().exit_code == 0
        assert not list(EXP.glob("holder.json*"))
    HOLDER.symlink_to("nowhere")

    assert start().exit_code == 0
    assert not list(EXP.glob("holder.json*"))


def test_a_holder_that_is_writing_its_file_is_not_succeeded(clock, parent):
    HOLDER.touch()  # without hard links, it is empty for a moment
    clock.meanwhile = [lambda: hold(parent)]

    with pytest.raises(ExperimentLockedError, match=f"process {os.getppid()}"):
        start()


def test_what_another_process_has_taken_over_is_not_removed(parent):
    def lose(run, manager):
        complete(run, manager)
        hold(parent)

    start(lose, changed="rerun")

    assert json.loads(HOLDER.read_bytes())["nonce"] == "theirs"


@pytest.mark.slow(everywhere=True)
def test_a_holder_is_renewed_while_it_lives_and_leaves_no_thread(parent):
    def wait(run, manager):
        complete(run, manager)
        os.utime(HOLDER, (0, 0))
        until = time.monotonic() + 30
        while HOLDER.stat().st_mtime == 0 and time.monotonic() < until:
            time.sleep(0.05)
        renewed.append(HOLDER.stat().st_mtime)
        hold(parent, 1000)
        before = HOLDER.stat().st_mtime
        time.sleep(11)
        renewed.append(before == HOLDER.stat().st_mtime)

    renewed: list[float] = []
    threads = threading.active_count()

    start(wait, changed="rerun")

    assert renewed[0] > 0
    assert renewed[1]  # it was another's then
    assert threading.active_count() == threads


PROGRAM = """
import os, socket, sys, time
from pathlib import Path
from tests.border import test_holder
from tests.border.disk import KILL, Disk, NthCall

what = sys.argv[1]
if what == "die in between":
    Disk(Path.cwd(), setattr).fault = NthCall("replace", 1, KILL, "holder.json")
else:
    socket.gethostname = lambda: "another"
def hold(run, manager):
    Path("held").touch()
    time.sleep(60)
test_holder.start(hold, changed="rerun")
"""


@pytest.mark.slow(everywhere=True)
def test_a_holder_elsewhere_that_cannot_renew_its_file_is_not_succeeded_while_it_lives(warm, clock, own_folder):
    (own_folder / "program.py").write_text(PROGRAM)
    pid = warm.begin(own_folder / "program.py", "be elsewhere")
    for _ in range(6000):
        if Path("held").exists():
            break
        threading.Event().wait(0.01)
    try:
        os.kill(pid, signal.SIGSTOP)
        os.utime(HOLDER, (0, 0))  # as after a long time

        assert f"process {pid}" in refusal()
    finally:
        os.kill(pid, signal.SIGKILL)
        warm.wait()
    assert start().exit_code == 0


@pytest.mark.slow(everywhere=True)
def test_those_that_died_while_they_took_over_have_a_successor(warm, parent, own_folder):
    (own_folder / "program.py").write_text(PROGRAM)
    hold({**parent, "pid": reading.NO_PROCESS})
    for number in (2, 3):
        warm.begin(own_folder / "program.py", "die in between")
        assert warm.wait() == -9
        assert len(list(EXP.glob("holder.json*"))) == number

    assert start().exit_code == 0
    assert not list(EXP.glob("holder.json*"))


@pytest.mark.slow(everywhere=True)
def test_a_file_system_that_does_not_answer_about_locks_holds_up_nobody(this_process, monkeypatch):
    ended, begin = threading.Event(), time.monotonic()
    monkeypatch.setattr(fcntl, "flock", lambda *_: ended.wait(60))

    start(changed="rerun")

    assert time.monotonic() - begin < 10
    ended.set()


def test_a_run_is_created_after_the_process_that_creates_one_now(parent):
    claim = EXP / "claim.json"
    hold(parent, 10_000, claim)
    manager = RunManager("exp", display=False, tensorboard=False)
    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(manager.begin_run, {"lr": 0.2})
        with pytest.raises(TimeoutError):
            begun.result(0.3)
        claim.unlink()
        begun.result(20)
    manager.end_run()

    assert load_runs(EXP)["run"].tolist() == [1, 2]


def statuses(facts, holder=None):
    """Let runs have other facts in the first line of a journal without an end; return how they stand."""
    for folder, each in zip(reading.run_folders(EXP), facts, strict=True):
        first, epoch, *_ = reading.lines(folder / "attempt-1.jsonl")
        first = {name: fact for name, fact in {**first, **each}.items() if fact != "gone"}
        reading.write(folder / "attempt-1.jsonl", [first, epoch])
    if holder is not None:
        hold({"nonce": "theirs", "pid": 1, **GONE["elsewhere"]}, holder)
    before = {path: path.stat().st_mtime_ns for path in (EXP, *EXP.iterdir())}
    table = load_runs(EXP)
    assert {path: path.stat().st_mtime_ns for path in (EXP, *EXP.iterdir())} == before
    return table["status"].tolist()


def test_a_run_without_an_end_is_running_if_its_process_is_there_or_its_holder_elsewhere_active(own_folder):
    start(params={"seed": list(range(10))})
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        of_child = {"pid": child.pid, "pid_start": started(child.pid)}
        gone = [
            {"pid": reading.NO_PROCESS}, {"pid": 2**80}, {"pid": 0}, {"pid": -1}, {"pid": "1"},
            {"boot": "another"}, {"pid_start": "1"},
        ]  # fmt: skip
        assert statuses([{}, of_child, {"boot": "gone"}, *gone]) == ["running"] * 3 + ["interrupted"] * 7
        assert child.stdin
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays as a zombie

        of_now = ["running", "interrupted", "running"]
        assert statuses([{}, of_child, {"pid_start": "gone"}, *gone]) == [*of_now, *["interrupted"] * 7]
    assert set(statuses([GONE["elsewhere"]] * 10)) == {"running"}  # it has just written
    stand = [set(statuses([{}] * 10, age_s)) for age_s in (0, 50, 10_000, -YEAR)]
    assert stand == [{"running"}, {"running"}, {"stale"}, {"stale"}]
