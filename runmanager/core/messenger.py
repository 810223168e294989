"""The messenger of a run: it reports to the process that started the grid."""

from dataclasses import dataclass
from time import perf_counter
from typing import Any

from runmanager.core.contracts import Report
from runmanager.core.listeners import RunListener
from runmanager.core.outcome import BatchProgress, EpochRecord, Question


@dataclass(eq=False)
class Messenger(RunListener):
    """Reports the events of a run to the process that started the grid.

    The time spent waiting for answers is part of no duration.

    Args:
        report: Sends a report; for a question, it returns the answer.
        asks: Whether a listener in the parent may stop runs; then the run waits for an answer after each epoch.
        rule: The rule to record for runs that the answers stop.
    """

    report: Report
    asks: bool
    rule: str | None = ""

    def step_ended(self, progress: BatchProgress) -> None:
        """Report a step."""
        self.report(progress)  # the time to send the report is part of the epoch's duration, but is short

    def epoch_ended(self, record: EpochRecord, network: Any, *, is_new: bool = True) -> str | None:
        """Report an epoch; return the reason why the run should stop."""
        before = perf_counter()
        answer = self.report(Question(record, is_new) if self.asks else record)
        self.seconds += perf_counter() - before
        return answer or None

    def asked_again(self, record: EpochRecord) -> str | None:
        """Ask again about the last epoch of earlier attempts."""
        return self.epoch_ended(record, None, is_new=False) if self.asks else None
