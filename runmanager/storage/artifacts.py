"""Artifacts of a run: copies of files and folders, saved objects and texts under `artifacts/` in its folder."""

import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from runmanager.errors import InvalidArgumentError
from runmanager.storage import durable, paths

_LONGEST = 200  # maximum number of bytes of a name; a temporary name is longer
_NOT_EVERYWHERE = set('<>:"|?*\\')  # characters that some systems do not allow in names
_OLD = re.compile(r"\.(?P<name>.+)\.\d+\.[0-9a-f]{8}\.old\.tmp", re.DOTALL)
_LEFTOVER = re.compile(r"\..+\.\d+\.[0-9a-f]{8}(\.new)?\.tmp", re.DOTALL)
_RULE = (
    "an artifact's name is that of a file or folder under artifacts/, as 'plots/roc.png', without '..', a dot "
    "in front, or characters that other systems refuse"
)
_KINDS = (
    "artifact() takes the path of a file or folder, a text with its name, "
    "or an object with savefig(path), save(path) or to_csv(path)"
)
# method -> suffix that is added to a name without a suffix
_SUFFIXES = {"savefig": ".png", "save": "", "to_csv": ".csv"}


class _Save(NamedTuple):
    """The method that writes an object to a path, and the suffix that is added to names without a suffix."""

    write: Callable[[str], Any]
    suffix: str


def keep(folder: Path, content: Any, name: str | None, *, is_writer: bool = True) -> Path:
    """Write an artifact to a run's folder, see `RunManager.artifact`; without `is_writer`, only validate it.

    Raises:
        InvalidArgumentError: The name or the content cannot be used; nothing was written.
        StorageError: The artifact could not be written; a previous artifact of the same name is unchanged.
    """
    source = _source(content, name)
    save = None if source or isinstance(content, str) else _save_of(content)
    if name is None and source:
        name = paths.absolute(source).name
    if name is None:
        kind = type(content).__name__
        step = f"write artifact({kind.lower()}, {kind.lower()!r})"
        raise InvalidArgumentError([f"this {kind} needs a name: {step}"])
    if save and not PurePosixPath(str(name)).suffix:
        name = f"{name}{save.suffix}"
    target = folder / paths.ARTIFACTS / _checked(name)
    if source:
        _check_source(source, target, folder)
    if not is_writer:
        return target
    with _temporary() if save else nullcontext("") as temporary:
        if save:  # save first, so that an object that cannot be saved changes no file of the run
            source = _saved(save, Path(temporary, target.name))
        _check_target(target, folder)
        durable.make_folder(target.parent)
        with durable.explained(target):
            _tidy(target.parent)
        if source:
            _copy(source, target)
        else:
            with _instead_of_a_folder(target):
                durable.write_file(target, str(content).encode("utf-8", "backslashreplace"))
    return target


def names(folder: Path, *, files_only: bool = False) -> list[str]:
    """List the artifacts in a run's folder: files and folders, no links."""
    top = folder / paths.ARTIFACTS
    if top.is_symlink():
        return []
    listed: list[str] = []
    for inside, folders, files in os.walk(top):
        folders[:] = [name for name in folders if not _is_leftover(name)]
        entries = [*(name for name in files if not _is_leftover(name)), *(() if files_only else folders)]
        present = [Path(inside, name) for name in entries]
        listed += [path.relative_to(top).as_posix() for path in present if _is_regular(path)]
    return sorted(listed)


def move_aside(folder: Path, attempt: int, name: str) -> None:
    """Rename an artifact of a superseded attempt, if there is one.

    Raises:
        StorageError: The artifact could not be renamed.
    """
    source, target = folder / paths.ARTIFACTS / name, folder / f"attempt-{attempt}.{paths.ARTIFACTS}" / name
    with durable.explained(source):
        if source.exists() and not target.exists():
            durable.make_folder(target.parent)
            durable.rename(source, target)
            durable.sync_folder(target.parent)


def _is_leftover(name: str) -> bool:
    return bool(_OLD.fullmatch(name) or _LEFTOVER.fullmatch(name))


def _is_regular(path: Path) -> bool:
    mode = path.lstat().st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _source(content: Any, name: str | None) -> Path | None:
    """Return the path to copy, None if the content is not a path.

    Raises:
        InvalidArgumentError: The path does not exist.
    """
    if not isinstance(content, str | os.PathLike):
        return None
    path = Path(content)
    if os.path.lexists(path) and str(content):
        return path
    if isinstance(content, str) and name is not None and not _is_like_path(content, name):
        return None
    hint = ""
    with suppress(OSError, ValueError):  # the errors for a long text, or a text with a NUL
        hint = paths.nearest(path)
    hint = hint or "give one that is there, or a text with its name: artifact(text, 'notes.txt')"
    raise InvalidArgumentError([f"no file or folder {str(content)[:200]!r}: {hint}"])


def _is_like_path(text: str, name: str) -> bool:
    """Whether a text is probably a mistyped path: one word with the same suffix as the name."""
    suffix = PurePosixPath(str(name)).suffix
    return bool(suffix) and text.endswith(suffix) and not any(map(str.isspace, text))


def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="runmanager-", ignore_cleanup_errors=True)


