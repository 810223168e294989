"""The only code that writes files that have to last, by rename or synced appends; it reads them safely too."""

import errno
import json
import os
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from runmanager.errors import StorageError

_BINARY = getattr(os, "O_BINARY", 0)  # Windows would write two bytes for a line's end
_NOT_WAITING = getattr(os, "O_NONBLOCK", 0)  # as opening a pipe would, for its writer
_A_LINK = "a link, which is not followed"
_AT_ONCE = 1 << 20  # bytes of a file that is copied
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def write_file(path: Path, content: bytes) -> None:
    """Write a file so that readers, and a crash at any moment, find the old content or the new one.

    Raises:
        StorageError: It could not be written; the old content is still there.
    """
    with explained(path), _temporary(path, [content]) as temporary:
        os.replace(temporary, path)  # noqa: PTH105 - beside os.open, os.write and os.fsync
        sync_folder(path.parent)


def copy_file(source: Path, path: Path) -> None:
    """Copy a file of any size, and write the copy as `write_file` does.

    Raises:
        OSError: The source cannot be read, is a link, or is no file.
        StorageError: The copy could not be written; the old content is still there.
    """
    with opened(source) as (descriptor, _), explained(path), _temporary(path, _pieces(descriptor)) as temporary:
        os.replace(temporary, path)  # noqa: PTH105
        sync_folder(path.parent)


def write_generation(path: Path, previous: Path, content: bytes) -> None:
    """Write a file as `write_file`, and keep the content before as `previous`.

    Raises:
        StorageError: It could not be written; the content before is in one of the two files.
    """
    with explained(path), _temporary(path, [content]) as temporary:
        if path.exists():
            os.replace(path, previous)  # noqa: PTH105
        os.replace(temporary, path)  # noqa: PTH105
        sync_folder(path.parent)


def create_file(path: Path, content: bytes) -> bool:
    """Create a file with its whole content at once; return whether it did not exist before.

    Of several processes that try, one succeeds, on network file systems too. Where there are no hard links, as
    on exFAT and mounted cloud drives, it is empty for a moment.

    Raises:
        StorageError: It could not be written.
    """
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
        os.replace(temporary, path)  # noqa: PTH105


def make_folder(path: Path) -> None:
    """Create a folder and its parents, so that they survive a power failure.

    Raises:
        StorageError: It could not be created.
    """
    with explained(path):
        missing = [parent for parent in (path, *path.parents) if not parent.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for folder in reversed(missing):
            sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive a power failure, where the system can."""
    if os.name == "nt":  # pragma: no cover - folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path, *names: str) -> None:
    """Remove what writers that died in the middle left in a folder.

    Only this process may write the files with these names; all of the folder if there are none.

    Raises:
        StorageError: Something could not be removed.
    """
    for name in names or ("*",):
        for path in folder.glob(f".{name}.*.tmp"):
            with explained(path):
                path.unlink(missing_ok=True)


class AppendFile:
    """A file to which whole records are appended, each on disk when `append` returns.

    One writer only. After an error the file holds whole records again. It has its `first` record from the
    moment on that it exists.

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
        """Open a file whose writer is gone; what it has after `length` bytes is cut off with the first record.

        `size` is how many bytes it had when it was read to its end: what nobody has read is never cut off.

        Raises:
            StorageError: It cannot be opened, or its size has changed.
        """
        file = cls.__new__(cls)
        file.path, file._length = path, length  # noqa: SLF001 - its own
        with explained(path):
            file._descriptor = _open(path, os.O_WRONLY | os.O_APPEND)  # noqa: SLF001
            if os.fstat(file._descriptor).st_size != size:  # noqa: SLF001
                file.close()
                raise OSError(errno.EBUSY, "another process writes it")
        return file

    def append(self, record: bytes) -> None:
        """Append one record.

        Raises:
            StorageError: It is not on disk; the records before it are.
        """
        with explained(self.path):
            self._cut()  # the last time it may have failed too
            try:
                _write_all(self._descriptor, record)
                os.fsync(self._descriptor)
                self._length += len(record)
            except BaseException:
                with suppress(OSError):
                    self._cut()
                raise

    def close(self) -> None:
        """Close the file; a second time does nothing."""
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
    """Return what changes with a file's content: its inode, its size in bytes, its time of change in ns."""
    return state.st_ino, state.st_size, state.st_mtime_ns


@contextmanager
def opened(path: str | Path) -> Iterator[tuple[int, os.stat_result]]:
    """Open a file for reading while the block runs: its descriptor, and its state before.

    Every file that a run left behind is opened here: a link, which may lead anywhere, is not followed.

    Raises:
        OSError: It cannot be read, or is no file.
    """
    descriptor = _open(path, os.O_RDONLY | _NOT_WAITING)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "not a file", str(path))
        yield descriptor, state
    finally:
        os.close(descriptor)


def read_file(path: str | Path, most: int) -> tuple[bytes, os.stat_result]:
    """Read up to `most` bytes of a file, and its state before that.

    Raises:
        OSError: It cannot be read, is a link, or is no file.
    """
    with opened(path) as (descriptor, state):
        return read_at_most(descriptor, min(most, state.st_size)), state


def read_end(path: str | Path, most: int) -> bytes:
    """Read up to `most` bytes from the end of a file.

    Raises:
        OSError: It cannot be read, is a link, or is no file.
    """
    with opened(path) as (descriptor, state):
        os.lseek(descriptor, max(0, state.st_size - most), os.SEEK_SET)
        return read_at_most(descriptor, most)


def read_at_most(descriptor: int, most: int) -> bytes:
    """Read the next `most` bytes of an open file; fewer only at its end."""
    parts: list[bytes] = []
    while part := os.read(descriptor, most):  # none are asked for at last
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def strict_json(content: Any) -> bytes:
    """Write a whole JSON document for people and tools alike: indented, UTF-8, no NaN."""
    document = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    # half a surrogate pair, as in a file name that is no UTF-8, becomes its JSON escape
    return f"{document}\n".encode("utf-8", "backslashreplace")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what the system says about a file into a StorageError, which says what to do too."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(error.errno, _reason(path, error), str(path)) from error


def _open(path: str | Path, flags: int) -> int:
    if not hasattr(os, "O_NOFOLLOW") and os.path.islink(path):  # noqa: PTH114  # pragma: no cover - Windows
        raise OSError(errno.ELOOP, _A_LINK, str(path))
    try:
        return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | _BINARY)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, _A_LINK, str(path)) from error
        raise


@contextmanager
def _temporary(path: Path, pieces: Iterable[bytes]) -> Iterator[Path]:
    """Write pieces of content to a file beside `path`, on disk and complete, that is gone afterwards."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY
        descriptor = os.open(temporary, flags, 0o666)
        try:
            for piece in pieces:
                _write_all(descriptor, piece)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _pieces(descriptor: int) -> Iterator[bytes]:
    """Yield the content of an open file in pieces."""
    while piece := os.read(descriptor, _AT_ONCE):
        yield piece


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        # a nearly full disk writes a part and fails only at the next call
        rest = rest[os.write(descriptor, rest) :]


def _reason(path: Path, error: OSError) -> str:
    advice = "what was committed before is kept: repair this, then start the same command again"
    cause = error.strerror or str(error)
    if error.errno in _FULL:
        existing = next(folder for folder in path.absolute().parents if folder.exists())
        usage = shutil.disk_usage(existing)
        cause = f"{cause}: {usage.free / 1e9:.1f} of {usage.total / 1e9:.1f} GB free"
    return f"cannot write ({cause}); {advice}"
