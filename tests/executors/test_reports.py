"""The reports of runs, through every executor: progress in order, and questions with their answers."""

from runmanager import EpochRecord, Outcome, Status
from runmanager.core.outcome import BatchProgress, Question
from tests.border.test_executors import RUNS, Watcher, execute, executor

__all__ = ["executor"]  # the fixture


class Judge(Watcher):
    """Notes the class and the epoch of each report; answers questions about the second run."""

    def run_progressed(self, run, news):
        record = news.record if isinstance(news, Question) else news
        self.seen.append((run, type(news).__name__, record.epoch))
        return "behind" if isinstance(news, Question) and run.lr == 0.2 else ""


def asking_work(run, report):
    for epoch in (1, 2):
        report(BatchProgress(epoch, 1))
        report(EpochRecord(epoch, {"loss": run.lr}))
        if why := report(Question(EpochRecord(epoch, {"loss": run.lr}), is_new=False)):
            return Outcome(Status.PRUNED, why, epoch)
    return Outcome(Status.COMPLETED, "", 2)


def test_the_watch_hears_every_report_in_order_and_its_answer_reaches_the_run(executor):
    watch = Judge()

    outcomes = dict(execute(executor, RUNS, asking_work, watch))

    ended = [(outcomes[run].status, outcomes[run].error, outcomes[run].epochs) for run in RUNS]
    completed = (Status.COMPLETED, "", 2)
    assert ended == [completed, (Status.PRUNED, "behind", 1), completed]
    for run in RUNS:
        epochs = (1,) if run.lr == 0.2 else (1, 2)
        reports = [(run, name, n) for n in epochs for name in ("BatchProgress", "EpochRecord", "Question")]
        assert [event for event in watch.seen if event[0] == run] == [(run, "start"), *reports]
