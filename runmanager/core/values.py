"""The names and values of hyperparameters: checks, text, JSON and identity."""

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
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Any

BOOL, NUMBER, TEXT = "bool", "number", "text"
"""The types of values in TensorBoard's HParams."""

_MOST_NESTED = 50  # the maximum depth of nested lists, mappings and other containers
_LONG = 10**4300  # this integer and larger ones have more digits than Python converts to text
RESERVED = frozenset((
    "experiment", "run", "epoch", "loss", "accuracy", "status", "epochs", "jobs", "threads", "parameters",
    "attempts", "mixed", "error", "hyperparameters", "folder",
))  # fmt: skip
"""The names of result columns, which are reserved."""
COLUMNS = RESERVED | {"epoch duration", "run duration", "peak memory", "cold start", "stopped early"}
"""Names of result columns; the column of a hyperparameter with such a name gets another name."""

DEVICE_TYPES = ("cpu", "cuda", "mps", "xpu", "hpu", "mtia", "xla", "meta")
_DEVICE = re.compile(r"(?P<type>[a-z]+)(:(?P<index>0|[1-9][0-9]?))?")  # torch reads cuda:256 as cuda:0


def check_names(names: Iterable[str]) -> list[str]:
    """Return a sentence for each invalid name of a hyperparameter."""
    return [problem for name in names if (problem := _name_problem(name))]


def check_groups(names: Iterable[Any]) -> list[str]:
    """Return a sentence for each name that is a hyperparameter and a prefix of others.

    >>> check_groups(["opt", "opt.lr", "width"])
    ["'opt' is an axis, and 'opt.lr' is below it: rename one"]
    """
    texts = [name for name in names if isinstance(name, str)]
    first = {name[:end]: name for name in reversed(texts) for end in range(len(name)) if name[end] == "."}
    return [
        f"{name!r} is an axis, and {first[name]!r} is below it: rename one" for name in texts if name in first
    ]


def check_device(value: Any) -> str | None:
    """Return the error of a device's name, None for a valid name; the device need not exist.

    >>> check_device("cuda:1"), check_device("cpu:3")
    (None, "the cpu has no numbers, got 'cpu:3': write 'cpu'")
    """
    text = str(value)
    match = _DEVICE.fullmatch(text)
    if isinstance(value, (bool, int)) or value is None:
        return f"a device is named by text, got {value!r}: write 'cpu' or 'cuda:0'"
    if match is None or match["type"] not in DEVICE_TYPES:
        return f"unknown device {text!r}: {_device_hint(text)}"
    if match["type"] == "cpu" and match["index"] is not None:
        # torch accepts cpu:3 without an error, and computes on the cpu
        return f"the cpu has no numbers, got {text!r}: write 'cpu'"
    return None


def _device_hint(text: str) -> str:
    kind, _, number = text.lower().replace("gpu", "cuda").partition(":")
    close = closest(kind, DEVICE_TYPES)
    if not close:
        return "write one of: " + ", ".join(DEVICE_TYPES[:4])
    numbered = f"{close}:{number.lstrip('0') or number[:1]}"
    name = numbered if _DEVICE.fullmatch(numbered) and close != "cpu" else close
    return f"did you mean {name!r}?"


def _name_problem(name: Any) -> str | None:
    if not isinstance(name, str):
        return f"a hyperparameter name must be text, got {name!r}"
    first, *below = name.split(".")
    if not (_is_name(first) and not first.startswith("_") and all(map(_is_name, below))):
        parts = [_suggestion(first), *map(_suggestion, filter(None, below))]
        return f"{name!r} cannot be read as run.{name}: write {'.'.join(parts)!r}"
    return None


def _is_name(part: str) -> bool:
    # configurations use names such as _target_; namedtuples reserve names with only a leading underscore
    is_reserved = part.startswith("__") or (part.startswith("_") and not part.endswith("_"))
    return part.isidentifier() and not keyword.iskeyword(part) and not is_reserved


def _suggestion(part: str) -> str:
    name = re.sub(r"\W", "_", part.strip()).strip("_") or "name"
    return f"{name}_" if keyword.iskeyword(name) else f"p{name}" if name[0].isdigit() else name


def column(name: str) -> str:
    """Return the result column of a hyperparameter.

    >>> column("lr"), column("epochs")
    ('lr', 'epochs (hyperparameter)')
    """
    return f"{name} (hyperparameter)" if name in COLUMNS or name.startswith(("best ", "kept ")) else name


