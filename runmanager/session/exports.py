"""Parent-side writes: outcomes of runs whose worker died, and the tables."""

import time
from dataclasses import replace
from pathlib import Path

from runmanager.core import files
from runmanager.core.journal import end_abandoned_attempt
from runmanager.core.listener import Listener
from runmanager.core.outcome import Outcome, Status
from runmanager.core.state import read_experiment, read_run
from runmanager.session.plan import PlannedRun
from runmanager.session.task import RunTask


def commit_outcome(planned: PlannedRun, outcome: Outcome, task: RunTask) -> Outcome:
    """Return the outcome of a run, and commit it if needed."""
    if outcome.is_committed:
        return outcome
    from runmanager.tensorboard.run_log import end_abandoned as end_board

    folder = planned.folder
    result = read_run(folder)
    is_begun = result.attempts > planned.before.attempts
    if is_begun and not (result.status is Status.INTERRUPTED or result.status.is_in_progress):
        return result.outcome  # the journal has the end line; only the last message was lost
    outcome = replace(outcome, epochs=len(result.epochs))
    # use the run's values, as the folder stores values of most types as text
    task.experiment.open(planned.run)
    if outcome.log:
        log = f"{outcome.error}\n\n{outcome.log}\n".encode("utf-8", "replace")
        files.write_file(folder.path / files.ERROR_LOG, log)
    # the fingerprint of the committed epochs, which stay until a new attempt commits an epoch; those of a
    # completed run are not resumed
    start = result.start or ({} if planned.before.status is Status.COMPLETED else planned.before.start)
    fingerprint = start.get("fingerprint", task.fingerprint)
    end_abandoned_attempt(folder.path, outcome, {"fingerprint": fingerprint})
    end_board(folder.path, outcome)
    return outcome


class Exports(Listener):
    """Writes the tables of an experiment, which takes at most a twentieth of the elapsed time."""

    def __init__(self, experiment: Path) -> None:
        self._experiment = experiment
        self._next = 0.0

    def run_ended(self, outcome: Outcome) -> None:
        """Write the tables, unless writing is slow and the tables were written recently."""
        before = time.monotonic()
        if before >= self._next:
            write_tables(self._experiment)
            now = time.monotonic()
            self._next = now + 20 * (now - before)


def write_tables(experiment: Path) -> None:
    """Write results.csv and results.json."""
    from runmanager.tables import columns as tables
    from runmanager.tables.formats import write_results

    write_results(tables.epochs_table(tables.by_column(read_experiment(experiment))), experiment)
