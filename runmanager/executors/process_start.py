"""The start of worker processes: with signals deferred, and without executing the user's script again."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from runmanager.executors.signals import SIGNALS, signals_wait

_SWAPPING = threading.Lock()


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Defer the signals that end a grid during the block.

    Processes that are started in the block begin with these signals blocked.

    So the ancestor of the lanes never receives these signals, and a lane unblocks the signals that it needs. In
    this process, blocking is not enough: the system delivers the signal to another thread, and Python raises
    the exception in the main thread.
    """
    with signals_wait():
        if not hasattr(signal, "pthread_sigmask"):
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def without_main() -> Iterator[None]:
    """Prevent workers from executing the user's script again; the task contains all parts that they need."""
    with _SWAPPING:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = _without_file(main)
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _without_file(module: ModuleType) -> ModuleType:
    """Copy a module without its file, which could be executed again."""

    def find(name: str) -> Any:
        if name == "__file__":
            raise AttributeError(name)
        return getattr(module, name)

    stand_in = ModuleType(module.__name__)
    vars(stand_in)["__getattr__"] = find
    return stand_in
