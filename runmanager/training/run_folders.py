"""Which folder each run of a manager has."""

import itertools
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any

from runmanager.devices import ranks
from runmanager.storage import durable, paths
from runmanager.storage.folders import Experiment, RunFolder
from runmanager.storage.identity import identity


class RunFolders:
    """The folders of an experiment that one manager opens. A folder is made when its first run begins.

    Raises:
        GridError: `experiment` cannot be a folder's name, or `root` no folder.
    """

    def __init__(self, experiment: str | Experiment | None, root: str | PathLike[str]) -> None:
        # None until the experiment's folder is known
        self.opened = experiment if isinstance(experiment, Experiment) else None
        name = experiment.path.name if isinstance(experiment, Experiment) else experiment
        # None if its folder will be named by the time
        self.name = None if name is None else paths.check_experiment(name)
        paths.check_root(root)
        self._root = Path(root).absolute()  # the loop may change the working directory
        self._num_begun: dict[str, int] = {}  # identity of a run -> how often

    @property
    def experiment(self) -> Experiment:
        """The experiment; a folder named by the time is made now."""
        if self.opened is None:
            self.opened = Experiment(self._root / self.name if self.name else _dated(self._root))
        return self.opened

    def open_on_all_ranks(self, params: Mapping[str, Any]) -> RunFolder:
        """Open the folder of a run that begins; rank 0 does so for all, and all call it."""
        folder, path = ranks.from_main(lambda: (self.open(params), self.experiment.path))
        self.opened = self.opened or Experiment(path)
        return folder

    def open(self, params: Mapping[str, Any], *, again: bool = False) -> RunFolder:
        """Find or make the folder of the next run with these hyperparameters; with `again`, of the last one."""
        id_ = identity(params)
        repeat = self._num_begun.get(id_, 0) + (not again)
        folder = self.experiment.open(params, repeat)
        self._num_begun[id_] = repeat
        return folder


def _dated(root: Path) -> Path:
    """Make a folder named by the time; processes that do so in the same second get different ones."""
    name = datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
    durable.make_folder(root)
    for number in itertools.count(1):
        folder = root / (name if number == 1 else f"{name}_{number}")
        with durable.explained(folder), suppress(FileExistsError):
            folder.mkdir()
            durable.sync_folder(root)
            break
    return folder
