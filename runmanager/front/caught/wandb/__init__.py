"""Stands for wandb in a program that a `Command` executes."""

from typing import Any

from _caught import stand_for  # type: ignore[import-not-found]  # beside it on the path of the program


def _load() -> Any:
    import wandb

    return wandb


stand_for("wandb", _load)
