"""The export of results to the offline format of Weights & Biases."""

import hashlib
import math
import os
from pathlib import Path
from typing import Any

from runmanager.core import files
from runmanager.core.outcome import LARGEST, Status
from runmanager.errors import MissingExtraError
from runmanager.tables.loading import read_results, warn_of
from runmanager.trainers.cleaning import Cleaning

_QUIET = {
    "silent": True, "console": "off", "save_code": False, "disable_code": True, "disable_git": True,
    "x_disable_stats": True, "x_disable_meta": True, "x_save_requirements": False,
}  # fmt: skip
"""Settings that switch off W&B's recording of the program, as this program did not train the runs."""

_REFUSED = r"[/\\#?%:]"  # in the name of a project
_REFUSED_KEY = r"\0|^(_step|_runtime|_timestamp|_wandb|)$"
_LONGEST = 128  # the maximum number of characters of the name of a project, group or run


def export_wandb(
    path: str | os.PathLike[str] = "runs", *, folder: str | os.PathLike[str] = ".", project: str | None = None
) -> list[Path]:
    """Write executed runs in the offline format of Weights & Biases; nothing is uploaded.

    ``wandb sync <folder>/wandb/offline-run-*`` uploads the runs. A run has the same id in every export: delete
    its older export before you upload a newer export. Reserved and invalid names are replaced, with one
    `RunsWarning`. Hyperparameters that are not JSON become text.

    Args:
        path: As for `load_results`.
        folder: The parent of the folder ``wandb``, which gets one folder per run.
        project: The project of W&B; by default, each experiment is a project.

    Returns:
        The folders of the runs.

    Raises:
        MissingExtraError: wandb is not installed.
        FileNotFoundError: The path does not exist.
        StorageError: `folder` cannot be created.

    Example:
        >>> folders = export_wandb("runs/circle", project="circle")  # then: wandb sync wandb/offline-run-*
        >>> len(folders)
        4
    """
    try:
        import wandb
    except ImportError as error:
        raise MissingExtraError(["export_wandb needs wandb: pip install 'torch-runmanager[wandb]'"]) from error
    experiments, damaged = read_results(path)
    warn_of(damaged, path)
    files.make_folder(Path(folder).absolute())
    written: list[Path] = []
    cleaning = Cleaning("W&B")
    for name, runs in experiments:
        group = cleaning.name(cleaning.text("", name), _REFUSED, _LONGEST)
        for run in [run for run in runs if run.attempts]:
            config = {
                cleaning.name(key, _REFUSED_KEY): _json_value(value, key, cleaning)
                for key, value in run.folder.params.items()
            }
            opened = wandb.init(
                project=project or group,
                group=group,
                id=hashlib.sha256(f"{name}/{run.folder.id}".encode()).hexdigest()[:16],
                name=cleaning.text(f"the name of run {run.folder.number}", run.folder.path.name, _LONGEST),
                config=config,
                mode="offline",
                dir=os.fspath(folder),
                reinit="create_new",  # an open W&B run of the caller stays open
                settings=wandb.Settings(**_QUIET),
            )
            for record in run.epochs:
                metrics = record.metrics.items()
                values = {cleaning.name(metric, _REFUSED_KEY): value for metric, value in metrics}
                opened.log({**values, "epoch": record.epoch}, step=record.epoch)
            opened.summary.update({"status": str(run.status), "error": cleaning.text("", run.error)})
            written.append(Path(opened.settings.sync_dir))
            opened.finish(exit_code=int(run.status is not Status.COMPLETED))
    cleaning.warn()
    return written


def _json_value(value: Any, name: str, cleaning: Cleaning) -> Any:
    """Return a hyperparameter as a JSON value; as text if it is not a JSON value."""
    is_exact = (
        math.isfinite(value) if isinstance(value, float) else isinstance(value, int) and abs(value) <= LARGEST
    )
    return value if value is None or is_exact else cleaning.text(f"hyperparameter {name!r}", str(value))
