"""Artifacts of a run: copies of files and folders, saved objects and texts under `artifacts/` in its folder."""

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from runmanager.core import files
from runmanager.errors import InvalidArgumentError
from runmanager.tables.roots import absolute_path

_LONGEST = 200  # maximum number of bytes of a name; a temporary name is longer
_RULE = (
    "an artifact's name is that of a file or folder under artifacts/, as 'plots/roc.png', without '..' and a "
    "dot in front"
)
_KINDS = (
    "artifact() takes the path of a file or folder, a text with its name, "
    "or an object with savefig(path) or save(path)"
)


def keep(folder: Path, content: Any, name: str | None, *, is_writer: bool = True) -> Path:
    """Write an artifact to a run's folder, see `RunManager.artifact`; without `is_writer`, only validate it."""
    source, save, suffix = None, None, ""
    if isinstance(content, str | os.PathLike):
        source = _source(content, name)
    else:
        save, suffix = _save_of(content)
    if name is None:
        if source is None:
            kind = type(content).__name__.lower()
            raise InvalidArgumentError(f"this {kind} needs a name: write artifact({kind}, {kind!r})")
        name = absolute_path(source).name
    target = _target(folder, str(name), suffix)
    for path in (source, *source.rglob("*")) if source else ():
        is_loop = path != source and path.parent.resolve().is_relative_to(path.resolve())
        if is_loop or not (path.is_file() or path.is_dir()):
            raise InvalidArgumentError(f"{str(path)!r} leads to no file or folder of its own: {_KINDS}")
    if source and target.resolve().is_relative_to(source.resolve()):
        if target.resolve() == source.resolve():
            return target
        raise InvalidArgumentError(f"{str(source)!r} contains the artifact itself: give a part of it")
    if is_writer:
        _write(save, source, content, target)
    return target


def _target(folder: Path, name: str, suffix: str) -> Path:
    """Return the path of an artifact; a name without a suffix gets this one."""
    for part in name.split("/"):
        is_plain = part.isprintable() and "\\" not in part and part[:1] not in ("", ".", " ")
        if not is_plain or len(part.encode()) > _LONGEST:
            raise InvalidArgumentError(f"{_RULE}, got {name!r:.200}")
    target = folder / files.ARTIFACTS / name
    if not target.suffix:
        target = target.with_name(f"{target.name}{suffix}")
    for path in (folder / parent for parent in target.relative_to(folder).parents):
        if path.is_symlink() or path.is_file():
            raise InvalidArgumentError(f"{str(path)!r} is a link or a file: remove it, or write another name")
    return target


def _source(content: str | os.PathLike[str], name: str | None) -> Path | None:
    """Return the path to copy, None for a text."""
    if os.path.exists(content):  # noqa: PTH110 - False for a text that cannot be a path
        return Path(content)
    # a text with the suffix of its name is probably a mistyped path
    suffix, words = PurePosixPath(str(name)).suffix, str(content).split()
    is_path = bool(suffix) and str(content).endswith(suffix) and len(words) == 1
    if isinstance(content, str) and name is not None and not is_path:
        return None
    step = "give one that is there, or a text with its name: artifact(text, 'notes.txt')"
    raise InvalidArgumentError(f"no file or folder {str(content)[:200]!r}: {step}")


def _save_of(content: Any) -> tuple[Callable[[str], Any], str]:
    """Return the method that saves an object, and the suffix that is added to a name without a suffix."""
    for saved in (content, getattr(content, "figure", None)):  # seaborn returns axes, which have a figure
        if callable(save := getattr(saved, "savefig", None)):
            return save, ".png"
        if callable(save := getattr(saved, "save", None)):
            return save, ".png" if hasattr(saved, "_repr_png_") else ""  # an image of PIL is saved as PNG
    step = "write it to a file, as torch.save(x, 'x.pt'), and give the file: artifact('x.pt')"
    raise InvalidArgumentError(f"{_KINDS}, got {content!r:.200}: {step}")


def _write(save: Callable[[str], Any] | None, source: Path | None, content: Any, target: Path) -> None:
    """Save an object, copy a path, or write a text, beside the target; sync it, and rename it."""
    stem = f".{target.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
    beside, old = target.with_name(f"{stem}.new.tmp"), target.with_name(f"{stem}.old.tmp")
    new = beside / target.name
    files.make_folder(beside)
    try:
        if save:  # an exception of the object is not one of the storage
            save(str(new))
            if not new.exists():
                step = "save it to a file, and give the file: artifact(path)"
                raise InvalidArgumentError(f"{new.name!r} is not the name under which it saves itself: {step}")
        with files.explained(target):
            if source is None and save is None:
                files.write_file(new, content.encode("utf-8", "backslashreplace"))
            elif source and source.is_dir():
                shutil.copytree(source, new, copy_function=shutil.copyfile)
            elif source:
                shutil.copyfile(source, new)
            for path in (*new.rglob("*"), new):
                if path.is_dir():
                    path.chmod(0o755)  # a read-only folder can be neither renamed nor removed
                files.sync(path)
            if target.is_dir() or (new.is_dir() and target.exists()):
                target.replace(old)  # a folder cannot be replaced in one step
            new.replace(target)
            files.sync(target.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    if old.is_dir():
        shutil.rmtree(old)
    else:
        old.unlink(missing_ok=True)
