"""The command that removes runs or experiments after a confirmation: rm."""

from pathlib import Path

import typer

from runmanager.cli.common import SOME_WRONG, find_target, say
from runmanager.core.wording import counted, listed


def rm_command(targets: list[Path], *, yes: bool = False) -> None:
    """Remove runs or experiments.

    A run's files, its entry in the grid and its rows in the tables are removed. The command asks first, and
    says how much disk is freed. It refuses a run that a process is writing. Files that runmanager did not write
    are kept and named; links are not followed.

    A grid that still contains a removed run executes it again.

    For example:

      runmanager rm runs/fashion_grid/3
      runmanager rm runs/fashion_grid
      runmanager rm --yes runs/fashion_grid/0*-lr=0.1*

    Exit codes: 0 removed; 1 not confirmed; 2 refused, nothing was removed; 74 storage failed.

    Options:
        targets (RUN|EXPERIMENT): Experiments, or EXPERIMENT/NUMBER for a run.
        yes: Do not ask for confirmation.
    """
    from rich.filesize import decimal

    from runmanager.core.experiment import read_runs
    from runmanager.core.lock import check_free
    from runmanager.tables import removal

    pairs = [find_target(path) for path in targets]
    experiments = dict.fromkeys(path for path, run in pairs if run is None)
    runs = {run.path: run for path, run in pairs if run and path not in experiments}
    for path, _ in pairs:
        check_free(path)
    for path in (*experiments, *runs):
        ours, kept = (removal.look if path in runs else removal.look_at_experiment)(path)
        number = "" if path in runs else f"{counted(len(read_runs(path)), 'run')}, "
        size = decimal(sum(file.lstat().st_size for file in ours))
        others = f"; not removed: {listed(file.name for file in kept)}" if kept else ""
        say(f"{path}: {number}{counted(len(ours), 'file')}, {size}{others}")
    what = " and ".join(
        counted(len(paths), word) for paths, word in ((experiments, "experiment"), (runs, "run")) if paths
    )
    if not (yes or typer.confirm(f"Remove {what}?", err=True)):
        raise typer.Exit(SOME_WRONG)
    for path in experiments:
        removal.remove_experiment(path)
    for path in {path.parent for path in runs}:
        removal.remove(path, [run for run in runs.values() if run.path.parent == path])
    say(f"{what} removed")
