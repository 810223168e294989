"""Existing event files of a run: reading, retiring, and carrying events over to a new file."""

import itertools
import mmap
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.plugins.hparams.error import HParamsError
from tensorboard.plugins.hparams.plugin_data_pb2 import SessionStartInfo

from runmanager.board import event_file
from runmanager.board.tags import EPOCH
from runmanager.storage import durable

SAMPLES = "visuals/samples"
"""The tag of the images of the first batch."""

_OPENING = 4  # number of records to search: the third record is the start of the session
_SESSION = (hparams_metadata.SESSION_START_INFO_TAG, hparams_metadata.SESSION_END_INFO_TAG)


def event_files(folder: Path) -> list[Path]:
    """Return the event files of a run in TensorBoard's order of reading, without links."""
    paths = folder.glob("events.out.tfevents.*")
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())


def read_events(path: Path) -> Iterator[Event]:
    """Read the events of a file up to its end or the first damaged record."""
    with mapped(path) as content:
        for _, event in _events(content):
            yield event


@contextmanager
def mapped(path: Path) -> Iterator[bytes | mmap.mmap]:
    """Open an event file of any size for reading.

    Raises:
        OSError: The file cannot be read, is a link, or is not a regular file.
    """
    with durable.opened(path) as (descriptor, state):
        if not state.st_size:  # an empty file cannot be mapped
            yield b""
            return
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
            yield content


def _events(content: bytes | mmap.mmap) -> Iterator[tuple[slice, Event]]:
    for position in event_file.records(content):
        record = content[position]
        if not record or not event_file.is_intact(record):
            return
        try:
            event = Event.FromString(event_file.body(record))
        except DecodeError:  # the content is not an Event, despite a valid checksum
            return
        yield position, event


def read_session(content: bytes) -> tuple[slice, Event, SessionStartInfo] | None:
    """Return the first HParams session in the first bytes of a file: position, event and content; or None."""
    for position, event in itertools.islice(_events(content), _OPENING):
        for value in event.summary.value:
            if value.tag == hparams_metadata.SESSION_START_INFO_TAG:
                return position, event, started(value)
    return None


def started(value: Summary.Value) -> SessionStartInfo:
    """Return the start of an HParams session; empty if the session is unreadable."""
    try:
        return hparams_metadata.parse_session_start_info_plugin_data(value.metadata.plugin_data.content)
    except (DecodeError, HParamsError):
        return SessionStartInfo()


def has_ended(folder: Path) -> bool:
    """Whether an event file of a run ends its HParams session, whose status TensorBoard would keep forever."""
    events = (event for path in event_files(folder) for event in read_events(path))
    tag = hparams_metadata.SESSION_END_INFO_TAG
    return any(value.tag == tag for event in events for value in event.summary.value)


def is_described(folder: Path) -> bool:
    """Whether an event file of a run has sample images or a graph."""
    events = (event for path in event_files(folder) for event in read_events(path))
    return any(e.HasField("graph_def") or any(v.tag == SAMPLES for v in e.summary.value) for e in events)


def carried_events(
    folder: Path,
    last_step: int,
    accepts: Callable[[Summary.Value], bool] = lambda _: True,
    until: float = 0.0,
) -> list[Event]:
    """Return the events up to epoch `last_step` that a new file of this run takes over.

    Headers of old files, starts and ends of sessions, and superseded events are left out. The steps of events
    are epochs, except for values that the loop adds per batch. Such a value is kept if it was written before
    the end of the last epoch, or until the wall time `until` (s).
    """
    events: list[Event] = []
    epoch = 0  # the last ended epoch
    for path in event_files(folder):
        for event in read_events(path):
            if event.HasField("session_log") and event.session_log.status == SessionLog.START:
                events = [earlier for earlier in events if earlier.step < max(event.step, 1)]
            elif event.HasField("summary") and (
                event.step <= last_step or epoch < last_step or event.wall_time <= until
            ):
                epoch = event.step if is_epoch(event) else epoch
                values = [v for v in event.summary.value if v.tag not in _SESSION and accepts(v)]
                if values:
                    summary = Summary(value=values)
                    events.append(Event(step=event.step, wall_time=event.wall_time, summary=summary))
            elif event.HasField("graph_def"):
                events.append(event)
    return events


def is_epoch(event: Event) -> bool:
    """Whether an event has the scalars of an epoch."""
    return any(value.tag == EPOCH for value in event.summary.value)


def merged(events: list[Event], epochs: list[Event]) -> list[Event]:
    """Insert missing epochs into events, in the order of steps."""
    missing = deque(epochs)
    all_events: list[Event] = []
    for event in events:
        while missing and is_epoch(event) and missing[0].step < event.step:
            all_events.append(missing.popleft())
        all_events.append(event)
    return [*all_events, *missing]


def retire(folder: Path) -> None:
    """Rename a run's event files, so that TensorBoard ignores the files."""
    for path in event_files(folder):
        attempt = path.name.rpartition(".")[2]
        target = folder / f"attempt-{attempt}.evts"
        number = 1
        while target.exists():
            number += 1
            target = folder / f"attempt-{attempt}-{number}.evts"
        durable.rename(path, target)
