"""What a run prints, kept in its folder by the process that executes it."""

import ctypes
import io
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runmanager.core import files

_MOST, _FIRST, _LAST = 10_000_000, 5_000_000, 2_500_000  # bytes of the file, and of its parts after a cut
_LEFT_OUT = re.compile(rb"\n\.\.\. (\d+) bytes are left out here \.\.\.\n")
_TURN_S = 0.2  # time until the user sees what C has printed


@contextmanager
def kept_output(folder: Path) -> Iterator[None]:
    """Append what this process prints during the block to a run's output.log; its user sees it as before.

    Both descriptors lead to the file itself: a kill loses nothing, no reader can block the run, and processes
    that the run starts print into it too.
    """
    try:
        output = _Output(folder)
    except OSError:  # the run does without, as on a full disk
        yield
        return
    try:
        yield
    finally:
        if os.getpid() == output.process:  # a process that the run forked leaves the file to this one
            output.end()


class _Output:
    """The open output.log of a run, to which both descriptors and Python's streams lead until `end`."""

    def __init__(self, folder: Path) -> None:
        self.process, self._path = os.getpid(), folder / files.OUTPUT_LOG
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK  # as for our other files
        self._file = os.open(self._path, flags, 0o666)
        self._saved = os.dup(1), os.dup(2)
        self._is_over = threading.Event()
        self._lock = threading.RLock()  # a handler of a signal may print while its thread does
        self._seen = os.fstat(self._file).st_size  # up to here, the user has seen the file
        if self._seen:
            attempt = max(files.journals_by_attempt(folder), default=0) + 1
            self._append(f"{files.ATTEMPT}{attempt} ---\n")
        self._streams: list[_Stream] = []
        for number, name in enumerate(("stdout", "stderr"), 1):
            before = getattr(sys, name)
            # a live display has put its own stream before the real one
            real = beneath = getattr(before, "rich_proxied_file", before)
            with suppress(AttributeError, OSError, ValueError):
                if type(real) is io.TextIOWrapper and (descriptor := real.fileno()) in (1, 2):
                    descriptor = os.dup(self._saved[descriptor - 1])
                    beneath = os.fdopen(descriptor, "w", 1, real.encoding, real.errors)
            if beneath is real:
                beneath = _Aside(self, real)
            stream = _Stream(self, number, before, real, beneath, beneath if before is real else before)
            _flush(before)
            self._streams.append(stream)
            setattr(sys, name, stream)
            os.dup2(self._file, number)
        self._thread = threading.Thread(target=self._follow, name="output", daemon=True)
        self._thread.start()

    def print(self, text: str, stream: "_Stream") -> None:
        """Append what Python prints, after what C has printed until then, and show it."""
        if os.getpid() != self.process:  # in a forked process, no thread may ever open the lock
            self._append(text)
            return
        self._show()
        with self._lock:
            self._append(text)
        with suppress(OSError):  # outside the lock, as a display has a lock of its own
            stream.screen.write(text)

    def print_aside(self, text: str, stream: Any) -> int:
        """Write to a stream of the user's while both descriptors lead to the user again."""
        with self._lock:
            if self._is_over.is_set():  # as for a thread that prints at the end
                return int(stream.write(text) or 0)
            _flush(sys.__stdout__, sys.__stderr__)
            try:
                for number, saved in enumerate(self._saved, 1):
                    os.dup2(saved, number)
                return int(stream.write(text) or 0)
            finally:
                _flush(sys.__stdout__, sys.__stderr__)
                for number in (1, 2):
                    os.dup2(self._file, number)

    def end(self) -> None:
        """Give both streams back, show the rest, and remove a file without output."""
        self._is_over.set()
        for stream, saved in zip(self._streams, self._saved, strict=True):
            _flush(stream.before)
            with self._lock:
                os.dup2(saved, stream.number)
        self._thread.join()
        self._show()  # not on the user's streams: what a closed pipe refuses would fail again at the exit
        for name, stream in zip(("stdout", "stderr"), self._streams, strict=True):
            if getattr(sys, name) is stream:  # the run may have set another one
                setattr(sys, name, stream.before)
            beneath, stream.screen, stream.beneath = stream.beneath, stream.before, stream.before
            if not isinstance(beneath, _Aside):
                with suppress(OSError):
                    beneath.close()
        if not self._seen:
            with suppress(OSError):
                self._path.unlink()
        descriptors = self._file, *self._saved
        self._file = -1  # code may keep a stream, and print later
        for descriptor in descriptors:
            os.close(descriptor)

    def _follow(self) -> None:
        """Show what C prints until the run is over."""
        while not self._is_over.wait(_TURN_S):
            _flush()
            self._show()

    def _append(self, text: str) -> None:
        with suppress(OSError):  # a full disk harms no run
            os.write(self._file, text.encode("utf-8", "replace"))
            self._seen = os.fstat(self._file).st_size

    def _show(self) -> None:
        """Show what C and other processes have printed; cut the file if it is too long."""
        content = b""
        with self._lock, suppress(OSError):
            size = os.fstat(self._file).st_size
            if size > self._seen:
                content, self._seen = os.pread(self._file, size - self._seen, self._seen), size
            if size > _MOST:
                earlier = _LEFT_OUT.match(os.pread(self._file, 100, _FIRST))
                last = os.pread(self._file, _LAST, size - _LAST).partition(b"\n")[2]
                num = size - _FIRST - len(last) + (int(earlier[1]) - len(earlier[0]) if earlier else 0)
                with self._path.open("r+b") as file:  # what is written to `self._file` is appended
                    file.seek(_FIRST)
                    file.write(b"\n... %d bytes are left out here ...\n" % num + last)
                    file.truncate()
                    self._seen = file.tell()
        if content:
            with suppress(Exception):  # whatever the stream of a notebook does
                self._streams[0].screen.write(content.decode("utf-8", "replace"))
                self._streams[0].screen.flush()


@dataclass(eq=False)
class _Stream:
    """Standard output or standard error of Python during a run; as the stream before the run after its end."""

    output: _Output
    number: int  # of its descriptor
    before: Any
    real: Any
    beneath: Any  # without the file, for lines of ours
    screen: Any  # where the user sees what the run prints

    def write(self, text: str) -> int:
        """Print a text."""
        self.output.print(text, self)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Print texts."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Show a line without an end, such as the prompt of a debugger."""
        with suppress(OSError):
            self.screen.flush()

    def fileno(self) -> int:
        """Return the descriptor for processes that the run starts; it leads to the file too."""
        return int(self.real.fileno())

    @property
    def buffer(self) -> io.FileIO:
        """The stream for bytes, on the descriptor, which leads to the file too."""
        return io.FileIO(self.number, "w", closefd=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)


class _Aside:
    """A stream of the user's, such as one that also writes a log, which may end in a descriptor itself."""

    def __init__(self, output: _Output, stream: Any) -> None:
        self._output, self._stream = output, stream

    def write(self, text: str) -> int:
        """Print a text, which the file has already or must not have."""
        return self._output.print_aside(text, self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _flush(*streams: Any) -> None:
    """Flush streams of Python, and those of C."""
    ctypes.CDLL(None).fflush(None)
    for stream in streams:
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
