"""Settings of all tests."""

import atexit
import gc
import itertools
import os
import re
import signal
import sys
from multiprocessing.util import get_temp_dir

import pytest
from hypothesis import HealthCheck, settings

# else each process compiles what it imports: two seconds for torch alone
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# threads of torch that wait for one another leave their cores to other tests; read when torch is imported
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from tests.nightly import IS_NIGHT
from tests.warm import Warm

settings.register_profile(
    "runmanager",
    deadline=None,
    derandomize=True,
    max_examples=40,
    # a slow machine fails the one, what a release of hypothesis draws the other
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("runmanager")

sys.dont_write_bytecode = False
gc.disable()  # what is imported while tests are collected is no garbage: a tenth of that time

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it, and what it starts
for name in ("COLUMNS", "LINES"):  # with readline in it, pytest gives those of its terminal to its workers
    os.environ.pop(name, None)


# what imports lightning or transformers, only where a test needs it
collect_ignore_glob = ["*_study.py"]
IMPORTED_BY_TESTS = ["pytest", "hypothesis", "pandas", "tests.accelerators"]


@pytest.fixture(scope="session", autouse=True)
def _without_waiting_for_the_disk():
    """Leave out what only a power cut would show, and costs each run dozens of waits; its calls are tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _warmer_lanes():
    """Let the process that lanes are forked from import what test modules import: else each lane does.

    It serves all tests: its socket must not be in a folder that one of them has set for temporary files.
    """
    from multiprocessing import forkserver

    usual = forkserver.set_forkserver_preload
    get_temp_dir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forkserver, "set_forkserver_preload", lambda names: usual([*names, *IMPORTED_BY_TESTS]))
        yield


@pytest.fixture(scope="module", autouse=True)
def _no_other_test_module(request):
    """Take the other test modules for not imported: each start of a grid reads all files of its user."""
    others = {name: each for name, each in sys.modules.items() if re.match(r"tests\.(\w+\.)*test_", name)}
    others.pop(request.module.__name__, None)
    for name in others:
        del sys.modules[name]
    yield
    sys.modules.update(others)


@pytest.fixture(scope="session", autouse=True)
def _num_usual_threads():
    """Compute with one thread: small networks are slower with more, and other tests run beside."""
    import torch

    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    return usual


@pytest.fixture(autouse=True)
def _one_thread():
    """Go back to one thread, whatever the test has set."""
    import torch

    yield
    torch.set_num_threads(1)


@pytest.fixture
def usual_threads(_num_usual_threads):
    """Compute with as many threads as other processes, as a user's program does."""
    import torch

    torch.set_num_threads(_num_usual_threads)


@pytest.fixture(scope="session")
def warm():
    """A process that has imported everything, for programs that need a process of their own."""
    with Warm() as warm:
        yield warm


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Leave out what is for the night, and let each process begin with some of the tests that take minutes.

    A module's tests stay together. Each process begins with as many tests, and they share what is left
    (`--dist worksteal`): short ones, at the end. Those that need a warm process come first:
    one serves all.
    """
    left_out = [item for item in items if item.get_closest_marker("nightly") and not IS_NIGHT]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    number = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = [item for item in items if minutes_of(item)]
    modules = [[item for item in long if item.path == path] for path in dict.fromkeys(i.path for i in long)]
    parts: list[list[pytest.Item]] = [[] for _ in range(number)]
    for module in sorted(modules, key=total_minutes, reverse=True):
        min(parts, key=total_minutes).extend(module)
    warm = {item.path for item in items if "warm" in item.fixturenames}
    short = [item for item in items if not minutes_of(item)]
    others = iter(sorted(short, key=lambda item: item.path not in warm))
    sizes = [(len(items) + k) // number for k in range(number)]
    items[:] = [
        item
        for part, size in zip(parts, sizes, strict=True)
        for item in (*part, *itertools.islice(others, max(0, size - len(part))))
    ]


def total_minutes(items):
    return sum(map(minutes_of, items))


def pytest_collection_finish():
    """Let the garbage collector leave alone what was imported, which no test makes garbage."""
    gc.freeze()
    gc.enable()


def minutes_of(item):
    marker = item.get_closest_marker("slow")
    return marker.kwargs.get("minutes", 0) if marker else 0


def pytest_sessionfinish():
    """Leave the runs that tests have left open as they are, and say nothing about them."""
    gc.unfreeze()
    loop_output = sys.modules.get("runmanager.front.loop_output")
    for item in gc.get_objects() if loop_output else ():
        if type(item).__name__ == "LoopOutput":
            atexit.unregister(item.end_at_exit)
