"""Process settings that a run may leave changed, and that affect the numbers or files of later runs."""

import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial, reduce
from pathlib import Path
from typing import Any

import torch

State = Mapping[str, object]
"""Name of a setting -> its value."""

Read = Callable[[], object]
Write = Callable[[Any], object]
Setting = tuple[Read, Write | None]
Settings = Mapping[str, Setting]

_OF_CUDA = re.compile(
    # seeding functions set these settings on every machine, but only CUDA reads them
    r"torch\.backends\.(cuda|cudnn)\..+|the current CUDA device"
    r"|(CUBLAS|CUBLASLT|CUDNN)_\w+|CUDA_LAUNCH_BLOCKING|PYTORCH_(CUDA_)?ALLOC_CONF|NVIDIA_TF32_OVERRIDE"
)
_MOST_NAMES = 5  # maximum number of names in a sentence
_TRIES = 2  # number of attempts to write all settings, as torch stores some settings under several names
_ROOM = 64  # minimum number of files that a run must be able to open
_VARIABLE = "environment variable "
_OF_LIBRARIES = re.compile(
    # variables that torch, CUDA, compilers and other libraries set at import or first use; pytest sets its
    # variable for each test; PYTHONHASHSEED, set by seeding functions, is read only when a process starts;
    # Lightning's seed_everything() sets PL_*, which are restored, see `restored_seed`
    r"CUDA_MODULE_LOADING|PYTEST_CURRENT_TEST|WANDB_SERVICE|PL_GLOBAL_SEED|PL_SEED_WORKERS"
    r"|PYTHONHASHSEED|TOKENIZERS_PARALLELISM"
    r"|(KMP|QT_QPA|RAY|TF2|TORCHINDUCTOR|TRITON|_MLFLOW|_WANDB)_\w+"
)


def process_state() -> State:
    """Read the settings of this process, in about 0.2 ms.

    The value of an unreadable setting is the type of the error.
    """
    settings = {name: _read(read) for name, (read, _) in SETTINGS.items()}
    return {**settings, **{f"{_VARIABLE}{name}": value for name, value in os.environ.items()}}


def settings_of_numbers() -> dict[str, str]:
    """Return the settings of an accelerator that change the last bits of its results, as text.

    >>> settings_of_numbers()["deterministic algorithms"]
    '0'
    """
    settings = {name: str(_read(SETTINGS[name][0])) for name in _OF_NUMBERS}
    return settings | {f"{_VARIABLE}{name}": os.environ.get(name, "") for name in _NUMBERS_VARIABLES}


def state_changes(before: State, after: State) -> list[str]:
    """Return the settings that differ and may affect the next run.

    Environment variables that libraries set for themselves are ignored. Without CUDA, the settings of CUDA are
    ignored too.

    >>> state_changes({"the umask": 18, "grad mode": True}, {"the umask": 0, "grad mode": True})
    ['the umask']
    """
    names = dict.fromkeys([*before, *after])
    changed = [name for name in names if before.get(name) != after.get(name)]
    return [name for name in changed if not _is_without_effect(name.removeprefix(_VARIABLE))]


def _is_without_effect(name: str) -> bool:
    return bool(_OF_LIBRARIES.fullmatch(name)) or (bool(_OF_CUDA.fullmatch(name)) and not _has_cuda())


@cache
def _has_cuda() -> bool:
    return torch.cuda.device_count() > 0


def listed_changes(names: Iterable[str]) -> str:
    """List the names of settings for a sentence: the first few names, then only the number of further names."""
    *few, last = names
    if len(few) >= _MOST_NAMES:
        few, last = few[: _MOST_NAMES - 1], f"{len(few) + 2 - _MOST_NAMES} more"
    return f"{', '.join(few)} and {last}" if few else last


def set_back(before: State) -> tuple[list[str], list[str]]:
    """Restore the settings of this process.

    Returns:
        The changed settings, and the settings that cannot be restored.
    """
    changed = left = state_changes(before, process_state())
    for _ in range(_TRIES if changed else 0):
        for name in left:
            with suppress(Exception):  # writing fails outside the main thread, or without permission
                _set(name, before.get(name))
        left = state_changes(before, process_state())
    return changed, left


def _set(name: str, value: Any) -> None:
    if name.startswith(_VARIABLE):
        variable = name.removeprefix(_VARIABLE)
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value
        return
    read, write = SETTINGS[name]
    if write and not _is_error(value) and _read(read) != value:  # an alias may have restored the value already
        write(value)


@contextmanager
def as_before(before: State) -> Iterator[None]:
    """Apply earlier settings during a block, where they can be set; restore the current settings afterwards."""
    now = process_state()
    set_back(before)
    try:
        yield
    finally:
        set_back(now)


