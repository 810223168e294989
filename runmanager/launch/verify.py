"""verify: load a training function, and execute the first epoch of a run with it again."""

import importlib
import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from runmanager.errors import InvalidArgumentError, LifecycleError
from runmanager.launch.train_function import Train, manager_of
from runmanager.session.grid_options import GridOptions
from runmanager.session.session import Session
from runmanager.session.verification import Verification, first_epoch
from runmanager.storage.folders import Experiment
from runmanager.storage.import_guard import begin_nothing
from runmanager.storage.run_state import RunResult


def verify_first_epoch(result: RunResult, train: Train) -> Verification:
    """Execute the first epoch of a run again, in this process and in a temporary folder.

    Raises:
        InvalidArgumentError: The run has no first epoch.
        GridError: `train` cannot be called with the run's hyperparameters.
        DeviceError: The run's device is missing.
    """
    if not first_epoch(result):
        raise InvalidArgumentError([f"{result.folder.path} has no first epoch: it is {result.status}"])
    params = {name: [value] for name, value in result.folder.params.items()} or {"lr": [0]}
    x_axis = Experiment(result.folder.path.parent).design.x_axis
    with tempfile.TemporaryDirectory(prefix="runmanager-verify-", ignore_cleanup_errors=True) as root:
        options = GridOptions(
            experiment="verify", root=root, executor="inline", missing_device="error", tensorboard=False,
            display=False, x_axis=x_axis,
        )  # fmt: skip
        with Session.open(params, train, options, manager_of) as session:
            return session.verify(result)


def load_function(name: str) -> Train:
    """Load a function by ``module:function`` or ``folder/file.py:function``.

    Its module is imported; code under ``if __name__ == "__main__":`` is not executed.

    Raises:
        InvalidArgumentError: `name` has another form, the module cannot be imported, or the module lacks the
            function.
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
    sys.path.insert(0, str(path.parent))  # Python inserts the folder of a script in the same way
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
