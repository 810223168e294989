"""Files under the root: their names, durable writes by rename, synced appends, and safe reads."""

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from runmanager.core.values import text
from runmanager.errors import StorageError

GRID = "grid.json"
HPARAMS = "hparams.json"
RUN = "run.json"
RESULTS_CSV = "results.csv"
RESULTS_JSON = "results.json"
ERROR_LOG = "error.log"
OUTPUT_LOG = "output.log"
ATTEMPT = "\n--- attempt "
"""The begin of the line above what a further attempt printed."""
CHECKPOINT = "checkpoint.pt"
PREVIOUS_CHECKPOINT = "checkpoint.prev.pt"
INSIDE_CHECKPOINT = "checkpoint.inside.pt"
WEIGHTS = "weights.pt"
HOLDER = "holder.json"
CLAIM = "claim.json"
"""The lock of a process that creates the folder of a run."""
REPORT = "report.html"
SOURCE = "source-{}.py.gz"
"""The source of a version, by its hash."""
ARTIFACTS = "artifacts"
TRAINER = "trainer"
"""The folder of an external trainer's checkpoints, in a run's folder."""

LONGEST = 64
"""The maximum number of characters of a run folder's name; TensorBoard cuts longer names."""

RUN_FOLDER = re.compile(r"(?P<number>[0-9]{3,9})(?:(?:~|-(?=.*[=~]))[A-Za-z0-9._=~-]*)?")
"""The name of a run's folder; a hyphen stands only before a setting, as dates have other hyphens."""

_ATTEMPT = re.compile(r"attempt-(?P<number>[1-9][0-9]{0,8})\.jsonl")
_LARGEST = 64 * 2**20  # maximum number of bytes of a JSON file

_DEAD_AFTER_S = 60  # age (s) of a temporary file from which its writer counts as dead
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
# Windows writes two bytes for a newline without O_BINARY; opening a pipe would wait without O_NONBLOCK
_FLAGS = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def write_file(
    path: Path,
    content: bytes | Iterable[bytes | memoryview],
    previous: Path | None = None,
    *,
    is_new: bool = False,
) -> None:
    """Write a file atomically, even in a crash; `previous` names the old content, `is_new` refuses it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    with explained(path):
        try:
            # other users may read the file, unlike one of `tempfile`
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666)
            try:
                for piece in (content,) if isinstance(content, bytes) else content:
                    _write_all(descriptor, piece)
                os.fsync(descriptor)
                _flush_drive(descriptor)
            finally:
                os.close(descriptor)
            if previous and path.exists():
                os.replace(path, previous)  # noqa: PTH105 - beside os.open, os.link and os.fsync
            try:
                if is_new:
                    os.link(temporary, path)
                else:
                    os.replace(temporary, path)  # noqa: PTH105
            except OSError as error:
                if not is_new or error.errno not in _NO_LINKS:
                    raise
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
                os.replace(temporary, path)  # noqa: PTH105
            if os.name != "nt":  # Windows cannot open folders
                folder = os.open(path.parent, os.O_RDONLY)
                try:
                    os.fsync(folder)
                    _flush_drive(folder)
                finally:
                    os.close(folder)
        finally:
            temporary.unlink(missing_ok=True)


def exchange(path: Path, target: Path) -> None:
    """Rename a file or folder; what had the name is replaced, or goes to the old folder if one is a folder."""
    if target.is_dir() or (path.is_dir() and target.exists()):
        names = -100, os.fsencode(path), -100, os.fsencode(target)  # AT_FDCWD of fcntl.h
        with suppress(AttributeError, TypeError):  # only Linux can exchange two names in one step
            if ctypes.CDLL(None).renameat2(*names, 2) == 0:  # RENAME_EXCHANGE
                return
        target.rename(path.with_name(".old"))
    path.replace(target)


def make_folder(path: Path) -> None:
    """Create a folder and its parents, so that they survive a power failure."""
    with explained(path):
        missing = [parent for parent in (path, *path.parents) if not parent.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for folder in reversed(missing):
            sync(folder.parent)


def sync(path: Path) -> None:
    """Sync a file that another library has written, or the names in a folder, to disk."""
    if os.name == "nt" and path.is_dir():  # Windows cannot open folders
        return
    # Windows syncs no file that is opened for reading
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
        _flush_drive(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Remove what writers that died left in a folder, not that of a minute, whose writers may live."""
    for path in folder.glob(".*.*.tmp"):
        with explained(path), suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _DEAD_AFTER_S:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


