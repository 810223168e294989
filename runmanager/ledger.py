"""How runs ended, what that means, and what to do next."""

from runmanager.storage import paths
from runmanager.storage.folders import RunFolder
from runmanager.storage.journal import Outcome, Status

RETRY_FAILED = "retry_failed=True (--retry-failed) executes them again"

GOING_ON = frozenset({Status.KILLED, Status.INTERRUPTED, Status.PENDING})
"""Where the same command goes on on this machine."""


def is_worth_a_retry(outcome: Outcome) -> bool:
    """Whether the same run may end otherwise next time: its process was killed, or hung."""
    return outcome.status in (Status.KILLED, Status.HUNG)


def next_step(outcome: Outcome, place: RunFolder, *, is_retried: bool = False) -> str:
    """Say what to do about the outcome of a run, "" if nothing is to be done.

    Args:
        outcome: How it ended.
        place: Where it lives.
        is_retried: Whether it is executed again by itself.
    """
    kept = "1 epoch is kept" if outcome.epochs == 1 else f"{outcome.epochs} epochs are kept"
    log = place.path / paths.ERROR_LOG
    if is_retried:
        return f"{kept}; it is executed again after the other runs"
    steps = {
        Status.FAILED: f"the traceback is in {log}; once that is mended, start again with --retry-failed",
        Status.OUT_OF_MEMORY: "it would fail again: make it smaller, or free memory, and --retry-failed",
        Status.DIVERGED: f"{kept}; it is not repeated: the same numbers would come",
        Status.HUNG: f"{kept}; where it was is in {log}; mend it or give it more --timeout, and --retry-failed",
        Status.KILLED: f"{kept}; the same command goes on from there; its last words are in {log}",
        Status.UNAVAILABLE: f"{kept}; start the same command again where the device answers",
    }
    return steps.get(outcome.status, "")
