"""The names and values of hyperparameters: what is valid, their text and JSON, and the identity of a run."""

import dataclasses
import difflib
import enum
import hashlib
import itertools
import json
import keyword
import math
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import PurePath
from typing import Any

from runmanager.errors import GridError, first_line

RESERVED = frozenset((
    "experiment", "run", "epoch", "loss", "accuracy", "status", "epochs", "jobs", "threads", "parameters",
    "attempts", "mixed", "error", "hyperparameters", "folder",
))  # fmt: skip
"""The names of result columns, which are reserved."""
COLUMNS = RESERVED | {"epoch duration", "run duration", "peak memory", "cold start", "stopped early"}
"""Names of result columns; the column of a hyperparameter with such a name gets another name."""
STEP = "step"
"""The third column of a table of steps; no logged value has this name."""

NUMBER, TEXT = "number", "text"
"""Types of values in HParams; the third one is bool."""

_MOST_NESTED = 50  # the maximum depth of nested lists, mappings and other containers
_LONG = 10**4300  # this integer and larger ones have more digits than Python converts to text
_DEVICE_TYPES = ("cpu", "cuda", "mps", "xpu", "hpu", "mtia", "xla", "meta")
# torch reads cuda:256 as cuda:0, and computes on the cpu for cpu:3
_DEVICE = re.compile(f"cpu|({'|'.join(_DEVICE_TYPES[1:])})(:(0|[1-9][0-9]?))?")
OMEGACONF = ("omegaconf.dictconfig", "omegaconf.listconfig")
"""The modules of the classes of OmegaConf's configurations."""
_TORCH = ("torch.device", "torch.dtype")  # compared as text, so that grids of plain numbers never import torch


def check_names(names: Collection[Any]) -> list[str]:
    """Return a sentence for each invalid name of a hyperparameter, and for each that is a prefix of others."""
    problems: list[str] = []
    below: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str):
            problems.append(f"a hyperparameter name must be text, got {name!r}")
            continue
        written, is_name = [], not name.startswith("_")
        parts = name.split(".")
        for part in parts:
            word = re.sub(r"\W", "_", part.strip()).lstrip("_0123456789") or "x"
            word += "_" * keyword.iskeyword(word)
            written.append(word)
            # namedtuples reserve names that only begin with an underscore; configurations have some as _target_
            is_special = re.fullmatch("_([^_].*_)?", part) is not None
            is_name &= part.isidentifier() and (part == word or is_special)
        if not is_name:
            problems.append(f"{name!r} cannot be read as run.{name}: write {'.'.join(written)!r}")
        for group in itertools.accumulate(parts[:-1], "{}.{}".format):
            below.setdefault(group, name)
    problems += [
        f"{name!r} is an axis, and {below[name]!r} is below it: rename one" for name in names if name in below
    ]
    return problems


def check_values(pairs: Iterable[tuple[Any, Any]]) -> list[str]:
    """Return a sentence for each value that cannot be stored and identified again, and each invalid device."""
    problems: dict[str, None] = {}
    for name, value in pairs:
        refused: list[str] = []
        _canonical(value, refused, axis=name)
        problems |= dict.fromkeys(f"{name!r}: {problem}" for problem in refused)
        if name == "device" and not refused and not _DEVICE.fullmatch(str(value)):
            problems[_unknown_device(value)] = None
    return list(problems)


def _unknown_device(value: Any) -> str:
    written = str(value)
    name, _, number = written.lower().replace("gpu", "cuda").partition(":")
    close = closest(name, _DEVICE_TYPES)
    if not close:
        return f"unknown device, got {value!r}: write one of: {', '.join(_DEVICE_TYPES[:4])}, or 'cuda:0'"
    numbered = f"{close}:{number.lstrip('0') or number[:1]}"
    return f"unknown device {written!r}: did you mean {numbered if _DEVICE.fullmatch(numbered) else close!r}?"


def number(value: Any) -> Any:
    """Return a NumPy scalar or 0-dimensional tensor as a number; return other values unchanged."""
    if type(value).__module__ in ("numpy", "torch") and getattr(value, "ndim", None) == 0:
        return value.item()
    return value


def plain(value: Any, *, resolve: bool = True) -> Any:
    """Return a NumPy scalar or 0-dimensional tensor as a number, a configuration of OmegaConf as dicts."""
    if type(value).__module__ not in OMEGACONF:
        return number(value)
    omega = sys.modules["omegaconf"].OmegaConf
    try:
        return omega.to_container(value, resolve=resolve, throw_on_missing=resolve)
    except Exception as error:
        cause = f"{type(error).__name__}: {first_line(error)}"
        raise GridError(f"the configuration cannot be read ({cause}): give it that value") from error


def identity(params: Mapping[str, Any]) -> str:
    """Hash the hyperparameters of a run, in any order, to 16 hex digits."""
    content = {name: _canonical(value, []) for name, value in params.items()}
    document = json.dumps(content, sort_keys=True, allow_nan=False)
    return hashlib.sha256(document.encode()).hexdigest()[:16]


def key_of(value: Any) -> str:
    """Return a text that is the same for equal values, in every process."""
    return json.dumps(_canonical(value, []))


