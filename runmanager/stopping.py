"""How Ctrl-C, SIGTERM and the end of a terminal (SIGHUP) end a grid."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

INTERRUPTED = 130
"""The exit code after Ctrl-C: 128 and the signal's number, as shells have it."""

SIGNALS = {getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)}
"""Those that end a grid."""


class Stop:
    """Lets Ctrl-C, SIGTERM and SIGHUP end a grid: at once while runs are executed, else before or after that.

    What is planned and summed up takes a moment, and is not torn. A second signal ends even that.

    Attributes:
        exit_code: That of the signal that came, 0 if none did.
    """

    def __init__(self) -> None:
        self.exit_code = 0
        self._is_at_once = False
        self._before: dict[int, Any] = {}

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise KeyboardInterrupt in the block if a signal comes, or has come."""
        if self.exit_code:
            raise KeyboardInterrupt
        self._is_at_once = True
        try:
            yield
        finally:
            self._is_at_once = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as with nohup
                    self._before[number] = signal.signal(number, self._asked)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _asked(self, number: int, _frame: FrameType | None) -> None:
        is_at_once = self._is_at_once or self.exit_code != 0
        self.exit_code = 128 + number
        self._is_at_once = False
        if is_at_once:
            raise KeyboardInterrupt
