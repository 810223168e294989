"""The experiments under a root: which there are, which names they may have, and advice for other paths."""

import os
import re
from contextlib import suppress
from pathlib import Path

from runmanager.core import files
from runmanager.core.experiment import has_journals, run_folders
from runmanager.core.values import closest
from runmanager.core.wording import listed
from runmanager.errors import InvalidArgumentError

WINDOWS_DEVICES = re.compile(r"(?i:(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?)")
"""The names of devices of Windows, with any suffix."""

_EXPERIMENT = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9_-])?")
_TAKEN = re.compile(f"{files.RUN_FOLDER.pattern}|{WINDOWS_DEVICES.pattern}")
_MOST_NAMES = 8  # the maximum number of experiments named in a message


def is_experiment(path: Path) -> bool:
    """Whether a folder holds the runs of a grid; False if the folder is not readable."""
    with suppress(OSError):
        folders = [path / name for name in run_folders(path)[0]]  # the name may also be a date
        is_run = ((folder / files.RUN).exists() or has_journals(folder) for folder in folders)
        return (path / files.GRID).is_file() or any(is_run)
    return False


def experiments(root: Path) -> list[Path]:
    """Return the experiments in a folder; if the folder is an experiment, only the folder itself."""
    if not root.is_dir() or is_experiment(root):
        return [root]
    return sorted(folder for folder in root.iterdir() if folder.is_dir() and is_experiment(folder))


def no_runs(path: str | os.PathLike[str], what: str = "runs") -> str:
    """Return a message with advice for a folder without runs or epochs."""
    return f"no {what} under {os.fspath(path)}: start a grid first, or give the folder that it wrote"


def no_experiment(path: Path, asked: Path | None = None) -> str:
    """Return a message that the user's path `asked` is not an experiment, with existing experiments."""
    root = path if path.is_dir() and not is_experiment(path) else path.parent
    folders = experiments(root) if root.is_dir() and not is_experiment(root) else []
    if not folders:
        return f"{path} is no experiment, and none is beside it"
    names = listed((folder.name for folder in folders), _MOST_NAMES)
    return f"{path} is no experiment; {nearest(asked or path) or f'{root} has: {names}'}"


def absolute_path(path: Path) -> Path:
    """Return the absolute path, without following links."""
    return Path(os.path.normpath(path.absolute()))


def nearest(path: Path) -> str:
    """Suggest an existing path similar to a missing path, "" if there is none."""
    missing = path
    while not missing.parent.is_dir() and missing != missing.parent:
        missing = missing.parent
    if not path.exists():
        with suppress(OSError):
            names = [entry.name for entry in missing.parent.iterdir() if not entry.name.startswith(".")]
            if close := closest(missing.name, names):
                return f"did you mean {str(missing.parent / close / path.relative_to(missing))!r}?"
    return ""


def check_experiment(root: str | os.PathLike[str], name: str | None, *, is_unnamed: bool = False) -> None:
    """Refuse a root that cannot be a folder, and a name that cannot be the name of an experiment in it."""
    path = Path(root).absolute()
    problems: list[str] = []
    value: object = name  # the caller may pass a value of another type
    if not is_unnamed and not (
        isinstance(value, str) and _EXPERIMENT.fullmatch(value) and not _TAKEN.fullmatch(value)
    ):
        better = re.sub(r"[^A-Za-z0-9._-]+", "_", str(name)).strip("._-")[:59] or "experiment"
        better = f"exp_{better}" if _TAKEN.fullmatch(better) else better
        rule = "an experiment's name is a folder: up to 64 letters, digits, '.', '_' and '-', unlike a run's"
        problems.append(f"{rule}, got {name!r}: write {better!r}")
    with suppress(OSError, ValueError):  # if a folder cannot be read, a later write reports the reason
        file = next((parent for parent in (path, *path.parents) if parent.is_file()), None)
        if file:
            problems.append(f"root must be a folder, such as 'runs'; {str(files.for_people(file))!r} is a file")
        for other in os.listdir(path):  # noqa: PTH208 - no Path each
            if isinstance(value, str) and other != value and other.casefold() == value.casefold():
                fact = f"experiments {name!r} and {other!r} in {files.for_people(path)} differ in case alone"
                problems.append(f"{fact}: write one of the two")
    if problems:
        raise InvalidArgumentError(problems)
