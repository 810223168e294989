"""How Ctrl-C, SIGTERM and the end of a terminal (SIGHUP) end a grid."""

import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

INTERRUPTED = 130
"""The exit code after Ctrl-C: 128 and the signal's number, as shells have it."""

TIME_IS_OVER = 75
"""The exit code when a grid has used up its time: EX_TEMPFAIL of sysexits.h, try again."""

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""The signals that end a grid."""


_TORCH_HANDLER = "torch.utils.data._utils.signal_handling"
"""Where torch's handler of SIGCHLD is from, which raises when a process of a loader ends."""


def is_stopped(error: BaseException) -> bool:
    """Whether an exception left `train` because the run is to stop: `train` itself may raise the same.

    A lane ignores Ctrl-C and is stopped by a class of its own. Elsewhere nobody can tell.
    """
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return isinstance(error, KeyboardInterrupt) and not (is_ignored and type(error) is KeyboardInterrupt)


def leave_loaders() -> dict[int, Any]:
    """Let no process of a loader that ends raise here any more, as the signal may have come to all processes.

    Returns:
        The number of that signal, and torch's handler of it; nothing if there is none.
    """
    child = getattr(signal, "SIGCHLD", None)
    if child is None or getattr(signal.getsignal(child), "__module__", "") != _TORCH_HANDLER:
        return {}
    return {child: signal.signal(child, signal.SIG_DFL)}


@contextmanager
def signals_wait() -> Iterator[None]:
    """Let the signals that end a grid wait until the block is done, unless one comes again."""
    came: list[int] = []

    def wait(number: int, frame: FrameType | None) -> None:
        if came:
            before[number](number, frame)
        came.append(number)

    numbers = SIGNALS if threading.current_thread() is threading.main_thread() else ()
    before = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    try:
        for number in before:
            signal.signal(number, wait)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)


class Stop:
    """Lets Ctrl-C, SIGTERM and SIGHUP end a grid: at once while runs are executed, else before or after that.

    `end_after` does the same without a signal.

    Planning, committing and summing up take a moment and are not interrupted, except by a second signal.
    Python drops an exception that is raised within ``__del__`` and the like, and prints it; so the signal is
    remembered for `check`, and nothing is printed.
    """

    def __init__(self) -> None:
        self.exit_code = 0  # or 128 and the number of the signal that came, or `TIME_IS_OVER`
        self.why = ""  # what ends the grid, "" if that is a signal
        self._end, self._end_why = math.inf, ""
        self._is_at_once = False
        self._is_woken = False  # whether the timer has sent its signal
        self._before: dict[int, Any] = {}
        self._timer: threading.Timer | None = None
        self._print_dropped = sys.unraisablehook

    def end_after(self, began: float, max_seconds: float | None) -> None:
        """End the grid some time after it began (time.monotonic, s); a thread notices it at the next event."""
        if max_seconds is None:
            return
        self._end, self._end_why = began + max_seconds, f"max_seconds={max_seconds:g} are over"
        main = threading.main_thread().ident
        if signal.SIGINT in self._before and main is not None and hasattr(signal, "pthread_kill"):
            self._timer = threading.Timer(max(0.0, self._end - time.monotonic()), self._wake, [main])
            self._timer.daemon = True
            self._timer.start()

    def _wake(self, main: int) -> None:
        """Interrupt whatever the main thread waits for."""
        self._is_woken = True
        signal.pthread_kill(main, signal.SIGINT)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise KeyboardInterrupt in the block if a signal comes, or has come."""
        self.check()
        self._is_at_once = True
        try:
            yield
            self.check()
        finally:
            self._is_at_once = False

    @contextmanager
    def later(self) -> Iterator[None]:
        """Let a signal wait until this part of an `at_once` block is done."""
        self._is_at_once = False
        try:
            yield
        finally:
            self._is_at_once = True
        self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has come, or the time is over."""
        if time.monotonic() >= self._end:
            self._time_is_over()
        if self.exit_code:
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._print_dropped, sys.unraisablehook = sys.unraisablehook, self._dropped
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # as with nohup
                    self._before[number] = signal.signal(number, self._came)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer.join()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if sys.unraisablehook == self._dropped:
            sys.unraisablehook = self._print_dropped

    def _dropped(self, hook_args: Any) -> None:
        if not (self.exit_code and hook_args.exc_type is KeyboardInterrupt):
            self._print_dropped(hook_args)

    def _time_is_over(self) -> None:
        self._end = math.inf
        self.exit_code, self.why = TIME_IS_OVER, self._end_why

    def _came(self, number: int, _frame: FrameType | None) -> None:
        is_timer, self._is_woken = self._is_woken and number == signal.SIGINT, False
        if is_timer and self.exit_code:
            return  # the time was noticed before the timer came, and this is no second signal
        is_at_once = self._is_at_once or self.exit_code != 0
        if time.monotonic() >= self._end:
            self._time_is_over()
        elif not self.why:
            self.exit_code = 128 + number
        self._is_at_once = False
        self._before |= leave_loaders()
        if is_at_once:
            raise KeyboardInterrupt
