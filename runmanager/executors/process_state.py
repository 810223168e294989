"""What a run may change in its process, so that the next one finds it as it was."""

import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from runmanager.executors.signals import SIGNALS

if sys.platform != "win32":
    import resource

    _LIMITS = [number for name, number in vars(resource).items() if name.startswith("RLIMIT_")]
else:  # pragma: no cover
    _LIMITS = []

_SPARE = 16  # descriptors with which the end of a run is committed when it has used up all others
_ROOM = 64  # descriptors that the next run needs, at least
_TIMED = [getattr(signal, name) for name in ("SIGALRM", "SIGCHLD") if hasattr(signal, name)]

Setting = tuple[Callable[[], Any], Callable[[Any], object]]
"""How to read a setting, and how to set it."""


@contextmanager
def kept() -> Iterator[None]:
    """Put back what the block changes in this process and what the next run would inherit.

    That is: the working directory, the standard streams, limits of the system, handlers of signals and timers,
    warnings that became errors, and what torch computes with by default.
    """
    spare = [os.open(os.devnull, os.O_RDONLY) for _ in range(_SPARE)]
    settings = [*_settings(), *_torch_settings()]
    before = [read() for read, _ in settings]
    filters = warnings.filters[:]
    try:
        yield
    finally:
        for descriptor in spare:
            with suppress(OSError):  # the block may have closed it
                os.close(descriptor)
        for (read, write), value in zip(settings, before, strict=True):
            with suppress(OSError, ValueError, TypeError):  # it cannot be changed back
                if read() != value:
                    write(value)
        if hasattr(signal, "setitimer") and signal.getitimer(signal.ITIMER_REAL)[0]:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if any(added[0] == "error" and added not in filters for added in warnings.filters):
            warnings.filters[:] = filters  # type: ignore[index]  # it is a list
            warnings.simplefilter("default", append=True)  # lets Python forget what it has cached


def has_room() -> bool:
    """Whether this process can open files still: a run may have left too many open."""
    descriptors: list[int] = []
    try:
        descriptors += (os.open(os.devnull, os.O_RDONLY) for _ in range(_ROOM))
    except OSError:
        return False
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return True


def is_stopped(error: BaseException) -> bool:
    """Whether an exception left `train` because the run is to stop: `train` itself may raise the same.

    A lane ignores Ctrl-C and is stopped by a class of its own. Elsewhere nobody can tell.
    """
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return isinstance(error, KeyboardInterrupt) and not (is_ignored and type(error) is KeyboardInterrupt)


def _settings() -> list[Setting]:
    settings: list[Setting] = [
        (_folder, os.chdir),
        (sys.getrecursionlimit, sys.setrecursionlimit),
        (gc.isenabled, lambda is_on: gc.enable() if is_on else gc.disable()),
        *(_stream(name) for name in ("stdin", "stdout", "stderr")),
        *map(_limit, _LIMITS),
    ]
    if threading.current_thread() is threading.main_thread():
        settings += map(_handler, {*SIGNALS, *_TIMED})
    return settings


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - os.chdir takes it
    except OSError:
        return ""  # it is gone


def _stream(name: str) -> Setting:
    return lambda: getattr(sys, name), lambda stream: setattr(sys, name, stream)


def _limit(number: int) -> Setting:
    def write(limits: tuple[int, int]) -> None:
        try:
            resource.setrlimit(number, limits)
        except (OSError, ValueError):  # only root raises the hard one
            hard = resource.getrlimit(number)[1]
            resource.setrlimit(number, (hard, hard))

    return lambda: resource.getrlimit(number), write


def _handler(number: int) -> Setting:
    def write(handler: Any) -> None:
        if handler is not None:  # nor does Python know it then
            signal.signal(number, handler)

    return lambda: signal.getsignal(number), write


def _torch_settings() -> list[Setting]:
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    return [
        (torch.get_default_dtype, torch.set_default_dtype),
        (
            torch.get_default_device,
            lambda device: torch.set_default_device(None if device.type == "cpu" else device),
        ),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (
            lambda: (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            lambda pair: torch.use_deterministic_algorithms(pair[0], warn_only=pair[1]),
        ),
    ]
