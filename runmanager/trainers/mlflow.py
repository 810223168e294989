"""The export of results to MLflow."""

import hashlib
import math
import os
import time
from typing import Any

from runmanager.core.outcome import Status
from runmanager.core.state import RunResult
from runmanager.errors import MissingExtraError, StorageError, first_line
from runmanager.tables.loading import read_results, warn_of
from runmanager.trainers.cleaning import Cleaning

_MOST_METRICS, _MOST_PARAMS = 1000, 100  # maximum numbers per call, limits of MLflow
_LONGEST = 6000  # the maximum number of characters of a parameter in MLflow
_STATE = "runmanager.state"
_REFUSED = r"[^\w.\- ]|^\.+|^$"  # in a name, which MLflow's files use as a path


def export_mlflow(path: str | os.PathLike[str] = "runs", *, tracking_uri: str | None = None) -> list[str]:
    """Log executed runs to MLflow: hyperparameters, all metrics of all epochs, and the status.

    An experiment becomes MLflow's experiment of the same name. An unchanged run that was exported before is
    skipped; a changed run replaces its old export. No run is left RUNNING: an unfinished run is KILLED, with
    its status in the tag `runmanager.status`. Infinite values are left out, invalid names are replaced, and
    long texts are cut, with one `RunsWarning`.

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
        raise MissingExtraError(
            ["export_mlflow needs mlflow: pip install 'torch-runmanager[mlflow]'"]
        ) from error
    experiments, damaged = read_results(path)
    warn_of(damaged, path)
    logged: list[str] = []
    cleaning = Cleaning("MLflow")
    try:
        client = mlflow.MlflowClient(tracking_uri)
        for name, runs in experiments:
            title = cleaning.text("the name of an experiment", name)
            logged += filter(None, (_log(client, cleaning, title, run) for run in runs if run.attempts))
    except mlflow.MlflowException as error:
        uri = tracking_uri or mlflow.get_tracking_uri()
        raise StorageError(f"MLflow at {uri} refuses: {first_line(error)}") from error
    if logged:
        cleaning.warn()
    return logged


def _log(client: Any, cleaning: Cleaning, title: str, run: RunResult) -> str | None:
    """Log a run, replacing its earlier export; return its id in MLflow, None if nothing has changed."""
    from mlflow.entities import Metric, Param

    id_ = hashlib.sha256(run.folder.id.encode("utf-8", "replace")).hexdigest()
    experiment = client.get_experiment_by_name(title)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(title)
    # a digest that changes with the status or any number of the run
    numbers = repr([(record.epoch, sorted(record.metrics.items())) for record in run.epochs])
    digest = hashlib.sha256(numbers.encode()).hexdigest()[:16]
    state = f"{run.status} after {len(run.epochs)} epochs, {digest}"
    earlier = client.search_runs([experiment_id], f"tags.`runmanager.id` = '{id_}'")
    if any(exported.data.tags.get(_STATE) == state for exported in earlier):
        return None
    for exported in earlier:
        client.delete_run(exported.info.run_id)
    number = str(run.folder.number)
    about = {
        "runmanager.id": id_,
        "runmanager.status": str(run.status),
        "runmanager.run": number,
        "runmanager.error": cleaning.text(f"the error of run {number}", run.error, _LONGEST),
    }
    end = begun = int(run.start.get("t_wall", time.time()) * 1000)  # start time in ms since 1970
    metrics: list[Any] = []
    for record in run.epochs:
        end = begun + int(record.metrics.get("run duration", 0.0) * 1000)
        for name, value in record.metrics.items():
            if math.isinf(value):
                cleaning.changes["infinite values are left out"] = None
            else:
                metrics.append(Metric(cleaning.name(name, _REFUSED), value, end, record.epoch))
    params = [
        Param(cleaning.name(name, _REFUSED), cleaning.text(f"hyperparameter {name!r}", str(value), _LONGEST))
        for name, value in run.folder.params.items()
    ]
    name = cleaning.text(f"the name of run {number}", run.folder.path.name)
    run_id = str(client.create_run(experiment_id, begun, about, name).info.run_id)
    for first in range(0, len(params), _MOST_PARAMS):
        client.log_batch(run_id, params=params[first : first + _MOST_PARAMS])
    for first in range(0, len(metrics), _MOST_METRICS):
        client.log_batch(run_id, metrics=metrics[first : first + _MOST_METRICS])
    ending = "FAILED" if run.status.is_fault else "KILLED"
    client.set_terminated(run_id, "FINISHED" if run.status is Status.COMPLETED else ending, end)
    client.set_tag(run_id, _STATE, state)  # set this tag last, as a run without it is exported again
    return run_id
