"""The system's calls for the files under a root: noted, and failing where a test says so."""

import contextlib
import os
import re
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CALLS = ("open", "write", "fsync", "replace", "link", "unlink", "mkdir", "ftruncate", "close")
KILL = 0
SHORT = -1
"""In place of an error: the process is killed, or a write writes a part and says so."""


class Disk:
    """What this process asks of the system for files under a root, from now on.

    Args:
        root: The folder; other files are not noted, and never fail.
        set_call: Called with the module, a name and the function to put there, such as monkeypatch.setattr.

    Attributes:
        calls: Name and path of each call that changed something.
        fault: Called with name and path before each; returns an error's number, KILL or SHORT to let it fail.
    """

    def __init__(self, root: Path, set_call: Callable[[Any, str, Any], None]) -> None:
        self._root, self._paths = str(root), dict[int, str]()
        self.calls: list[tuple[str, str]] = []
        self.fault: Callable[[str, str], int | None] = lambda _name, _path: None
        for name in CALLS:
            set_call(os, name, self._tapped(name, getattr(os, name)))

    @property
    def num_open(self) -> int:
        """How many files are open."""
        return len(self._paths)

    def _tapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            # what the fault is about is the file that is written, and not what it is made from
            target = given[0] if name not in ("replace", "link") else given[1]
            path = self._paths.get(target, "") if isinstance(target, int) else os.fspath(target)
            if not path.startswith(self._root) or (name == "open" and _is_reading(path, given[1])):
                return real(*given, **options)
            if (code := self.fault(name, path)) is not None:
                return _fail(code, name, real, given)
            result = real(*given, **options)
            self.calls.append((name, path))
            if name == "open":
                self._paths[result] = path
            elif name == "close":
                del self._paths[target]
            return result

        return call


def _is_reading(path: str, flags: int) -> bool:
    return not flags & (os.O_WRONLY | os.O_RDWR) and not Path(path).is_dir()


def _fail(code: int, name: str, write: Callable[..., int], given: Any) -> int:
    if name == "write":
        part: int = write(given[0], bytes(given[1])[: len(given[1]) // 2])
        if code == SHORT:
            return part
    if code == KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    raise OSError(code, os.strerror(code))


class NthCall:
    """A fault of one call.

    Args:
        call: Its name.
        at: Which of those calls, from 1.
        code: What comes of it.
        among: A regular expression for its path.
        mend: What comes of the `ftruncate` after it that mends the file; None if that works.
        note: The file that gets the name of the file, for those that live on.
    """

    def __init__(
        self, call: str, at: int, code: int, among: str = "", mend: int | None = None, note: str = ""
    ) -> None:
        self._call, self._left, self._code, self._among, self._mend = call, at, code, among, mend
        self._note = note
        self.hit = ""
        self.is_mend_hit = False

    def __call__(self, name: str, path: str) -> int | None:
        if name == self._call and re.search(self._among, path):
            self._left -= 1
            if self._left == 0:
                self.hit = path
                if self._note:
                    Path(self._note).write_text(path)
                return self._code
        if name == "ftruncate" and self.hit and not self.is_mend_hit and self._mend is not None:
            self.is_mend_hit = True
            return self._mend
        return None


@contextlib.contextmanager
def small_disk(most: int) -> Iterator[None]:
    """Refuse to write files of more bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
