"""Whether runs may begin in this process: not while a file is only imported."""

import contextlib
from collections.abc import Iterator

from runmanager.errors import LifecycleError

_refusal = ""
"""Why no run may begin in this process, "" if it may."""


@contextlib.contextmanager
def begin_nothing(why: str) -> Iterator[None]:
    """Refuse to begin runs in this process while the block runs.

    Raises:
        LifecycleError: A run or a grid was to be begun.
    """
    global _refusal  # noqa: PLW0603 - guards the process itself
    before, _refusal = _refusal, why
    try:
        yield
    finally:
        _refusal = before


def check_beginning() -> None:
    """Do nothing unless `begin_nothing` is under way.

    Raises:
        LifecycleError: It is.
    """
    if _refusal:
        raise LifecycleError(_refusal)
