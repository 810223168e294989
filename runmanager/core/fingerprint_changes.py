"""The differences between two fingerprints of code, values, data and versions."""

from collections.abc import Mapping
from typing import NamedTuple

Fingerprint = Mapping[str, Mapping[str, str]]
"""Kind (code, statements, values, data, versions) -> name -> hash, text of a value, or version."""


class FingerprintChange(NamedTuple):
    """A difference between two fingerprints."""

    kind: str  # the kind of the changed part, as in a fingerprint
    name: str
    before: str  # the value before the change; "" if there was no value
    now: str

    def __str__(self) -> str:
        match self.kind:
            case "code" | "statements":
                return f"source of {self.name}"
            case "loaded":  # files of another run, such as "files of pretrain/001"
                return self.name
            case "values":
                return f"{self.name} was {self.before}, is {self.now}"
            case "data":
                return "the data" if self.before else "data= is given now"
            case _:
                return f"{self.name} {self.before or 'none'} -> {self.now or 'none'}"


def changes_between(before: Fingerprint, now: Fingerprint) -> list[FingerprintChange]:
    """Return the differences between two fingerprints; kinds that only one fingerprint has are not compared.

    >>> [str(change) for change in changes_between({"values": {"BATCH": "32"}}, {"values": {"BATCH": "64"}})]
    ['BATCH was 32, is 64']
    """
    changes: list[FingerprintChange] = []
    for kind in ("code", "statements", "values", "data", "versions"):
        old, new = before.get(kind), now.get(kind)
        if kind == "data" and before:
            old = old or {}
        if old is None or new is None:
            continue
        # code that no longer reads a value has changed too
        is_common = kind in ("statements", "values")
        for name in sorted(old.keys() & new.keys() if is_common else {*old, *new}):
            before_value, now_value = old.get(name, ""), new.get(name, "")
            is_release = kind == "versions"
            if (_release(before_value) != _release(now_value)) if is_release else before_value != now_value:
                changes.append(FingerprintChange(kind, name, before_value, now_value))
    return changes


def _release(number: str) -> list[str]:
    return number.partition("+")[0].split(".")[:2]
