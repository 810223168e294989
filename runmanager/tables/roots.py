"""The experiments under a root, and advice for other paths."""

import os
from contextlib import suppress
from pathlib import Path

from runmanager.core import files
from runmanager.core.experiment import has_journals, run_folders
from runmanager.core.values import closest
from runmanager.core.wording import listed

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


def no_runs(path: str | os.PathLike[str]) -> str:
    """Return a message with advice for a folder without runs."""
    return f"no runs under {os.fspath(path)}: start a grid first, or give the folder that it wrote"


def no_experiment(path: Path, asked: Path | None = None) -> str:
    """Return a message that the user's path `asked` is not an experiment, with existing experiments."""
    root = path if path.is_dir() and not is_experiment(path) else path.parent
    folders = [folder for folder in experiments(root) if folder != root]
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
