"""Durable files: atomic writes by rename, synced appends, and safe reads."""

import errno
import json
import os
import shutil
import stat
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from runmanager.errors import StorageError

_BINARY = getattr(os, "O_BINARY", 0)  # without this flag, Windows writes two bytes for a newline
_NOT_WAITING = getattr(os, "O_NONBLOCK", 0)  # without this flag, opening a pipe would wait for its writer
_A_LINK = "a link, which is not followed"
_NO_FILE = "not a file"
_AT_ONCE = 1 << 20  # maximum number of bytes per read when a file is copied
_FULL = (errno.ENOSPC, errno.EDQUOT)
_OPEN_ELSEWHERE = (5, 32)  # Windows: access is denied, the file is in use
_PATIENCE_S, _PAUSE_S = 2.0, 0.05  # a virus scanner has a new file open for milliseconds
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def write_file(path: Path, content: bytes, previous: Path | None = None) -> None:
    """Write a file atomically: even after a crash, readers see the whole old or the whole new content."""
    with explained(path), _temporary(path, [content]) as temporary:
        if previous and path.exists():
            rename(path, previous)
        rename(temporary, path)
        sync_folder(path.parent)


def copy_file(source: Path, path: Path) -> None:
    """Copy a file of any size, and write the copy as `write_file` does."""
    with opened(source) as (descriptor, _), explained(path), _temporary(path, _pieces(descriptor)) as temporary:
        rename(temporary, path)
        sync_folder(path.parent)


def create_file(path: Path, content: bytes) -> bool:
    """Create a file atomically with its content; return False if it already exists."""
    with explained(path), _temporary(path, [content]) as temporary:
        try:
            _link(temporary, path)
        except FileExistsError:
            return False
        sync_folder(path.parent)
        return True


