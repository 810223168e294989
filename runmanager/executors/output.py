"""What a run prints, kept in its folder by the process that executes it."""

import ctypes
import io
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
    process = os.getpid()
    try:
        output = _Output(folder)
    except OSError:  # the run does without, as on a full disk
        yield
        return
    output.streams = streams = [_Stream(output, "stdout", 1), _Stream(output, "stderr", 2)]
    thread = threading.Thread(target=output.follow, name="output", daemon=True)
    thread.start()
    try:
        yield
    finally:
        if os.getpid() == process:  # a process that the run forked leaves the file to this one
            output.is_over.set()
            for stream in streams:
                stream.end()
            thread.join()
            output.end()


class _Output:
    """The open output.log of a run."""

    streams: "Sequence[_Stream]"  # of Python, which lead to the file

    def __init__(self, folder: Path) -> None:
        self._path, self._process = folder / files.OUTPUT_LOG, os.getpid()
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK  # as for our other files
        self.file = os.open(self._path, flags, 0o666)
        self.saved = os.dup(1), os.dup(2)
        self.is_over = threading.Event()
        self.lock = threading.RLock()  # a handler of a signal may print while its thread does
        self._seen = os.fstat(self.file).st_size  # up to here, the user has seen the file
        if self._seen:
            attempt = max(files.journals_by_attempt(folder), default=0) + 1
            self._append(f"{files.ATTEMPT}{attempt} ---\n")

    def print(self, text: str, stream: "_Stream") -> None:
        """Append what Python prints, after what C has printed until then, and show it."""
        if os.getpid() != self._process:  # in a forked process, no thread may ever open the lock
            self._append(text)
            return
        self._show()
        with self.lock:
            self._append(text)
        with suppress(OSError):  # outside the lock, as a display has a lock of its own
            stream.screen.write(text)

    def follow(self) -> None:
        """Show what C prints until the run is over."""
        while not self.is_over.wait(_TURN_S):
            _flush()
            self._show()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Let both descriptors lead to the user again during a block."""
        with self.lock:
            if self.is_over.is_set():  # as for a thread that prints at the end
                yield
                return
            _flush(sys.__stdout__, sys.__stderr__)
            try:
                for number, saved in enumerate(self.saved, 1):
                    os.dup2(saved, number)
                yield
            finally:
                _flush(sys.__stdout__, sys.__stderr__)
                for number in (1, 2):
                    os.dup2(self.file, number)

    def end(self) -> None:
        """Show the rest, and remove a file without output."""
        self._show()
        if not self._seen:
            with suppress(OSError):
                self._path.unlink()
        descriptors = self.file, *self.saved
        self.file = -1  # code may keep a stream, and print later
        for descriptor in descriptors:
            os.close(descriptor)

    def _append(self, text: str) -> None:
        with suppress(OSError):  # a full disk harms no run
            os.write(self.file, text.encode("utf-8", "replace"))
            self._seen = os.fstat(self.file).st_size

    def _show(self) -> None:
        """Show what C and other processes have printed; cut the file if it is too long."""
        content = b""
        with self.lock, suppress(OSError):
            size = os.fstat(self.file).st_size
            if size > self._seen:
                content, self._seen = os.pread(self.file, size - self._seen, self._seen), size
            if size > _MOST:
                earlier = _LEFT_OUT.match(os.pread(self.file, 100, _FIRST))
                last = os.pread(self.file, _LAST, size - _LAST).partition(b"\n")[2]
                num = size - _FIRST - len(last) + (int(earlier[1]) - len(earlier[0]) if earlier else 0)
                with self._path.open("r+b") as file:  # what is written to `self.file` is appended
                    file.seek(_FIRST)
                    file.write(b"\n... %d bytes are left out here ...\n" % num + last)
                    file.truncate()
                    self._seen = file.tell()
        if content:
            with suppress(Exception):  # whatever the stream of a notebook does
                self.streams[0].screen.write(content.decode("utf-8", "replace"))
                self.streams[0].screen.flush()


class _Stream:
    """Standard output or standard error of Python during a run.

    Attributes:
        before: The stream before the run.
        beneath: The stream without the file, for lines of ours, which the run has not printed.
        screen: The stream on which the user sees what the run prints.
    """

    def __init__(self, output: _Output, name: str, number: int) -> None:
        self._output, self._name, self._number = output, name, number
        self.before = getattr(sys, name)
        # a live display has put its own stream before the real one
        self._real = self.beneath = getattr(self.before, "rich_proxied_file", self.before)
        with suppress(AttributeError, OSError, ValueError):
            if type(self._real) is io.TextIOWrapper and (real := self._real.fileno()) in (1, 2):
                descriptor = os.dup(output.saved[real - 1])
                self.beneath = os.fdopen(descriptor, "w", 1, self._real.encoding, self._real.errors)
        if self.beneath is self._real:
            self.beneath = _Aside(output, self._real)
        self.screen = self.beneath if self.before is self._real else self.before
        _flush(self.before)
        setattr(sys, name, self)
        os.dup2(output.file, number)

    def write(self, text: str) -> int:
        """Print a text."""
        self._output.print(text, self)
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
        return int(self._real.fileno())

    @property
    def buffer(self) -> io.FileIO:
        """The stream for bytes, on the descriptor, which leads to the file too."""
        return io.FileIO(self._number, "w", closefd=False)

    def end(self) -> None:
        """Go on as the stream before the run, for code that keeps this one."""
        _flush(self.before)
        with self._output.lock:
            os.dup2(self._output.saved[self._number - 1], self._number)
        if getattr(sys, self._name) is self:  # the run may have set another one
            setattr(sys, self._name, self.before)
        beneath, self.screen, self.beneath = self.beneath, self.before, self.before
        if not isinstance(beneath, _Aside):
            with suppress(OSError):
                beneath.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)


class _Aside:
    """A stream of the user's, such as one that also writes a log, which may end in a descriptor itself."""

    def __init__(self, output: _Output, stream: Any) -> None:
        self._output, self._stream = output, stream

    def write(self, text: str) -> int:
        """Print a text, which the file has already or must not have."""
        with self._output.aside():
            return int(self._stream.write(text) or 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _flush(*streams: Any) -> None:
    """Flush streams of Python, and those of C."""
    ctypes.CDLL(None).fflush(None)
    for stream in streams:
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
