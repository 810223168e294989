"""A terminal for tests: what is printed is read back from its screen."""

import contextlib
import functools
import os
import struct
import threading
import time

import pyte
import pytest

from runmanager import console

PlainConsole = console._PlainConsole
_TITLE = b"\x1b]2;end\x07"


class Terminal:
    """A pseudo-terminal whose screen can be read, as an emulator of a terminal shows it."""

    def __init__(self, width, height, encoding):
        import fcntl
        import pty
        import termios

        self.screen = pyte.HistoryScreen(width, height, history=2000, ratio=0.5)
        self._stream = pyte.ByteStream(self.screen)
        if encoding != "utf-8":
            self._stream.select_other_charset("@")
        self.bytes = b""
        self._num_titles = 0
        self._ours, theirs = pty.openpty()
        attributes = termios.tcgetattr(theirs)
        attributes[1] |= termios.ONLCR
        termios.tcsetattr(theirs, termios.TCSANOW, attributes)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.file = os.fdopen(theirs, "w", encoding=encoding, newline="")
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        with contextlib.suppress(OSError):
            while data := os.read(self._ours, 1 << 16):
                with self._lock:
                    self.bytes += data
                    self._stream.feed(data)

    @property
    def lines(self):
        """All lines, those that have scrolled away too, without empty ones at the end."""
        with self._lock:
            above = [
                "".join(line[x].data for x in range(self.screen.columns)) for line in self.screen.history.top
            ]
            lines = [line.rstrip() for line in (*above, *self.screen.display)]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def wait_for(self, *parts):
        """Return the lines once each part is in one of them, and the picture is whole: nothing more comes."""
        end = time.monotonic() + 10
        while time.monotonic() < end:
            num_bytes, lines = len(self.bytes), self.lines
            is_there = all(part in "\n".join(lines) for part in parts)
            time.sleep(0.02 if is_there else 0.002)
            if is_there and len(self.bytes) == num_bytes:
                break
        assert [part for part in parts if part not in "\n".join(lines)] == [], "\n".join(lines)
        return lines

    def resize(self, width, height):
        """Change the size; the terminal breaks lines that are now too long."""
        with self._lock:
            rows, cursor = self._rows(), self.screen.cursor
            self.screen.resize(height, width)
            parts = [[row[x : x + width] for x in range(0, max(len(row), 1), width)] for row in rows]
            lines = [part for parts_of_row in parts for part in parts_of_row]
            above, visible = lines[:-height], lines[-height:]
            self.screen.history.top.extend(map(self._line, above))
            self.screen.buffer.clear()
            self.screen.buffer.update({y: self._line(row) for y, row in enumerate(visible)})
            cursor.y, cursor.x = len(visible) - 1, min(len(visible[-1]), width - 1)

    def _rows(self):
        """Return the characters of the lines down to the cursor's, without the blanks at their ends."""
        lines = [self.screen.buffer[y] for y in range(self.screen.cursor.y + 1)]
        rows = [[line[x] for x in range(self.screen.columns)] for line in lines]
        return [row[: len("".join(character.data for character in row).rstrip())] for row in rows]

    def _line(self, row):
        line = type(self.screen.buffer[0])(self.screen.default_char)
        line.update(enumerate(row))
        return line

    def all_bytes(self):
        """Return all that was written, once it has been read: up to a title that is set last."""
        self._num_titles += 1
        print(_TITLE.decode(), end="", file=self.file, flush=True)
        end = time.monotonic() + 10
        while self.bytes.count(_TITLE) < self._num_titles and time.monotonic() < end:
            time.sleep(0.002)
        return self.bytes.replace(_TITLE, b"")

    def last_lines(self):
        """Return the lines once all that was written has been read."""
        self.all_bytes()
        return self.lines

    def close(self):
        self.file.close()
        self._reader.join(10)
        os.close(self._ours)


@pytest.fixture
def open_terminal(monkeypatch):
    """Open terminals, which are this process's standard output one after the other."""
    pytest.importorskip("pty", reason="Windows has no pseudo-terminals")
    opened = []

    def open_one(width=100, height=24, *, encoding="utf-8", term="xterm-256color", **environment):
        terminal = Terminal(width, height, encoding)
        opened.append(terminal)
        for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "LINES"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"TERM": term, **environment}.items():
            monkeypatch.setenv(name, value)
        screen = terminal.screen
        monkeypatch.setattr(
            os, "get_terminal_size", lambda *_: os.terminal_size((screen.columns, screen.lines))
        )
        of_terminal = functools.partial(PlainConsole, file=terminal.file)  # pytest replaces sys.stdout itself
        monkeypatch.setattr(console, "_PlainConsole", of_terminal)
        return terminal

    yield open_one
    for terminal in opened:
        terminal.close()
