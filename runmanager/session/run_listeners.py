"""The messenger of a run: it reports to the process that started the grid."""

from time import perf_counter
from typing import Any

from runmanager.core.listeners import RunListener
from runmanager.core.outcome import BatchProgress, EpochRecord, News, Question
from runmanager.executors import Report


class Messenger(RunListener):
    """Reports the events of a run to the process that started the grid.

    The time spent waiting for answers is part of no duration.

    Args:
        report: Sends a report; for a question, it returns the answer.
        rule: The rule to record for runs that the answers stop.
        asks: Whether a listener in the parent may stop runs; then the run waits for an answer after each epoch.
    """

    def __init__(self, report: Report, rule: str, *, asks: bool) -> None:
        self._report, self._asks, self.rule = report, asks, rule

    def step_ended(self, progress: BatchProgress) -> None:
        """Report a step."""
        self._report(progress)  # the time to send the report is part of the epoch's duration, but is short

    def epoch_ended(self, record: EpochRecord, network: Any) -> str | None:
        """Report an epoch; return the reason why the run should stop."""
        return self._answer(Question(record) if self._asks else record)

    def asked_again(self, record: EpochRecord) -> str | None:
        """Ask again about the last epoch of earlier attempts."""
        return self._answer(Question(record, is_new=False)) if self._asks else None

    def _answer(self, news: News) -> str | None:
        before = perf_counter()
        answer = self._report(news)
        self.seconds += perf_counter() - before
        return answer or None
