"""Artifacts of a run: copies of files and folders, saved objects and texts under `artifacts/` in its folder."""

import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from runmanager.core import files
from runmanager.core.experiment import WINDOWS_DEVICES
from runmanager.errors import InvalidArgumentError
from runmanager.tables.roots import absolute_path, nearest

_AT_ONCE = 1 << 20  # maximum number of bytes per read when a file is copied
_LONGEST = 200  # maximum number of bytes of a name; a temporary name is longer
_RULE = (
    "an artifact's name is that of a file or folder under artifacts/, as 'plots/roc.png', without '..', a dot "
    "in front, or a device such as 'con'"
)
_KINDS = (
    "artifact() takes the path of a file or folder, a text with its name, "
    "or an object with savefig(path) or save(path)"
)


def keep(folder: Path, content: Any, name: str | None, *, is_writer: bool = True) -> Path:
    """Write an artifact to a run's folder, see `RunManager.artifact`; without `is_writer`, only validate it."""
    source = _source(content, name)
    save, suffix = (None, "") if source or isinstance(content, str) else _save_of(content)
    if name is None and source:
        name = absolute_path(source).name
    if name is None:
        kind = type(content).__name__
        raise InvalidArgumentError(
            [f"this {kind} needs a name: write artifact({kind.lower()}, {kind.lower()!r})"]
        )
    target = folder / files.ARTIFACTS / _checked(name)
    if save and not target.suffix:
        target = target.with_name(f"{target.name}{suffix}")
    if source:
        _check_source(source, target, folder)
    if not is_writer:
        return target
    with tempfile.TemporaryDirectory(prefix="runmanager-") if save else nullcontext("") as temporary:
        if save:  # save first, so that an object that cannot be saved changes no file of the run
            source = Path(temporary, target.name)
            _save(save, source)
        parents = [folder / parent for parent in target.relative_to(folder).parents]
        for path in (target, *parents):
            if path.is_symlink() or (path != target and path.is_file()):
                raise InvalidArgumentError(
                    [f"{str(path)!r} is a link or a file: remove it, or write another name"]
                )
        files.make_folder(target.parent)
        if source is None or source.resolve() != target.resolve():
            _write(source, content, target)
    return target


def _source(content: Any, name: str | None) -> Path | None:
    """Return the path to copy, None if the content is not a path."""
    if not isinstance(content, str | os.PathLike):
        return None
    path = Path(content)
    if os.path.lexists(path) and str(content):
        return path
    # a text with the suffix of its name is probably a mistyped path
    suffix = PurePosixPath(str(name)).suffix
    is_path = bool(suffix) and str(content).endswith(suffix) and not any(map(str.isspace, str(content)))
    if isinstance(content, str) and name is not None and not is_path:
        return None
    hint = ""
    with suppress(OSError, ValueError):  # the errors for a long text, or a text with a NUL
        hint = nearest(path)
    hint = hint or "give one that is there, or a text with its name: artifact(text, 'notes.txt')"
    raise InvalidArgumentError([f"no file or folder {str(content)[:200]!r}: {hint}"])


def _save_of(content: Any) -> tuple[Callable[[str], Any], str]:
    """Return the method that saves an object, and the suffix that is added to a name without a suffix."""
    for saved in (content, getattr(content, "figure", None)):  # seaborn returns axes, which have a figure
        if callable(save := getattr(saved, "savefig", None)):
            return save, ".png"
        if callable(save := getattr(saved, "save", None)):
            return save, ".png" if hasattr(saved, "_repr_png_") else ""  # an image of PIL is saved as PNG
    step = "write it to a file, as torch.save(x, 'x.pt'), and give the file: artifact('x.pt')"
    raise InvalidArgumentError([f"{_KINDS}, got {content!r:.200}: {step}"])


def _save(save: Callable[[str], Any], path: Path) -> None:
    save(str(path))
    if not path.exists():
        step = "save it to a file, and give the file: artifact(path)"
        raise InvalidArgumentError([f"{path.name!r} is not the name under which it saves itself: {step}"])


def _checked(name: Any) -> PurePosixPath:
    """Return a name as a relative path."""
    parts = name.split("/") if isinstance(name, str) else [""]
    for part in parts:
        is_plain = part.isprintable() and "\\" not in part and not WINDOWS_DEVICES.fullmatch(part)
        if not (is_plain and part and part[0] not in ". " and len(part.encode()) <= _LONGEST):
            better = re.sub(r"[^\w.-]+", "_", str(name).rpartition("/")[2]).strip("._")[:40] or "artifact"
            raise InvalidArgumentError([f"{_RULE}, got {name!r:.200}: write {better!r}"])
    return PurePosixPath(*parts)


def _check_source(source: Path, target: Path, folder: Path) -> None:
    """Refuse a source that cannot be copied."""
    inside = source.rglob("*") if source.is_dir() and not source.is_symlink() else []
    for path in (source, *inside):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise InvalidArgumentError([f"{str(path)!r} is a link, or neither a file nor a folder: {_KINDS}"])
    real, written = source.resolve(), target.resolve()
    if folder.resolve().is_relative_to(real) or (real != written and written.is_relative_to(real)):
        raise InvalidArgumentError([f"{str(source)!r} contains the artifact itself: give a part of it"])


def _write(source: Path | None, content: Any, target: Path) -> None:
    """Copy a file or folder, or write a text, beside the target, and rename it."""
    with files.explained(target):
        new, old = (target.with_name(f".{target.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.{kind}.tmp")
                    for kind in ("new", "old"))  # fmt: skip
        try:
            if source is None:
                files.write_file(new, str(content).encode("utf-8", "backslashreplace"))
            elif source.is_dir():
                shutil.copytree(source, new, copy_function=lambda one, copy: _copy(Path(one), Path(copy)))
                for inside, _, _ in os.walk(new, topdown=False):
                    files.sync(Path(inside))
            else:
                _copy(source, new)
            if target.is_dir() or (new.is_dir() and target.exists()):
                target.replace(old)  # a folder cannot be replaced in one step
            try:
                new.replace(target)
            except BaseException:
                if old.exists():
                    old.replace(target)
                raise
            files.sync(target.parent)
            _remove(old)
        finally:
            _remove(new)


def _copy(source: Path, path: Path) -> None:
    """Copy a file of any size."""
    with files.opened(source) as (file, _):
        files.write_file(path, iter(lambda: file.read(_AT_ONCE), b""))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
