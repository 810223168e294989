"""Every error that runmanager raises on purpose.

RunManagerError
|-- GridError (ValueError)                  a grid that cannot be run: all its problems at once
|   |-- InvalidArgumentError (ValueError)   an argument that cannot be used, or a combination of them
|   |-- MissingExtraError (ImportError)     an optional package that is not installed
|   `-- ClusterError (ConnectionError)      a Ray cluster that cannot be reached or used
|-- NoRunsError (FileNotFoundError)         a folder that is not there, or has no runs
|-- NotAFolderError (NotADirectoryError)    a file where a folder is needed
|-- PruneError (ValueError)                 runs that cannot be stopped early and compared
|-- HyperparameterError (AttributeError)    a run has no hyperparameter of that name
|-- DeviceError (RuntimeError)              a device that is not there
|-- LifecycleError (RuntimeError)           a hook in the wrong place
|-- MetricError (ValueError)                a value that cannot be averaged or counted
|-- DataError (RuntimeError)                a data set whose files are missing or damaged
|-- CheckpointError (ValueError)            a state that cannot be saved, or does not fit
|-- SettingError (ValueError)               settings that a run cannot be trained with: all problems at once
|-- ExperimentLockedError (RuntimeError)    an experiment that another process or thread is running
|-- BoardError (RuntimeError)               TensorBoard could not be started, or has nothing to show
|-- RankError (RuntimeError)                a process of a data-parallel run that is gone
`-- StorageError (OSError)                  what has to last could not be written
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from runmanager.user_frames import in_user_frames


class RunManagerError(Exception):
    """The base of all errors below; a notebook shows them without the frames of this package.

    Example:
        >>> import runmanager
        >>> try:
        ...     runmanager.load_runs("no/such/folder")
        ... except runmanager.RunManagerError as error:  # whichever of them it is
        ...     print(type(error).__name__)
        NoRunsError
    """

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows: those of the user's code, and the message."""
        import IPython

        with in_user_frames(self):
            shell = IPython.get_ipython()
            return list(shell.InteractiveTB.structured_traceback(type(self), self, self.__traceback__))


class GridError(RunManagerError, ValueError):
    """A grid that cannot be run.

    Attributes:
        problems: One sentence per problem, each with what to write instead.

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

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems: list[str] = list(problems)
        lines = self.problems
        if len(lines) != 1:
            numbered = [f"  {number}. {problem}" for number, problem in enumerate(problems, 1)]
            lines = [f"{len(problems)} problems, nothing was started:", *numbered]
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[type["GridError"], tuple[list[str]]]:
        return type(self), (self.problems,)


class InvalidArgumentError(GridError):
    """An argument that cannot be used, or a combination of arguments.

    Example:
        >>> issubclass(InvalidArgumentError, ValueError)  # `except ValueError` catches it too
        True
    """


class MissingExtraError(GridError, ImportError):
    """An optional package that is not installed; the message names the extra to install.

    Example:
        >>> issubclass(MissingExtraError, ImportError)  # `except ImportError` catches it too
        True
    """


class ClusterError(GridError, ConnectionError):
    """A Ray cluster that cannot be reached or used.

    Example:
        >>> issubclass(ClusterError, ConnectionError)  # `except ConnectionError` catches it too
        True
    """


class NoRunsError(RunManagerError, FileNotFoundError):
    """A folder that is not there, or in which there are no runs.

    Example:
        >>> from runmanager import load_runs
        >>> load_runs("rums")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        runmanager.errors.NoRunsError: no results at 'rums': ...
    """


class NotAFolderError(RunManagerError, NotADirectoryError):
    """A file where a folder is needed.

    Example:
        >>> issubclass(NotAFolderError, NotADirectoryError)  # `except NotADirectoryError` catches it too
        True
    """


class PruneError(RunManagerError, ValueError):
    """Runs that cannot be stopped early and compared: no such metric, or nothing to continue them with.

    Example:
        >>> issubclass(PruneError, ValueError)  # `except ValueError` catches it too
        True
    """


class HyperparameterError(RunManagerError, AttributeError):
    """A run has no hyperparameter of that name.

    Example:
        >>> from runmanager import RunBuilder
        >>> RunBuilder.get_runs({"lr": [0.1]})[0].momentum
        Traceback (most recent call last):
            ...
        runmanager.errors.HyperparameterError: run has no hyperparameter 'momentum'; it has: lr
    """


class DeviceError(RunManagerError, RuntimeError):
    """A device that this machine does not have.

    Example:
        >>> issubclass(DeviceError, RuntimeError)  # `except RuntimeError` catches it too
        True
    """


class LifecycleError(RunManagerError, RuntimeError):
    """A hook of RunManager that was called in the wrong place.

    Example:
        >>> from runmanager import RunManager
        >>> RunManager("hooks").track_loss(0.5, 8)
        Traceback (most recent call last):
            ...
        runmanager.errors.LifecycleError: track_loss() outside a run: call begin_run(run, network, loader) first
    """


class MetricError(RunManagerError, ValueError):
    """A value that cannot be averaged or counted.

    Example:
        >>> issubclass(MetricError, ValueError)  # `except ValueError` catches it too
        True
    """


class DataError(RunManagerError, RuntimeError):
    """A data set whose files are missing or damaged.

    Example:
        >>> issubclass(DataError, RuntimeError)  # `except RuntimeError` catches it too
        True
    """


class CheckpointError(RunManagerError, ValueError):
    """A state that cannot be saved safely, or that does not fit what it is restored to.

    Example:
        >>> issubclass(CheckpointError, ValueError)  # `except ValueError` catches it too
        True
    """


class SettingError(RunManagerError, ValueError):
    """Settings of `fit` that a run cannot be trained with.

    Attributes:
        problems: One sentence per problem, each with what to write instead.

    Example:
        >>> str(SettingError(["epochs is negative", "precision is unknown"]))
        'epochs is negative; precision is unknown'
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems: list[str] = list(problems)
        super().__init__("; ".join(self.problems))  # one line: it is the cause in the run's row

    def __reduce__(self) -> tuple[type["SettingError"], tuple[list[str]]]:
        return SettingError, (self.problems,)


