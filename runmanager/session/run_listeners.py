"""The grid's own listeners where a run is executed: its next rung, and the messenger to the parent."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from runmanager.errors import PruneError
from runmanager.executors import Report
from runmanager.outcome import BatchProgress, EpochRecord, News, Question
from runmanager.search.halving import SuccessiveHalving
from runmanager.training.listeners import RunListener


class NextRung(RunListener):
    """Stops a run at its next rung, where it waits until the other runs are there."""

    def __init__(self, halving: SuccessiveHalving) -> None:
        self._halving = halving
        self.last_epoch = halving.next_rung(0)

    def attempt_began(
        self,
        records: Sequence[EpochRecord] = (),
        *,
        num_committed: int = 0,
        keep: str | None = None,
        until: float = 0.0,
    ) -> None:
        """Find the rung: the first one after the epochs that journals had before."""
        self.last_epoch = self._halving.next_rung(num_committed)

    def epoch_began(self, *, is_saved: bool, learning_rate: float | None) -> None:
        """Make sure that the run can be resumed.

        Raises:
            PruneError: It saves no checkpoint.
        """
        if not is_saved:
            raise PruneError(
                "prune= stops runs at a rung and resumes the best of them, but this run saves no checkpoint: "
                "write `for epoch in manager.epochs(n, checkpoint={...})`"
            )

    def epoch_ended(self, record: EpochRecord, network: Any) -> str | None:
        """Stop the run if it is at the rung.

        Raises:
            PruneError: It has no metric to be compared by.
        """
        return self._at_rung(record)

    def asked_again(self, record: EpochRecord) -> str | None:
        """Stop the run if it is at the rung: its last epoch may be in the checkpoint alone."""
        return self._at_rung(record)

    def _at_rung(self, record: EpochRecord) -> str | None:
        if record.epoch != self.last_epoch:
            return None
        self._halving.check(record.metrics)
        return ""


class Messenger(RunListener):
    """Reports what a run does to the process that started the grid.

    The time that the run waits for its answer is no part of any duration.

    Args:
        report: Sends it, and returns the answer to a question.
        rule: By which the answers stop a run.
        asks: Whether a listener there may stop runs: then the run waits for its answer.
    """

    def __init__(self, report: Report, rule: str, *, asks: bool) -> None:
        self._report, self._asks, self.rule = report, asks, rule

    def step_ended(self, progress: BatchProgress) -> None:
        """Report how far the run is."""
        self._report(progress)  # a moment of the epoch

    def epoch_ended(self, record: EpochRecord, network: Any) -> str | None:
        """Report an epoch; return why the run is to stop."""
        return self._answer(Question(record) if self._asks else record)

    def asked_again(self, record: EpochRecord) -> str | None:
        """Ask about the last epoch of earlier attempts."""
        return self._answer(Question(record, is_new=False)) if self._asks else None

    def _answer(self, news: News) -> str | None:
        before = perf_counter()
        answer = self._report(news)
        self.seconds += perf_counter() - before
        return answer or None