def check_value(value: Any) -> str | None:
    """Return the error of a value that cannot be stored and identified again, None for any other value.

    >>> check_value([1, None]), check_value(10**5000)
    (None, 'a number of over 4,300 digits cannot be written: give it as text')
    """
    kind = type(value)
    if kind in (str, bool, float, type(None)) or (kind is int and abs(value) < _LONG):
        return None
    if is_deep(value):
        rule = f"a value that is nested more than {_MOST_NESTED} deep cannot be read again"
        return f"{rule}: make it flatter, or give its name"
    if not _is_nameable(value):
        rule = f"a value of the class {kind.__name__} has no identity in another process"
        return f"{rule}: give it a name and look it up, as in networks[run.name]"
    try:
        text(value)
    except ValueError:
        return "a number of over 4,300 digits cannot be written: give it as text"
    return None


def _is_nameable(value: Any) -> bool:
    """Whether a value has the same identity in every process, so that its run can be found again."""
    value = plain(value)
    if isinstance(value, (list, tuple)):
        return all(map(_is_nameable, value))
    if isinstance(value, Mapping):
        return all(_is_nameable(item) for pair in value.items() for item in pair)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return all(_is_nameable(getattr(value, field.name)) for field in dataclasses.fields(value))
    if is_named(value):
        return "<lambda>" not in value.__qualname__
    is_plain = value is None or isinstance(value, (bool, int, float, str, enum.Enum, PurePath))
    return is_plain or is_torch(value, "device", "dtype")


def is_named(value: Any) -> bool:
    """Whether a value is a class or a function, which are identified by their names."""
    return isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__"))


def check_values(pairs: Iterable[tuple[Any, Any]]) -> list[str]:
    """Return a sentence for each hyperparameter with values that cannot be stored."""
    problems = ((name, check_value(value)) for name, value in pairs)
    return list(dict.fromkeys(f"{name!r}: {problem}" for name, problem in problems if problem))


def is_deep(value: Any) -> bool:
    """Whether a value is nested too deep for recursive functions, or contains itself."""
    level = [value]
    for _ in range(_MOST_NESTED):
        below: dict[int, Any] = {}
        for outer in level:
            items = (*outer, *outer.values()) if isinstance(outer, Mapping) else outer
            below |= {id(item): item for item in items} if isinstance(items, (list, tuple)) else {}
        level = list(below.values())
        if not level:
            return False
    return True


def plain(value: Any) -> Any:
    """Convert a NumPy scalar or a 0-dimensional tensor to a Python number; return other values unchanged."""
    if type(value).__module__ in ("numpy", "torch") and getattr(value, "ndim", None) == 0:
        return value.item()
    return value


def kind(value: Any) -> str:
    """Return the type of a value in HParams.

    >>> kind(True), kind(3), kind(float("nan")), kind(None)
    ('bool', 'number', 'text', 'text')
    """
    value = plain(value)
    if isinstance(value, bool):
        return BOOL
    is_number = isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
    return NUMBER if is_number else TEXT


def common_kind(kinds: Iterable[str]) -> str:
    """Return the common type of several values, text if they differ.

    >>> common_kind(["number", "number"]), common_kind(["number", "bool"])
    ('number', 'text')
    """
    first, *others = {*kinds}
    return TEXT if others else first


def text(value: Any) -> str:
    """Format a value as short text for tables and messages.

    >>> text(0.010), text(("a", 1)), text((64,)), text(None), text(float)
    ('0.01', '(a, 1)', '(64,)', 'None', 'float')
    """
    value = plain(value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(text, value))}{',' * (len(value) == 1)})"
    if is_named(value):
        return str(value.__qualname__)
    return value.name if isinstance(value, enum.Enum) else str(value)


def json_value(value: Any) -> Any:
    """Convert a value to strict JSON for people and scripts: NaN becomes null, other objects text.

    >>> json_value((1, float("nan"), {"a": float}))
    [1, None, {'a': 'float'}]
    """
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if isinstance(value, Mapping):
        return {text(key): json_value(item) for key, item in value.items()}
    return text(value)


def encode(value: Any) -> Any:
    """Encode a value as strict JSON, from which `decode` restores it with its type.

    >>> decode(encode(((3, 3), float("inf")))), decode(encode(int))
    (((3, 3), inf), 'int')
    """
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
    for kind in ("device", "dtype"):
        if is_torch(value, kind):
            return {f"${kind}": str(value)}
    return _public_name(value) if is_named(value) else text(value)


