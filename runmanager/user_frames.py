"""Tracebacks without the frames of this package, so that users see their own lines."""

import sys
from collections.abc import Iterator
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
