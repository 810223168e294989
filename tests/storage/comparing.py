"""Differences between fingerprints, as they are told to the user."""

from runmanager.core.state import changes_between


def fingerprint_changes(before, now, **options):
    return [str(change) for change in changes_between(before, now, **options)]
