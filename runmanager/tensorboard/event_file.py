"""The format of event files: records and protos, written and read.

The format is TFRecord: length (uint64), its masked CRC-32C, the bytes of an Event proto, their masked CRC-32C
(https://www.tensorflow.org/tutorials/load_data/tfrecord). Classic forms are used throughout (simple_value,
Summary.image, HistogramProto), as every reader understands them.
"""

import contextlib
import itertools
import mmap
import re
import socket
import struct
import time
import uuid
from collections.abc import Iterator, Mapping
from io import BufferedWriter
from os import getpid
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import numpy as np
from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

from runmanager.core import files

_NAME = re.compile(r"events\.out\.tfevents\.(\d{10})\.")
LARGEST = float(np.finfo(np.float32).max)
"""The largest number in a scalar."""

_OPENING = 4  # number of records to search: the third record is the start of the session
ERROR = "run/error"
"""The tag of the cause of a run's end."""

SESSION, SESSION_END = hparams_metadata.SESSION_START_INFO_TAG, hparams_metadata.SESSION_END_INFO_TAG
"""The tags of the start and the end of an HParams session."""

_HEADER, _FOOTER = 12, 4  # bytes: length and its checksum; the checksum of the content


def begin_file(folder: Path, attempt: int = 1, first_step: int = 0) -> BufferedWriter:
    """Create an event file; TensorBoard drops values of the run's earlier files from `first_step` on."""
    # files are read by name, so a clock that was set back must not put the new file first
    earlier = [int(match[1]) for path in folder.iterdir() if (match := _NAME.match(path.name))]
    second = max([int(time.time()), *(number + 1 for number in earlier)])
    host = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname())
    file = (folder / f"events.out.tfevents.{second}.{host}.{getpid()}.{attempt}").open("xb")
    # TensorBoard's Python loader drops superseded steps only in runs whose first file has a START too
    session = SessionLog(status=SessionLog.START)
    start = Event(wall_time=time.time(), step=first_step, session_log=session)
    version = Event(wall_time=time.time(), file_version="brain.Event:2")
    try:
        write(file, version, start)
    except BaseException:
        file.close()
        raise
    return file


def write(file: BinaryIO | None, *events: Event) -> None:
    """Write events as TFRecords; without a file, they are dropped."""
    if file is None:
        return
    for event in events:
        content = event.SerializeToString()
        length = struct.pack("<Q", len(content))
        file.write(length + _checksum(length) + content + _checksum(content))
    file.flush()


def _checksum(content: bytes) -> bytes:
    crc: int = google_crc32c.value(content)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def replace(path: Path, content: bytes) -> None:
    """Replace an event file atomically; a running TensorBoard keeps reading the old content."""
    # TensorBoard ignores files with this name, and no other writer uses the name
    temporary = path.with_name(f".session.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def event_files(folder: Path) -> list[Path]:
    """Return the event files of a run in TensorBoard's order of reading, without links."""
    paths = folder.glob("events.out.tfevents.*")
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())


@contextlib.contextmanager
def mapped(path: Path) -> Iterator[bytes | mmap.mmap]:
    """Open an event file of any size for reading."""
    with files.opened(path) as (file, state):
        if not state.st_size:  # an empty file cannot be mapped
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield content


def events_in(content: bytes | mmap.mmap) -> Iterator[tuple[slice, Event]]:
    """Yield the events of a file, with their positions, up to its end or the first damaged record."""
    with contextlib.suppress(ValueError):
        for position in records(content):
            yield position, read_event(content[position])


def read_session(content: bytes | mmap.mmap) -> tuple[slice, Event, SessionStartInfo] | None:
    """Return the first HParams session of a file: position, event and content; or None."""
    for position, event in itertools.islice(events_in(content), _OPENING):
        for value in event.summary.value:
            if value.tag == SESSION:
                plugin = HParamsPluginData.FromString(value.metadata.plugin_data.content)
                return position, event, plugin.session_start_info
    return None


def reopen_session(path: Path) -> None:
    """Drop the error and the end of a run's HParams session, whose status TensorBoard would keep forever."""
    with mapped(path) as content:
        kept = [
            content[position]
            for position, event in events_in(content)
            if not any(value.tag in (ERROR, SESSION_END) for value in event.summary.value)
        ]
        size = len(content)
    if sum(map(len, kept)) < size:
        replace(path, b"".join(kept))


def records(content: bytes | mmap.mmap, offset: int = 0) -> Iterator[slice]:
    """Yield the position of each TFRecord from an offset on, except an incomplete last one."""
    while offset + _HEADER <= len(content):
        length, checksum = content[offset : offset + 8], content[offset + 8 : offset + _HEADER]
        if checksum != _checksum(length):
            yield slice(offset, offset)
            return
        end = offset + _HEADER + int.from_bytes(length, "little") + _FOOTER
        if end > len(content):
            return  # the record is incomplete: it is being written, or was cut off
        yield slice(offset, end)
        offset = end


def read_event(record: bytes) -> Event:
    """Read a TFRecord; raise ValueError if its checksum or its content is damaged."""
    body = record[_HEADER:-_FOOTER]
    if record[-_FOOTER:] != _checksum(body):
        raise ValueError("a checksum differs")
    try:
        return Event.FromString(body)
    except DecodeError as error:  # the content is not an Event, despite a valid checksum
        raise ValueError("not an event") from error


def event(step: int, contents: Mapping[str, Any]) -> Event:
    """Create an Event of contents by tag: numbers, texts in Markdown, images, histograms, HParams sessions."""
    values: list[Summary.Value] = []
    for tag, content in contents.items():
        if isinstance(content, str):
            # TextPluginData(version=0) is the empty message
            metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
            markdown = [content.encode("utf-8", "replace")]
            tensor = TensorProto(dtype=DT_STRING, string_val=markdown, tensor_shape=TensorShapeProto())
            values.append(Summary.Value(tag=tag, metadata=metadata, tensor=tensor))
        elif isinstance(content, HParamsPluginData):
            metadata = hparams_metadata.create_summary_metadata(content)
            values.append(Summary.Value(tag=tag, metadata=metadata, tensor=hparams_metadata.NULL_TENSOR))
        elif isinstance(content, Summary.Image):
            values.append(Summary.Value(tag=tag, image=content))
        elif isinstance(content, HistogramProto):
            values.append(Summary.Value(tag=tag, histo=content))
        else:  # what float32 cannot hold is NaN, as it would break the axes
            number = content if abs(content) <= LARGEST else float("nan")
            values.append(Summary.Value(tag=tag, simple_value=number))
    return Event(step=step, wall_time=time.time(), summary=Summary(value=values))
