"""Artifacts of a run: copies of files and folders, saved objects and texts under `artifacts/` in its folder."""

import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runmanager.core import files
from runmanager.errors import InvalidArgumentError
from runmanager.tables.roots import absolute_path


def keep(folder: Path, content: Any, name: str | None, *, is_writer: bool = True) -> Path:
    """Write an artifact to a run's folder, see `RunManager.artifact`; without `is_writer`, only validate it."""
    source, save, suffix = None, None, ""
    if not isinstance(content, str | os.PathLike):
        save, suffix = _save_of(content)
    elif os.path.exists(content):  # noqa: PTH110 - False for a text that cannot be a path
        source = absolute_path(Path(content))
        name = source.name if name is None else name
    elif name is None or not isinstance(content, str):
        raise InvalidArgumentError(
            f"no file or folder {str(content)[:200]!r}: give one that is there, or a text with its name: "
            "artifact(text, 'notes.txt')"
        )
    if name is None:
        kind = type(content).__name__.lower()
        raise InvalidArgumentError(f"this {kind} needs a name: write artifact({kind}, {kind!r})")
    target = _target(folder, str(name), suffix, source)
    if is_writer:
        _write(save, source, content, target, folder / f".artifact.{uuid.uuid4().hex}.tmp")
    return target


def _target(folder: Path, name: str, suffix: str, source: Path | None) -> Path:
    """Return the path of an artifact; refuse names and folders that cannot be copied to it."""
    is_hidden = any(part[:1] in ("", ".", " ") for part in name.split("/"))
    if is_hidden or "\\" in name or not name.isprintable():
        raise InvalidArgumentError(
            "an artifact's name is that of a file or folder under artifacts/, as 'plots/roc.png', without '..' "
            f"and a dot in front, got {name!r:.200}"
        )
    target = folder / files.ARTIFACTS / name
    if not target.suffix:
        target = target.with_name(f"{target.name}{suffix}")
    for path in target.parents:
        if path.is_file():
            raise InvalidArgumentError(f"{str(path)!r} is a file: remove it, or write another name")
    for path in source.rglob("*") if source else ():
        if not path.is_file() and (path.is_symlink() or not path.is_dir()):
            raise InvalidArgumentError(
                f"{str(path)!r} is neither a file nor a folder of its own: copy what it leads to, or remove it"
            )
    if source and target.parent.resolve().is_relative_to(source.resolve()):
        raise InvalidArgumentError(f"{str(source)!r} contains the artifact itself: give a part of it")
    return target


def _save_of(content: Any) -> tuple[Callable[[str], Any], str]:
    """Return the method that saves an object, and the suffix that is added to a name without a suffix."""
    for saved in (content, getattr(content, "figure", None)):  # seaborn returns axes, which have a figure
        if callable(save := getattr(saved, "savefig", None)):
            return save, ".png"
        if callable(save := getattr(saved, "save", None)):
            return save, ".png" if hasattr(saved, "_repr_png_") else ""  # an image of PIL is saved as PNG
    raise InvalidArgumentError(
        "artifact() takes the path of a file or folder, a text with its name, or an object with savefig(path) "
        f"or save(path), got {content!r:.200}: write it to a file, as torch.save(x, 'x.pt'), and give the "
        "file: artifact('x.pt')"
    )


def _write(
    save: Callable[[str], Any] | None, source: Path | None, content: Any, target: Path, beside: Path
) -> None:
    """Save an object, copy a path, or write a text, in the folder `beside`; sync it, and rename it."""
    new = beside / target.name
    files.make_folder(beside)
    try:
        if save:  # an exception of the object is not one of the storage
            save(str(new))
            if not new.exists():
                raise InvalidArgumentError(
                    f"{new.name!r} is not the name under which it saves itself: save it to a file, and give "
                    "the file: artifact(path)"
                )
        with files.explained(target):
            if source and source.is_dir():
                shutil.copytree(source, new, copy_function=shutil.copyfile)
            elif source:
                shutil.copyfile(source, new)
            elif not save:
                new.write_text(content, "utf-8", "backslashreplace", newline="")
            for path in (*new.rglob("*"), new):
                if path.is_dir():
                    path.chmod(0o755)  # a read-only folder can be neither renamed nor removed
                files.sync(path)
            files.make_folder(target.parent)
            files.exchange(new, target)
            files.sync(target.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
