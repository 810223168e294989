"""How much long tests do: all of it at night, where RUNMANAGER_NIGHTLY is set, and a part of it otherwise."""

import os

IS_NIGHT = "RUNMANAGER_NIGHTLY" in os.environ


def of_night(number: int, *, by_day: int) -> int:
    """Return how often a long test repeats."""
    return number if IS_NIGHT else by_day
