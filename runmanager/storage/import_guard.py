"""A guard against runs that begin while a file is only imported."""

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType

from runmanager.errors import LifecycleError

_refusal = ""
"""The reason why runs must not begin in this process; "" if runs can begin."""


@contextlib.contextmanager
def begin_nothing(why: str) -> Iterator[None]:
    """Refuse to begin runs in this process during the block.

    Raises:
        LifecycleError: A run or a grid begins in the block.
    """
    global _refusal  # noqa: PLW0603 - guards the process itself
    before, _refusal = _refusal, why
    try:
        yield
    finally:
        _refusal = before


def check_beginning() -> None:
    """Raise an error if called inside a block of `begin_nothing`, or in a process that executes a script again.

    Raises:
        LifecycleError: Runs must not begin now.
    """
    if _refusal:
        raise LifecycleError(_refusal)
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as warnings does
    while frame is not None:
        # where processes are not forked, as on Windows and macOS, each begins with the script under this name
        if frame.f_globals.get("__name__") == "__mp_main__" and frame.f_code.co_name == "<module>":
            step = 'put what starts runs under `if __name__ == "__main__":`'
            raise LifecycleError(
                f"a new process, as of a loader with num_workers, executes this script again: {step}"
            )
        frame = frame.f_back
