import os
import subprocess
import sys
import textwrap
import threading
import warnings

import pytest

from runmanager.devices.torch_devices import quiet


def test_quiet_blocks_of_several_threads_leave_the_filters_as_they_were():
    before, inside, may_end = list(warnings.filters), threading.Event(), threading.Event()

    def first():
        with quiet():
            inside.set()
            may_end.wait(30)

    def second():
        with quiet():
            warnings.warn("not heard", stacklevel=1)

    threads = [threading.Thread(target=call) for call in (first, second)]
    threads[0].start()
    assert inside.wait(30)
    threads[1].start()
    threads[1].join(0.2)
    may_end.set()
    for thread in threads:
        thread.join()

    assert list(warnings.filters) == before


@pytest.mark.slow(everywhere=True)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # is multi-threaded, use of fork()
def test_a_process_that_is_forked_by_another_thread_can_be_quiet():
    inside = threading.Event()

    def stay_quiet():
        with quiet():
            inside.set()
            threading.Event().wait(0.3)

    thread = threading.Thread(target=stay_quiet)
    thread.start()
    assert inside.wait(30)
    if not (pid := os.fork()):
        threading.Timer(20, os._exit, [1]).start()
        with quiet():
            os._exit(0)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    thread.join()


LOGGING_LATER = """
    import os, threading

    hooks = []
    register, os.register_at_fork = os.register_at_fork, lambda **hook: hooks.append(hook)
    from runmanager.devices.torch_devices import quiet
    import logging

    # as if quiet came before logging, whose lock a fork takes first therefore
    is_quiets = [any(call.__module__ == quiet.__module__ for call in hook.values()) for hook in hooks]
    assert sum(is_quiets) == 1
    for _, hook in sorted(zip(is_quiets, hooks), key=lambda pair: not pair[0]):
        register(**hook)

    def log(inside, is_done):
        while not is_done.is_set():
            with quiet():
                inside.set()
                for number in range(100):
                    logging.getLogger(f"{number}")

    inside, is_done = threading.Event(), threading.Event()
    thread = threading.Thread(target=log, args=(inside, is_done))
    thread.start()
    inside.wait()
    for _ in range(20):
        if not (pid := os.fork()):
            os._exit(0)
        os.waitpid(pid, 0)
    is_done.set()
    thread.join()
    print("done")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_fork_does_not_wait_for_a_thread_that_is_quiet():
    program = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(LOGGING_LATER)]

    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stdout) == (0, "done\n")
