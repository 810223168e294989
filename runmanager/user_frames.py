"""Tracebacks without the frames of this package, so that users see their own lines."""

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

_PACKAGE = __name__.partition(".")[0]


def user_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this package, and of what the standard library did for it.

    If no other frame is left, it is None.
    """
    kept: TracebackType | None = None
    for each in reversed(list(_others(traceback))):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept


def _others(traceback: TracebackType | None) -> Iterator[TracebackType]:
    is_inside = False  # of a call of this package that no code of the user has left
    while traceback is not None:
        module = str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0]
        is_inside = module == _PACKAGE or (is_inside and module in sys.stdlib_module_names)
        if not is_inside:
            yield traceback
        traceback = traceback.tb_next


@contextmanager
def in_user_frames(error: BaseException) -> Iterator[None]:
    """Leave the frames of this package out of an error and of its causes while the block runs.

    A cause without any other frame is left out: the message of the error says what it was.
    """
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    before = [(each, each.__traceback__, each.__cause__, each.__suppress_context__) for each in chain]
    try:
        for each in chain:
            each.__traceback__ = user_frames(each.__traceback__)
        for each, cause in itertools.pairwise(chain):
            if cause.__traceback__ is None:
                each.__cause__ = None  # which hides the context too
        yield
    finally:
        for each, frames, cause_before, is_hidden in before:
            each.__traceback__, each.__cause__ = frames, cause_before
            each.__suppress_context__ = is_hidden
