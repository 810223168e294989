"""The tasks executed on the nodes of a Ray cluster."""

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
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from runmanager.executors.base import Report
from runmanager.executors.serialize import dump_error, load_dumped, send_to_children_by_value
from runmanager.executors.worker import Raised, Refused
from runmanager.outcome import News, Outcome, Question
from runmanager.storage import paths

_FIRST_LOOK_S, _LAST_LOOK_S = 0.002, 0.05  # time between two polls for an answer, doubled after each poll
_PATIENCE_S = 3  # time until a file written on one machine is visible on another

_loaded = lru_cache(maxsize=1)(load_dumped)


@dataclass(frozen=True)
class DriverInfo:
    """Information about the driver for the nodes."""

    folder: Path | None  # the experiment's folder, which the nodes must share
    token: str  # the content of the probe file in the folder
    directory: str  # the driver's working directory, used for runs on nodes where it exists
    torch: str  # the driver's version of torch
    share: int | None  # the maximum number of runs that share a node and its cores; with None, Ray decides
    timeout: float | None  # seconds without progress until a run counts as hung; None for no limit


class Begun(NamedTuple):
    """The event of a run that has begun, with Ray's ids of its node and process."""

    node: str
    process: str


class Printed(NamedTuple):
    """The event of a line that a run has printed."""

    line: str


class Spoiled(NamedTuple):
    """The event of a run that has changed settings of its process; the process ends with the run."""

    outcome: Outcome


class Stuck(NamedTuple):
    """The event of a run without progress for too long, with the stack of its main thread."""

    stack: str


Event = Begun | Printed | Spoiled | Stuck | News


class Mailbox:
    """An actor on the driver's node that stores events of runs and answers of the driver."""

    def __init__(self) -> None:
        self._events: list[tuple[int, Event]] = []
        self._answers: dict[int, str] = {}

    def put(self, number: int, event: Event) -> None:
        """Store an event of an execution."""
        self._events.append((number, event))

    def take(self) -> list[tuple[int, Event]]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def answer(self, number: int, why: str) -> None:
        """Store the answer to the question of an execution."""
        self._answers[number] = why

    def take_answer(self, number: int) -> str | None:
        """Return the answer to the question of an execution, and remove it; None if there is no answer yet."""
        return self._answers.pop(number, None)


def torch_version() -> str:
    """Return the installed version of torch, without importing it."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "none"


def unfit(driver: DriverInfo, sent: bytes) -> str:
    """Return the reason why runs cannot be executed on this node, "" if they can."""
    with contextlib.suppress(OSError):  # the probe below reports a missing folder
        os.chdir(driver.directory)
    version = torch_version()
    if version.split(".")[:2] != driver.torch.split(".")[:2]:
        return f"it has torch {version}, this machine has {driver.torch}"
    if driver.folder is not None and not _is_same_folder(driver.folder, driver.token):
        return f"{driver.folder} is not the same folder there: it must be on storage shared by all nodes"
    try:
        _loaded(sent)
    except Exception as error:  # noqa: BLE001 - the user's modules are imported
        return f"the training function cannot be loaded there ({type(error).__name__}: {error})"
    return ""


def execute(
    driver: DriverInfo, sent: bytes, number: int, sent_run: bytes, mailbox: Any
) -> tuple[str, Outcome | Refused | Raised]:
    """Execute a run on this node; return Ray's id of the node, and the outcome.

    `sent` is the task and `sent_run` the run, from `dump`; `number` is the driver's number of this execution,
    whose events go to the handle of a `Mailbox`.
    """
    import ray

    context = ray.get_runtime_context()
    node = context.get_node_id()
    if why := unfit(driver, sent):
        return node, Refused(why)
    import torch  # the import takes seconds, so it comes before the run begins

    from runmanager.devices.process_state import process_state, state_changes
    from runmanager.devices.torch_devices import num_cores

    if driver.share is not None:  # without a share, Ray sets one thread per requested CPU
        torch.set_num_threads(max(1, num_cores() // driver.share))
    send_to_children_by_value()
    state = process_state()
    last: list[Any] = []

    def tell(event: Event) -> None:
        last[:] = [mailbox.put.remote(number, event)]

    ended: Outcome | Raised
    try:
        tell(Begun(node, context.get_worker_id()))
        ray.get(last)  # send the event now: the run may kill its process immediately
        with _printing_to(tell), _watched(driver.timeout, tell, partial(_answer, mailbox, number)) as report:
            ended = _loaded(sent)(load_dumped(sent_run), report)
    except BaseException as error:  # noqa: BLE001 - it goes on in the driver
        ended = Raised(dump_error(error))
    if isinstance(ended, Outcome) and state_changes(state, process_state()):
        tell(Spoiled(ended))
        ray.get(last)
        sys.exit()  # Ray starts another process for the next run
    ray.get(last)  # the driver must get all events before the task ends
    return node, ended


def _is_same_folder(folder: Path, token: str) -> bool:
    until = time.monotonic() + _PATIENCE_S
    while True:
        with contextlib.suppress(OSError):
            if (folder / paths.PROBE).read_text("utf-8") == token:
                return True
        if time.monotonic() > until:
            return False
        time.sleep(0.2)


@contextlib.contextmanager
def _printing_to(tell: Callable[[Event], None]) -> Iterator[None]:
    lines = _Lines(lambda line: tell(Printed(line)))
    with contextlib.redirect_stdout(lines), contextlib.redirect_stderr(lines):
        yield
    lines.write("\n" if lines.unfinished else "")


class _Lines(io.TextIOBase):
    """Passes output to the driver, line by line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.unfinished = ""

    def write(self, text: str) -> int:
        """Pass the complete lines to the driver."""
        *lines, self.unfinished = (self.unfinished + text).split("\n")
        for line in lines:
            self._say(line)
        return len(text)


def _answer(mailbox: Any, number: int) -> str:
    """Poll for the answer to the question of an execution."""
    import ray

    wait_s = _FIRST_LOOK_S
    while (answer := ray.get(mailbox.take_answer.remote(number))) is None:
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, _LAST_LOOK_S)
    return str(answer)


@contextlib.contextmanager
def _watched(
    timeout: float | None, tell: Callable[[Event], None], answer: Callable[[], str]
) -> Iterator[Report]:
    """Yield the run's report function; if no report comes for too long, send the stack once."""
    last = time.monotonic()
    ended = threading.Event()
    this_thread = threading.get_ident()

    def report(news: News) -> str | None:
        nonlocal last
        last = time.monotonic()
        tell(news)
        return answer() if isinstance(news, Question) else None

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
