"""Advice that names an argument, or its flag if `main` reads the program's command line."""

from collections.abc import Iterator
from contextlib import contextmanager

_are_there = False
"""Whether `main` reads this program's command line.

The value is global, as advice is written in many functions and threads.
"""


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
    """Return the code of an argument, or the flag if `main` reads the command line and the argument has a flag.

    >>> argument("retry_failed=True", "--retry-failed")
    'retry_failed=True'
    >>> with from_command_line():
    ...     argument("retry_failed=True", "--retry-failed")
    '--retry-failed'
    """
    return flag if _are_there else code
