"""Signals that end a grid: Ctrl-C, SIGTERM, and SIGHUP when a terminal closes."""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

INTERRUPTED = 130
"""The exit code after Ctrl-C: 128 plus the signal's number, as in shells."""

TIME_IS_OVER = 75
"""The exit code when a grid's time is over: EX_TEMPFAIL ("try again later") of sysexits.h."""

_MOMENT_S = 0.5  # in which signals count as one: `timeout` signals a process, and then its group

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""The signals that end a grid; Windows lacks SIGHUP."""


def leave_loaders() -> dict[int, Any]:
    """Disable and return torch's SIGCHLD handler: the signal may have ended the loaders' processes too."""
    child = getattr(signal, "SIGCHLD", None)
    home = "torch.utils.data._utils.signal_handling"
    if child is None or getattr(signal.getsignal(child), "__module__", "") != home:
        return {}
    return {child: signal.signal(child, signal.SIG_DFL)}


@contextmanager
def signals_wait() -> Iterator[None]:
    """Defer the signals that end a grid to the end of the block, except a repeated signal."""
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


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Defer the signals that end a grid; processes that are started in the block begin with them blocked.

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


class Stop:
    """Ends a grid on Ctrl-C, SIGTERM or SIGHUP: immediately during runs, otherwise at the next check.

    Planning, committing and the final summary are short; only a second signal interrupts these parts. Python
    drops an exception raised within ``__del__``; so the signal is stored too, and `check` raises the exception
    again.
    """

    exit_code = 0
    """0, 128 plus the signal's number, or `TIME_IS_OVER`."""
    why = ""
    """The reason why the grid ends, "" for a signal."""
    _end, _end_why, _again = math.inf, "", 0.0
    _is_at_once = False
    _is_woken = False  # whether the timer has sent its signal
    _timer: threading.Timer | None = None
    _before: dict[int, Any]  # signal -> the handler before

    @classmethod
    @contextmanager
    def on_signals(cls) -> Iterator[Self]:
        """Handle the signals in a block; only the main thread can."""
        stop = cls()
        stop._before = {}
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores the signal
                    stop._before[number] = signal.signal(number, stop._came)
        try:
            yield stop
        finally:
            if stop._timer:
                stop._timer.cancel()
                stop._timer.join()
            for number, handler in stop._before.items():
                signal.signal(number, handler)

    def end_after(self, began: float, max_seconds: float) -> None:
        """End the grid `max_seconds` after `began` (time.monotonic, s); in a thread, at its next event."""
        self._end, self._end_why = began + max_seconds, f"max_seconds={max_seconds:g} are over"
        if signal.SIGINT in self._before:
            self._timer = threading.Timer(max(0.0, self._end - time.monotonic()), self._wake)
            self._timer.daemon = True
            self._timer.start()

    @contextmanager
    def at_once(self, is_at_once: bool = True) -> Iterator[None]:
        """Raise KeyboardInterrupt in the block on a signal, or at once if a signal came before."""
        if is_at_once:
            self.check()
        before, self._is_at_once = self._is_at_once, is_at_once
        try:
            yield
        finally:
            self._is_at_once = before
        self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has come, or the time is over."""
        if time.monotonic() >= self._end:
            self._time_is_over()
        if self.exit_code:
            raise KeyboardInterrupt

    def _wake(self) -> None:
        """Interrupt a wait of the main thread."""
        self._is_woken = True
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        else:
            signal.raise_signal(signal.SIGINT)  # the handler is called in the main thread

    def _time_is_over(self) -> None:
        self._end = math.inf
        self.exit_code, self.why = TIME_IS_OVER, self._end_why

    def _came(self, number: int, _frame: FrameType | None) -> None:
        is_timer, self._is_woken = self._is_woken and number == signal.SIGINT, False
        if (is_timer and self.exit_code) or time.monotonic() < self._again:
            return  # the end was detected before the timer fired, or the signal comes twice
        self._again = time.monotonic() + _MOMENT_S
        is_at_once = self._is_at_once or self.exit_code != 0
        if time.monotonic() >= self._end:
            self._time_is_over()
        elif not self.why:
            self.exit_code = 128 + number
        self._is_at_once = False
        self._before |= leave_loaders()
        if is_at_once:
            raise KeyboardInterrupt
