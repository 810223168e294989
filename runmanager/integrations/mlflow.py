"""Log results to MLflow, through its own library."""

import hashlib
import math
import os
import time
from collections.abc import Mapping
from typing import Any

from runmanager.errors import MissingExtraError, StorageError, first_line
from runmanager.outcome import Status
from runmanager.results.loading import read_results, warn_of
from runmanager.storage.run_state import RunResult

_MOST_METRICS = 1000  # that MLflow takes at once
_MOST_PARAMS = 100
_STATE = "runmanager.state"
_LONGEST = 5000  # characters that MLflow takes of a tag or a parameter


def export_mlflow(path: str | os.PathLike[str] = "runs", *, tracking_uri: str | None = None) -> list[str]:
    """Log the runs that were executed to MLflow: hyperparameters, every metric of every epoch, and the status.

    An experiment becomes MLflow's experiment of the same name. A run that was exported before is left alone if
    it has not changed; if it has, the new export replaces the old one. No run is left RUNNING: an unfinished
    run is KILLED, with its status in the tag `runmanager.status`. Infinite values are left out.

    Args:
        path: As for `load_results`.
        tracking_uri: Where MLflow keeps its runs, as ``"sqlite:///mlflow.db"``; None is MLflow's own default.

    Returns:
        MLflow's ids of the runs that were logged.

    Raises:
        MissingExtraError: mlflow is not installed.
        FileNotFoundError: There is no such path.
        StorageError: MLflow refuses; the next export logs again what MLflow did not get whole.

    Example::

        export_mlflow("runs/fashion_grid", tracking_uri="sqlite:///mlflow.db")
    """
    try:
        import mlflow
    except ImportError as error:
        raise MissingExtraError(
            ["export_mlflow needs mlflow: pip install 'torch-runmanager[mlflow]'"]
        ) from error
    experiments, damaged = read_results(path)
    warn_of(damaged, path)
    logged: list[str] = []
    try:
        client = mlflow.MlflowClient(tracking_uri)
        for name, runs in experiments:
            for run in runs:
                logged += _update(mlflow, client, name, run) if run.attempts else []
    except mlflow.MlflowException as error:
        uri = tracking_uri or mlflow.get_tracking_uri()
        raise StorageError(f"MLflow at {uri} refuses: {first_line(error)}") from error
    return logged


def _update(mlflow: Any, client: Any, name: str, run: RunResult) -> list[str]:
    """Log a run in place of its earlier export; return its id in MLflow, none if nothing has changed."""
    experiment = client.get_experiment_by_name(name)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(name)
    state = _state(run)
    earlier = client.search_runs([experiment_id], f"tags.`runmanager.id` = '{run.folder.id}'")
    if any(exported.data.tags.get(_STATE) == state for exported in earlier):
        return []
    for exported in earlier:
        client.delete_run(exported.info.run_id)
    tags = {"runmanager.id": run.folder.id, "runmanager.status": str(run.status)}
    tags |= {"runmanager.run": str(run.folder.number), "runmanager.error": run.error[:_LONGEST]}
    run_id = _log(mlflow, client, experiment_id, run, tags)
    client.set_tag(run_id, _STATE, state)  # last: a run without it is exported again
    return [run_id]


def _state(run: RunResult) -> str:
    """Summarize a run: the text changes when its status or any of its numbers does."""
    numbers = repr([(record.epoch, sorted(record.metrics.items())) for record in run.epochs])
    digest = hashlib.sha256(numbers.encode()).hexdigest()[:16]
    return f"{run.status} after {len(run.epochs)} epochs, {digest}"


def _log(mlflow: Any, client: Any, experiment_id: str, run: RunResult, tags: dict[str, str]) -> str:
    entities = mlflow.entities
    began = run.start.get("t_wall")
    begun = int((began if isinstance(began, float) else time.time()) * 1000)  # ms since 1970
    metrics = [
        entities.Metric(name, value, begun + _duration_ms(record.metrics), record.epoch)
        for record in run.epochs
        for name, value in record.metrics.items()
        if not math.isinf(value)
    ]
    params = [entities.Param(name, str(value)[:_LONGEST]) for name, value in run.folder.params.items()]
    created = client.create_run(experiment_id, begun, tags, run.folder.path.name)
    run_id = str(created.info.run_id)
    for first in range(0, len(params), _MOST_PARAMS):
        client.log_batch(run_id, params=params[first : first + _MOST_PARAMS])
    for first in range(0, len(metrics), _MOST_METRICS):
        client.log_batch(run_id, metrics=metrics[first : first + _MOST_METRICS])
    end = "FAILED" if run.status.is_fault else "KILLED"
    end = "FINISHED" if run.status is Status.COMPLETED else end
    last = _duration_ms(run.epochs[-1].metrics) if run.epochs else 0
    client.set_terminated(run_id, end, begun + last)
    return run_id


def _duration_ms(metrics: Mapping[str, float]) -> int:
    seconds = metrics.get("run duration", 0.0)
    return int(seconds * 1000) if math.isfinite(seconds) else 0
