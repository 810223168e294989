"""The export of results to the offline format of Weights & Biases."""

import os
from pathlib import Path

from runmanager.core import files
from runmanager.core.outcome import LARGEST, Status
from runmanager.errors import MissingExtraError
from runmanager.tables.loading import read_results, warn_of


def export_wandb(
    path: str | os.PathLike[str] = "runs", *, folder: str | os.PathLike[str] = ".", project: str | None = None
) -> list[Path]:
    """Write executed runs in the offline format of Weights & Biases; nothing is uploaded.

    ``wandb sync <folder>/wandb/offline-run-*`` uploads the runs. A run has the same id in every export: delete
    its older export before you upload a newer export. Hyperparameters that are not numbers become text. W&B
    has columns `_step`, `_runtime` and `_timestamp` of its own: do not name a metric so.

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
        raise MissingExtraError("export_wandb needs wandb: pip install 'torch-runmanager[wandb]'") from error
    experiments, damaged = read_results(path)
    warn_of(damaged, path)
    files.make_folder(Path(folder).absolute())
    # W&B does not record this program, which did not train the runs
    settings = wandb.Settings(
        silent=True, console="off", save_code=False, disable_code=True, disable_git=True,
        x_disable_stats=True, x_disable_meta=True, x_save_requirements=False,
    )  # fmt: skip
    written: list[Path] = []
    for name, runs in experiments:
        for run in [run for run in runs if run.attempts]:
            config = {}
            for key, value in run.folder.params.items():
                is_exact = value is None or (isinstance(value, (int, float)) and abs(value) <= LARGEST)
                config[key] = value if is_exact else str(value)  # JSON keeps it, or its text
            opened = wandb.init(
                project=project or name,
                group=name,
                id=f"{name}-{run.folder.id}",
                name=run.folder.path.name,
                config=config,
                mode="offline",
                dir=os.fspath(folder),
                reinit="create_new",  # an open W&B run of the caller stays open
                settings=settings,
            )
            for record in run.epochs:
                opened.log({**record.metrics, "epoch": record.epoch}, step=record.epoch)
            opened.summary.update({"status": str(run.status), "error": run.error})
            written.append(Path(opened.settings.sync_dir))
            opened.finish(exit_code=int(run.status is not Status.COMPLETED))
    return written