def decode(value: Any) -> Any:
    """Decode a value from `encode`."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise ValueError(f"not an encoded value: {value!r}")
    (tag, content), *_ = value.items()
    match tag:
        case "$float" if content in ("nan", "inf", "-inf"):
            return float(content)
        case "$tuple" if isinstance(content, list):
            return tuple(decode(item) for item in content)
        case "$dict" if isinstance(content, list):
            try:
                return {decode(key): decode(item) for key, item in content}
            except TypeError as error:
                raise ValueError(f"not the items of a dict: {content!r}") from error
        case "$device" | "$dtype" if isinstance(content, str):
            return _torch_value(tag[1:], content)
    raise ValueError(f"not an encoded value: {value!r}")


def _torch_value(kind: str, content: str) -> Any:
    import torch

    with suppress(RuntimeError):
        value = torch.device(content) if kind == "device" else vars(torch).get(content.removeprefix("torch."))
        if is_torch(value, kind):
            return value
    raise ValueError(f"not a torch {kind}: {content!r}")


def is_torch(value: Any, *kinds: str) -> bool:
    """Whether a value is an instance of a torch class with one of these names."""
    # compare names, so that grids of plain numbers never import torch
    return type(value).__module__ == "torch" and type(value).__name__ in kinds


def _public_name(value: Any) -> str:
    """Return the shortest importable name of a class or function, such as torch.optim.SGD."""
    packages = itertools.accumulate(str(value.__module__).split("."), "{}.{}".format)
    name = str(value.__qualname__)
    homes = [package for package in packages if getattr(sys.modules.get(package), name, None) is value]
    home = homes[0] if homes else value.__module__
    return name if home in ("builtins", "__main__") else f"{home}.{name}"


def full_name(value: Any) -> str:
    """Return the module and the qualified name of a class or a function."""
    return f"{value.__module__}.{value.__qualname__}"


def identity(params: Mapping[str, Any]) -> str:
    """Hash the canonical form of a run's hyperparameters, in any order, to 16 hex digits.

    >>> identity({"lr": 1, "n": 2}) == identity({"n": 2, "lr": 1.0}) != identity({"lr": True, "n": 2})
    True
    """
    content = {name: canonical(value) for name, value in params.items()}
    document = json.dumps(content, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(document.encode()).hexdigest()[:16]


def canonical(value: Any) -> Any:  # noqa: PLR0911 - one for each kind of value
    """Return the canonical form of a value as strict JSON: equal values have equal forms.

    >>> canonical((1.0, "a", None)), canonical(float("nan"))
    ([1, 'a', None], {'number': 'nan'})
    """
    value = plain(value)
    if value is None or (isinstance(value, (bool, str)) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, enum.Enum):
        return {"enum": f"{full_name(type(value))}.{value.name}"}
    if isinstance(value, (int, float)):
        if isinstance(value, float) and not math.isfinite(value):
            return {"number": str(value)}
        return int(value) if value == int(value) else float(value)
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    if isinstance(value, Mapping):
        pairs = [[canonical(key), canonical(item)] for key, item in value.items()]
        return {"mapping": sorted(pairs, key=json.dumps)}
    if is_named(value):
        return {"name": full_name(value)}
    if isinstance(value, PurePath) or is_torch(value, "device", "dtype"):
        return str(value)
    name = full_name(type(value))
    if dataclasses.is_dataclass(value):
        fields = {field.name: canonical(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"data": [name, fields]}
    return {"object": [name, repr(value)]}  # a cell of a table


# minimum similarity of names, and of short names, in which one letter has a larger weight
_CUTOFF, _CUTOFF_OF_SHORT = 0.6, 0.5
_SHORT = 3  # maximum number of letters of a short name


def closest(name: str, names: Iterable[str]) -> str:
    """Return the most similar name, ignoring case; "" if no name is similar.

    >>> closest("widht", ["lr", "width"]), closest("LT", ["lr", "seed"]), closest("x", ["lr"])
    ('width', 'lr', '')
    """
    by_case = {original.lower(): original for original in names}
    cutoff = _CUTOFF if len(name) > _SHORT else _CUTOFF_OF_SHORT
    close = difflib.get_close_matches(name.lower(), by_case, n=1, cutoff=cutoff)
    return by_case[close[0]] if close else ""
