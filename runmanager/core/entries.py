"""The entry of a run in grid.json and run.json: its folder and its hyperparameters."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runmanager.core import files
from runmanager.core.files import read_file
from runmanager.core.values import decode, encode, is_deep

VERSION = 1
_LARGEST = 64 * 2**20  # the maximum number of bytes of a grid.json or run.json


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run."""

    path: Path  # the folder, which exists after the run has begun
    number: int  # number of the run in the experiment, from 1; the column `run`
    id: str  # the identity of the hyperparameters
    params: Mapping[str, Any]
    # reason why the run cannot be executed on this machine, empty if the run can be executed
    unavailable: str = ""
    since: int = 0  # the last attempt that does not count, as code, data or versions have changed since

    @property
    def is_here(self) -> bool:
        """Whether the run has begun, or can be executed on this machine."""
        return not self.unavailable or self.path.is_dir()


def to_entry(run: RunFolder) -> dict[str, Any]:
    """Return the entry of a run."""
    content: dict[str, Any] = {"number": run.number, "id": run.id, "folder": run.path.name}
    content["params"] = {name: encode(value) for name, value in run.params.items()}
    content["crc"] = _checksum(content)
    return content | ({"unavailable": run.unavailable} if run.unavailable else {})


def from_entry(experiment: Path, entry: Any, others: set[str], damaged: list[str]) -> RunFolder | None:
    """Read the entry of a run whose folder is not in `others`; append errors to `damaged`."""
    try:
        name = entry["folder"]
        number = files.run_number(name)
        if number is None or name in others:
            raise ValueError(f"not a run's folder: {name!r}")  # noqa: TRY301 - damaged, as below
        if "crc" in entry and entry["crc"] != _checksum(entry):
            raise ValueError("its checksum differs")  # noqa: TRY301
        params = {str(key): decode(value) for key, value in entry["params"].items()}
        if any(map(is_deep, params.values())):
            raise ValueError("a value is nested too deep")  # noqa: TRY301
        "".join(params).encode()  # a lone surrogate cannot name a column
        reason = str(entry.get("unavailable", ""))
        return RunFolder(experiment / name, number, str(entry["id"]), params, reason)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        name = entry.get("folder") if isinstance(entry, dict) else None
        file = experiment / (f"{name}/{files.RUN}" if isinstance(name, str) else files.GRID)
        damaged.append(f"{file}: a run that cannot be read ({error!s:.200})")
        return None


def _checksum(entry: Mapping[str, Any]) -> str:
    document = json.dumps([entry["id"], entry["params"]], sort_keys=True)
    return f"{zlib.crc32(document.encode()):08x}"


def read_json(path: Path, damaged: list[str] | None = None) -> dict[str, Any] | None:
    """Read a file with one JSON object; None if missing or unreadable. Note unreadable files in `damaged`."""
    damaged = [] if damaged is None else damaged
    try:
        content = json.loads(read_file(path, _LARGEST)[0])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        damaged.append(f"{path} ({error})")
        return None
    if not isinstance(content, dict):
        damaged.append(f"{path} (not an object)")
        return None
    return content