class AppendFile:
    """A file of appended records, each on disk when `append` returns; one process may write it.

    The first append cuts off all content after `length` bytes; a failed append leaves whole records. If the
    file no longer has the `size` that was read, another process has written it, which is an error.
    """

    def __init__(self, path: Path, length: int, size: int | None = None) -> None:
        self.path = path
        self._length = length
        with explained(path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | _FLAGS)
            if os.fstat(self._descriptor).st_size != (length if size is None else size):
                self.close()
                raise OSError(errno.EBUSY, "another process writes it")

    def append(self, record: bytes) -> None:
        """Append one record."""
        with explained(self.path):
            if not os.fstat(self._descriptor).st_nlink:
                raise FileNotFoundError(errno.ENOENT, "it was removed")
            os.ftruncate(self._descriptor, self._length)  # the cut after a failed append may have failed too
            try:
                _write_all(self._descriptor, record)
                os.fsync(self._descriptor)
                _flush_drive(self._descriptor)
                self._length += len(record)
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(self._descriptor, self._length)
                raise

    def close(self) -> None:
        """Close the file; a repeated call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _write_all(descriptor: int, content: bytes | memoryview) -> None:
    rest = memoryview(content)
    while rest:
        # on a nearly full disk, one call writes a part and only the next call fails
        rest = rest[os.write(descriptor, rest) :]


def _flush_drive(descriptor: int) -> None:
    """Write the memory of the drive to disk; `os.fsync` does it on all systems but macOS."""
    if sys.platform == "darwin":
        import fcntl

        with suppress(OSError):  # some file systems lack this call
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """During the block, convert an OSError about a file to a StorageError with advice."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        cause = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            existing = next(folder for folder in path.absolute().parents if folder.exists())
            usage = shutil.disk_usage(existing)
            cause = f"{cause}: {usage.free / 1e9:.1f} of {usage.total / 1e9:.1f} GB free"
        what = f"cannot write ({cause}); fix this, then start the same command again; committed epochs are kept"
        raise StorageError(error.errno, what, str(path)) from error


@contextmanager
def opened(path: str | Path) -> Iterator[tuple[BufferedReader, os.stat_result]]:
    """Open a file for reading during the block; yield it with its `os.stat_result`."""
    if os.path.islink(path):  # noqa: PTH114 - no Path each; the flags refuse a link made in the meantime
        raise OSError(errno.ELOOP, "a link, which is not followed", str(path))
    descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a file", str(path))
    with open(descriptor, "rb") as file:  # noqa: PTH123 - not a path
        yield file, state


def read_file(path: Path, most: int = sys.maxsize) -> bytes:
    """Read a file, or the last `most` bytes of a longer one."""
    with opened(path) as (file, state):
        size = min(most, state.st_size)
        file.seek(state.st_size - size)
        return file.read(size)


def read_json(path: Path, *, damaged: list[str] | None = None) -> dict[str, Any]:
    """Read a file with one JSON object, empty if missing or unreadable; note unreadable files in `damaged`."""
    try:
        with opened(path) as (file, state):
            # msgspec refuses the lone surrogates of file names that are not UTF-8
            content = json.loads(file.read(min(_LARGEST, state.st_size)))
        if not isinstance(content, dict):
            raise TypeError("not an object")  # noqa: TRY301 - damaged, as below
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, RecursionError) as error:
        if damaged is not None:
            damaged.append(f"{path} ({error})")
        return {}
    return content


def version_of(path: Path) -> tuple[int, int, int] | None:
    """Return the inode, size (bytes) and time of change (ns) of a file; None if there is no such file."""
    with suppress(OSError):
        state = path.stat()
        return state.st_ino, state.st_size, state.st_mtime_ns
    return None


def strict_json(content: Any) -> bytes:
    """Return a JSON document as bytes: indented, UTF-8, no NaN."""
    document = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    # a lone surrogate, as in a file name that is not UTF-8, becomes its JSON escape
    return f"{document}\n".encode("utf-8", "backslashreplace")


def for_people(path: Path) -> Path:
    """Return a path as messages show it: relative if the path is below the working directory."""
    with suppress(OSError, ValueError):  # the working directory may have been removed
        return path.relative_to(Path.cwd())
    return path


def run_folder(number: int, params: Mapping[str, Any], repeats: Collection[str] = (), digits: int = 3) -> str:
    """Return the folder name of a run: the run's number, then its hyperparameters, in at most 64 characters."""
    params = {
        name: params[name] for name in sorted(params, key=lambda name: (name in repeats, name == "device"))
    }
    settings = "-".join(f"{slug(name)}={slug(text(value))}" for name, value in params.items())
    name = f"{number:0{digits}d}-{settings}".rstrip(".-")  # Windows cuts off dots at the end of a name
    return name if len(name) <= LONGEST else shortened_name(name, repr(list(params.items())))


def shortened_name(name: str, whole: str) -> str:
    """Cut a name to 64 characters, with a hash of `whole` at its end, which keeps the name unique."""
    digest = hashlib.sha256(whole.encode("utf-8", "replace")).hexdigest()[:6]
    return f"{name[: LONGEST - 7].rstrip('._,=-')}~{digest}"


def slug(value: str) -> str:
    """Reduce a text to characters for folder names: letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", value.replace(":", "")).strip("_")


def run_number(folder: str) -> int | None:
    """Return the number in a run's folder name, None for any other name."""
    match = RUN_FOLDER.fullmatch(folder)
    return int(match["number"]) if match else None


def journals_by_attempt(folder: Path) -> dict[int, str]:
    """Return the journals in a run's folder in order: attempt -> path."""
    path = os.fspath(folder)
    names = [name for name in os.listdir(path) if name.startswith("attempt-")]  # noqa: PTH208 - no Path each
    journals = {int(m["number"]): f"{path}/{name}" for name in names if (m := _ATTEMPT.fullmatch(name))}
    return dict(sorted(journals.items()))


def open_closed_streams() -> None:
    """Open the null device for closed standard streams, as of a service: our files would get their numbers."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # with this number, the lowest that is free
            os.set_inheritable(descriptor, True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - never closed
