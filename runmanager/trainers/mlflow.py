"""The export of results to MLflow."""

import hashlib
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
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
            experiment = _Experiment(mlflow, client, cleaning, name, runs)
            for run in runs:
                logged += experiment.update(run) if run.attempts else []
    except mlflow.MlflowException as error:
        uri = tracking_uri or mlflow.get_tracking_uri()
        raise StorageError(f"MLflow at {uri} refuses: {first_line(error)}") from error
    if logged:
        cleaning.warn()
    return logged


class _Experiment:
    """An MLflow experiment, with the valid names for its runs."""

    def __init__(
        self, mlflow: Any, client: Any, cleaning: Cleaning, name: str, runs: Sequence[RunResult]
    ) -> None:
        self._entities, self._client, self._cleaning = mlflow.entities, client, cleaning
        self._name = cleaning.text(f"the name of {name[:40]!r}", name, 500)
        params = {param for run in runs for param in run.folder.params}
        metrics = {metric for run in runs for record in run.epochs for metric in record.metrics}
        self._params = cleaning.names("hyperparameter", sorted(params), _clean, _LONGEST_NAME)
        self._metrics = cleaning.names("metric", sorted(metrics), _clean, _LONGEST_NAME)

    def update(self, run: RunResult) -> list[str]:
        """Log a run, replacing its earlier export; return its id in MLflow, empty if nothing has changed."""
        client, id_ = self._client, hashlib.sha256(run.folder.id.encode("utf-8", "replace")).hexdigest()
        experiment = client.get_experiment_by_name(self._name)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(self._name)
        state = _state(run)
        earlier = client.search_runs([experiment_id], f"tags.`runmanager.id` = '{id_}'")
        if any(exported.data.tags.get(_STATE) == state for exported in earlier):
            return []
        for exported in earlier:
            client.delete_run(exported.info.run_id)
        error = self._cleaning.text(f"the error of run {run.folder.number}", run.error, _LONGEST)
        tags = {"runmanager.id": id_, "runmanager.status": str(run.status)}
        tags |= {"runmanager.run": str(run.folder.number), "runmanager.error": error}
        began = run.start.get("t_wall", time.time())
        begun = int(began * 1000)  # start time in ms since 1970
        metrics = list(self._of_epochs(run, begun))
        params = [
            self._entities.Param(
                self._params[name], self._cleaning.text(f"hyperparameter {name!r}", str(v), _LONGEST)
            )
            for name, v in run.folder.params.items()
        ]
        name = self._cleaning.text(f"the name of run {run.folder.number}", run.folder.path.name)
        run_id = str(client.create_run(experiment_id, begun, tags, name).info.run_id)
        for first in range(0, len(params), _MOST_PARAMS):
            client.log_batch(run_id, params=params[first : first + _MOST_PARAMS])
        for first in range(0, len(metrics), _MOST_METRICS):
            client.log_batch(run_id, metrics=metrics[first : first + _MOST_METRICS])
        end = "FAILED" if run.status.is_fault else "KILLED"
        end = "FINISHED" if run.status is Status.COMPLETED else end
        last = _duration_ms(run.epochs[-1].metrics) if run.epochs else 0
        client.set_terminated(run_id, end, begun + last)
        client.set_tag(run_id, _STATE, state)  # set this tag last, as a run without it is exported again
        return [run_id]

    def _of_epochs(self, run: RunResult, begun: int) -> Iterator[Any]:
        """Yield the metrics of every epoch; `begun` is the start time of the run in ms since 1970."""
        for record in run.epochs:
            when = begun + _duration_ms(record.metrics)
            for name, value in record.metrics.items():
                if math.isinf(value):
                    self._cleaning.note("infinite values are left out")
                else:
                    yield self._entities.Metric(self._metrics[name], value, when, record.epoch)


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
