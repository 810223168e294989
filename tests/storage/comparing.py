"""Differences between fingerprints, as they are told to the user."""

from types import SimpleNamespace

from runmanager.checks.changed import changes_since


def fingerprint_changes(before, now):
    return changes_since(SimpleNamespace(loaded={}, start={"fingerprint": before}), now)
