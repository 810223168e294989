"""Execute the first epoch of a run again, in another folder, and compare the metrics."""

import importlib
import importlib.util
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from runmanager.errors import InvalidArgumentError, LifecycleError
from runmanager.launch.calling import call
from runmanager.outcome import EpochRecord, Outcome, Status
from runmanager.storage.beginning import begin_nothing
from runmanager.storage.fingerprint import fingerprint, fingerprint_changes
from runmanager.storage.folders import Experiment, RunFolders

if TYPE_CHECKING:
    from runmanager.launch.task import Train
    from runmanager.storage.run_state import RunResult

TIMES = ("epoch duration", "run duration")
"""Metrics that differ from one execution to the next."""


@dataclass(frozen=True)
class Verification:
    """The metrics of the first epoch of a run as recorded, and as executed again."""

    before: Mapping[str, float]
    again: Mapping[str, float]  # empty if the epoch did not end
    changed: Sequence[str]  # the code and the versions that have changed since
    error: str = ""  # why the epoch did not end

    @property
    def differing(self) -> list[str]:
        """The metrics that differ, if only by a bit, or that are missing on one side."""
        names = [name for name in {**self.before, **self.again} if name not in TIMES]
        return [name for name in names if not _same(self.before.get(name), self.again.get(name))]

    @property
    def is_identical(self) -> bool:
        """Whether all metrics are the same to the last bit."""
        return not self.error and not self.differing


class _FirstEpochEnded(BaseException):
    """Leaves `train` after its first epoch; no Exception, as a loop may catch those."""


def verify_first_epoch(result: "RunResult", train: "Train") -> Verification:
    """Execute the first epoch of a run again in this process, in a folder that is removed afterwards.

    Raises:
        InvalidArgumentError: The run has no first epoch.
        DeviceError: Its device is not there.
    """
    before = next((record.metrics for record in result.epochs if record.epoch == 1), None)
    if before is None:
        raise InvalidArgumentError([f"{result.folder.path} has no first epoch: it is {result.status}"])
    with tempfile.TemporaryDirectory(prefix="runmanager-verify-") as folder:
        again, outcome = _execute(result, train, Path(folder) / "verify")
    error = "" if again else outcome.error or "train() ended before the first epoch"
    return Verification(before, again, _changed(result, train), error)


def load_function(name: str) -> "Train":
    """Load a function by ``module:function`` or ``folder/file.py:function``.

    Its module is imported: what is under ``if __name__ == "__main__":`` is not executed.

    Raises:
        InvalidArgumentError: There is no such function.
    """
    source, _, attribute = name.rpartition(":")
    if not source or not attribute.isidentifier():
        raise InvalidArgumentError([f"a function is named as experiments/fashion_grid.py:train, got {name!r}"])
    module = _import(source)
    function = getattr(module, attribute, None)
    if not callable(function):
        functions = {key: value for key, value in vars(module).items() if callable(value) and key[0] != "_"}
        own = [key for key, value in functions.items() if getattr(value, "__module__", "") == module.__name__]
        names = ", ".join(own) or "none"
        raise InvalidArgumentError([f"{source} has no function {attribute!r}; it has: {names}"])
    train: Train = function
    return train


def _execute(result: "RunResult", train: "Train", folder: Path) -> tuple[Mapping[str, float], Outcome]:
    import torch

    from runmanager.grid import RunBuilder
    from runmanager.launch.manager import RunManager
    from runmanager.training import faults
    from runmanager.training.grid_context import GridContext
    from runmanager.training.hooks import Hooks

    (run,) = RunBuilder.get_runs({name: [value] for name, value in result.folder.params.items()} or {"lr": [0]})
    records: list[EpochRecord] = []

    def ended(record: EpochRecord) -> None:
        records.append(record)
        raise _FirstEpochEnded

    x_axis = Experiment(result.folder.path.parent).design.x_axis
    context = GridContext(run=run, on_epoch=ended, x_axis=x_axis)
    manager = RunManager(_hooks=Hooks(RunFolders(Experiment(folder), ""), grid=context))
    threads = torch.get_num_threads()
    # the order of sums depends on their number
    torch.set_num_threads(result.threads or max(1, threads // result.jobs))
    try:
        call(train, run, manager)
    except _FirstEpochEnded:
        return records[0].metrics, Outcome(Status.COMPLETED)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a result like any other
        return {}, Outcome(Status.FAILED, faults.cause_of(error, torch.device("cpu")))
    finally:
        torch.set_num_threads(threads)
    return {}, manager.outcome or Outcome(Status.FAILED)


def _changed(result: "RunResult", train: "Train") -> list[str]:
    before = result.start.get("fingerprint")
    if not isinstance(before, Mapping):
        return []
    return fingerprint_changes(
        before, fingerprint(train), only_common=True
    )  # a partial's arguments are unknown here


def _import(source: str) -> ModuleType:
    guard = 'put what starts the grid under `if __name__ == "__main__":`'
    try:
        with begin_nothing(f"verify imports {source}, and begins nothing else: {guard}"):
            return _imported(source)
    except SystemExit as error:
        raise InvalidArgumentError([f"{source} ends the process when it is imported: {guard}"]) from error
    except LifecycleError as error:
        raise InvalidArgumentError([f"{source} starts runs when it is imported: {guard}"]) from error
    except Exception as error:
        raise InvalidArgumentError([f"{source} cannot be imported: {type(error).__name__}: {error}"]) from error


def _imported(source: str) -> ModuleType:
    if not source.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(source)
    path = Path(source).resolve()
    sys.path.insert(0, str(path.parent))  # as Python does for a script
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _same(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return bool(one == other) or (math.isnan(one) and math.isnan(other))
