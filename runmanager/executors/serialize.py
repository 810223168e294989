"""Serialization of training functions: by value if another process cannot import the functions."""

import functools
import importlib
import io
import operator
import sys
import traceback
import types
from collections import ChainMap
from collections.abc import Callable, Mapping
from multiprocessing import reduction
from typing import Any

import cloudpickle

from runmanager.errors import GridError, RunManagerError, first_line
from runmanager.executors.hidden import name_hidden_module

_CACHED = type(functools.cache(first_line))


def dump(task: object) -> bytes:
    """Serialize a task for another process, for `load_dumped`."""
    try:
        return _dump(task)
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        while isinstance(task, functools.partial):
            task = task.func
        name = str(getattr(task, "__qualname__", type(task).__qualname__)).rpartition("<locals>.")[2]
        rule = f"{name} cannot be sent to a worker process ({reason})"
        raise GridError(f"{rule}: make what it names in the function that uses it") from error


def dump_error(error: BaseException) -> bytes:
    """Serialize an exception; one that this package did not foresee takes its traceback along, as a note."""
    text = "".join(traceback.format_exception(error)).rstrip()
    try:
        if not isinstance(error, RunManagerError):
            error.add_note(f"in its process:\n{text}")
        sent = _dump(error)
        load_dumped(sent)
    except Exception:  # noqa: BLE001 - the exception's own methods raise whatever they like
        return _dump(RuntimeError(f"{type(error).__name__}: {error}\n\n{text}"))
    return sent


def load_dumped(sent: bytes) -> Any:
    """Load a task from `dump`."""
    try:
        return cloudpickle.loads(sent)
    except Exception as error:
        name_hidden_module(error)
        raise


def send_to_children_by_value() -> None:
    """Let this process serialize data for its child processes as `dump` does; forked children need no data."""
    reduction.dump = _dump_to_child


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Sends cached functions by value, and modules with their own class, such as torch.backends.cudnn, by name.

    cloudpickle does neither. Since version 3.1.3, cloudpickle also omits the file name of code, which
    tracebacks need. Tensors on accelerators are refused.
    """

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor) and obj.device.type not in ("cpu", "meta"):
            # every process would load the tensor, even the processes of other devices
            raise TypeError(f"a tensor on {obj.device}")
        is_module = isinstance(obj, types.ModuleType) and sys.modules.get(obj.__name__) is obj
        if is_module and type(obj) is not types.ModuleType:
            return importlib.import_module, (str(obj.__name__),)
        if isinstance(obj, types.CodeType):
            make, arguments, *_ = cloudpickle.Pickler.dispatch_table[types.CodeType](obj)
            return _code_of_file, (make, arguments, obj.co_filename)
        if isinstance(obj, _CACHED) and not _is_importable(obj):
            return _with_cache, (obj.__wrapped__, obj.cache_parameters())
        return super().reducer_override(obj)


class _ChildPickler(_Pickler):
    """A pickler that also sends semaphores, pipes and shared memory, which only child processes can receive."""

    def __init__(self, file: Any, protocol: int | None = None) -> None:
        table = reduction.ForkingPickler(file, protocol).dispatch_table
        # the constructor in the next line reads this table
        self.dispatch_table = ChainMap(cloudpickle.Pickler.dispatch_table, table)
        super().__init__(file, protocol)


def _dump(value: object) -> bytes:
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


def _dump_to_child(obj: object, file: Any, protocol: int | None = None) -> None:
    _ChildPickler(file, protocol).dump(obj)


def _code_of_file(make: Callable[..., types.CodeType], arguments: tuple[Any, ...], file: str) -> types.CodeType:
    return make(*arguments).replace(co_filename=file)


def _with_cache(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _is_importable(function: Any) -> bool:
    if function.__module__ == "__main__":
        return False
    try:
        return operator.attrgetter(function.__qualname__)(sys.modules[function.__module__]) is function
    except (AttributeError, KeyError):
        return False  # a variable of another function
