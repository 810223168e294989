"""Calling a training function: its further parameters get the values of the run."""

import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any

from runmanager.errors import Problems
from runmanager.grid import Run

_OWN = 2  # parameters: the run and the manager


def settings_of(train: Callable[..., object]) -> dict[str, Any]:
    """Return the parameters of a training function after the run and the manager that have a default.

    >>> def train(run, manager, num_epochs=5, *, data_dir="data"): ...
    >>> settings_of(train)
    {'num_epochs': 5, 'data_dir': 'data'}
    """
    return {name: one.default for name, one in _further(train).items() if one.default is not one.empty}


def check_calls(train: Callable[..., object], runs: Iterable[Run], problems: Problems) -> None:
    """Note a problem unless a training function can be called with these runs."""
    try:
        signature = inspect.signature(train)
    except (TypeError, ValueError):  # of a builtin
        return
    further = _further(train)
    try:
        for fields in dict.fromkeys(run._fields for run in runs):
            signature.bind(None, None, **_named(further, fields, dict.fromkeys(fields)))
    except TypeError as error:
        problems.append(f"train must take (run, manager), and axes of the grid by name: {error}")


def call(train: Callable[..., object], run: Run, manager: Any) -> None:
    """Call a training function; a parameter that is a hyperparameter has the run's value, else its default."""
    train(run, manager, **_named(_further(train), run._fields, run._asdict()))


def _named(further: Collection[str], fields: Collection[str], values: dict[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in further if name in fields}


def _further(train: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """Return the parameters after the run and the manager that can be given by name."""
    try:
        parameters = list(inspect.signature(train).parameters.values())[_OWN:]
    except (TypeError, ValueError):  # of a builtin
        return {}
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {one.name: one for one in parameters if one.kind in by_name}
