import ctypes
import errno
import json
import multiprocessing
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from runmanager.core import files, lock
from runmanager.errors import ExperimentLockedError, StorageError
from tests.damaging import NO_PROCESS
from tests.nightly import of_night_but

PARENT = {"pid": os.getppid(), "pid_start": lock._started(os.getppid())}


@pytest.fixture
def quick(monkeypatch):
    """Watch the file of a holder for less than the 15 seconds in which one that lives renews it."""
    monkeypatch.setattr(lock, "RENEWED_EVERY_S", 0.1)


def held_by(folder, age_s=0.0, **process):
    """Write the file of a holder that was active `age_s` seconds ago."""
    path = folder / "holder.json"
    elsewhere = {"boot": "another"} if "host" in process else {}
    content = {**lock.this_process(), "user": "ada", "nonce": "theirs", **elsewhere, **process}
    path.write_text(json.dumps(content))
    now = time.time()
    os.utime(path, (now - age_s, now - age_s))
    return path


def nonce(folder):
    return json.loads((folder / "holder.json").read_bytes())["nonce"]


def test_an_experiment_is_released_when_the_block_fails(tmp_path):
    def fail():
        with lock.hold(tmp_path):
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            fail()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("process", "age_s"),
    [(PARENT, 0), (PARENT, 10_000), ({"host": "another"}, 0), ({"host": "another"}, 80)],
    ids=["here", "here, idle", "elsewhere", "elsewhere, idle"],
)
def test_an_experiment_that_another_process_runs_is_refused(tmp_path, process, age_s):
    path = held_by(tmp_path, age_s, **process)
    before = path.read_bytes(), path.stat().st_mtime_ns

    with pytest.raises(ExperimentLockedError) as caught, lock.hold(tmp_path):
        pytest.fail("it was taken")

    host, pid = process.get("host", lock._host()), process.get("pid", os.getpid())
    assert str(caught.value).startswith(f"{tmp_path} is in use by ada@{host} (process {pid}, active ")
    assert str(caught.value).endswith(" s ago): wait for it, end it, or choose another experiment name")
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow(everywhere=True)
def test_a_holder_elsewhere_from_the_future_that_is_not_renewed_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "RENEWED_EVERY_S", 0.2)
    held_by(tmp_path, -365 * 86_400, host="another")

    with lock.hold(tmp_path):
        taken = nonce(tmp_path)

    assert taken != "theirs"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("age_s", [-365 * 86_400, -3600, 3600, 365 * 86_400])
@pytest.mark.parametrize(
    "process", [{"host": "another", "boot": "another"}, {"boot": "another"}], ids=["elsewhere", "namesake"]
)
def test_a_holder_that_is_renewed_lives_whatever_the_clocks_say(tmp_path, monkeypatch, process, age_s):
    monkeypatch.setattr(lock, "RENEWED_EVERY_S", 2.0)  # watched for 3 s
    path = held_by(tmp_path, age_s, **process)
    time_ = time.time() - age_s + 1
    renewed = threading.Timer(1.0, os.utime, [path, (time_, time_)])
    renewed.start()

    with pytest.raises(ExperimentLockedError), lock.hold(tmp_path):
        pytest.fail("it was taken")

    renewed.join()
    assert nonce(tmp_path) == "theirs"


def hold_elsewhere(folder, is_held, process, seconds):
    """Hold an experiment in a process of a machine that seems to be another, and keep the interpreter busy."""
    real = lock.this_process
    lock.this_process = lambda: real() | process
    with lock.hold(folder):
        is_held.set()
        ctypes.PyDLL(None).sleep(seconds)  # with the GIL


@contextmanager
def holder_elsewhere(folder, seconds, **process):
    context = multiprocessing.get_context("spawn")
    is_held = context.Event()
    owner = context.Process(target=hold_elsewhere, args=(folder, is_held, process, seconds))
    owner.start()
    try:
        assert is_held.wait(60)
        yield owner
    finally:
        owner.kill()
        owner.join()


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("is_stopped", [False, True], ids=["busy", "stopped"])
@pytest.mark.parametrize("process", [{"host": "another"}, {"boot": "another"}], ids=["elsewhere", "namesake"])
def test_a_holder_that_cannot_renew_its_file_is_not_succeeded_while_it_lives(
    tmp_path, monkeypatch, process, is_stopped
):
    monkeypatch.setattr(lock, "RENEWED_EVERY_S", 0.2)
    with holder_elsewhere(tmp_path, 60, **process) as owner:
        if is_stopped:
            os.kill(owner.pid, signal.SIGSTOP)
        os.utime(tmp_path / "holder.json", (0, 0))  # as after a long time

        with pytest.raises(ExperimentLockedError, match=f"process {owner.pid}"), lock.hold(tmp_path):
            pytest.fail("it was taken")

        owner.kill()
        owner.join()
        with lock.hold(tmp_path):
            pass