class ExperimentLockedError(RunManagerError, RuntimeError):
    """An experiment that another process, or another thread of this one, is running.

    Example:
        >>> from runmanager import run_grid
        >>> def train(run, manager):
        ...     run_grid({"lr": [0.1]}, train, experiment="locked")  # which is running
        >>> outcome = run_grid({"lr": [0.1]}, train, experiment="locked", executor="inline", display=False)
        >>> outcome.outcomes[0][1].error.partition(":")[0]
        'ExperimentLockedError'
    """


class BoardError(RunManagerError, RuntimeError):
    """TensorBoard could not be started, or has nothing to show.

    Example:
        >>> issubclass(BoardError, RuntimeError)  # `except RuntimeError` catches it too
        True
    """


class RankError(RunManagerError, RuntimeError):
    """A process of a data-parallel run that the others have lost.

    Example:
        >>> issubclass(RankError, RuntimeError)  # `except RuntimeError` catches it too
        True
    """


class StorageError(RunManagerError, OSError):
    """What has to last could not be written; what was committed before is kept.

    Example:
        >>> issubclass(StorageError, OSError)  # `except OSError` catches it too
        True
    """


class RunsWarning(UserWarning):
    """Something under runs/ could not be read or shown; everything else was.

    Example:
        >>> issubclass(RunsWarning, UserWarning)  # warnings.simplefilter("error", RunsWarning) raises it
        True
    """


class Problems(list[str]):
    """Collects what is wrong with arguments, so that all of it is said at once.

    >>> problems = Problems()
    >>> problems.check_count("retries", -1, 0)
    >>> problems.check_choice("on_error", "go", ("continue", "stop"))
    >>> for problem in problems:
    ...     print(problem)
    retries must be a whole number, 0 or more, got -1
    on_error must be one of 'continue', 'stop', got 'go'
    """

    def check_count(self, name: str, value: object, least: int) -> None:
        """Note a problem unless the value is a whole number, `least` or more."""
        if not is_count(value, least):
            self.append(f"{name} must be a whole number, {least} or more, got {value!r}")

    def check_choice(self, name: str, value: object, choices: Sequence[object]) -> None:
        """Note a problem unless the value is one of the choices."""
        if value not in choices:
            self.append(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")

    def check_seconds(self, name: str, value: object) -> None:
        """Note a problem unless the value is None or a finite number above 0."""
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 < value < math.inf):  # type: ignore[operator]
            self.append(f"{name} must be a number of seconds above 0, got {value!r}")

    def check_function(self, name: str, value: object, argument: str) -> None:
        """Note a problem unless the value can be called; `argument` says with what."""
        if not callable(value):
            self.append(f"{name} must be a function of {argument}, got {value!r}")

    def check_batch_size(self, value: object) -> None:
        """Note a problem unless the value is None or can count the samples of a batch."""
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
        """Raise all problems, if there are any, as one error of this class."""
        if self:
            raise error(self)


def is_count(value: object, least: int = 0) -> bool:
    """Whether a value is a whole number, `least` or more; True and False are none.

    >>> is_count(3, 1), is_count(True), is_count(2.0)
    (True, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, "" if it has none.

    >>> first_line(ValueError("no such file: try another"))
    'no such file: try another'
    """
    try:
        return str(error).strip().partition("\n")[0]
    except Exception:  # noqa: BLE001 - whatever the code of its class does
        return "it cannot be written as text"


def gib(num_bytes: float) -> str:
    """Write an amount of memory, as torch's own messages do.

    >>> gib(2**29)
    '0.50 GiB'
    """
    return f"{num_bytes / 2**30:.2f} GiB"
