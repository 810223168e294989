"""The errors that runmanager raises.

RunManagerError
|-- GridError (ValueError)                  an invalid grid: all its problems at once
|   |-- InvalidArgumentError (ValueError)   an invalid argument or combination of arguments
|   `-- MissingExtraError (ImportError)     a missing optional package
|-- DeviceError (RuntimeError)              a missing device, or an unreachable Ray cluster
|-- LifecycleError (RuntimeError)           a hook called in the wrong order
|-- CheckpointError (ValueError)            a state that cannot be saved or restored
|-- ExperimentLockedError (RuntimeError)    an experiment in use by another process or thread
`-- StorageError (OSError)                  a failed write
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any

from runmanager.user_code import hide_frames, show_user_frames, user_level


class RunManagerError(Exception):
    """The base of all errors below; notebooks and uncaught errors show no frames of this package.

    It is raised itself if TensorBoard does not start, a data set is damaged, or another rank has ended.

    Example:
        >>> import runmanager
        >>> try:
        ...     runmanager.load_runs("no/such/folder")
        ... except runmanager.RunManagerError as error:  # any of them
        ...     print(type(error).__name__)
        InvalidArgumentError
    """

    def __init__(self, *_: object, **__: Any) -> None:
        super().__init__(*_, **__)
        show_user_frames()

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows: the user's frames, and the message."""
        import IPython

        hide_frames(self)
        shell = IPython.get_ipython()
        return list(shell.InteractiveTB.structured_traceback(type(self), self, self.__traceback__))


class GridError(RunManagerError, ValueError):
    """An invalid grid.

    Attributes:
        problems: One sentence per problem, with the code to write instead.

    Example:
        >>> from runmanager import RunBuilder
        >>> try:
        ...     RunBuilder.get_runs({"lr": 0.1, "width": []})
        ... except GridError as error:
        ...     for problem in error.problems:
        ...         print(problem)
        values of 'lr' must be a list or tuple, got 0.1; write lr=[0.1] for a single value
        axis 'width' has no values: give it at least one, or leave it out
    """

    _so_far = ", nothing was started"

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: list[str] = [problems] if isinstance(problems, str) else list(problems)
        lines = self.problems
        if len(lines) != 1:
            numbered = [f"  {number}. {problem}" for number, problem in enumerate(problems, 1)]
            lines = [f"{len(problems)} problems{self._so_far}:", *numbered]
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,), self.__dict__


class InvalidArgumentError(GridError):
    """An invalid argument, metric or setting, an invalid combination of arguments, or a path without runs.

    Example:
        >>> from runmanager import load_runs
        >>> load_runs("rums")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        runmanager.errors.InvalidArgumentError: no results at 'rums': ...
    """

    _so_far = ""  # no text, as functions that only read raise this error too
    ends_grid = False  # whether it ends the grid instead of the run that raises it


class MissingExtraError(GridError, ImportError):
    """A missing optional package; the message names the extra to install.

    Example:
        >>> issubclass(MissingExtraError, ImportError)  # `except ImportError` catches it too
        True
    """


class DeviceError(RunManagerError, RuntimeError):
    """A device that this machine does not have, or a Ray cluster that does not answer.

    Example:
        >>> issubclass(DeviceError, RuntimeError)  # `except RuntimeError` catches it too
        True
    """


class LifecycleError(RunManagerError, RuntimeError):
    """A hook of RunManager that was called in the wrong order.

    Example:
        >>> from runmanager import RunManager
        >>> RunManager("hooks").track_loss(0.5, 8)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        runmanager.errors.LifecycleError: track_loss() outside a run: write `with manager.run(run, network, ...
    """


class CheckpointError(RunManagerError, ValueError):
    """A state that cannot be saved safely, or does not fit the object to restore.

    Example:
        >>> issubclass(CheckpointError, ValueError)  # `except ValueError` catches it too
        True
    """

    is_unfit = False  # whether a checkpoint does not fit, so that its run stays interrupted


