"""Executing the runs of a plan: what a search hands out goes to an executor, and each outcome is committed."""

import contextlib
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace

from runmanager.devices import ranks
from runmanager.errors import StorageError
from runmanager.executors import Executor
from runmanager.executors.base import uncommitted
from runmanager.executors.signals import INTERRUPTED, Stop
from runmanager.grid import Run
from runmanager.hyperparameters import identity
from runmanager.launch.announce import announce, point_to_tensorboard
from runmanager.launch.commit import Committer, Exports
from runmanager.launch.plan import Action, Plan, PlannedRun
from runmanager.launch.task import GridWork
from runmanager.live.progress import GridProgress
from runmanager.outcome import Outcome, Status
from runmanager.search.base import Journals, Search
from runmanager.storage import paths

COMPLETED, SOME_FAILED, STORAGE_FAILED = 0, 1, 74
"""Exit codes; 2 is that nothing was started."""


class Decisions:
    """Asks a search which runs of a plan are executed next; under torchrun all ranks get the answer of rank 0.

    Args:
        plan: All runs of the grid.
        search: What decides; it is begun here.
    """

    def __init__(self, plan: Plan, search: Search) -> None:
        self._plan = plan
        self._search = search
        start_over = {planned.id for planned in plan if planned.action is Action.START_OVER}
        self._journals = Journals((planned.before for planned in plan), start_over)
        if ranks.is_main():
            search.begin([planned.folder for planned in plan], {planned.id for planned in plan.due})

    def next(self, in_progress: Collection[str] = ()) -> Plan:
        """Return the plan in which the runs that are due now are to be executed, and the others wait."""
        return ranks.from_main(
            lambda: self._plan.decided(self._search.next(self._journals, in_progress), self._journals)
        )

    def run_ended(self, id_: str) -> None:
        """Note that the journal of a run has changed."""
        self._journals.run_ended(id_)


@dataclass(frozen=True)
class OnFailure:
    """What a grid does about runs that do not complete.

    Attributes:
        retries: How often a run is executed again whose process was killed, or hung.
        is_end: Whether the first failure ends the grid.
    """

    retries: int
    is_end: bool


class Execution:
    """Executes the runs of a plan, batch after batch.

    Args:
        plan: What to do with each run.
        search: What decides which runs are executed next.
        executor: Where runs are executed.
        task: Executes one run.
        on_failure: What to do about runs that do not complete.
        stop: Tells of Ctrl-C and other signals.
        show: Whether anything is shown.

    Attributes:
        progress: Shows the batch that is executed, or was the last one.
    """

    progress: GridProgress

    def __init__(
        self,
        plan: Plan,
        search: Search,
        executor: Executor,
        task: GridWork,
        on_failure: OnFailure,
        stop: Stop,
        *,
        show: bool,
    ) -> None:
        self._runs = {planned.id: planned for planned in plan}
        self._search = search
        self._decisions = Decisions(plan, search)
        self._executor = executor
        self._task = task
        self._on_failure = on_failure
        self._stop = stop
        self._show = show
        self._experiment = task.experiment.path
        self._retries: dict[str, int] = {}
        self._committer = Committer(task.experiment, task.fingerprint)
        self._exports = Exports(self._experiment)

    def run(self) -> int:
        """Execute runs until none is due; return the exit code."""
        exit_code, is_first = COMPLETED, True
        while True:
            batch = self._decisions.next()
            if not (is_first or batch.due or batch.behind or batch.sentences):
                return exit_code
            lanes = self._executor.num_lanes([planned.run for planned in batch.due])
            self.progress = GridProgress(
                self._experiment.name, [planned.folder for planned in batch.due], batch.varying,
                lanes=lanes, past=batch.costs, show=self._show, check=self._stop.check,
            )  # fmt: skip
            if is_first:
                self._announce(batch)
            ended = self._execute(batch, replace(self._task, jobs=lanes))
            exit_code, is_first = ended or exit_code, False
            is_broken_off = ended not in (COMPLETED, SOME_FAILED) or (ended and self._on_failure.is_end)
            if is_broken_off or not batch.due:
                return exit_code

    def _announce(self, batch: Plan) -> None:
        announce(self.progress.say, self._experiment, batch, self._search)
        if self._task.tensorboard and self._show and batch.due:
            point_to_tensorboard(self.progress.say, self._experiment)

    def _execute(self, batch: Plan, task: GridWork) -> int:
        """Execute a batch, and what the search adds to it if it is asynchronous; return the exit code."""
        runs = deque(planned.run for planned in batch.due)
        in_progress = {planned.id for planned in batch.due}
        exit_code = COMPLETED
        outcomes = self._executor.execute(runs, task, self.progress)
        try:
            with self.progress, self._stop.at_once(), contextlib.closing(outcomes):
                self._begin(batch)
                for run, ended in outcomes:
                    with self._stop.later():
                        planned = self._planned(run)
                        outcome, is_retried = self._end(planned, ended)
                        if is_retried:
                            runs.append(run)
                    if is_retried:
                        continue
                    in_progress.discard(planned.id)
                    if not outcome.status.is_success:
                        exit_code = SOME_FAILED
                        if self._on_failure.is_end:
                            self.progress.say("stopped at the first failure (on_error='stop')")
                            break
                    if self._search.is_asynchronous:
                        more = self._decisions.next(in_progress)
                        self.progress.add([planned.folder for planned in more.due])
                        self._begin(more)
                        runs.extend(planned.run for planned in more.due)
                        in_progress |= {planned.id for planned in more.due}
        except KeyboardInterrupt:
            self.progress.stopping()
            return self._stop.exit_code or INTERRUPTED
        except StorageError as error:
            self.progress.say(f"✗ {error}")
            return STORAGE_FAILED
        return exit_code

    def _begin(self, batch: Plan) -> None:
        """Say what was decided, and commit which runs are behind if their journals do not say so."""
        self._committer.expect([*batch.due, *batch.behind])
        self._retries |= dict.fromkeys((planned.id for planned in batch.due), self._on_failure.retries)
        for sentence in batch.sentences:
            self.progress.say(sentence)
        if ranks.is_main():
            with self._stop.later():
                for planned in batch.behind:
                    self._committer.commit(planned, uncommitted(Status.PRUNED, "behind"))
                    self._decisions.run_ended(planned.id)

    def _end(self, planned: PlannedRun, ended: Outcome) -> tuple[Outcome, bool]:
        """Commit and show how a run ended; return that, and whether it is executed again."""
        outcome = self._committer.commit(planned, ended)
        self._decisions.run_ended(planned.id)
        is_retried = outcome.status.is_worth_a_retry and self._retries[planned.id] > 0
        self._retries[planned.id] -= is_retried
        next_step = outcome.next_step(planned.folder.path / paths.ERROR_LOG, is_retried=is_retried)
        self.progress.run_ended(planned.run, outcome, next_step)
        if ranks.is_main():
            self._exports.after_run()
        return outcome, is_retried

    def _planned(self, run: Run) -> PlannedRun:
        id_ = identity(run._asdict())
        if id_ in self._runs:
            return self._runs[id_]
        # executed in this process, train() may have changed a list in it
        return next(planned for planned in self._runs.values() if planned.run is run)