@pytest.fixture
def no_links(monkeypatch):
    """Be on a file system without hard links, such as those of USB sticks and mounted cloud drives."""

    def refuse(*_, **__):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)


def test_without_hard_links_one_holds_an_experiment(tmp_path, no_links):
    with lock.hold(tmp_path):
        refused = in_a_thread(lambda: lock.hold(tmp_path).__enter__())
        assert lock.holder(tmp_path)

    assert isinstance(refused, ExperimentLockedError)
    assert list(tmp_path.iterdir()) == []


def test_a_holder_that_is_writing_its_file_is_not_succeeded(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "RENEWED_EVERY_S", 0.4)
    (tmp_path / "holder.json").touch()  # without hard links, it is empty for a moment
    written = threading.Timer(0.2, held_by, [tmp_path], PARENT)
    written.start()

    with pytest.raises(ExperimentLockedError), lock.hold(tmp_path):
        pytest.fail("it was taken")

    written.join()
    assert nonce(tmp_path) == "theirs"


def test_a_file_system_that_does_not_answer_about_locks_holds_up_nobody(tmp_path, monkeypatch):
    ended = threading.Event()
    begin = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(lock, "_lock_in_kernel", lambda _: ended.wait(60))
        patch.setattr(lock, "_ANSWER_S", 0.1)

        with lock.hold(tmp_path):
            assert lock.holder(tmp_path)

    ended.set()
    with lock.hold(tmp_path):
        assert time.monotonic() - begin < 10
    assert list(tmp_path.iterdir()) == []


def test_a_run_whose_holder_elsewhere_is_from_the_future_is_not_called_running(tmp_path):
    held_by(tmp_path, -365 * 86_400, host="another")

    current = lock.holder(tmp_path)

    assert current
    assert not lock.is_holding(*current)


def test_a_dangling_link_holds_nothing(tmp_path, quick):
    (tmp_path / "holder.json").symlink_to("nowhere")

    with lock.hold(tmp_path):
        assert nonce(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_two_grids_of_one_process_do_not_share_an_experiment(tmp_path):
    with (
        lock.hold(tmp_path),
        pytest.raises(ExperimentLockedError, match=f"process {os.getpid()}"),
        lock.hold(tmp_path),
    ):
        pytest.fail("it was taken")

    assert list(tmp_path.iterdir()) == []


def test_it_says_that_it_watches_a_holder_that_may_be_gone(tmp_path, quick):
    held_by(tmp_path, boot="another", pid=7)
    said: list[str] = []

    with lock.hold(tmp_path, said.append):
        pass

    holder = f"ada@{socket.gethostname()} (process 7)"
    assert said == [f"{tmp_path.name} was held by {holder}: watching for 0 s for a sign of life"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"null"])
def test_a_holders_file_that_cannot_be_read_is_replaced(tmp_path, quick, content):
    (tmp_path / "holder.json").write_bytes(content)

    assert lock.holder(tmp_path) is None
    with lock.hold(tmp_path):
        assert nonce(tmp_path)


def test_what_another_process_has_taken_over_is_not_removed(tmp_path):
    with lock.hold(tmp_path):
        held_by(tmp_path, host="another")

    assert nonce(tmp_path) == "theirs"


@pytest.mark.slow(everywhere=True)
def test_what_another_process_has_taken_over_is_not_renewed(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "RENEWED_EVERY_S", 0.2)

    with lock.hold(tmp_path):
        path = held_by(tmp_path, 1000, host="another")  # before the first renewal
        before = path.stat().st_mtime_ns
        time.sleep(0.5)

        assert path.stat().st_mtime_ns == before


def test_a_holder_is_renewed_while_it_lives_and_leaves_no_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "RENEWED_EVERY_S", 0.01)
    threads = threading.active_count()

    with lock.hold(tmp_path):
        path = tmp_path / "holder.json"
        os.utime(path, (0, 0))
        deadline = time.monotonic() + 10
        while path.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        renewed = path.stat().st_mtime

    assert renewed > 0
    assert threading.active_count() == threads


def test_a_holder_that_was_replaced_meanwhile_is_left_alone(tmp_path):
    path = held_by(tmp_path, nonce="new")

    assert not lock._succeed(path, {"nonce": "gone"}, {"nonce": "mine"})

    assert nonce(tmp_path) == "new"
    assert list(tmp_path.iterdir()) == [path]