def _save_of(content: Any) -> _Save:
    """Return the method that saves an object.

    Raises:
        InvalidArgumentError: The object has no such method.
    """
    for saved in (content, getattr(content, "figure", None)):  # seaborn returns axes, which have a figure
        for method, suffix in _SUFFIXES.items():
            if callable(write := getattr(saved, method, None)):
                # an image of PIL is saved as PNG
                return _Save(write, suffix or (".png" if hasattr(saved, "_repr_png_") else ""))
    step = "write it to a file, as torch.save(x, 'x.pt'), and give the file: artifact('x.pt')"
    raise InvalidArgumentError([f"{_KINDS}, got {content!r:.200}: {step}"])


def _saved(save: _Save, path: Path) -> Path:
    """Write an object to a path, and return the path.

    Raises:
        InvalidArgumentError: The object does not support the suffix, or wrote no file to the path.
    """
    try:
        save.write(str(path))
    except ValueError as error:
        if save.suffix != ".png":
            raise
        rule = f"{path.name!r} has no suffix of a figure"
        raise InvalidArgumentError([f"{rule}: write {f'{path.name}.png'!r} ({error})"]) from error
    if not path.exists():
        step = "save it to a file, and give the file: artifact(path)"
        raise InvalidArgumentError([f"{path.name!r} is not the name under which it saves itself: {step}"])
    return path


def _checked(name: Any) -> PurePosixPath:
    """Return a name as a relative path.

    Raises:
        InvalidArgumentError: The name leads outside `artifacts/`, or some systems do not allow the name.
    """
    parts = name.split("/") if isinstance(name, str) else [""]
    if all(map(_is_usable, parts)):
        return PurePosixPath(*parts)
    better = re.sub(r"[^\w.-]+", "_", str(name).rpartition("/")[2]).strip("._")[:40] or "artifact"
    raise InvalidArgumentError([f"{_RULE}, got {name!r:.200}: write {better!r}"])


def _is_usable(part: str) -> bool:
    is_plain = part.isprintable() and _NOT_EVERYWHERE.isdisjoint(part)
    return (
        is_plain
        and bool(part)
        and part[0] not in ". "
        and part[-1] not in ". "
        and not paths.is_reserved(part)
        and len(part.encode()) <= _LONGEST
    )


def _check_source(source: Path, target: Path, folder: Path) -> None:
    """Refuse a source that cannot be copied; the message lists all its links and special files.

    Raises:
        InvalidArgumentError: The source cannot be copied.
    """
    if source.is_symlink():
        raise InvalidArgumentError([f"{str(source)!r} is a link: give the file or folder that it leads to"])
    if source.is_file():
        return
    if not source.is_dir():
        raise InvalidArgumentError([f"{str(source)!r} is no file or folder: {_KINDS}"])
    real, home = source.resolve(), folder.resolve()
    if home.is_relative_to(real) or (real != target.resolve() and target.resolve().is_relative_to(real)):
        raise InvalidArgumentError([f"{str(source)!r} contains the artifact itself: give a part of it"])
    problems = [
        f"{str(path)!r} in {source.name!r} is neither a file nor a folder: remove it, or give the files alone"
        for inside, folders, files in os.walk(source)
        for path in (Path(inside, name) for name in [*folders, *files])
        if not _is_regular(path)
    ]
    if problems:
        raise InvalidArgumentError(problems[:10])


def _check_target(target: Path, folder: Path) -> None:
    """Refuse a name whose parent folders are links or files; an artifact of the same name is replaced.

    Raises:
        InvalidArgumentError: The name cannot be used.
    """
    for path in (*reversed(target.relative_to(folder).parents[:-1]), target.relative_to(folder)):
        present = folder / path
        if present.is_symlink():
            raise InvalidArgumentError([f"{str(present)!r} is a link, which is not followed: remove it"])
        if present != target and present.exists() and not present.is_dir():
            rule = f"{str(present)!r} is a file and cannot contain others"
            raise InvalidArgumentError([f"{rule}: give the artifact another name"])
        if same := paths.same_but_case(present):
            raise InvalidArgumentError([f"{same}: give the artifact another name, or that one"])


def _copy(source: Path, target: Path) -> None:
    if source.resolve() == target.resolve():
        return
    if not source.is_dir():
        with _instead_of_a_folder(target):
            durable.copy_file(source, target)
        return
    with durable.explained(target):
        temporary = _beside(target, "new")
        try:
            for inside, _, files in os.walk(source):
                folder = temporary / Path(inside).relative_to(source)
                durable.make_folder(folder)
                for name in files:
                    durable.copy_file(Path(inside, name), folder / name)
            with _aside(target):
                durable.rename(temporary, target)
                durable.sync_folder(target.parent)
        finally:
            _remove(temporary)


@contextmanager
def _instead_of_a_folder(target: Path) -> Iterator[None]:
    """Let the block write a file in place of a folder at the target."""
    if not target.is_dir():
        yield
        return
    with durable.explained(target), _aside(target):
        yield


@contextmanager
def _aside(target: Path) -> Iterator[None]:
    """Rename the target during the block, then remove it; restore the target if the block fails."""
    old = _beside(target, "old") if os.path.lexists(target) else None
    if old:
        durable.rename(target, old)
    try:
        yield
    except BaseException:
        if old:
            durable.rename(old, target)
        raise
    if old:
        _remove(old)


def _beside(target: Path, kind: str) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.{kind}.tmp")


def _tidy(folder: Path) -> None:
    """Remove temporary files of a writer that died, and restore the files that the writer had renamed."""
    for path in list(folder.iterdir()):
        if (match := _OLD.fullmatch(path.name)) and not os.path.lexists(folder / match["name"]):
            durable.rename(path, folder / match["name"])
        elif match or _LEFTOVER.fullmatch(path.name):
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        durable.remove_file(path)
