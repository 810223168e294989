"""A guard against runs that begin while a new process executes the script again."""

import sys
from types import FrameType

from runmanager.errors import LifecycleError


def check_beginning() -> None:
    """Raise an error if called in a process that executes a script again."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as warnings does
    while frame is not None:
        # where processes are not forked, as on Windows and macOS, each begins with the script under this name
        if frame.f_globals.get("__name__") == "__mp_main__" and frame.f_code.co_name == "<module>":
            step = 'put what starts runs under `if __name__ == "__main__":`'
            raise LifecycleError(
                f"a new process, as of a loader with num_workers, executes this script again: {step}"
            )
        frame = frame.f_back
