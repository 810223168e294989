"""Tracebacks without the frames of this package, so that users see their own lines."""

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

_PACKAGE = __name__.partition(".")[0]


def user_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this package, and of standard library calls made by it.

    It is None if no frame is left.
    """
    shortened: TracebackType | None = None
    for frame in reversed(list(_user_frames_of(traceback))):
        shortened = TracebackType(shortened, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return shortened


def _user_frames_of(traceback: TracebackType | None) -> Iterator[TracebackType]:
    is_inside = False  # inside a call of this package without user code
    while traceback is not None:
        module = str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0]
        is_inside = module == _PACKAGE or (is_inside and module in sys.stdlib_module_names)
        if not is_inside:
            yield traceback
        traceback = traceback.tb_next


@contextmanager
def in_user_frames(error: BaseException) -> Iterator[None]:
    """Hide the frames of this package in an error and its causes during the block.

    A cause without other frames is hidden, as the message of the error has it.
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
                error_of_chain.__cause__ = None  # hides the context too
        yield
    finally:
        for error_of_chain, frames, cause_before, is_hidden in before:
            error_of_chain.__traceback__, error_of_chain.__cause__ = frames, cause_before
            error_of_chain.__suppress_context__ = is_hidden
