"""Settings of the process that change numbers or files, and that a run may leave changed to later runs."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch

from runmanager.devices.torch_devices import num_cores

State = Mapping[str, object]
"""Name of a setting -> its value."""

_UNREADABLE = "unreadable"


def process_state() -> State:
    """Read the settings of this process."""
    state: dict[str, object] = {}
    for name, (read, _) in _SETTINGS.items():
        try:
            state[name] = read()
        except (OSError, RuntimeError):
            # the working directory was removed, or torch refuses the old name of what `fp32_precision` has set
            state[name] = _UNREADABLE
    return state


def settings_of_numbers() -> dict[str, str]:
    """Return the settings of an accelerator that change the last bits of its results, as text.

    >>> settings_of_numbers()["deterministic algorithms"]
    '0'
    """
    prefixes = "cudnn.", "deterministic", "the precision"
    settings = {name: str(value) for name, value in process_state().items() if name.startswith(prefixes)}
    return settings | {"CUBLAS_WORKSPACE_CONFIG": os.getenv("CUBLAS_WORKSPACE_CONFIG", "")}


def set_back(before: State) -> list[str]:
    """Restore the settings of this process; return the names of the settings that had changed."""
    now = process_state()
    changed = [name for name in now if before[name] != now[name]]
    for name in changed:
        if before[name] != _UNREADABLE:
            with suppress(OSError, RuntimeError):
                _SETTINGS[name][1](before[name])
    return changed


@contextmanager
def as_before(before: State) -> Iterator[None]:
    """Apply earlier settings during a block; restore the current settings afterwards."""
    now = process_state()
    set_back(before)
    try:
        yield
    finally:
        set_back(now)


@contextmanager
def as_many_threads(number: int | None) -> Iterator[str]:
    """Compute with the number of threads of a run's first attempt during a block; None changes nothing.

    The order of floating-point sums depends on the number of threads. Yields the reason why the number cannot
    be set, or "".
    """
    before = torch.get_num_threads()
    most = max(num_cores(), before)
    if number is None or number > most:
        # with more threads than cores, steps of a small network would take 50 times as long
        why = f"it began with {number} threads and continues with {before}: there are {most} cores"
        yield why if number else ""
        return
    torch.set_num_threads(number)
    try:
        yield ""
    finally:
        if torch.get_num_threads() == number:  # the run has set no other number
            torch.set_num_threads(before)


class Leftovers:
    """Warns once if a run leaves changed settings to the next run of this process."""

    def __init__(self) -> None:
        self._run, self._begin = "", process_state()  # the run that began last, and the settings at its begin
        self._end = self._begin  # the settings at its end

    def run_begins(self, run: str) -> str:
        """Return a warning about settings that the previous run left changed, or ""."""
        now = process_state()
        # a loop may set torch for each of its runs: these settings change again before the next run begins
        names = [name for name in now if self._end[name] != self._begin[name] != now[name]]
        sentence = (
            f"{self._run} left settings of this process changed, and {run} begins with them: "
            f"{', '.join(names)}; restore them at its end, or use run_grid with executor='lanes'"
        )
        self._run, self._begin, self._end = run, now, now
        return sentence if names else ""

    def run_ended(self) -> None:
        """Record the settings that the run has changed."""
        self._end = process_state()


_SETTINGS: Mapping[str, tuple[Callable[[], object], Callable[[Any], object]]] = {
    "the working directory": (os.getcwd, os.chdir),
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the default device": (
        torch.get_default_device,
        # the value None has no overhead
        lambda device: torch.set_default_device(None if device.type == "cpu" else device),
    ),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "deterministic algorithms": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    **{
        f"cudnn.{name}": (
            partial(getattr, torch.backends.cudnn, name),
            partial(setattr, torch.backends.cudnn, name),
        )
        for name in ("benchmark", "deterministic", "allow_tf32")
    },
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "the precision of float32": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
}
"""Name -> functions that read and write a setting."""
