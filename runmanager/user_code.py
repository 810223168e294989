"""User code: which files and frames are the user's, for tracebacks, warnings and comparisons of code."""

import functools
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

_PACKAGE = __name__.partition(".")[0]
_LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
INSTALLED = frozenset(("site-packages", "dist-packages"))
"""Folders in the path of an installed file."""
CELL = re.compile(r"<ipython-input-(?P<number>\d+)|[/\\]ipykernel_\d+[/\\]")
"""The file of a notebook's cell."""
TYPED = ("<string>", "<stdin>", "<python-input", "<command", "<doctest")
"""The names that Python gives to code without a file."""
_GENERATED = re.compile(r"[/\\]torchinductor_[^/\\]*[/\\]")


@functools.cache
def is_users_file(file: str) -> bool:
    """Whether a file is the user's: not a file of Python, of an installed package or of this package."""
    if file.startswith("<") or _GENERATED.search(file) or not INSTALLED.isdisjoint(Path(file).parts):
        return False
    path = Path(os.path.realpath(file))
    return not any(path.is_relative_to(folder) for folder in _libraries())


@functools.cache
def _libraries() -> list[Path]:
    folders = [Path(__file__).parent, *(Path(sysconfig.get_path(name)) for name in _LIBRARIES)]
    # a folder of `pip install --target`; the first entry is the folder of the script
    folders += [Path(entry) for entry in sys.path[1:] if any(Path(entry).glob("*.dist-info"))]
    return [folder.resolve() for folder in folders]


def caller() -> tuple[str, int]:
    """Return the file and line of the user code that called this package."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.currentframe() is the same
    while frame.f_back:
        file = frame.f_code.co_filename
        if is_users_file(file) or file.startswith(TYPED) or CELL.search(file):
            break
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def user_frames(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this package; None if no frame is left."""
    shortened: TracebackType | None = None
    for frame in reversed(list(_user_frames_of(traceback))):
        shortened = TracebackType(shortened, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return shortened


def from_user_frame(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback that begins with the first frame of the user, if there is one."""
    return next(_user_frames_of(traceback), traceback)


def _user_frames_of(traceback: TracebackType | None) -> Iterator[TracebackType]:
    is_inside = False  # whether the frame is inside a call of this package, without user code
    while traceback is not None:
        is_inside = _is_inside(traceback.tb_frame.f_globals, is_inside=is_inside)
        if not is_inside:
            yield traceback
        traceback = traceback.tb_next


def _is_inside(names: dict[str, Any], *, is_inside: bool) -> bool:
    """Whether a module belongs to this package, or to the standard library when this package has called it."""
    module = str(names.get("__name__")).partition(".")[0]
    return module == _PACKAGE or (is_inside and module in sys.stdlib_module_names)


def hide_frames(error: BaseException) -> None:
    """Hide the frames of this package in an error and its cause, and a cause without other frames."""
    error.__traceback__ = user_frames(error.__traceback__)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is None:
        return
    cause.__traceback__ = user_frames(cause.__traceback__)
    if cause.__traceback__ is None:
        error.__cause__ = None  # setting the cause hides the context too


def show_user_frames() -> None:
    """Print an error of this package that ends the program, without the internal frames."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_uncaught


def _print_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if hasattr(error, "_render_traceback_"):  # the error is from this package
        hide_frames(error)
        traceback = error.__traceback__
    sys.__excepthook__(kind, error, traceback)


def user_level() -> int:
    """Return the `stacklevel` of a warning that names the user's line, for the caller of this function."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001 - as warnings does
    while frame.f_back is not None and _is_inside(frame.f_globals, is_inside=True):
        level, frame = level + 1, frame.f_back
    return level
