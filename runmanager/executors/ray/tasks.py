"""What is executed on the nodes of a Ray cluster."""

import contextlib
import importlib.metadata
import io
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from runmanager.errors import GridError
from runmanager.executors.base import Step
from runmanager.executors.serialize import dump, load
from runmanager.grid import Run
from runmanager.outcome import EpochRecord, Outcome
from runmanager.storage import paths

_PATIENCE_S = 3  # until a file that was written on one machine is seen on another


@dataclass(frozen=True)
class Place:
    """What a node has to be like, and how it executes runs.

    Attributes:
        folder: The experiment's, which it shares with the driver; None if there is none.
        token: What the probe file in there holds.
        directory: The driver's working directory, which is made that of the run where it exists.
        torch: The driver's version of torch.
        share: How many runs may share a node, at most, and its cores; None leaves that to Ray.
        timeout: Seconds without news after which a run counts as hung; None waits for ever.
    """

    folder: Path | None
    token: str
    directory: str
    torch: str
    share: int | None
    timeout: float | None


@dataclass(frozen=True)
class Begun:
    """A run has begun.

    Attributes:
        node: Ray's name of the node.
        worker: Ray's name of the process.
    """

    node: str
    worker: str


@dataclass(frozen=True)
class Printed:
    """A run has printed a line."""

    line: str


@dataclass(frozen=True)
class Stuck:
    """A run had no news for too long; the stack of its main thread."""

    stack: str


@dataclass(frozen=True)
class Unfit:
    """A run cannot be executed on this node, and why."""

    node: str
    reason: str


@dataclass(frozen=True)
class Raised:
    """An exception left `work`, as `dump` writes it."""

    error: bytes


Happening = Begun | Printed | Stuck | EpochRecord | Step


class News:
    """Keeps what runs have to say until the driver takes it: an actor beside the driver."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Happening]] = []

    def put(self, number: int, happening: Happening) -> None:
        """Keep something about a run."""
        self._waiting.append((number, happening))

    def take(self) -> list[tuple[int, Happening]]:
        """Return what was kept since the last call."""
        taken, self._waiting = self._waiting, []
        return taken


def torch_version() -> str:
    """Return the version of torch that is installed, without importing it."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "none"


def unfit(place: Place, sent: bytes) -> str:
    """Return why runs cannot be executed on this node, "" if they can."""
    with contextlib.suppress(OSError):  # a directory that is not there is none that matters, or the probe tells
        os.chdir(place.directory)
    theirs = torch_version()
    if theirs.split(".")[:2] != place.torch.split(".")[:2]:
        return f"it has torch {theirs}, this machine has {place.torch}"
    if place.folder is not None and not _is_same_folder(place.folder, place.token):
        return f"{place.folder} is not the same folder there: it has to be on storage that every node sees"
    try:
        _loaded(sent)
    except Exception as error:  # noqa: BLE001 - the user's modules are imported
        return f"the training function cannot be loaded there ({type(error).__name__}: {error})"
    return ""


def execute(place: Place, sent: bytes, number: int, run: Run, news: Any) -> Outcome | Unfit | Raised:
    """Execute a run on this node.

    Args:
        place: What the node has to be like.
        sent: The work, as `dump` wrote it.
        number: What the driver calls this execution.
        run: The run.
        news: Told what happens; an actor handle.
    """
    import ray

    context = ray.get_runtime_context()
    node, worker = context.get_node_id(), context.get_worker_id()
    reason = unfit(place, sent)
    if reason:
        return Unfit(node, reason)
    _share_cores(place.share)
    told: list[Any] = []

    def tell(happening: Happening) -> None:
        told[:] = [news.put.remote(number, happening)]

    try:
        ray.get(news.put.remote(number, Begun(node, worker)))  # waits: a process may die of its run at once
        with _printing_to(tell), _watched(place.timeout, tell) as report:
            ended: Outcome | Raised = _loaded(sent)(run, report)
    except BaseException as error:  # noqa: BLE001 - it goes on in the driver
        ended = Raised(_dumped(error))
    ray.get(told)  # so that the driver hears of everything before it hears of the end
    return ended


def _is_same_folder(folder: Path, token: str) -> bool:
    until = time.monotonic() + _PATIENCE_S
    while True:
        with contextlib.suppress(OSError):
            if (folder / paths.PROBE).read_text("utf-8") == token:
                return True
        if time.monotonic() > until:
            return False
        time.sleep(0.2)


@lru_cache(maxsize=1)
def _loaded(sent: bytes) -> Callable[[Run, Callable[[EpochRecord | Step], None]], Outcome]:
    work: Callable[[Run, Callable[[EpochRecord | Step], None]], Outcome] = load(sent)
    return work


def _share_cores(share: int | None) -> None:
    """Use the node's cores as other executors would; Ray gives a run one thread per CPU that it asked for."""
    import torch  # takes seconds, and here before the run has begun

    if share is not None:
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores // share))


def _dumped(error: BaseException) -> bytes:
    try:
        return dump(error)
    except GridError:
        text = "".join(traceback.format_exception(error))
        return dump(RuntimeError(f"{type(error).__name__}: {error}\n\n{text}"))


@contextlib.contextmanager
def _printing_to(tell: Callable[[Happening], None]) -> Iterator[None]:
    lines = _Lines(lambda line: tell(Printed(line)))
    with contextlib.redirect_stdout(lines), contextlib.redirect_stderr(lines):
        yield
    lines.end()


class _Lines(io.TextIOBase):
    """Passes on what is printed, line by line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._begun = ""

    def write(self, text: str) -> int:
        """Pass on the lines that are complete."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._say(line)
        return len(text)

    def end(self) -> None:
        """Pass on the last line."""
        if self._begun:
            self.write("\n")


@contextlib.contextmanager
def _watched(
    timeout: float | None, tell: Callable[[Happening], None]
) -> Iterator[Callable[[EpochRecord | Step], None]]:
    """Yield the run's report; tell once where the run is if it reports nothing for too long."""
    last = time.monotonic()
    ended = threading.Event()
    this_thread = threading.get_ident()

    def report(happening: EpochRecord | Step) -> None:
        nonlocal last
        last = time.monotonic()
        tell(happening)

    def watch() -> None:
        assert timeout is not None
        while not ended.wait(max(0.0, left := last + timeout - time.monotonic())):
            if left <= 0:
                tell(Stuck("".join(traceback.format_stack(sys._current_frames()[this_thread]))))  # noqa: SLF001
                return

    if timeout is not None:
        threading.Thread(target=watch, daemon=True).start()
    try:
        yield report
    finally:
        ended.set()
