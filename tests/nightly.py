"""How much long tests do: all of it at night, where RUNMANAGER_NIGHTLY is set, and a part of it otherwise."""

import os
from collections.abc import Sequence
from typing import Any

import pytest

IS_NIGHT = "RUNMANAGER_NIGHTLY" in os.environ


def of_night(number: int, *, by_day: int) -> int:
    """Return how often a long test repeats."""
    return number if IS_NIGHT else by_day


def of_night_but(values: Sequence[Any], by_day: Sequence[Any]) -> list[Any]:
    """Return the parameters of a long test, of which only those `by_day` are tested by day."""
    return [value if value in by_day else pytest.param(value, marks=pytest.mark.nightly) for value in values]
