"""An exception of a run as an outcome: the status, and the cause in one sentence."""

import re
import traceback
from pathlib import Path

import torch
from torch import nn

from runmanager.core import files
from runmanager.core.outcome import Status
from runmanager.core.wording import printable
from runmanager.devices import torch_devices
from runmanager.errors import first_line
from runmanager.user_code import CELL, INSTALLED, TYPED, from_user_frame, is_users_file

_MAIN_MEMORY = re.compile(r"DefaultCPUAllocator: (can't allocate|not enough) memory")
_DEVICE_ERROR = re.compile(r"(?:CUDA|HIP|XPU) error: (.*)|(device-side assert triggered)")
_TWO_DEVICES = re.compile(
    r"on the same device|two devices|on the expected device|Placeholder storage has not been allocated on MPS"
    r"|Input type \(torch\.\w+\) and weight type \((torch\.\w+\.|MPS)"
)
_LOADER_WORKER = re.compile(r"Caught \w+ in DataLoader worker process (\d+)\.\n")
_LOADER_STOPPED = re.compile(r"DataLoader worker \(pid \d+\) is killed by signal: Terminated")
_WRITTEN = re.compile(r'^ *File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$', re.MULTILINE)
_ASKED = re.compile(
    r"to allocate ((\d{10,}) bytes|[\d.]+ \w+)(?:.* capacity of (\S+ \w+) of which (\S+ \w+) is free)?"
)
_EVALUATE = "evaluate("


def failure_of(
    error: BaseException, device: torch.device | str = "cpu", epoch: int = 0, step: int = 0
) -> tuple[Status, str]:
    """Return the status of a run that raised an exception: out of memory, killed, or failed; and the cause."""
    short = broken = None  # the first error of memory in the chain, and the first one of a device
    reason, is_stopped = "", False
    for link in reversed(_chain(error)):
        text = str(link) if isinstance(link, RuntimeError) else ""
        is_stopped |= _LOADER_STOPPED.search(text) is not None
        of_device = _DEVICE_ERROR.search(text)
        if isinstance(link, MemoryError) or torch_devices.is_out_of_memory(link) or _MAIN_MEMORY.search(text):
            short = link
        elif of_device or isinstance(link, torch.AcceleratorError):
            broken = link
            reason = first_line(link) if of_device is None else of_device[1] or of_device[2]

    worker = _LOADER_WORKER.match(str(error))  # torch adds the worker's traceback to the message
    parts = [f"worker {worker[1]} of the loader"] if worker else []
    parts += [f"epoch {epoch}"] if epoch else []
    if notes := _evaluations_of(error):
        parts += notes[:1]  # the step is the last step of the training before the evaluation
    elif epoch and step:
        parts.append(f"step {step}")
    cause = short or broken or error
    parts += filter(None, [location_of(cause) or location_of(error)])
    where = f" in {', '.join(parts)}" if parts else ""
    if short:
        memory = f"GPU memory on {device}" if torch_devices.is_out_of_memory(cause) else "main memory"
        if asked := _ASKED.search(str(cause)):
            size, num_bytes, total, free = asked.groups()
            size = f"{int(num_bytes) / 2**30:.2f} GiB" if num_bytes else size
            memory += f" (asked for {size}{f', {free} of {total} free' if free else ''})"
        return Status.OUT_OF_MEMORY, f"out of {memory}{where}"
    if is_stopped:
        return Status.KILLED, f"a process of its loader was ended (SIGTERM){where}"
    if broken:
        return Status.FAILED, f"GPU error on {device} ({reason.strip().removesuffix('.')}){where}"
    message = str(error).strip().rpartition("\n")[2] if worker else _message(error)
    # some messages have megabytes; error.log has all of it
    return Status.FAILED, f"{message:.2000}" + (f" ({where.strip()})" if where else "")


def location_of(error: BaseException) -> str:
    """Return the innermost line of user code in an exception's traceback, "" if there is none."""
    walked = traceback.walk_tb(error.__traceback__)
    frames = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walked]
    is_remote = type(error.__cause__).__name__.endswith("RemoteTraceback")
    for text in (str(error), str(error.__cause__) if is_remote else ""):
        written = _WRITTEN.finditer(text)
        frames += [(match["file"], int(match["line"]), match["name"] or "") for match in written]
    users = [frame for frame in frames if CELL.search(frame[0]) or is_users_file(frame[0])]
    typed = [frame for frame in frames if frame[0].startswith(TYPED)]
    # the frames of an installed training function that this package called
    installed = [frame for frame in frames if not INSTALLED.isdisjoint(Path(frame[0]).parts)][:1]
    if not (users or typed or installed):
        return ""
    file, line, name = (users or typed or installed)[-1]
    if cell := CELL.search(file):
        of = f" of {name}()" if name.isidentifier() else ""
        return f"{'cell ' + cell['number'] if cell['number'] else 'notebook cell'}{of}, line {line}"
    path = files.for_people(Path(file))
    return printable(f"{path.name if path.is_absolute() else path}:{line}")


def _message(error: BaseException) -> str:
    """Return the class and the first line of an exception; those of its exceptions too if it is a group."""
    lines = [line] if (line := first_line(error)) else []
    if type(error).__name__ == "PicklingError" and "__main__" in line:
        lines.append("put it into a module that the script imports")
    if isinstance(error, BaseExceptionGroup):
        lines.append("; ".join(map(_message, error.exceptions)))
    return ": ".join([type(error).__name__, *lines])


def _chain(error: BaseException) -> list[BaseException]:
    """Return an exception, its causes and its contexts, and the exceptions of groups."""
    chain: list[BaseException] = []
    links: list[BaseException | None] = [error]
    for link in links:
        if link is not None and not any(link is other for other in chain):
            chain.append(link)
            links.append(link.__cause__ or (None if link.__suppress_context__ else link.__context__))
            links += link.exceptions if isinstance(link, BaseExceptionGroup) else ()
    return chain


def write_traceback(error: BaseException, folder: Path) -> None:
    """Write the traceback of an error to the folder of its run."""
    lines = traceback.format_exception(type(error), error, from_user_frame(error.__traceback__))
    files.write_file(folder / files.ERROR_LOG, "".join(lines).encode("utf-8", "replace"))


def explain_evaluation(error: BaseException, name: str, cause: str = "") -> None:
    """Add a note to an error that names its evaluation, unless a note names it."""
    if not _evaluations_of(error):
        error.add_note(f"{_EVALUATE}..., {name!r}){cause}")


def _evaluations_of(error: BaseException) -> list[str]:
    return [note for note in getattr(error, "__notes__", ()) if note.startswith(_EVALUATE)]


def explain_devices(error: BaseException, device: torch.device, network: nn.Module | None) -> None:
    """Add a note to an error if network and batch may be on different devices."""
    if network is not None and isinstance(error, RuntimeError) and _TWO_DEVICES.search(str(error)):
        devices = ", ".join(sorted(map(str, torch_devices.devices_of(network))))
        error.add_note(
            f"the run's device is {device}, its network is on {devices}: take the batches from "
            f"manager.batches(), or send them with .to({str(device)!r})"
        )
