"""The call of a training function with the run, its manager and hyperparameters."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from runmanager.core.run import Run
from runmanager.errors import Problems

_OWN = 2  # number of leading parameters: the run and the manager


def defaults_of(train: Callable[..., object]) -> dict[str, Any]:
    """Return the further parameters of a training function that have a default.

    >>> def train(run, manager, num_epochs=5, *, data_dir="data"): ...
    >>> defaults_of(train)
    {'num_epochs': 5, 'data_dir': 'data'}
    """
    return {name: one.default for name, one in _further(train).items() if one.default is not one.empty}


def check_calls(train: Callable[..., object], runs: Iterable[Run], problems: Problems) -> None:
    """Append an error if a training function cannot be called with these runs."""
    try:
        signature = inspect.signature(train)
    except (TypeError, ValueError):  # a builtin has no signature
        return
    if list(signature.parameters)[:_OWN] == ["manager", "run"]:
        problems.append("train gets (run, manager), in this order, but takes (manager, run): exchange them")
    further = _further(train)
    try:
        for fields in dict.fromkeys(run._fields for run in runs):
            names = _named_like(further, fields)
            signature.bind(None, None, **dict.fromkeys(names))
    except TypeError as error:
        rule = "train must take (run, manager), and axes of the grid by name"
        got = f"({', '.join(signature.parameters)})"
        problems.append(f"{rule}, got {got}: {error}; write def train(run, manager)")


def call(train: Callable[..., object], run: Run, manager: Any) -> None:
    """Call a training function; parameters with the name of a hyperparameter get the run's value."""
    train(run, manager, **{name: getattr(run, name) for name in _named_like(_further(train), run._fields)})


def parameters_of(train: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a training function; empty for a builtin."""
    try:
        return inspect.signature(train).parameters
    except (TypeError, ValueError):  # a builtin has no signature
        return {}


def _named_like(further: Iterable[str], fields: Iterable[str]) -> list[str]:
    """Return the parameters that are hyperparameters; if `opt.lr` is a hyperparameter, `opt` counts too."""
    names = {field.partition(".")[0] for field in fields}
    return [name for name in further if name in names]


def _further(train: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """Return the parameters after the run and the manager that accept keyword arguments."""
    parameters = list(parameters_of(train).values())[_OWN:]
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {parameter.name: parameter for parameter in parameters if parameter.kind in by_name}
