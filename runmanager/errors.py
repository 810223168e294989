"""Every error that runmanager raises on purpose.

RunManagerError
|-- GridError (ValueError)                  a grid that cannot be run: all its problems at once
|-- PruneError (ValueError)                 runs that cannot be stopped early and compared
|-- HyperparameterError (AttributeError)    a run has no hyperparameter of that name
|-- DeviceError (RuntimeError)              a device that is not there
|-- LifecycleError (RuntimeError)           a hook in the wrong place
|-- MetricError (ValueError)                a value that cannot be averaged or counted
|-- DataError (RuntimeError)                a data set whose files are missing or damaged
|-- CheckpointError (ValueError)            a state that cannot be saved, or does not fit
|-- SettingError (ValueError)               settings that a run cannot be trained with: all problems at once
|-- HeldError (RuntimeError)                an experiment that another process or thread is running
|-- BoardError (RuntimeError)               TensorBoard could not be started, or has nothing to show
|-- RankError (RuntimeError)                a process of a data-parallel run that is gone
`-- StorageError (OSError)                  what has to last could not be written
"""

from collections.abc import Sequence


class RunManagerError(Exception):
    """The base of all errors below."""


class GridError(RunManagerError, ValueError):
    """A grid that cannot be run.

    Attributes:
        problems: One sentence per problem, each with what to write instead.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        lines = self.problems if len(self.problems) == 1 else _numbered(self.problems)
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[type["GridError"], tuple[list[str]]]:
        return GridError, (self.problems,)


class PruneError(RunManagerError, ValueError):
    """Runs that cannot be stopped early and compared: no such metric, or nothing to continue them with."""


class HyperparameterError(RunManagerError, AttributeError):
    """A run has no hyperparameter of that name."""


class DeviceError(RunManagerError, RuntimeError):
    """A device that this machine does not have."""


class LifecycleError(RunManagerError, RuntimeError):
    """A hook of RunManager that was called in the wrong place."""


class MetricError(RunManagerError, ValueError):
    """A value that cannot be averaged or counted."""


class DataError(RunManagerError, RuntimeError):
    """A data set whose files are missing or damaged."""


class CheckpointError(RunManagerError, ValueError):
    """A state that cannot be saved safely, or that does not fit what it is restored to."""


class SettingError(RunManagerError, ValueError):
    """Settings of `fit` that a run cannot be trained with.

    Attributes:
        problems: One sentence per problem, each with what to write instead.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        super().__init__("; ".join(self.problems))  # one line: it is the cause in the run's row

    def __reduce__(self) -> tuple[type["SettingError"], tuple[list[str]]]:
        return SettingError, (self.problems,)


class HeldError(RunManagerError, RuntimeError):
    """An experiment that another process, or another thread of this one, is running."""


class BoardError(RunManagerError, RuntimeError):
    """TensorBoard could not be started, or has nothing to show."""


class RankError(RunManagerError, RuntimeError):
    """A process of a data-parallel run that the others have lost."""


class StorageError(RunManagerError, OSError):
    """What has to last could not be written; what was committed before is kept."""


class RunsWarning(UserWarning):
    """Something under runs/ could not be read or shown; everything else was."""


def _numbered(problems: list[str]) -> list[str]:
    heading = f"{len(problems)} problems, nothing was started:"
    return [heading, *(f"  {number}. {problem}" for number, problem in enumerate(problems, 1))]
