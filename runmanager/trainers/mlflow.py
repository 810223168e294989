"""The export of results to MLflow."""

import hashlib
import math
import os
import re
import time
from collections.abc import Mapping
from typing import Any

from runmanager.core.outcome import Status
from runmanager.core.state import RunResult
from runmanager.errors import MissingExtraError, StorageError, first_line
from runmanager.tables.loading import read_results, warn_of
from runmanager.trainers.cleaning import Cleaning

_MOST_METRICS = 1000  # maximum number of metrics per call, a limit of MLflow
_MOST_PARAMS = 100
_STATE = "runmanager.state"
_LONGEST_NAME, _LONGEST = 250, 6000  # the maximum number of characters of a name and of a parameter in MLflow
# the invalid characters in a name, which MLflow's files use as a path
_REFUSED = re.compile(r"[^\w.\- ]|^\.+|^$")
_LATEST_S = 2.5e11  # maximum time that is exported, in seconds since 1970


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
            title = cleaning.text(f"the name of {name[:40]!r}", name, 500)
            params = {param for run in runs for param in run.folder.params}
            metrics = {metric for run in runs for record in run.epochs for metric in record.metrics}
            names = cleaning.names("hyperparameter", sorted(params), _clean, _LONGEST_NAME)
            tags = cleaning.names("metric", sorted(metrics), _clean, _LONGEST_NAME)
            begun = [run for run in runs if run.attempts]
            logged += filter(None, (_log(client, cleaning, title, run, names, tags) for run in begun))
    except mlflow.MlflowException as error:
        uri = tracking_uri or mlflow.get_tracking_uri()
        raise StorageError(f"MLflow at {uri} refuses: {first_line(error)}") from error
    if logged:
        cleaning.warn()
    return logged


def _log(
    client: Any,
    cleaning: Cleaning,
    title: str,
    run: RunResult,
    names: Mapping[str, str],
    tags: Mapping[str, str],
) -> str | None:
    """Log a run, replacing its earlier export; return its id in MLflow, None if nothing has changed.

    `names` and `tags` map hyperparameters and metrics to valid names.
    """
    from mlflow.entities import Metric, Param

    id_ = hashlib.sha256(run.folder.id.encode("utf-8", "replace")).hexdigest()
    experiment = client.get_experiment_by_name(title)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(title)
    state = _state(run)
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
    begun = int(run.start.get("t_wall", time.time()) * 1000)  # start time in ms since 1970
    end = begun
    metrics: list[Any] = []
    for record in run.epochs:
        end = begun + _duration_ms(record.metrics)
        for name, value in record.metrics.items():
            if math.isinf(value):
                cleaning.note("infinite values are left out")
            else:
                metrics.append(Metric(tags[name], value, end, record.epoch))
    params = [
        Param(names[name], cleaning.text(f"hyperparameter {name!r}", str(value), _LONGEST))
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


def _state(run: RunResult) -> str:
    """Return a digest of a run; the digest changes with the status or any number of the run."""
    numbers = repr([(record.epoch, sorted(record.metrics.items())) for record in run.epochs])
    digest = hashlib.sha256(numbers.encode()).hexdigest()[:16]
    return f"{run.status} after {len(run.epochs)} epochs, {digest}"


def _clean(name: str) -> str:
    return _REFUSED.sub("_", name)


def _duration_ms(metrics: Mapping[str, float]) -> int:
    seconds = metrics.get("run duration", 0.0)
    return int(min(max(seconds, 0.0), _LATEST_S) * 1000) if math.isfinite(seconds) else 0
