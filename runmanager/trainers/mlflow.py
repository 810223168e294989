"""The export of results to MLflow."""

import hashlib
import os
from typing import Any

from runmanager.core.outcome import Status
from runmanager.core.state import RunResult
from runmanager.errors import MissingExtraError, StorageError, first_line
from runmanager.tables.loading import read_results, warn_of

_STATE = "runmanager.state"


def export_mlflow(path: str | os.PathLike[str] = "runs", *, tracking_uri: str | None = None) -> list[str]:
    """Log executed runs to MLflow: hyperparameters, all metrics of all epochs, and the status.

    An experiment becomes MLflow's experiment of the same name. An unchanged run that was exported before is
    skipped; a changed run replaces its old export. No run is left RUNNING: an unfinished run is KILLED, with
    its status in the tag `runmanager.status`. MLflow's databases have the largest float in place of infinity,
    and MLflow cuts long texts.

    Args:
        path: As for `load_results`.
        tracking_uri: MLflow's tracking URI, such as ``"sqlite:///mlflow.db"``; None for MLflow's default.

    Returns:
        MLflow's ids of the logged runs.

    Raises:
        MissingExtraError: mlflow is not installed.
        FileNotFoundError: The path does not exist.
        StorageError: MLflow refuses a request; the next export logs incomplete runs again.

    Example:
        >>> len(export_mlflow("runs/circle", tracking_uri="sqlite:///mlflow.db"))
        4
    """
    try:
        import mlflow
    except ImportError as error:
        raise MissingExtraError("export_mlflow needs mlflow: pip install 'torch-runmanager[mlflow]'") from error
    experiments, damaged = read_results(path)
    warn_of(damaged, path)
    logged: list[str] = []
    try:
        client = mlflow.MlflowClient(tracking_uri)
        for name, runs in experiments:
            experiment = client.get_experiment_by_name(name)
            experiment_id = experiment.experiment_id if experiment else client.create_experiment(name)
            logged += filter(None, (_log(client, experiment_id, run) for run in runs if run.attempts))
    except mlflow.MlflowException as error:
        uri = tracking_uri or mlflow.get_tracking_uri()
        raise StorageError(f"MLflow at {uri} refuses: {first_line(error)}") from error
    return logged


def _log(client: Any, experiment_id: str, run: RunResult) -> str | None:
    """Log a run, replacing its earlier export; return its id in MLflow, None if nothing has changed."""
    from mlflow.entities import Metric, Param

    state = hashlib.sha256(repr((run.status, [*run.epochs])).encode()).hexdigest()
    earlier = client.search_runs([experiment_id], f"tags.`runmanager.id` = '{run.folder.id}'")
    if any(exported.data.tags.get(_STATE) == state for exported in earlier):
        return None
    for exported in earlier:
        client.delete_run(exported.info.run_id)
    begun = int(run.start.get("t_wall", 0) * 1000)  # ms since 1970
    tags = {
        "runmanager.id": run.folder.id, "runmanager.status": str(run.status), "runmanager.error": run.error,
    }  # fmt: skip
    created = client.create_run(experiment_id, begun, tags, run.folder.path.name)
    run_id = str(created.info.run_id)
    params = [Param(name, str(value)) for name, value in run.folder.params.items()]
    metrics: list[Any] = []
    for record in run.epochs:
        moment = begun + int(record.metrics.get("run duration", 0.0) * 1000)
        metrics += [Metric(name, value, moment, record.epoch) for name, value in record.metrics.items()]
    client.log_batch(run_id, metrics, params)
    ending = "FINISHED" if run.status is Status.COMPLETED else "FAILED" if run.status.is_fault else "KILLED"
    client.set_terminated(run_id, ending, begun + int(run.seconds * 1000))
    client.set_tag(run_id, _STATE, state)  # set this tag last, as a run without it is exported again
    return run_id
