"""The TypeError of calls with wrong arguments: it gives the code to write instead."""

import inspect
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from runmanager.close_names import closest
from runmanager.wording import listed

P = ParamSpec("P")
T = TypeVar("T")


def advised(step: str, *, guesses: bool = True) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that adds the code to write instead to the TypeError of a wrong call.

    Args:
        step: The advice, such as "write track(f1=0.5)".
        guesses: Whether the message suggests a similar keyword for a misspelled one.

    >>> @advised("write area(2, 3)")
    ... def area(width, height): ...
    >>> area(2, heigth=3)
    Traceback (most recent call last):
        ...
    TypeError: area() got an unexpected keyword argument 'heigth'; did you mean 'height'?
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                    raise  # the error is not from the call itself
                better = _of_unexpected(function, len(args), kwargs) if guesses else None
                raise better or TypeError(f"{str(error).replace('.__init__', '')}: {step}") from None

        return call

    return decorate


def unexpected(function: Callable[..., Any], wrong: str, names: Collection[str], only: str = "") -> TypeError:
    """Return the TypeError for an unexpected keyword.

    It suggests a similar name of `names`, else `only`, else lists all arguments.
    """
    called = function.__qualname__.removesuffix(".__init__")
    close = closest(wrong, names) or only or closest(wrong, keywords_of(function))
    every = dict.fromkeys([*keywords_of(function), *names])
    hint = f"did you mean {close!r}?" if close else f"its arguments are: {listed([*every])}"
    return TypeError(f"{called}() got an unexpected keyword argument {wrong!r}; {hint}")


def keywords_of(function: Callable[..., Any]) -> list[str]:
    """Return the public parameters of a function that accept keywords."""
    return [name for name, parameter in _parameters(function).items() if parameter.kind in _BY_NAME]


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(function).parameters
    return {name: one for name, one in parameters.items() if name != "self" and not name.startswith("_")}


def _of_unexpected(
    function: Callable[..., Any], num_positional: int, given: Collection[str]
) -> TypeError | None:
    """Return the error of the first keyword that a function does not accept; None if it accepts all."""
    parameters = _parameters(function)
    wrong = next((name for name in given if name not in parameters), None)
    if wrong is None or any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return None
    if "self" in inspect.signature(function).parameters:
        num_positional -= 1
    free = [name for name in list(parameters)[num_positional:] if name not in given]
    missing = [name for name in free if parameters[name].default is inspect.Parameter.empty]
    return unexpected(function, wrong, free, missing[0] if len(missing) == 1 else "")
