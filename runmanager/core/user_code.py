"""User code: the files that belong to the user, and the line that raised an exception."""

import functools
import os
import re
import sys
import sysconfig
import traceback
from pathlib import Path

from runmanager.core.files import for_people
from runmanager.core.wording import printable

_PACKAGE = Path(__file__).parents[1]
_LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
_INSTALLED = frozenset(("site-packages", "dist-packages"))  # folders in the path of an installed file
_GENERATED = re.compile(r"[/\\]torchinductor_[^/\\]*[/\\]")
_CELL = re.compile(r"<ipython-input-(?P<number>\d+)|[/\\]ipykernel_\d+[/\\]")
# the names that Python gives to code without a file
_TYPED = ("<string>", "<stdin>", "<python-input", "<command", "<doctest")
_WRITTEN = re.compile(r'^ *File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<name>.+))?$', re.MULTILINE)


@functools.cache
def is_users_file(file: str) -> bool:
    """Whether a file is the user's: not a file of Python, of an installed package or of this package."""
    if file.startswith("<") or _GENERATED.search(file) or not _INSTALLED.isdisjoint(Path(file).parts):
        return False
    path = Path(os.path.realpath(file))
    return not any(path.is_relative_to(folder) for folder in _libraries())


def location_of(error: BaseException) -> str:
    """Return the innermost line of user code in an exception's traceback, "" if there is none.

    >>> location_of(ValueError("was never raised"))
    ''
    """
    walked = traceback.walk_tb(error.__traceback__)
    frames = [(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in walked]
    is_remote = type(error.__cause__).__name__.endswith("RemoteTraceback")
    for text in (str(error), str(error.__cause__) if is_remote else ""):
        written = _WRITTEN.finditer(text)
        frames += [(match["file"], int(match["line"]), match["name"] or "") for match in written]
    users = [frame for frame in frames if _CELL.search(frame[0]) or is_users_file(frame[0])]
    typed = [frame for frame in frames if frame[0].startswith(_TYPED)]
    # the frames of an installed training function that this package called
    installed = [frame for frame in frames if not _INSTALLED.isdisjoint(Path(frame[0]).parts)][:1]
    if not (users or typed or installed):
        return ""
    file, line, name = (users or typed or installed)[-1]
    if cell := _CELL.search(file):
        of = f" of {name}()" if name.isidentifier() else ""
        return f"{'cell ' + cell['number'] if cell['number'] else 'notebook cell'}{of}, line {line}"
    path = for_people(Path(file))
    return printable(f"{path.name if path.is_absolute() else path}:{line}")


def caller() -> tuple[str, int]:
    """Return the file and line of the user code that called this package."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.currentframe() is the same
    while frame.f_back:
        file = frame.f_code.co_filename
        if is_users_file(file) or file.startswith(_TYPED) or _CELL.search(file):
            break
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


@functools.cache
def _libraries() -> list[Path]:
    return [_PACKAGE.resolve(), *(Path(sysconfig.get_path(name)).resolve() for name in _LIBRARIES)]
