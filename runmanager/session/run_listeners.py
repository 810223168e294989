"""The grid's listeners in a worker: the stop at the next rung, and the messenger to the parent."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from runmanager.errors import of_grid
from runmanager.executors import Report
from runmanager.outcome import BatchProgress, EpochRecord, News, Question
from runmanager.search.halving import SuccessiveHalving
from runmanager.training.listeners import RunListener


class NextRung(RunListener):
    """Stops a run at its next rung, where the run waits for the other runs."""

    def __init__(self, halving: SuccessiveHalving) -> None:
        self._halving = halving
        self.last_epoch = halving.next_rung(0)

    def attempt_began(
        self,
        records: Sequence[EpochRecord] = (),
        *,
        num_committed: int = 0,
        keep: str | None = None,
        last_step: int = 0,
    ) -> None:
        """Compute the next rung: the first rung after the epochs in earlier journals."""
        self.last_epoch = self._halving.next_rung(num_committed)

    def epoch_began(self, *, is_saved: bool, learning_rate: float | None) -> None:
        """Check that the run can be resumed.

        Raises:
            InvalidArgumentError: The run saves no checkpoint.
        """
        if not is_saved:
            raise of_grid(
                "prune= stops runs at a rung and resumes the best of them, but this run saves no checkpoint: "
                "write `for epoch in manager.epochs(n, checkpoint={...})`"
            )

    def epoch_ended(self, record: EpochRecord, network: Any) -> str | None:
        """Stop the run if it is at the rung.

        Raises:
            InvalidArgumentError: The epoch lacks the metric by which runs are compared.
        """
        return self._at_rung(record)

    def asked_again(self, record: EpochRecord) -> str | None:
        """Stop the run if it is already at the rung.

        The run is at the rung if its last epoch is in the checkpoint, but not in the journal.
        """
        return self._at_rung(record)

    def _at_rung(self, record: EpochRecord) -> str | None:
        if record.epoch != self.last_epoch:
            return None
        self._halving.check(record.metrics)
        return ""


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
