"""Take results elsewhere: to MLflow and to Weights & Biases, through their own libraries."""

import hashlib
import importlib
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runmanager.errors import GridError, StorageError
from runmanager.outcome import Status
from runmanager.results.loading import read_results, warn_of
from runmanager.storage import durable
from runmanager.storage.run_state import RunResult

_MOST_METRICS = 1000  # that MLflow takes at once
_MOST_PARAMS = 100
_STATE = "runmanager.state"
_LONGEST = 5000  # characters that MLflow takes of a tag or a parameter
_QUIET = {
    "silent": True, "console": "off", "save_code": False, "disable_code": True, "disable_git": True,
    "x_disable_stats": True, "x_disable_meta": True, "x_save_requirements": False,
}  # fmt: skip
"""W&B would record the program that exports, not the one that trained."""


def export_mlflow(path: str | os.PathLike[str] = "runs", *, tracking_uri: str | None = None) -> list[str]:
    """Log the runs that were begun to MLflow: hyperparameters, every metric of every epoch, how each stands.

    An experiment becomes MLflow's experiment of that name. What was exported before and has not changed is left
    as it is; a run that has changed replaces what was exported of it. No run is left RUNNING: one that is not
    finished is KILLED, with its status in the tag `runmanager.status`. Infinite values are left out.

    Args:
        path: As for `load_results`.
        tracking_uri: Where MLflow keeps its runs, as ``"sqlite:///mlflow.db"``; None is MLflow's own default.

    Returns:
        MLflow's ids of the runs that were logged.

    Raises:
        GridError: mlflow is not installed.
        FileNotFoundError: There is no such path.
        StorageError: MLflow refuses; what it did not get whole is logged again by the next export.
    """
    mlflow = _library("mlflow", "export_mlflow")
    logged: list[str] = []
    try:
        client = mlflow.MlflowClient(tracking_uri)
        for name, run in _begun(path):
            logged += _update_in_mlflow(mlflow, client, name, run)
    except mlflow.MlflowException as error:
        first = next(iter(str(error).splitlines()), "")
        raise StorageError(f"MLflow at {tracking_uri or mlflow.get_tracking_uri()} refuses: {first}") from error
    return logged


def export_wandb(
    path: str | os.PathLike[str] = "runs", *, folder: str | os.PathLike[str] = ".", project: str | None = None
) -> list[Path]:
    """Write the runs that were begun in the offline format of Weights & Biases; nothing is sent anywhere.

    ``wandb sync <folder>/wandb/offline-run-*`` uploads them. A run has the same id whenever it is exported:
    delete an older export of it before you upload another one.

    Args:
        path: As for `load_results`.
        folder: Where the folder ``wandb`` is made, with one folder per run.
        project: W&B's project; by default each experiment is one.

    Returns:
        The folder of each run.

    Raises:
        GridError: wandb is not installed.
        FileNotFoundError: There is no such path.
        StorageError: `folder` cannot be made.
    """
    wandb = _library("wandb", "export_wandb")
    durable.make_folder(Path(folder).absolute())
    written: list[Path] = []
    for name, run in _begun(path):
        opened = wandb.init(
            project=project or name,
            group=name,
            id=hashlib.sha256(f"{name}/{run.folder.id}".encode()).hexdigest()[:16],
            name=run.folder.path.name,
            config={key: _plain(value) for key, value in run.folder.params.items()},
            mode="offline",
            dir=os.fspath(folder),
            reinit="create_new",  # a run that the caller has open goes on
            settings=wandb.Settings(**_QUIET),
        )
        for record in run.epochs:
            opened.log({"epoch": record.epoch, **record.metrics}, step=record.epoch)
        opened.summary.update({"status": str(run.status), "error": run.error})
        written.append(Path(opened.settings.sync_dir))
        opened.finish(exit_code=int(run.status != Status.COMPLETED))
    return written


def _library(name: str, function: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise GridError([f"{function} needs {name}: pip install 'runmanager[{name}]'"]) from error


def _begun(path: str | os.PathLike[str]) -> Iterator[tuple[str, RunResult]]:
    results, damaged = read_results(path)
    warn_of(damaged, path)
    for name, runs in results:
        yield from ((name, run) for run in runs if run.attempts)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _update_in_mlflow(mlflow: Any, client: Any, name: str, run: RunResult) -> list[str]:
    """Log a run in the place of what MLflow has of it; return its id there, none if nothing has changed."""
    experiment = client.get_experiment_by_name(name)
    place = experiment.experiment_id if experiment else client.create_experiment(name)
    state = _state(run)
    before = client.search_runs([place], f"tags.`runmanager.id` = '{run.folder.id}'")
    if any(old.data.tags.get(_STATE) == state for old in before):
        return []
    for old in before:
        client.delete_run(old.info.run_id)
    tags = {"runmanager.id": run.folder.id, "runmanager.status": str(run.status)}
    tags |= {"runmanager.run": str(run.folder.number), "runmanager.error": run.error[:_LONGEST]}
    number = _log_to_mlflow(mlflow, client, place, run, tags)
    client.set_tag(number, _STATE, state)  # last: without it the next export begins anew
    return [number]


def _state(run: RunResult) -> str:
    """Name how a run stands: as long as it is the same, so are all numbers of the run."""
    numbers = repr([(record.epoch, sorted(record.metrics.items())) for record in run.epochs])
    digest = hashlib.sha256(numbers.encode()).hexdigest()[:16]
    return f"{run.status} after {len(run.epochs)} epochs, {digest}"


def _log_to_mlflow(mlflow: Any, client: Any, place: str, run: RunResult, tags: dict[str, str]) -> str:
    entities = mlflow.entities
    begun = _milliseconds(run)
    metrics = [
        entities.Metric(name, value, begun + _duration(record.metrics), record.epoch)
        for record in run.epochs
        for name, value in record.metrics.items()
        if not math.isinf(value)
    ]
    params = [entities.Param(name, str(value)[:_LONGEST]) for name, value in run.folder.params.items()]
    created = client.create_run(place, begun, tags, run.folder.path.name)
    number = str(created.info.run_id)
    for first in range(0, len(params), _MOST_PARAMS):
        client.log_batch(number, params=params[first : first + _MOST_PARAMS])
    for first in range(0, len(metrics), _MOST_METRICS):
        client.log_batch(number, metrics=metrics[first : first + _MOST_METRICS])
    ends = {Status.COMPLETED: "FINISHED", **{status: "FAILED" for status in Status if status.is_fault}}
    last = _duration(run.epochs[-1].metrics) if run.epochs else 0
    client.set_terminated(number, ends.get(run.status, "KILLED"), begun + last)
    return number


def _milliseconds(run: RunResult) -> int:
    """Return when the last attempt at a run began, since 1970."""
    began = run.start.get("t_wall")
    return int((began if isinstance(began, float) else time.time()) * 1000)


def _duration(metrics: Mapping[str, float]) -> int:
    seconds = metrics.get("run duration", 0.0)
    return int(seconds * 1000) if math.isfinite(seconds) else 0