@contextmanager
def restored_seed() -> Iterator[None]:
    """Restore the variables of Lightning's seed_everything() after a block, so that no later run reads them."""
    before = {name: os.environ.get(name) for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS")}
    try:
        yield
    finally:
        for name, value in before.items():
            _set(f"{_VARIABLE}{name}", value)


class Leftovers:
    """Warns once if a run leaves changed settings to the next run of this process."""

    def __init__(self) -> None:
        self._run = ""  # the run that began last
        self._begin: State = {}
        self._end: State | None = None
        self._is_noticed = False

    def run_begins(self, run: str) -> str:
        """Return a warning about settings that the previous run left changed.

        Return "" without such settings, or after the first warning.

        A loop may configure torch before each run; such settings count only if they changed during a run.
        """
        if self._is_noticed:
            return ""
        now, sentence = process_state(), ""
        if self._end is not None:
            while_open = set(state_changes(self._begin, self._end))
            names = [
                name for name in state_changes(self._begin, now) if name not in _OF_LOOP or name in while_open
            ]
            if names:
                self._is_noticed = True
                sentence = (
                    f"{self._run} left settings of this process changed, and {run} begins with them: "
                    f"{listed_changes(names)}; restore them at its end, or use run_grid with executor='lanes'"
                )
        self._run, self._begin, self._end = run, now, None
        return sentence

    def run_ended(self) -> None:
        """Record the settings that the run has changed."""
        if not self._is_noticed:
            self._end = process_state()


def _read(read: Read) -> object:
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - no descriptors are left, another system, another torch
        return type(error)


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def _umask() -> int:
    with suppress(FileNotFoundError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("Umask:")), 8)
    before = os.umask(0o077)  # the umask can be read only by setting it
    os.umask(before)
    return before


def _has_room() -> bool:
    """Whether enough file descriptors are free for the next run.

    A new descriptor gets the lowest free number.
    """
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    try:
        import resource
    except ImportError:  # on Windows, the module is missing
        return True
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft == resource.RLIM_INFINITY or descriptor + _ROOM < soft


def _has_timer() -> bool:
    return hasattr(signal, "getitimer") and signal.getitimer(signal.ITIMER_REAL)[0] > 0


def _set_timer(is_on: bool) -> None:
    if not is_on:  # the remaining time of another timer cannot be restored
        signal.setitimer(signal.ITIMER_REAL, 0)


def _errors() -> list[Any]:
    return [rule for rule in warnings.filters if rule[0] == "error"]


def _set_errors(rules: list[Any]) -> None:
    others = [rule for rule in warnings.filters if rule[0] != "error" or rule in rules]
    warnings.filters[:] = [*(rule for rule in rules if rule not in others), *others]  # type: ignore[index]
    warnings.simplefilter("default", append=True)  # this call clears Python's cache of filters


def _default_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)  # the value None has no overhead


def _grad_mode() -> tuple[bool, bool]:
    """Return whether gradients are recorded, and whether inference mode is on.

    Inference mode cannot be restored.
    """
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def _autocast() -> list[bool]:
    return [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")]


def _set_autocast(are_on: list[bool]) -> None:
    for kind, is_on in zip(("cpu", "cuda"), are_on, strict=True):
        torch.set_autocast_enabled(kind, is_on)


def _flushes_subnormal() -> bool:
    smallest = sys.float_info.min
    return smallest / 2 == 0


def _cuda_device() -> int:
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.current_device() if is_used else 0


def _attribute(owner: Any, path: str) -> Setting:
    *parents, name = path.split(".")
    holder = partial(reduce, getattr, parents, owner)
    return lambda: getattr(holder(), name), lambda value: setattr(holder(), name, value)


_FLAGS = (
    "cudnn.enabled", "cudnn.benchmark", "cudnn.deterministic", "cudnn.allow_tf32", "cudnn.conv.fp32_precision",
    "cudnn.rnn.fp32_precision", "cuda.matmul.allow_tf32", "cuda.matmul.fp32_precision",
    "cuda.matmul.allow_fp16_reduced_precision_reduction", "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "mkldnn.enabled", "mkldnn.matmul.fp32_precision", "mkldnn.conv.fp32_precision", "fp32_precision",
)  # fmt: skip

_OF_NUMBERS = (
    "deterministic algorithms", "the precision of float32",
    *(f"torch.backends.{path}" for path in _FLAGS if path.startswith("cud")),
)  # fmt: skip
_NUMBERS_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_MPS_FAST_MATH", "PYTORCH_MPS_PREFER_METAL", "PYTORCH_ENABLE_MPS_FALLBACK",
)  # fmt: skip

_OF_LOOP: Settings = {
    **{f"sys.{name}": _attribute(sys, name) for name in ("stdout", "stderr")},
    "warnings as errors": (_errors, _set_errors),
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the default device": (torch.get_default_device, _default_device),
    "grad mode": (_grad_mode, lambda modes: torch.set_grad_enabled(modes[0])),
    "autocast": (_autocast, _set_autocast),
    "deterministic algorithms": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "subnormal numbers": (_flushes_subnormal, torch.set_flush_denormal),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "the precision of float32": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "the current CUDA device": (_cuda_device, torch.cuda.set_device),
    **{f"torch.backends.{path}": _attribute(torch.backends, path) for path in _FLAGS},
}
"""Settings that a loop may change for each run."""

SETTINGS: Settings = {
    "room for open files": (_has_room, None),
    "the working directory": (os.getcwd, os.chdir),
    "the umask": (_umask, os.umask),
    # the timer is restored before the handler of its signal
    "the timer": (_has_timer, _set_timer),
    **{
        f"handler of {number.name}": (partial(signal.getsignal, number), partial(signal.signal, number))
        for number in signal.Signals
        # torch sets the handler of SIGCHLD at the first loader with workers; events of Windows are no signals
        if number in signal.valid_signals() and number.name != "SIGCHLD"
    },
    **_OF_LOOP,
}
"""Name -> functions that read and write a setting; None if the setting cannot be written."""
