"""All file names under the root."""

import hashlib
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from runmanager.core.values import closest, text
from runmanager.errors import InvalidArgumentError

GRID = "grid.json"
HPARAMS = "hparams.json"
RUN = "run.json"
RESULTS_CSV = "results.csv"
RESULTS_JSON = "results.json"
ERROR_LOG = "error.log"
CHECKPOINT = "checkpoint.pt"
PREVIOUS_CHECKPOINT = "checkpoint.prev.pt"
INSIDE_CHECKPOINT = "checkpoint.inside.pt"
WEIGHTS = "weights.pt"
HOLDER = "holder.json"
REPORT = "report.html"
ARTIFACTS = "artifacts"
TRAINER = "trainer"
"""The folder of an external trainer's checkpoints, in a run's folder."""

_EXPERIMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# a hyphen is allowed only before a setting; a date has other hyphens
_FOLDER = re.compile(r"(?P<number>[0-9]{3,9})(?:(?:~|-(?=.*[=~]))[A-Za-z0-9._=~-]*)?")
# devices of Windows, with any suffix
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
_ATTEMPT = re.compile(r"attempt-(?P<number>[1-9][0-9]{0,8})\.jsonl")
_LONGEST = 64  # maximum number of characters of a run folder's name; TensorBoard cuts longer names


def for_people(path: Path) -> Path:
    """Return a path as messages show it: relative if the path is below the working directory."""
    with suppress(OSError):  # the working directory may have been removed
        here = Path.cwd()
        return path.relative_to(here) if path.is_relative_to(here) else path
    return path


def absolute(path: Path) -> Path:
    """Return the absolute path, without following links."""
    return Path(os.path.normpath(path.absolute()))


def nearest(path: Path) -> str:
    """Suggest an existing path similar to a missing path, "" if there is none."""
    if path.exists():
        return ""
    missing = path
    while not missing.parent.is_dir():
        missing = missing.parent
        if missing == missing.parent:
            return ""
    with suppress(OSError):
        names = [entry.name for entry in missing.parent.iterdir() if not entry.name.startswith(".")]
        if close := closest(missing.name, names):
            return f"did you mean {str(missing.parent / close / path.relative_to(missing))!r}?"
    return ""


def check_root(root: str | os.PathLike[str], experiment: str | None = None) -> None:
    """Refuse a root that cannot be a folder, or cannot contain an experiment of this name."""
    path = Path(root).absolute()
    present = path
    with suppress(OSError, ValueError):  # if the folder cannot be read, a later write reports the reason
        present = next(parent for parent in (path, *path.parents) if parent.exists())
    if present.is_file():
        raise InvalidArgumentError(
            [f"root must be a folder, such as 'runs'; {str(for_people(present))!r} is a file"]
        )
    if isinstance(experiment, str) and (same := same_but_case(path / experiment)):
        raise InvalidArgumentError([f"experiments {same}: write one of the two"])


def check_experiment(name: str) -> str:
    """Return the name of an experiment if it is a valid folder name."""
    value: object = name  # the caller may pass a value of another type
    if isinstance(value, str) and _EXPERIMENT.fullmatch(value) and not _is_taken(value) and value[-1] != ".":
        return name
    better = re.sub(r"[^A-Za-z0-9._-]+", "_", str(name)).strip("._-")[:59] or "experiment"
    better = f"exp_{better}" if _is_taken(better) else better
    rule = "an experiment's name is a folder: up to 64 letters, digits, '.', '_' and '-', unlike a run's"
    raise InvalidArgumentError([f"{rule}, got {name!r}: write {better!r}"])


def _is_taken(name: str) -> bool:
    """Whether a name means something else: a run's folder, or a device of Windows."""
    return run_number(name) is not None or is_reserved(name)


def is_reserved(name: str) -> bool:
    """Whether Windows takes the name of a file or folder for a device.

    >>> is_reserved("con"), is_reserved("NUL.txt"), is_reserved("console")
    (True, True, False)
    """
    return bool(_RESERVED.fullmatch(name))