def interrupt(*_arguments):
    raise InterruptedError


@pytest.mark.parametrize("num_dead", [1, 2, 3])
def test_those_that_died_while_they_took_over_have_a_successor(tmp_path, monkeypatch, num_dead):
    held_by(tmp_path, pid=NO_PROCESS, nonce="0")
    dead = lock.this_process() | {"pid": NO_PROCESS}
    for number in range(num_dead):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", interrupt)
            with pytest.raises(InterruptedError):
                lock._take(tmp_path / "holder.json", {**dead, "nonce": str(number + 1)})

    with lock.hold(tmp_path):
        taken = nonce(tmp_path)

    assert taken != "0"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("repeat", of_night_but(range(20), range(4)))
def test_of_many_that_try_at_once_one_takes_over_a_dead_holder(tmp_path, repeat):
    held_by(tmp_path, pid=NO_PROCESS)
    barrier, released = threading.Barrier(8), threading.Event()
    outcomes = []

    def take():
        barrier.wait()
        try:
            with lock.hold(tmp_path):
                outcomes.append("held")
                released.wait(60)
        except ExperimentLockedError:
            outcomes.append("refused")

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while len(outcomes) < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
    released.set()
    for thread in threads:
        thread.join()

    assert sorted(outcomes) == ["held"] + ["refused"] * 7
    assert list(tmp_path.iterdir()) == []


def test_to_look_at_the_holder_writes_nothing(tmp_path):
    held_by(tmp_path, 50, host="another")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path, *tmp_path.iterdir())}

    found = lock.holder(tmp_path)

    assert found is not None
    assert found[0]["host"] == "another"
    assert 49 < found[1] < 60
    assert {path: path.stat().st_mtime_ns for path in (tmp_path, *tmp_path.iterdir())} == before


def in_a_thread(call):
    """Call a function in another thread and return what it returns or raises."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(call)
        return future.exception() or future.result()


def test_the_thread_that_holds_an_experiment_finds_it_free_and_another_does_not(tmp_path):
    with lock.hold(tmp_path):
        lock.check_free(tmp_path)
        refused = in_a_thread(lambda: lock.check_free(tmp_path))

    assert isinstance(refused, ExperimentLockedError)
    lock.check_free(tmp_path)


def test_a_process_of_another_machine_with_the_same_number_is_another(tmp_path):
    held_by(tmp_path, host="another", pid=os.getpid())

    with pytest.raises(ExperimentLockedError, match="ada@another"):
        lock.check_free(tmp_path)


def test_what_this_process_could_not_release_is_held_by_nobody(tmp_path):
    held_by(tmp_path, nonce="torn by Ctrl-C")

    lock.check_free(tmp_path)
    with lock.hold(tmp_path):
        assert nonce(tmp_path) != "torn by Ctrl-C"

    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_the_holder_is_being_renewed_releases_it(tmp_path, monkeypatch):
    monkeypatch.setattr(threading.Thread, "join", interrupt)

    with pytest.raises(InterruptedError), lock.hold(tmp_path):
        pass

    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    with lock.hold(tmp_path):
        pass


@pytest.mark.parametrize("damaged", [[], {}, None, 1])
def test_a_damaged_nonce_of_this_process_holds_nothing(tmp_path, damaged):
    held_by(tmp_path, nonce=damaged)

    lock.check_free(tmp_path)
    with lock.hold(tmp_path):
        pass

    assert list(tmp_path.iterdir()) == []


def test_an_answer_that_a_network_file_system_lost_is_no_other_holder(tmp_path, monkeypatch):
    create = files.write_file

    def lose_the_answer(path, content, **options):
        create(path, content, **options)
        raise StorageError(errno.EEXIST, "File exists")

    monkeypatch.setattr(files, "write_file", lose_the_answer)

    with lock.hold(tmp_path):
        assert lock.holder(tmp_path) is not None

    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_does_not_hold_what_its_parent_holds(tmp_path):
    with lock.hold(tmp_path):
        if not (child := os.fork()):
            try:
                lock.check_free(tmp_path)
            except ExperimentLockedError:
                os._exit(3)
            os._exit(0)

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_what_a_living_process_holds_for_long_is_waited_for(tmp_path):
    path = held_by(tmp_path, 10_000, **PARENT).rename(tmp_path / "claim.json")

    def hold():
        with lock.claim(tmp_path):
            return json.loads(path.read_bytes())["pid"]

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(hold)
        with pytest.raises(TimeoutError):
            waiting.result(1.5)
        path.unlink()
        assert waiting.result(10) == os.getpid()
