"""What results depend on beside the hyperparameters, code, data, versions and commit, and what has changed."""

import contextlib
import functools
import platform
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from runmanager import __version__
from runmanager.storage.code_hash import hash_of_code, short_hash
from runmanager.storage.code_parts import is_plain, parts
from runmanager.storage.read_values import PARTS_OF_DATA, hashes_of_values, note_records

Fingerprint = Mapping[str, Mapping[str, str]]
"""Kind (code, values, data, versions) -> name -> hash or version."""

_KINDS = {"code": "code", "values": "content"}

_MOST_BYTES = 1 << 26  # of a tensor that are hashed: larger ones are sampled evenly
_MOST_PARTS = 8  # of data that have a hash each


def fingerprint(train: Callable[..., Any], data: Any = None, too_large: list[str] | None = None) -> Fingerprint:
    """Take the fingerprint of a training function.

    `train` is hashed as compiled, with every function, class and constant of the user's own files that it
    loads, however deep. Comments, docstrings, annotations and layout do not count, and of a partial's arguments
    text does not, which mostly is a path. Dicts, lists, tensors, ... that it loads are hashed by content; the
    names of values that are too large go to `too_large`.

    `data` is tensors, arrays, a dataset of them, or text that stands for it; of anything else the type, length
    and repr count.
    """
    all_parts = parts(train)
    code = {name: hash_of_code(part) for name, part in sorted(all_parts.items())}
    if isinstance(train, functools.partial):
        given = [*train.args, *sorted(train.keywords.items())]
        code["its arguments"] = short_hash(repr([v for v in given if is_plain(v) and not _has_text(v)]))
    values = hashes_of_values(
        all_parts.values(), _arguments(train), data, [] if too_large is None else too_large
    )
    kinds = {"code": code, "values": values, "versions": versions()}
    return kinds if data is None else {**kinds, "data": {"data": _hash_of_data(data)}}


def note_changes_by_runs(train: Callable[..., Any], before: Fingerprint) -> None:
    """Compare no longer, in this process, what `train` reads and runs that were executed in it have changed."""
    note_records(parts(train).values(), _arguments(train), before["values"])


def fingerprint_changes(before: Fingerprint, now: Fingerprint, *, only_common: bool = False) -> list[str]:
    """Return the differences between two fingerprints; a kind that either lacks is not compared.

    Of versions the first two numbers count: the cpu and the CUDA build of a release are the same. `only_common`
    compares the functions and values that both have.

    >>> fingerprint_changes({"versions": {"torch": "2.14.1+cpu"}}, {"versions": {"torch": "2.15.0"}})
    ['torch 2.14.1+cpu -> 2.15.0']
    """
    differences: list[str] = []
    for kind in ("code", "values", "data", "versions"):
        old, new = before.get(kind), now.get(kind)
        if old is None or new is None:
            continue
        # code that no longer reads a value has changed itself
        is_common = kind == "values" or (kind == "code" and only_common)
        for name in sorted(old.keys() & new.keys() if is_common else {*old, *new}):
            if old.get(name) == new.get(name):
                continue
            if kind == "versions":
                if _release(old.get(name, "")) != _release(new.get(name, "")):
                    differences.append(f"{name} {old.get(name, 'none')} -> {new.get(name, 'none')}")
            else:
                differences.append("the data" if kind == "data" else f"{_KINDS[kind]} of {name}")
    return differences


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that results depend on."""
    versions = {"python": platform.python_version(), "runmanager": __version__}
    for name in ("torch", "numpy"):
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


@functools.cache
def git_commit() -> str:
    """Return the git commit of the working directory, with ``+changes`` if files differ; empty without git."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if not head:
        return ""
    return f"{head}+changes" if _git("status", "--porcelain", "--untracked-files=no") else head


def command() -> str:
    """Return the name of the program, without its arguments, which may hold secrets."""
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] else ""


def _arguments(train: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments of a partial, by name."""
    if not isinstance(train, functools.partial):
        return {}
    return {**{f"argument {number}": value for number, value in enumerate(train.args, 1)}, **train.keywords}


def _release(number: str) -> list[str]:
    return number.partition("+")[0].split(".")[:2]


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            ["git", *arguments],  # noqa: S607 - whichever git the user has
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _has_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, tuple) and isinstance(value[-1], str))


def _hash_of_data(data: Any) -> str:
    if isinstance(data, str):
        return data
    if hasattr(data, "untyped_storage"):
        return _hash_of_tensor(data)
    if _is_numbers(data):
        import torch

        return _hash_of_tensor(torch.as_tensor(data))
    parts = _parts_of_data(data)
    if parts is not None:
        joined = "-".join(map(_hash_of_data, parts))
        return joined if len(parts) <= _MOST_PARTS else short_hash(joined)
    length = len(data) if hasattr(data, "__len__") else ""
    # a dataset's repr names its folder and transforms
    return short_hash(f"{type(data).__qualname__} {length} {data!r}".partition(" at 0x")[0])


def _is_numbers(data: Any) -> bool:
    if hasattr(data, "__array_interface__"):
        return str(data.dtype.kind) in "biufc"
    return isinstance(data, list) and bool(data) and all(isinstance(item, int) for item in data)


def _parts_of_data(data: Any) -> Sequence[Any] | None:
    """Return what data consists of, None if that is not known."""
    if isinstance(data, Mapping):
        return [part for item in data.items() for part in item]
    if isinstance(data, (list, tuple)):
        return data
    for names in PARTS_OF_DATA:
        if all(hasattr(data, name) for name in names):
            return [getattr(data, name) for name in names]
    return None


def _hash_of_tensor(tensor: Any) -> str:
    flat = tensor.detach().cpu().reshape(-1)
    step = -(-flat.numel() * flat.element_size() // _MOST_BYTES)
    sample = flat[:: max(1, step)].contiguous()
    import torch

    content = sample.view(torch.uint8).numpy() if sample.numel() else b""
    return f"{zlib.crc32(content):08x}{tuple(tensor.shape)}{tensor.dtype}".replace(" ", "")