def same_but_case(path: Path) -> str:
    """Describe a file or folder beside a path whose name differs in case alone, "" if there is none."""
    with suppress(OSError):  # the folder may be missing
        for name in os.listdir(path.parent):  # noqa: PTH208 - no Path each
            if name != path.name and name.casefold() == path.name.casefold():
                return f"{path.name!r} and {name!r} in {for_people(path.parent)} differ in case alone"
    return ""


def run_folder(number: int, params: Mapping[str, Any], digits: int = 3) -> str:
    """Return the folder name of a run: the run's number, then its hyperparameters, in at most 64 characters.

    >>> run_folder(7, {"lr": 0.010, "device": "cuda:0"})
    '007-lr=0.01-device=cuda0'
    """
    slug = _joined(params)
    name = f"{number:0{digits}d}-{slug}".rstrip(".-")  # Windows cuts off dots at the end of a name
    return shortened(name, repr(list(params.items())))


def combination(params: Mapping[str, Any]) -> str:
    """Return a name of 64 characters or fewer for hyperparameters; values with equal text differ by a suffix.

    >>> combination({"lr": 0.010, "device": "cuda:0"})
    'lr=0.01-device=cuda0'
    >>> combination({"lr": "0.01"})
    'lr=0.01~9c2ee7'
    """
    name, whole = _joined(params), repr(list(params.items()))
    return shortened(name, whole) if all(map(_is_unambiguous, params.values())) else _marked(name, whole)


def _is_unambiguous(value: Any) -> bool:
    """Whether a value is unambiguous in a name: a number with few digits, or a plain word."""
    if value is None or isinstance(value, bool | int):
        return True
    if isinstance(value, float):
        return text(value) == repr(value) or float(text(value)) == value
    if not isinstance(value, str) or slug(value) != value.replace(":", "") or value.endswith("."):
        return False
    try:
        float(value)
    except ValueError:
        return value not in ("", "None", "True", "False", "none", "true", "false")
    return False


def shortened(name: str, whole: str | None = None) -> str:
    """Cut a name to 64 characters; a hash of `whole` or of the name at its end keeps the name unique."""
    return name if len(name) <= _LONGEST else _marked(name, whole or name)


def _marked(name: str, whole: str) -> str:
    digest = hashlib.sha256(whole.encode("utf-8", "replace")).hexdigest()[:6]
    return f"{name[: _LONGEST - 7].rstrip('._,=-')}~{digest}"


def run_number(folder: str) -> int | None:
    """Return the number in a run's folder name, None for any other name."""
    digits = number_text(folder)
    return int(digits) if digits else None


def number_text(folder: str) -> str:
    """Return the number in a run's folder name with its leading zeros, "" for any other name.

    >>> number_text("007-lr=0.01"), number_text("2026-11-22")
    ('007', '')
    """
    match = _FOLDER.fullmatch(folder)
    return match["number"] if match else ""


def journal(number: int) -> str:
    """Return the file name of an attempt's journal; attempts count from 1."""
    return f"attempt-{number}.jsonl"


def steps(number: int) -> str:
    """Return the file name of an attempt's logged steps."""
    return f"attempt-{number}.steps.jsonl"


def journals_by_attempt(folder: Path) -> dict[int, str]:
    """Return the journals in a run's folder in order: attempt -> path."""
    path = os.fspath(folder)
    names = [name for name in os.listdir(path) if name.startswith("attempt-")]  # noqa: PTH208 - no Path each
    journals = {int(m["number"]): f"{path}/{name}" for name in names if (m := _ATTEMPT.fullmatch(name))}
    return dict(sorted(journals.items()))


def _joined(params: Mapping[str, Any]) -> str:
    return "-".join(f"{slug(name)}={slug(text(value))}" for name, value in params.items())


def slug(value: str) -> str:
    """Reduce a text to characters for folder names: letters, digits, dots, dashes and underscores.

    >>> slug("cuda:0"), slug("größe")
    ('cuda0', 'gr_e')
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "_", value.replace(":", "")).strip("_")
