"""Silence about what is expected: warnings are ignored for a block, one thread at a time."""

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_turn = threading.RLock()


@contextmanager
def quiet() -> Iterator[None]:
    """Ignore warnings while the block runs. Filters belong to the process, so threads take turns."""
    with _turn, warnings.catch_warnings(action="ignore"):
        yield


def _begin_anew() -> None:
    global _turn  # noqa: PLW0603 - the thread that had the turn is not in a process that was forked
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
