"""Differences between fingerprints, as they are told to the user."""

from types import SimpleNamespace
from typing import Any

from runmanager.checks.changed import changes_since


def fingerprint_changes(before, now):
    run: Any = SimpleNamespace(loaded={}, start={"fingerprint": before})
    return changes_since(run, now, {})
