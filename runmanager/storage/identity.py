"""The identity of a run: a hash of its hyperparameters, independent of process and order."""

import dataclasses
import enum
import hashlib
import json
import math
import re
import sys
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from runmanager.hyperparameters import digest, full_name, is_array, is_torch, plain

# addresses differ between processes, and all lambdas of a function have the same name
_NAMELESS = re.compile(r" at 0x[0-9a-fA-F]+|<lambda>")
_ABBREVIATED = re.compile(r"\.\.\.|\b(?:array|tensor)\(")  # NumPy and torch round and omit elements


def identity(params: Mapping[str, Any]) -> str:
    """Hash the canonical form of a run's hyperparameters, in any order, to 16 hex digits.

    >>> identity({"lr": 1, "n": 2}) == identity({"n": 2, "lr": 1.0}) != identity({"lr": True, "n": 2})
    True
    """
    return _hashed({name: canonical(value) for name, value in params.items()})


def is_nameable(value: Any) -> bool:
    """Whether a value has the same identity in every process, so that its run can be found again."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(is_nameable(item) for item in value)
    if isinstance(value, Mapping):
        return all(is_nameable(item) for pair in value.items() for item in pair)
    if isinstance(value, str):
        return True
    content = canonical(value)
    if isinstance(content, dict) and "object" in content:
        return not (_NAMELESS.search(content["object"][1]) or _ABBREVIATED.search(content["object"][1]))
    return not _NAMELESS.search(str(content))


def canonical(value: Any) -> Any:  # noqa: PLR0911 - one for each kind of value
    """Return the canonical form of a value as strict JSON: equal values have equal forms.

    Numbers are compared by value: ``1`` and ``1.0`` are the same hyperparameter, but ``True`` differs from
    both. A list equals a tuple with the same elements. Arrays, tensors, sets and data classes are compared by
    content, classes and functions by full name, torch devices by their text, and other values by class and
    `repr`.

    >>> canonical((1.0, "a", None)), canonical(float("nan"))
    ([1, 'a', None], {'number': 'nan'})
    """
    value = plain(value)
    if value is None or (isinstance(value, (bool, str)) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, enum.Enum):
        return {"enum": f"{full_name(type(value))}.{value.name}"}
    if isinstance(value, (int, float)):
        return _canonical_number(value)
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    if isinstance(value, Mapping):
        pairs = [[canonical(key), canonical(item)] for key, item in value.items()]
        return {"mapping": sorted(pairs, key=json.dumps)}
    if isinstance(value, type) or (callable(value) and hasattr(value, "__qualname__")):
        return {"name": full_name(value)}
    if isinstance(value, PurePath) or is_torch(value, "device", "dtype"):
        return str(value)
    return _canonical_content(value)


def _canonical_number(value: float) -> Any:
    if isinstance(value, int):
        return int(value)
    if not math.isfinite(value):
        return {"number": str(value)}
    return int(value) if value.is_integer() else float(value)


def _canonical_content(value: Any) -> Any:
    name = full_name(type(value))
    if isinstance(value, (set, frozenset)):
        return {"set": sorted((canonical(item) for item in value), key=json.dumps)}
    if is_array(value):
        return {"array": [str(value.dtype), list(value.shape), digest(value)]}
    if dataclasses.is_dataclass(value):
        fields = {field.name: canonical(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"data": [name, fields]}
    if state := _module_state(value):
        return {"module": [name, repr(value), {key: canonical(item) for key, item in state.items()}]}
    return {"object": [name, repr(value)]}


def _module_state(value: Any) -> dict[str, Any]:
    """Return the weights of a torch module; empty for modules without weights, and for other values."""
    torch = sys.modules.get("torch")
    return dict(value.state_dict()) if torch and isinstance(value, torch.nn.Module) else {}


def _hashed(content: Mapping[str, Any]) -> str:
    document = json.dumps(content, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(document.encode()).hexdigest()[:16]
