"""The identity of a run: a hash of its hyperparameters, independent of process and order."""

import dataclasses
import enum
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from runmanager.core.hyperparameters import full_name, is_named, is_torch, plain


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
