"""Write results in the offline format of Weights & Biases, through its own library."""

import hashlib
import os
from pathlib import Path

from runmanager.errors import MissingExtraError
from runmanager.outcome import Status
from runmanager.results.loading import read_results, warn_of
from runmanager.storage import durable

_QUIET = {
    "silent": True, "console": "off", "save_code": False, "disable_code": True, "disable_git": True,
    "x_disable_stats": True, "x_disable_meta": True, "x_save_requirements": False,
}  # fmt: skip
"""W&B would record the program that exports, not the one that trained."""


def export_wandb(
    path: str | os.PathLike[str] = "runs", *, folder: str | os.PathLike[str] = ".", project: str | None = None
) -> list[Path]:
    """Write the runs that were executed in the offline format of Weights & Biases; nothing is sent anywhere.

    ``wandb sync <folder>/wandb/offline-run-*`` uploads them. A run has the same id whenever it is exported:
    delete its older export before you upload a newer one.

    Args:
        path: As for `load_results`.
        folder: Where the folder ``wandb`` is made, with one folder per run.
        project: W&B's project; by default each experiment is one.

    Returns:
        The folder of each run.

    Raises:
        MissingExtraError: wandb is not installed.
        FileNotFoundError: There is no such path.
        StorageError: `folder` cannot be made.

    Example::

        export_wandb("runs/fashion_grid", project="fashion")  # then: wandb sync wandb/offline-run-*
    """
    try:
        import wandb
    except ImportError as error:
        raise MissingExtraError(["export_wandb needs wandb: pip install 'torch-runmanager[wandb]'"]) from error
    experiments, damaged = read_results(path)
    warn_of(damaged, path)
    durable.make_folder(Path(folder).absolute())
    written: list[Path] = []
    for name, run in ((name, run) for name, runs in experiments for run in runs if run.attempts):
        params = run.folder.params.items()
        opened = wandb.init(
            project=project or name,
            group=name,
            id=hashlib.sha256(f"{name}/{run.folder.id}".encode()).hexdigest()[:16],
            name=run.folder.path.name,
            config={key: v if isinstance(v, bool | int | float | None) else str(v) for key, v in params},
            mode="offline",
            dir=os.fspath(folder),
            reinit="create_new",  # a run that the caller has open goes on
            settings=wandb.Settings(**_QUIET),
        )
        for record in run.epochs:
            opened.log({"epoch": record.epoch, **record.metrics}, step=record.epoch)
        opened.summary.update({"status": str(run.status), "error": run.error})
        written.append(Path(opened.settings.sync_dir))
        opened.finish(exit_code=int(run.status is not Status.COMPLETED))
    return written
