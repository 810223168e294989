"""The rebuild of event files from the journals."""

from contextlib import suppress
from pathlib import Path

from tensorboard.compat.proto.summary_pb2 import Summary

from runmanager.board import archive, hparams
from runmanager.board.run_log import OPENING, RunLog
from runmanager.board.tags import OF_GOAL, step_tag, tag
from runmanager.errors import ExperimentLockedError
from runmanager.outcome import Outcome, Status
from runmanager.storage.design import Design
from runmanager.storage.folders import Experiment, read_runs
from runmanager.storage.lock import hold
from runmanager.storage.run_state import RunResult, read_run
from runmanager.storage.steps import read_steps
from runmanager.storage.x_axis import x_of


def rebuild(experiment: Path, damaged: list[str] | None = None) -> int:
    """Rewrite the event files of an experiment's runs.

    Content that is not in journals (histograms, images, the graph, values added through `tb`) is carried over
    from readable old files, which are renamed to ``attempt-N.evts``. Runs in progress are skipped. Unreadable
    files are appended to `damaged`.

    Returns:
        The number of rebuilt runs.
    """
    damaged = [] if damaged is None else damaged
    experiment = experiment.resolve()  # "." has neither a name nor a parent
    with suppress(ExperimentLockedError), hold(experiment):  # a grid that holds the lock has chosen the format
        hparams.decide(experiment)
    results = [read_run(folder, damaged) for folder in read_runs(experiment, damaged)]
    rebuilt = [run for run in results if run.epochs and run.status is not Status.RUNNING]
    design, num_rebuilt = Experiment(experiment).design, 0
    for run in rebuilt:
        try:
            _rebuild(experiment.name, run, design, damaged)
            num_rebuilt += 1
        except OSError as error:
            damaged.append(f"{run.folder.path} ({error.strerror})")
    return num_rebuilt


def _rebuild(experiment: str, run: RunResult, design: Design, damaged: list[str]) -> None:
    metrics = {tag(name) for record in run.epochs for name in record.metrics}
    logged = set(map(step_tag, read_steps(run.folder, damaged)))
    times = {f"time/{name}" for record in run.epochs for name in record.times}

    def is_foreign(value: Summary.Value) -> bool:
        return value.tag not in {*metrics, *times, *logged, *OF_GOAL, *OPENING}

    events = archive.carried_events(run.folder.path, x_of(run.epochs[-1], design.x_axis), is_foreign)
    archive.retire(run.folder.path)
    details = {
        name: run.start[name] for name in ("device", "device_name", "versions", "commit") if name in run.start
    }
    board = RunLog(experiment, run.folder, run.attempts, details, goal=design.goal, x_axis=design.x_axis)
    board.attempt_began(run.epochs, keep=run.start.get("keep"), before=events)
    has_ended = run.status is Status.COMPLETED or run.status.is_fault
    board.run_ended(Outcome(run.status if has_ended else Status.INTERRUPTED, run.error, len(run.epochs)))
