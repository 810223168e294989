"""The status of a run for an exception, and the cause in one sentence."""

import contextlib
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from runmanager.core import files
from runmanager.core.outcome import Status
from runmanager.core.user_code import location_of
from runmanager.devices import torch_devices
from runmanager.errors import first_line
from runmanager.user_frames import from_user_frame

_MAIN_MEMORY = re.compile(r"DefaultCPUAllocator: (can't allocate|not enough) memory")
_DEVICE_ERROR = re.compile(r"(?:CUDA|HIP|XPU) error: (.*)|(device-side assert triggered)")
_TWO_DEVICES = re.compile(
    r"on the same device|two devices|on the expected device|Placeholder storage has not been allocated on MPS"
    r"|Input type \(torch\.\w+\) and weight type \((torch\.\w+\.|MPS)"
)
_LOADER_WORKER = re.compile(r"Caught \w+ in DataLoader worker process (\d+)\.\n")
_LOADER_STOPPED = re.compile(r"DataLoader worker \(pid \d+\) is killed by signal: Terminated")
_EVALUATE = "evaluate("


def status_of(error: BaseException) -> Status:
    """Return the status of a run that raised an exception: out of memory, killed, or failed."""
    if _memory_error(error) is not None:
        return Status.OUT_OF_MEMORY
    return Status.KILLED if _is_loader_stopped(error) else Status.FAILED


def is_pruned(error: BaseException) -> bool:
    """Whether an exception is optuna.TrialPruned, which prunes the run; Optuna is not imported."""
    kinds = type(error).__mro__
    return any(kind.__name__ == "TrialPruned" and kind.__module__.startswith("optuna") for kind in kinds)


def cause_of(error: BaseException, device: torch.device, epoch: int = 0, step: int = 0) -> str:
    """Return one sentence with the cause of a failure, its epoch, its step, and the line of user code."""
    device_error = next(filter(_device_error, _chain(error)), None)
    short_of_memory = _memory_error(error)
    worker = _LOADER_WORKER.match(str(error))  # torch adds the worker's traceback to the message
    parts = [f"worker {worker[1]} of the loader"] if worker else []
    parts += [f"epoch {epoch}"] if epoch else []
    if evaluation := next((note for note in getattr(error, "__notes__", ()) if note.startswith(_EVALUATE)), ""):
        parts.append(evaluation)  # the step is the last step of the training before the evaluation
    elif epoch and step:
        parts.append(f"step {step}")
    parts += filter(None, [location_of(short_of_memory or device_error or error) or location_of(error)])
    where = f" in {', '.join(parts)}" if parts else ""
    if short_of_memory is not None:
        is_gpu = torch_devices.is_out_of_memory(short_of_memory)
        return f"out of {f'GPU memory on {device}' if is_gpu else 'main memory'}{where}"
    if _is_loader_stopped(error):
        return f"a process of its loader was ended (SIGTERM){where}"
    if device_error is not None:
        return f"GPU error on {device} ({_device_error(device_error)}){where}"
    *_, line = filter(None, map(str.strip, str(error).splitlines())) if worker else [first_line(error)]
    cause = line if worker else type(error).__name__ + (f": {line}" if line else "")
    return cause + (f" ({where.strip()})" if where else "")


def write_traceback(error: BaseException, path: Path) -> None:
    """Write the traceback of an error to a file."""
    lines = traceback.format_exception(type(error), error, from_user_frame(error.__traceback__))
    files.write_file(path, "".join(lines).encode("utf-8", "replace"))


@contextlib.contextmanager
def explained_evaluation(name: str) -> Iterator[None]:
    """Mark exceptions in the block as exceptions of an evaluation."""
    try:
        yield
    except Exception as error:
        error.add_note(f"{_EVALUATE}..., {name!r})")
        raise


def explain_devices(error: BaseException, device: torch.device, network: nn.Module | None) -> None:
    """Add a note to an error if network and batch may be on different devices."""
    if network is not None and isinstance(error, RuntimeError) and _TWO_DEVICES.search(str(error)):
        devices = ", ".join(sorted(map(str, torch_devices.devices_of(network))))
        error.add_note(
            f"the run's device is {device}, its network is on {devices}: take the batches from "
            f"manager.batches(), or send them with .to({str(device)!r})"
        )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes and its contexts."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _is_loader_stopped(error: BaseException) -> bool:
    """Whether a process of a loader got SIGTERM."""
    return any(isinstance(link, RuntimeError) and _LOADER_STOPPED.search(str(link)) for link in _chain(error))


def _memory_error(error: BaseException) -> BaseException | None:
    for link in _chain(error):
        if isinstance(link, MemoryError) or torch_devices.is_out_of_memory(link):
            return link
        if isinstance(link, RuntimeError) and _MAIN_MEMORY.search(str(link)):
            return link
    return None


def _device_error(error: BaseException) -> str:
    """Return the error message of a failed device, "" if there is none."""
    match = _DEVICE_ERROR.search(str(error)) if isinstance(error, RuntimeError) else None
    if match:
        return str(next(filter(None, match.groups()))).strip().removesuffix(".")
    return first_line(error) if isinstance(error, torch.AcceleratorError) else ""
