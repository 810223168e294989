"""The status of a run for an exception, and the cause in one sentence."""

import contextlib
import re
import signal
import traceback
from collections.abc import Iterator
from multiprocessing import reduction
from multiprocessing.connection import wait
from pathlib import Path

import torch
from torch import nn
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from runmanager.devices import ranks, torch_devices
from runmanager.errors import first_line, gib
from runmanager.hyperparameters import counted
from runmanager.outcome import Status
from runmanager.storage import durable
from runmanager.storage.user_code import location_of
from runmanager.user_frames import from_user_frame

_MAIN_MEMORY = re.compile(r"DefaultCPUAllocator: (can't allocate|not enough) memory")
_DEVICE_ERROR = re.compile(
    r"(?:CUDA|HIP|XPU)(?: driver)? error: (.*)"
    r"|Triton Error \[(?:CUDA|HIP|XPU)\]: (.*)"
    r"|(?:Cuda|HIP) failure (?:\d+ )?'?([^'\n]*)"
    r"|cuDNN error: (CUDNN_STATUS_(?:INTERNAL_ERROR|EXECUTION_FAILED)\w*)"
    r"|(device-side assert triggered|illegal memory access|unspecified launch failure|uncorrectable ECC error)"
)
_TWO_DEVICES = re.compile(
    r"Expected all tensors to be on the same device|found at least two devices"
    r"|is not on the expected device|are not at the same device|should be either on cpu or on the same device"
    r"|Placeholder storage has not been allocated on MPS"
    r"|Input type \((torch\.\w+\.|MPS)\w+\) and weight type \(torch\.\w+\)"
    r"|Input type \(torch\.\w+\) and weight type \((torch\.\w+\.|MPS)\w+\)"
)
_LOST = re.compile(r"Connection (closed|reset) by peer|Broken pipe|remote process exited|lost another rank")
_LOADER_WORKER = re.compile(r"Caught \w+ in DataLoader worker process (\d+)\.\n")
_LOADER_STOPPED = re.compile(r"DataLoader worker \(pid \d+\) is killed by signal: Terminated")
_LOADER_LOST = re.compile(r"DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly")
_PATIENCE_S = 1.0  # timeout for the end of a loader's process
_EVALUATE = "evaluate("
_SIZE = r"\d[\d,]*(?:\.\d*)? (?:[KMGTPE]i?B|bytes)"  # NumPy writes "728. TiB"
_ASKED = re.compile(rf"(?:ried to allocate|Unable to allocate|Out of memory allocating|Requested +:) ({_SIZE})")
_FREE = re.compile(rf"total capac(?:i)?ty of ({_SIZE}) of which ({_SIZE}) is free")
_MOST_HOLDERS = 3  # maximum number of processes that a message names
_HOLDER = re.compile(rf"Process (\d+) has ({_SIZE}) memory in use")


def status_of(error: BaseException) -> Status:
    """Return the status of a run that raised an exception: out of memory, killed, or failed.

    SLURM and similar systems end a job by SIGTERM to all of its processes. A loader's processes may receive
    SIGTERM first; the run is not the cause of their end.
    """
    if _memory_error(error) is not None:
        return Status.OUT_OF_MEMORY
    return Status.KILLED if _is_loader_stopped(error) else Status.FAILED


def is_pruned(error: BaseException) -> bool:
    """Whether an exception is optuna.TrialPruned, which prunes the run; Optuna is not imported."""
    kinds = type(error).__mro__
    return any(kind.__name__ == "TrialPruned" and kind.__module__.startswith("optuna") for kind in kinds)


def cause_of(error: BaseException, device: torch.device, epoch: int = 0, step: int = 0) -> str:
    """Return one sentence with the cause of a failure, its epoch, its step, and the line of user code.

    An epoch or step of 0 is unknown.
    """
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
        return _memory_cause(short_of_memory, device) + where
    if _is_loader_stopped(error):
        return f"a process of its loader was ended (SIGTERM){where}"
    if ranks.num_ranks() > 1 and isinstance(error, RuntimeError) and _LOST.search(str(error)):
        return f"rank {ranks.rank()} lost another rank, whose own output says why{where}"
    if device_error is not None:
        advice = ": keep the data of a loader with num_workers on the cpu" if worker else ""
        return f"GPU error on {device} ({_device_error(device_error)}{advice}){where}"
    *_, line = filter(None, map(str.strip, str(error).splitlines())) if worker else [first_line(error)]
    cause = line if worker else type(error).__name__ + (f": {line}" if line else "")
    if _is_unpickled_dataset(error):
        cause += (
            ": a loader with num_workers sends its dataset to other processes by pickle: define classes and "
            "functions at the top of a module, not inside a function, or write num_workers=0"
        )
    return cause + (f" ({where.strip()})" if where else "")


