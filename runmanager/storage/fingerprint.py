"""Fingerprints of runs - code, values, data and versions - and their differences."""

import contextlib
import functools
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from runmanager import __version__

Fingerprint = Mapping[str, Mapping[str, str]]
"""Kind (code, statements, values, objects, data, versions) -> name -> hash, text of a value, or version."""


class FingerprintChange(NamedTuple):
    """A difference between two fingerprints."""

    kind: str  # as in a fingerprint
    name: str
    before: str  # "" if there was none
    now: str

    def __str__(self) -> str:
        match self.kind:
            case "code" | "statements":
                return f"source of {self.name}"
            case "weights":  # weights of another run that this run has loaded
                return f"weights of {self.name}"
            case "values" | "objects":
                return f"{self.name} was {self.before}, is {self.now}"
            case "data":
                return "the data" if self.before else "data= is given now"
            case _:
                return f"{self.name} {self.before or 'none'} -> {self.now or 'none'}"


def changes_between(
    before: Fingerprint, now: Fingerprint, *, only_common: bool = False
) -> list[FingerprintChange]:
    """Return the differences between two fingerprints; kinds that either lacks are not compared.

    Exception: data that were not given before count. Versions are compared by their first two numbers, so the
    cpu and CUDA builds of a release are equal. `only_common` compares only names in both.

    >>> [str(change) for change in changes_between({"values": {"BATCH": "32"}}, {"values": {"BATCH": "64"}})]
    ['BATCH was 32, is 64']
    """
    changes: list[FingerprintChange] = []
    for kind in ("code", "statements", "values", "objects", "data", "versions"):
        old, new = before.get(kind), now.get(kind)
        if kind == "data" and before and not only_common:
            old = old or {}
        if old is None or new is None:
            continue
        # code that does not read a value any more has changed as well
        is_common = kind in ("statements", "values", "objects") or (kind == "code" and only_common)
        # a statement counts if the values are incomplete
        plain = before.get("values", {}).keys() & now.get("values", {}).keys() if kind == "statements" else ()
        for name in sorted(old.keys() & new.keys() if is_common else {*old, *new}):
            before_value, now_value = old.get(name, ""), new.get(name, "")
            is_named = kind == "objects" and any(change[:2] == ("statements", name) for change in changes)
            if name in plain or is_named:
                continue
            if (
                _release(before_value) != _release(now_value)
                if kind == "versions"
                else before_value != now_value
            ):
                changes.append(FingerprintChange(kind, name, before_value, now_value))
    return changes


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that affect results."""
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
    """Return the name of the program, without its arguments, which may contain secrets."""
    return Path(sys.argv[0]).name if sys.argv and sys.argv[0] else ""


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
