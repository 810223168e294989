"""Advice that names an argument, or its flag in a program whose command line `main` reads."""

from collections.abc import Iterator
from contextlib import contextmanager

_are_there = False
"""Whether `main` reads this program's command line; advice is written far from it, and in its threads."""


@contextmanager
def from_command_line() -> Iterator[None]:
    """Name flags in the advice that is written during the block."""
    global _are_there  # noqa: PLW0603 - there is one command line
    before, _are_there = _are_there, True
    try:
        yield
    finally:
        _are_there = before


def argument(code: str, flag: str) -> str:
    """Return the code of an argument, as it works everywhere, or the flag where there is one.

    >>> argument("retry_failed=True", "--retry-failed")
    'retry_failed=True'
    >>> with from_command_line():
    ...     argument("retry_failed=True", "--retry-failed")
    '--retry-failed'
    """
    return flag if _are_there else code
