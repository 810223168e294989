"""Calling a training function: its further parameters get the values of the run."""

import inspect
from collections.abc import Callable
from typing import Any

from runmanager.grid import Run

_OWN = 2  # parameters: the run and the manager


def settings_of(train: Callable[..., object]) -> dict[str, Any]:
    """Return the parameters of a training function after the run and the manager, with their defaults.

    >>> def train(run, manager, num_epochs=5, *, data_dir="data"): ...
    >>> settings_of(train)
    {'num_epochs': 5, 'data_dir': 'data'}
    """
    try:
        parameters = list(inspect.signature(train).parameters.values())[_OWN:]
    except (TypeError, ValueError):  # of a builtin
        return {}
    return {one.name: one.default for one in parameters if one.default is not one.empty}


def call(train: Callable[..., object], run: Run, manager: Any) -> None:
    """Call a training function; what is a hyperparameter of the run has its value, else the default."""
    train(run, manager, **{name: getattr(run, name) for name in settings_of(train) if name in run._fields})
