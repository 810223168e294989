"""Tracebacks without the frames of this package, so that users see their own lines."""

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

_PACKAGE = __name__.partition(".")[0]


def user_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this package, and of standard library calls made by it.

    Return None if no frame is left.
    """
    shortened: TracebackType | None = None
    for frame in reversed(list(_user_frames_of(traceback))):
        shortened = TracebackType(shortened, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return shortened


def from_user_frame(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback that begins with the first frame of the user, if there is one."""
    return next(_user_frames_of(traceback), traceback)


def _user_frames_of(traceback: TracebackType | None) -> Iterator[TracebackType]:
    is_inside = False  # whether the frame is inside a call of this package, without user code
    while traceback is not None:
        is_inside = _is_inside(traceback.tb_frame.f_globals, is_inside=is_inside)
        if not is_inside:
            yield traceback
        traceback = traceback.tb_next


def _is_inside(names: dict[str, Any], *, is_inside: bool) -> bool:
    """Whether a module belongs to this package, or to the standard library when this package has called it."""
    module = str(names.get("__name__")).partition(".")[0]
    return module == _PACKAGE or (is_inside and module in sys.stdlib_module_names)


@contextmanager
def in_user_frames(error: BaseException) -> Iterator[None]:
    """Hide the frames of this package in an exception of the block, and in the causes of the exception.

    A cause without other frames is hidden, as the message of the error includes the cause.
    """
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    before = [
        (
            error_of_chain,
            error_of_chain.__traceback__,
            error_of_chain.__cause__,
            error_of_chain.__suppress_context__,
        )
        for error_of_chain in chain
    ]
    try:
        for error_of_chain in chain:
            error_of_chain.__traceback__ = user_frames(error_of_chain.__traceback__)
        for error_of_chain, cause in itertools.pairwise(chain):
            if cause.__traceback__ is None:
                error_of_chain.__cause__ = None  # setting the cause hides the context too
        yield
    finally:
        for error_of_chain, frames, cause_before, is_hidden in before:
            error_of_chain.__traceback__, error_of_chain.__cause__ = frames, cause_before
            error_of_chain.__suppress_context__ = is_hidden


def show_user_frames() -> None:
    """Print an error of this package that ends the program, without the internal frames."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_uncaught


def _print_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if not hasattr(error, "_render_traceback_"):  # the error is not from this package
        sys.__excepthook__(kind, error, traceback)
        return
    with in_user_frames(error):
        sys.__excepthook__(kind, error, error.__traceback__)


def user_level() -> int:
    """Return the `stacklevel` of a warning that names the user's line, for the caller of this function."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001 - as warnings does
    while frame.f_back is not None and _is_inside(frame.f_globals, is_inside=True):
        level, frame = level + 1, frame.f_back
    return level
