"""Stands for trackio in a program that a `Command` executes."""

from typing import Any

from _caught import stand_for  # type: ignore[import-not-found]  # beside it on the path of the program


def _load() -> Any:
    import trackio  # type: ignore[import-not-found]

    return trackio


stand_for("trackio", _load)