def _canonical(  # noqa: C901, PLR0911, PLR0912
    value: Any, refused: list[str], num_levels: int = _MOST_NESTED, axis: str = ""
) -> Any:
    """Return a value as JSON that is the same for equal values, and append why it cannot be stored."""
    value = plain(value)
    if isinstance(value, enum.Enum):
        return {"enum": f"{full_name(type(value))}.{value.name}"}
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        if abs(value) >= _LONG:
            refused.append("a number of over 4,300 digits cannot be written: give it as text")
            return None
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return {"number": str(value)}
        return int(value) if value == int(value) else float(value)
    name = full_name(type(value))
    if isinstance(value, PurePath) or name in _TORCH:
        return str(value)
    if is_named(value) and "<lambda>" not in value.__qualname__:
        return {"name": full_name(value)}
    if refused:  # a list that contains itself twice would never end
        return None
    if num_levels == 0:
        rule = f"a value that is nested more than {_MOST_NESTED} deep cannot be read again"
        refused.append(f"{rule}: make it flatter, or give its name")
        return None
    inner = partial(_canonical, refused=refused, num_levels=num_levels - 1, axis=axis)
    if isinstance(value, (list, tuple)):
        return [*map(inner, value)]
    if isinstance(value, Mapping):
        return {"mapping": sorted((json.dumps(inner(k)), json.dumps(inner(v))) for k, v in value.items())}
    if dataclasses.is_dataclass(value):
        return {name: {field.name: inner(getattr(value, field.name)) for field in dataclasses.fields(value)}}
    what, step = f"a value of the class {type(value).__name__}", ""
    if is_named(value):
        what, step = "a lambda", "define it with def, or "
    rule = f"{what} has no name by which the next start knows it"
    refused.append(f"{rule}: {step}give a name and look it up in train, as in networks[run.{axis}]")
    return {name: repr(value)}  # a cell of a table


def is_named(value: Any) -> bool:
    """Whether a value is a class or a function, which are identified by their names."""
    return isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__"))


def full_name(value: Any) -> str:
    """Return the module and the qualified name of a class or a function."""
    return f"{value.__module__}.{value.__qualname__}"


def column(name: str) -> str:
    """Return the result column of a hyperparameter."""
    return f"{name} (hyperparameter)" if name in COLUMNS or name.startswith(("best ", "kept ")) else name


def kinds_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the type of each hyperparameter in HParams, text if types differ or a run lacks it."""
    rows, kinds = [*rows], dict[str, str]()
    for name in dict.fromkeys(itertools.chain(*rows)):
        for params in rows:
            value = plain(params.get(name))
            is_number = isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
            kind = "bool" if isinstance(value, bool) else NUMBER if is_number else TEXT
            kinds[name] = kind if kinds.get(name, kind) == kind else TEXT
    return kinds


def text(value: Any) -> str:
    """Format a value as short text for tables and messages."""
    value = plain(value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(text, value))}{',' * (len(value) == 1)})"
    return value.name if isinstance(value, enum.Enum) else str(getattr(value, "__qualname__", value))


def encode(value: Any) -> Any:  # noqa: PLR0911 - one for each kind of value
    """Encode a value as strict JSON, from which `decode` restores it with its type."""
    value = plain(value)
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, (list, tuple)):
        items = [encode(item) for item in value]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, Mapping):
        return {"$dict": [[encode(key), encode(item)] for key, item in value.items()]}
    if full_name(type(value)) in _TORCH:
        return {f"${type(value).__name__}": str(value)}
    if not is_named(value):
        return text(value)
    # the shortest name that can be imported, such as torch.optim.SGD
    name, home = str(value.__qualname__), str(value.__module__)
    for package in itertools.accumulate(home.split("."), "{}.{}".format):
        if getattr(sys.modules.get(package), name, None) is value:
            home = package
            break
    return name if home in ("builtins", "__main__") else f"{home}.{name}"


def decode(value: Any, num_levels: int = _MOST_NESTED) -> Any:
    """Decode a value from `encode`; the error of any other value is a ValueError."""
    if not isinstance(value, (list, dict)):
        return value
    if num_levels == 0:
        raise ValueError(f"nested more than {_MOST_NESTED} deep")
    inner = partial(decode, num_levels=num_levels - 1)
    if isinstance(value, list):
        return [*map(inner, value)]
    match [*value.items()]:
        case [("$float", "nan" | "inf" | "-inf" as number)]:
            return float(number)
        case [("$tuple", [*items])]:
            return tuple(map(inner, items))
        case [("$dict", [*items])]:
            with suppress(TypeError):  # no pairs, or a key that no dict has
                return {inner(key): inner(item) for key, item in items}
        case [("$device" | "$dtype" as tag, str(name))]:
            import torch

            with suppress(RuntimeError):
                read = torch.device(name) if tag == "$device" else vars(torch).get(name.removeprefix("torch."))
                if full_name(type(read)) == f"torch.{tag[1:]}":
                    return read
    raise ValueError(f"not an encoded value: {value!r}")


def closest(name: str, names: Iterable[str]) -> str:
    """Return the most similar name, ignoring case; "" if no name is similar."""
    by_case = {original.lower(): original for original in names}
    cutoff = 0.6 if len(name) > 3 else 0.5  # noqa: PLR2004 - in a short name, one letter has a larger weight
    close = difflib.get_close_matches(name.lower(), by_case, n=1, cutoff=cutoff)
    return by_case[close[0]] if close else ""
