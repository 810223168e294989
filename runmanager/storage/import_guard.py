"""A guard against runs that begin while a file is only imported."""

import contextlib
from collections.abc import Iterator

from runmanager.errors import LifecycleError

_refusal = ""
"""The reason why runs must not begin in this process; "" if runs can begin."""


@contextlib.contextmanager
def begin_nothing(why: str) -> Iterator[None]:
    """Refuse to begin runs in this process during the block.

    Raises:
        LifecycleError: A run or a grid begins in the block.
    """
    global _refusal  # noqa: PLW0603 - guards the process itself
    before, _refusal = _refusal, why
    try:
        yield
    finally:
        _refusal = before


def check_beginning() -> None:
    """Raise an error if called inside a block of `begin_nothing`.

    Raises:
        LifecycleError: Runs must not begin now.
    """
    if _refusal:
        raise LifecycleError(_refusal)
