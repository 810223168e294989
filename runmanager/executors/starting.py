"""Starting worker processes: meanwhile signals wait, and the user's script is not executed again."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from runmanager.stopping import SIGNALS, signals_wait


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Let the signals that end a grid wait until the block is done; what it starts begins with them blocked.

    So the process that lanes are forked from never gets them, and a lane says which it wants. Blocking is not
    enough for this process: the system gives the signal to another thread, and Python raises in this one.
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
    """Keep workers from executing the user's script again: what they need of it comes with the work."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