class ExperimentLockedError(RunManagerError, RuntimeError):
    """An experiment in use by another process, or by another thread of this process.

    Example:
        >>> from runmanager import run_grid
        >>> def train(run, manager):
        ...     run_grid({"lr": [0.1]}, train, experiment="locked")  # the same experiment
        >>> outcome = run_grid({"lr": [0.1]}, train, experiment="locked", executor="inline", display=False)
        >>> outcome.outcomes[0][1].error.partition(":")[0]
        'ExperimentLockedError'
    """


class StorageError(RunManagerError, OSError):
    """A failed write; everything committed before is intact.

    Example:
        >>> issubclass(StorageError, OSError)  # `except OSError` catches it too
        True
    """


class RunsWarning(UserWarning):
    """A file or value that could not be read or shown; all other files and values are complete.

    Example:
        >>> issubclass(RunsWarning, UserWarning)  # warnings.simplefilter("error", RunsWarning) raises it
        True
    """


def warn(sentence: str) -> None:
    """Warn of a problem at the line of the user's code that caused it."""
    warnings.warn(sentence, RunsWarning, stacklevel=user_level())


class Problems(list[str]):
    """Collects the problems of arguments, to report all problems at once."""

    def check_count(self, name: str, value: object, least: int) -> None:
        """Append a problem unless the value is a whole number, `least` or more."""
        if not is_count(value, least):
            self.append(f"{name} must be a whole number, {least} or more, got {value!r}")

    def check_choice(self, name: str, value: object, choices: Sequence[object]) -> None:
        """Append a problem unless the value is one of the choices."""
        if value not in choices:
            self.append(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")

    def check_seconds(self, name: str, value: object) -> None:
        """Append a problem unless the value is None or a finite number above 0."""
        if not (value is None or _is_between(value, math.inf)):
            self.append(f"{name} must be a number of seconds above 0, got {value!r}")

    def check_margin(self, margin: object, error: object) -> None:
        """Append the problems of the margin and the error of a verdict."""
        if not (margin is None or _is_between(margin, math.inf)):
            self.append(f"margin must be a number above 0, or None, got {margin!r}")
        if not _is_between(error, 1.0):
            self.append(f"error must be a number between 0 and 1, got {error!r}")

    def check_function(self, name: str, value: object, argument: str) -> None:
        """Append a problem unless the value is callable; `argument` describes the argument of the callable."""
        if not callable(value):
            self.append(f"{name} must be a function of {argument}, got {value!r}")

    def check_batch_size(self, value: object) -> None:
        """Append a problem unless the value is None or a function of a batch."""
        if value is not None:
            self.check_function("batch_size", value, "a batch, as in lambda batch: len(batch[0])")

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect the problems of a `GridError` that the block raises, instead of raising it."""
        try:
            yield
        except GridError as error:
            self += error.problems

    def raise_if_any(self, error: type[GridError] = GridError) -> None:
        """Raise all problems, if any, as one error of this class."""
        if self:
            raise error(self)


def of_grid(problem: str) -> InvalidArgumentError:
    """Return the error of an argument of the grid, which ends the grid instead of the run that raises it."""
    error = InvalidArgumentError(problem)
    error.ends_grid = True
    return error


def ends_grid(error: BaseException) -> bool:
    """Whether an exception of a run ends the grid, as no other run could succeed."""
    return isinstance(error, StorageError) or getattr(error, "ends_grid", False) is True


def is_pruned(error: BaseException) -> bool:
    """Whether an exception is optuna.TrialPruned, which prunes the run; Optuna is not imported."""
    kinds = type(error).__mro__
    return any(kind.__name__ == "TrialPruned" and kind.__module__.startswith("optuna") for kind in kinds)


def is_count(value: object, least: int = 0) -> bool:
    """Whether a value is a whole number, `least` or more; bools are not."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, "" if it has none."""
    try:
        return str(error).strip().partition("\n")[0]
    except Exception:  # noqa: BLE001 - whatever the code of its class does
        return "it cannot be written as text"


def _is_between(value: object, most: float) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and 0 < float(value) < most
