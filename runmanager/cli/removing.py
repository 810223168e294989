"""The command that removes runs or experiments after a confirmation: rm."""

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from runmanager.cli.common import SOME_WRONG, find_target, say
from runmanager.core.wording import counted, listed

if TYPE_CHECKING:
    from runmanager.core.experiment import RunFolder

_MOST_NAMED = 8  # maximum number of files named in a message


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
    whole = {path: read_runs(path) for path, run in pairs if run is None}
    runs: dict[Path, dict[Path, RunFolder]] = {}
    for experiment, run in pairs:
        if run is not None and experiment not in whole:
            runs.setdefault(experiment, {})[run.path] = run
    for experiment in (*whole, *runs):
        check_free(experiment)
    for folder in (*whole, *chain(*runs.values())):
        ours, kept = (removal.look_at_experiment if folder in whole else removal.look)(folder)
        number = f"{counted(len(whole[folder]), 'run')}, " if folder in whole else ""
        size = decimal(sum(path.lstat().st_size for path in ours))
        others = f"; not removed: {listed([path.name for path in kept], _MOST_NAMED)}" if kept else ""
        say(f"{folder}: {number}{counted(len(ours), 'file')}, {size}{others}")
    counts = [(len(whole), "experiment"), (sum(map(len, runs.values())), "run")]
    what = " and ".join(counted(count, word) for count, word in counts if count)
    if not (yes or typer.confirm(f"Remove {what}?", err=True)):
        raise typer.Exit(SOME_WRONG)
    for folders in (*whole.values(), *(each.values() for each in runs.values())):
        removal.check_ended(folders)
    for experiment in whole:
        removal.remove_experiment(experiment)
    for experiment, by_folder in runs.items():
        removal.remove(experiment, by_folder.values())
    say(f"{what} removed")