def write_traceback(error: BaseException, path: Path) -> None:
    """Write the traceback of an error to a file.

    Raises:
        StorageError: The traceback could not be written.
    """
    lines = traceback.format_exception(type(error), error, from_user_frame(error.__traceback__))
    durable.write_file(path, "".join(lines).encode("utf-8", "replace"))


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


def _memory_cause(error: BaseException, device: torch.device) -> str:
    text = str(error)
    is_devices = torch_devices.is_out_of_memory(error)
    memory = f"GPU memory on {device}" if is_devices else "main memory"
    # CuPy's error, of memory on a GPU, is a MemoryError
    if isinstance(error, MemoryError) and type(error).__module__.partition(".")[0] not in ("builtins", "numpy"):
        memory = "memory"
    asked = _ASKED.search(text)
    facts = [f"asked for {_readable(asked[1])}"] if asked else []
    if is_devices and (free := _free(text, device)):
        facts.append(f"{free} free")
    holders = sorted(_HOLDER.findall(text), key=lambda holder: _num_bytes(holder[1]), reverse=True)
    held = [f"process {process} holds {size}" for process, size in holders[:_MOST_HOLDERS]]
    if others := len(holders) - len(held):
        held.append(counted(others, "other"))
    details = "; ".join(filter(None, (", ".join(facts), ", ".join(held))))
    return f"out of {memory}" + (f" ({details})" if details else "")


def _free(text: str, device: torch.device) -> str:
    """Return a sentence with the free memory of a device: from the error message, else the current value."""
    if match := _FREE.search(text):
        return f"{match[2]} of {match[1]}"
    with contextlib.suppress(Exception):  # it is possible that a failed device does not answer
        if device.type not in ("cpu", "meta"):
            free, total = torch.accelerator.get_memory_info(device)
            return f"{gib(free)} of {gib(total)}"
    return ""


def _readable(size: str) -> str:
    return gib(_num_bytes(size)) if size.endswith("bytes") and _num_bytes(size) >= 2**30 else size


def _num_bytes(size: str) -> float:
    number, _, unit = size.replace(",", "").partition(" ")
    return float(number) * 1024.0 ** "bKMGTPE".index(unit[0])


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes and its contexts."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _is_loader_stopped(error: BaseException) -> bool:
    """Whether a process of a loader got SIGTERM, according to the error message or the process's exit code."""
    for link in _chain(error):
        if isinstance(link, RuntimeError) and _LOADER_STOPPED.search(str(link)):
            return True
        is_lost = isinstance(link, RuntimeError) and _LOADER_LOST.search(str(link))
        # the queue of a loader's process, or the sockets of its tensors, may raise these exceptions
        if is_lost or isinstance(link, (OSError, EOFError)):
            selves = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(link.__traceback__)]
            loaders = [loader for loader in selves if isinstance(loader, _MultiProcessingDataLoaderIter)]
            workers = loaders[-1]._workers if loaders else ()  # noqa: SLF001 - no exception has them
            # the batch is lost before the process ends
            ended = wait([worker.sentinel for worker in workers], _PATIENCE_S)
            for worker in workers:
                # a process closes its files shortly before its exit code is available
                if worker.sentinel in ended:
                    worker.join(_PATIENCE_S)
            if any(worker.exitcode == -signal.SIGTERM for worker in workers):
                return True
    return False


def _is_unpickled_dataset(error: BaseException) -> bool:
    """Whether the processes of a loader could not be started since what they get cannot be pickled."""
    codes = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
    return codes >= {_MultiProcessingDataLoaderIter.__init__.__code__, reduction.dump.__code__}


def _memory_error(error: BaseException) -> BaseException | None:
    return next(filter(_is_memory_error, _chain(error)), None)


def _is_memory_error(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or torch_devices.is_out_of_memory(error):
        return True
    return isinstance(error, RuntimeError) and bool(_MAIN_MEMORY.search(str(error)))


def _device_error(error: BaseException) -> str:
    """Return the error message of a failed device, "" if there is none."""
    match = _DEVICE_ERROR.search(str(error)) if isinstance(error, RuntimeError) else None
    if match:
        return str(next(filter(None, match.groups()))).strip().removesuffix(".")
    return first_line(error) if isinstance(error, torch.AcceleratorError) else ""
