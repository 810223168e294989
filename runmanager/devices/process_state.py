"""The settings of this process that a run may change, and that later runs would begin with."""

import gc
import locale
import multiprocessing
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

State = Mapping[str, object]
"""Setting -> its value."""

_MOST_NAMES = 5  # in a sentence
_VARIABLE = "environment variable "
_OF_LIBRARIES = re.compile(
    # set when torch, CUDA, compilers and others are imported or first used; pytest sets its own for each test
    r"CUDA_MODULE_LOADING|PYTEST_CURRENT_TEST|WANDB_SERVICE"
    r"|(KMP|QT_QPA|RAY|TF2|TORCHINDUCTOR|TRITON|_MLFLOW|_WANDB)_\w+"
)


def process_state() -> State:
    """Read the settings of this process, in about 0.2 ms; those that cannot be read have an error's type."""
    settings = {name: _read(get) for name, get in {**_OF_PROCESS, **_OF_LOOP}.items()}
    variables = {f"{_VARIABLE}{name}": value for name, value in os.environ.items()}
    return {**settings, **variables, **_limits(), **_handlers()}


def changes(before: State, after: State) -> list[str]:
    """Return the settings that differ, without the variables that libraries set for themselves.

    >>> changes({"the umask": 18, "the locale": "C"}, {"the umask": 0, "the locale": "C"})
    ['the umask']
    """
    names = dict.fromkeys([*before, *after])
    changed = [name for name in names if before.get(name) != after.get(name)]
    return [name for name in changed if not _OF_LIBRARIES.fullmatch(name.removeprefix(_VARIABLE))]


def listed(names: Iterable[str]) -> str:
    """Name settings in a sentence, the first few if they are many."""
    *few, last = names
    if len(few) >= _MOST_NAMES:
        few, last = few[: _MOST_NAMES - 1], f"{len(few) + 2 - _MOST_NAMES} more"
    return f"{', '.join(few)} and {last}" if few else last


class Leftovers:
    """Notices once if a run in this process leaves settings changed when the next one begins."""

    def __init__(self) -> None:
        self._run = ""  # the last one
        self._begin: State = {}
        self._end: State | None = None
        self._is_noticed = False

    def run_begins(self, run: str) -> str:
        """Return a sentence about what the run before has left, "" if there is nothing, or it was said before.

        A loop may set torch for each run before that begins: such settings count if they were changed while the
        run before was open.
        """
        if self._is_noticed:
            return ""
        now, sentence = process_state(), ""
        if self._end is not None:
            while_open = set(changes(self._begin, self._end))
            names = [name for name in changes(self._begin, now) if name not in _OF_LOOP or name in while_open]
            if names:
                self._is_noticed = True
                sentence = (
                    f"{self._run} left this process with other settings, and {run} begins with them: "
                    f"{listed(names)}; set them back at its end, or use run_grid, which replaces its lanes then"
                )
        self._run, self._begin, self._end = run, now, None
        return sentence

    def run_ended(self) -> None:
        """Look at what the run has changed while it was open."""
        if not self._is_noticed:
            self._end = process_state()


def _read(get: Callable[[], object]) -> object:
    try:
        return get()
    except Exception as error:  # noqa: BLE001 - no descriptors are left, another system, another torch
        return type(error)


def _umask() -> object:
    with suppress(FileNotFoundError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return next(line for line in lines if line.startswith("Umask:"))
    before = os.umask(0o077)  # this system tells it only to who sets it
    os.umask(before)
    return before


def _limits() -> State:
    try:
        import resource
    except ImportError:  # on Windows
        return {}
    numbers = {name: value for name, value in vars(resource).items() if name.startswith("RLIMIT_")}
    return {f"limit {name}": _read(lambda n=n: resource.getrlimit(n)) for name, n in numbers.items()}  # type: ignore[misc]


def _handlers() -> State:
    numbers = sorted(signal.valid_signals())
    return {f"handler of {getattr(n, 'name', n)}": _handler(signal.getsignal(n)) for n in numbers}


def _handler(handler: Any) -> object:
    """Return a handler; that which torch sets for the workers of loaders calls the one before, or none."""
    return (
        signal.SIG_DFL
        if getattr(handler, "__module__", "") == "torch.utils.data._utils.signal_handling"
        else handler
    )


def _start_method() -> str:
    """Return how processes are started; as long as nobody has said it, that is the first of all methods."""
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def _stream(name: str) -> Callable[[], object]:
    return lambda: getattr(sys, name)


def _flushes_subnormal() -> bool:
    smallest = sys.float_info.min
    return smallest / 2 == 0


def _cuda_device() -> int:
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.current_device() if is_used else 0


def _flag(path: str) -> Callable[[], object]:
    *parents, name = path.split(".")

    def get() -> object:
        module: Any = torch.backends
        for parent in parents:
            module = getattr(module, parent)
        return getattr(module, name)

    return get


_FLAGS = (
    "cudnn.enabled", "cudnn.benchmark", "cudnn.deterministic", "cudnn.allow_tf32", "cudnn.conv.fp32_precision",
    "cudnn.rnn.fp32_precision", "cuda.matmul.allow_tf32", "cuda.matmul.fp32_precision",
    "cuda.matmul.allow_fp16_reduced_precision_reduction", "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "mkldnn.enabled", "mkldnn.matmul.fp32_precision", "mkldnn.conv.fp32_precision", "fp32_precision",
)  # fmt: skip

_OF_PROCESS: Mapping[str, Callable[[], object]] = {
    "the working directory": os.getcwd,
    "the umask": _umask,
    "sys.path": lambda: [path for path in sys.path if "site-packages" not in path],  # ray adds its own parts
    "the locale": lambda: locale.setlocale(locale.LC_ALL),
    "blocked signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    "the cores of the process": lambda: os.sched_getaffinity(0),
    "the priority of the process": lambda: os.getpriority(os.PRIO_PROCESS, 0),
    "the start method of processes": _start_method,
    "garbage collection": gc.isenabled,
}
_OF_LOOP: Mapping[str, Callable[[], object]] = {
    "sys.stdin": _stream("stdin"),
    "sys.stdout": _stream("stdout"),
    "sys.stderr": _stream("stderr"),
    "warnings as errors": lambda: [rule for rule in warnings.filters if rule[0] == "error"],
    "numpy.seterr": np.geterr,
    "the default dtype": torch.get_default_dtype,
    "the default device": torch.get_default_device,
    "grad mode": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "anomaly detection": torch.is_anomaly_enabled,
    "autocast": lambda: [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")],
    "deterministic algorithms": torch.get_deterministic_debug_mode,
    "subnormal numbers": _flushes_subnormal,
    "the number of threads": torch.get_num_threads,
    "the number of interop threads": torch.get_num_interop_threads,
    "the precision of float32": torch.get_float32_matmul_precision,
    "the current CUDA device": _cuda_device,
    "the sharing strategy of tensors": torch.multiprocessing.get_sharing_strategy,
    **{f"torch.backends.{path}": _flag(path) for path in _FLAGS},
}
"""What a loop may set for each run."""