def _link(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        rename(temporary, path)


def rename(source: Path, target: Path) -> None:
    """Rename a file or folder, in place of a file at the target."""
    _patiently(lambda: os.replace(source, target))  # noqa: PTH105 - beside os.open, os.write and os.fsync


def remove_file(path: Path) -> None:
    """Remove a file, if it exists; on Windows, wait while a program has it open, as `rename` does."""
    _patiently(lambda: path.unlink(missing_ok=True))


def _patiently(change: Callable[[], None]) -> None:
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return change()
        except PermissionError as error:
            if not _is_open_elsewhere(error) or time.monotonic() >= until:
                raise
        time.sleep(_PAUSE_S)


def _is_open_elsewhere(error: OSError) -> bool:
    return getattr(error, "winerror", None) in _OPEN_ELSEWHERE


def make_folder(path: Path) -> None:
    """Create a folder and its parents, so that they survive a power failure."""
    with explained(path):
        missing = [parent for parent in (path, *path.parents) if not parent.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for folder in reversed(missing):
            sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Sync the names in a folder to disk, where the system supports it."""
    if os.name == "nt":  # Windows cannot open folders
        return
    _sync_opened(os.open(path, os.O_RDONLY))


def sync_file(path: Path) -> None:
    """Sync a file that another library has written to disk."""
    _sync_opened(os.open(path, os.O_RDWR))  # Windows syncs no file that is opened for reading


def _sync_opened(descriptor: int) -> None:
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    """Write an open file to disk; on macOS, `os.fsync` leaves it in the memory of the drive."""
    if sys.platform == "darwin":
        import fcntl

        with suppress(OSError):  # some file systems lack this call
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def remove_leftovers(folder: Path, *names: str) -> None:
    """Remove temporary files of writers that died."""
    for name in names or ("*",):
        for path in folder.glob(f".{name}.*.tmp"):
            with explained(path):
                remove_file(path)


class AppendFile:
    """A file of appended records, each on disk when `append` returns.

    Only one process may write the file. After a failed append, the file again ends with a whole record. A
    new file begins with the record `first`.

    Raises:
        StorageError: The file exists already or cannot be created.
    """

    def __init__(self, path: Path, first: bytes = b"") -> None:
        self.path = path
        with explained(path):
            if not create_file(path, first):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            self._descriptor = _open(path, os.O_WRONLY | os.O_APPEND)
            self._length = len(first)

    @classmethod
    def reopen(cls, path: Path, length: int, size: int) -> Self:
        """Open a file whose writer has ended; the first append cuts off all content after `length` bytes."""
        file = cls.__new__(cls)
        file.path, file._length = path, length  # noqa: SLF001 - of this class
        with explained(path):
            file._descriptor = _open(path, os.O_WRONLY | os.O_APPEND)  # noqa: SLF001
            if os.fstat(file._descriptor).st_size != size:  # noqa: SLF001
                file.close()
                raise OSError(errno.EBUSY, "another process writes it")
        return file

    def append(self, record: bytes) -> None:
        """Append one record."""
        with explained(self.path):
            self._cut()  # cut again, as the cut after a failed append may have failed too
            try:
                _write_all(self._descriptor, record)
                _sync(self._descriptor)
                self._length += len(record)
            except BaseException:
                with suppress(OSError):
                    self._cut()
                raise

    def close(self) -> None:
        """Close the file; a repeated call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _cut(self) -> None:
        os.ftruncate(self._descriptor, self._length)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def version(state: os.stat_result) -> tuple[int, int, int]:
    """Return a version of a file's content: its inode, size (bytes) and time of change (ns)."""
    return state.st_ino, state.st_size, state.st_mtime_ns


@contextmanager
def opened(path: str | Path) -> Iterator[tuple[int, os.stat_result]]:
    """Open a file for reading during the block; yield its descriptor and its `os.stat_result`."""
    descriptor = _open(path, os.O_RDONLY | _NOT_WAITING)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, _NO_FILE, str(path))
        yield descriptor, state
    finally:
        os.close(descriptor)


def read_file(path: str | Path, most: int) -> tuple[bytes, os.stat_result]:
    """Read up to `most` bytes of a file, and its state before reading."""
    with opened(path) as (descriptor, state):
        return read_at_most(descriptor, min(most, state.st_size)), state


def read_end(path: str | Path, most: int) -> bytes:
    """Read up to `most` bytes from the end of a file."""
    with opened(path) as (descriptor, state):
        os.lseek(descriptor, max(0, state.st_size - most), os.SEEK_SET)
        return read_at_most(descriptor, most)


def read_at_most(descriptor: int, most: int) -> bytes:
    """Read the next `most` bytes of an open file; fewer bytes only at the end of the file."""
    parts: list[bytes] = []
    while part := os.read(descriptor, most):  # reading 0 bytes ends the loop
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def strict_json(content: Any) -> bytes:
    """Return a JSON document as bytes: indented, UTF-8, no NaN."""
    document = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    # a lone surrogate, as in a file name that is not UTF-8, becomes its JSON escape
    return f"{document}\n".encode("utf-8", "backslashreplace")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """During the block, convert an OSError about a file to a StorageError with advice."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(error.errno, _reason(path, error), str(path)) from error


def _open(path: str | Path, flags: int) -> int:
    if not hasattr(os, "O_NOFOLLOW") and os.path.islink(path):  # noqa: PTH114 - on Windows
        raise OSError(errno.ELOOP, _A_LINK, str(path))
    try:
        return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | _BINARY)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, _A_LINK, str(path)) from error
        if os.path.isdir(path):  # noqa: PTH112 - Windows denies access
            raise OSError(errno.EINVAL, _NO_FILE, str(path)) from error
        raise


@contextmanager
def _temporary(path: Path, pieces: Iterable[bytes]) -> Iterator[Path]:
    """Write content to a temporary file beside `path`, and sync it; remove the file after the block."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY
        descriptor = os.open(temporary, flags, 0o666)
        try:
            for piece in pieces:
                _write_all(descriptor, piece)
            _sync(descriptor)
        finally:
            os.close(descriptor)
        yield temporary
    finally:
        remove_file(temporary)


def _pieces(descriptor: int) -> Iterator[bytes]:
    """Yield the content of an open file in pieces."""
    while piece := os.read(descriptor, _AT_ONCE):
        yield piece


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        # on a nearly full disk, one call writes a part and only the next call fails
        rest = rest[os.write(descriptor, rest) :]


def _reason(path: Path, error: OSError) -> str:
    advice = "committed epochs are kept: fix this, then start the same command again"
    cause = error.strerror or str(error)
    if error.errno in _FULL:
        existing = next(folder for folder in path.absolute().parents if folder.exists())
        usage = shutil.disk_usage(existing)
        cause = f"{cause}: {usage.free / 1e9:.1f} of {usage.total / 1e9:.1f} GB free"
    elif _is_open_elsewhere(error):
        cause = "another program has it open"
    return f"cannot write ({cause}); {advice}"
