"""Experiments and the folders of their runs, as recorded in grid.json and run.json.

A run is found by the identity of its hyperparameters, never by its number. When a grid grows, its earlier runs
keep their numbers and folders, and new runs get the next free numbers.
"""

import contextlib
import itertools
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any

from runmanager.core import files, folder_names
from runmanager.core.design import Design
from runmanager.core.entries import VERSION, from_entry, read_json, to_entry
from runmanager.core.entries import RunFolder as RunFolder  # noqa: PLC0414 - other modules import it from here
from runmanager.core.files import strict_json
from runmanager.core.import_guard import check_beginning
from runmanager.core.outcome import LARGEST
from runmanager.core.run import RunLike, id_of, params_of
from runmanager.core.run_trials import KeptTrial, read_trials, write_run
from runmanager.core.values import decode, encode
from runmanager.core.wording import listed
from runmanager.devices import ranks

_LAST_TRIAL = "last_trial"  # the key in grid.json
_MOST_NAMES = 8  # the maximum number of experiments named in a message


class Experiment:
    """An experiment and its runs, as seen by the process that writes them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._runs: dict[str, RunFolder] | None = None

    @property
    def runs(self) -> dict[str, RunFolder]:
        """The runs of the experiment by identity, read once."""
        if self._runs is None:
            self._runs = {run.id: run for run in read_runs(self.path)}
        return self._runs

    @property
    def design(self) -> Design:
        """The design of the experiment."""
        return Design.from_json(read_json(self.path / files.GRID))

    def decide(self, design: Design) -> list[str]:
        """Update the design in grid.json; return a sentence for each change."""
        path = self.path / files.GRID
        document = read_json(path)
        before = Design.from_json(document)
        after, sentences = before.updated(design)
        if after != before:
            files.make_folder(self.path)
            files.write_file(path, strict_json({"v": VERSION, "runs": [], **_with(document, after)}))
        return sentences

    def plan(
        self,
        grid: Sequence[RunLike],
        unavailable: Mapping[str, str],
        design: Design | None = None,
    ) -> list[RunFolder]:
        """Assign numbers and folders to the runs of a grid, and write them to grid.json with the design."""
        check_beginning()
        design = self.design if design is None else design
        planned = self.assign(grid, unavailable, design)
        files.make_folder(self.path)
        whole = (files.GRID, files.HPARAMS, files.RESULTS_CSV, files.RESULTS_JSON)
        files.remove_leftovers(self.path, *whole)
        document: dict[str, Any] = {"v": VERSION, **design.as_json()}
        if (last := self.last_trial) is not None:
            document[_LAST_TRIAL] = last
        document["runs"] = [to_entry(run) for run in planned]
        files.write_file(self.path / files.GRID, strict_json(document))
        return planned

    def assign(
        self,
        grid: Sequence[RunLike],
        unavailable: Mapping[str, str],
        design: Design | None = None,
    ) -> list[RunFolder]:
        """Assign numbers and folders as `plan` does, without writing."""
        design = self.design if design is None else design
        existing = {run.id: run for run in self.runs.values() if run.path.is_dir()}
        first = _free_number(self.path, self.runs.values())
        digits = max(3, len(str(first + len(grid))))
        varying = folder_names.varying([*map(params_of, grid)])
        names = folder_names.telling_first(varying, design.repeating(varying))
        planned: list[RunFolder] = []
        for run in grid:
            id_, params = id_of(run), params_of(run)
            earlier = self.runs.get(id_)
            number = earlier.number if earlier else first
            first += earlier is None
            named = {name: params[name] for name in names if name in params}
            path = earlier.path if earlier else self.path / files.run_folder(number, named, digits)
            planned.append(RunFolder(path, number, id_, _lasting(params), unavailable.get(id_, "")))
        self._runs = existing | {run.id: run for run in planned}
        return planned

    def find(self, run: RunLike) -> RunFolder | None:
        """Return the folder of a run, None if the experiment has no such run."""
        return self.runs.get(id_of(run))

    def open(self, run: RunLike, repeat: int = 1) -> RunFolder:
        """Find or create the folder of a run; `repeat=2` stands for a second run with the same parameters."""
        check_beginning()
        params = params_of(run)
        id_ = id_of(run) if repeat == 1 else f"{id_of(run)}-{repeat}"
        if id_ not in self.runs:
            self._runs = None  # another process, such as a search, may have created it since
        folder = self.runs.get(id_)
        if folder is None:
            number = _free_number(self.path, self.runs.values())
            others = [folder.params for folder in self.runs.values()]
            path = self.path / files.run_folder(
                number, folder_names.of_loop(params, others, self.design.repeating(params))
            )
            folder = RunFolder(path, number, id_, _lasting(params))
        if not (folder.path / files.RUN).exists():
            write_run(folder)
        self.runs[folder.id] = folder
        return folder

    def add(
        self,
        run: RunLike,
        names: Sequence[str],
        unavailable: Mapping[str, str],
        trials: Sequence[KeptTrial] = (),
    ) -> RunFolder:
        """Create the folder of a run proposed by a search, unless the folder exists."""
        folder = self.find(run)
        if folder is None:
            params, number = params_of(run), _free_number(self.path, self.runs.values())
            path = self.path / files.run_folder(number, {name: params[name] for name in names})
            folder = RunFolder(path, number, id_of(run), _lasting(params))
        folder = replace(folder, unavailable=unavailable.get(folder.id, ""))
        write_run(folder, trials)
        self.runs[folder.id] = folder
        return folder

    @property
    def last_trial(self) -> int | None:
        """An upper bound of the numbers of removed trials; None if no trial was removed."""
        last = (read_json(self.path / files.GRID) or {}).get(_LAST_TRIAL)
        return last if type(last) is int and 0 <= last <= LARGEST else None

    def note_last_trial(self) -> None:
        """Write the highest trial number to grid.json, so that no trial reuses it after runs are removed."""
        before = self.last_trial
        numbers = [trial.number for run in self.runs.values() for trial in read_trials(run)]
        last = max([*numbers, -1 if before is None else before])
        if numbers and last != before:
            document = read_json(self.path / files.GRID) or {"v": VERSION, "runs": []}
            files.write_file(self.path / files.GRID, strict_json({**document, _LAST_TRIAL: last}))

    def forget(self, ids: Collection[str]) -> None:
        """Remove runs from grid.json; other entries do not change."""
        document = read_json(self.path / files.GRID)
        entries = document.get("runs") if document else None
        if document and isinstance(entries, list):
            remaining = [entry for entry in entries if not (isinstance(entry, dict) and entry.get("id") in ids)]
            content = _with({**document, "runs": remaining}, Design.from_json(document).without(ids))
            files.write_file(self.path / files.GRID, strict_json(content))
        self._runs = None


def _with(document: Mapping[str, Any] | None, design: Design) -> dict[str, Any]:
    """Return the content of grid.json with its design replaced."""
    return {k: value for k, value in (document or {}).items() if k not in Design.NAMES} | design.as_json()


def _lasting(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyperparameters in the form in which they are read back from JSON."""
    return {name: decode(encode(value)) for name, value in params.items()}


def read_runs(experiment: Path, damaged: list[str] | None = None) -> list[RunFolder]:
    """Read the runs of an experiment, sorted by number; append unreadable entries to `damaged`."""
    damaged = [] if damaged is None else damaged
    runs: dict[str, RunFolder] = {}
    folders, others = _run_folders(experiment)
    document = read_json(experiment / files.GRID, damaged)
    entries = document.get("runs", []) if document else []
    for entry in entries if isinstance(entries, list) else []:
        run = from_entry(experiment, entry, others, damaged)
        if run:
            runs[run.path.name] = run
    there = set(folders)
    absent = {run.id: name for name, run in runs.items() if name not in there}
    for name in folders:
        if name not in runs:
            entry = read_json(experiment / name / files.RUN, damaged)
            run = from_entry(experiment, {**entry, "folder": name}, others, damaged) if entry else None
            if run:
                runs.pop(absent.get(run.id, ""), None)  # grid.json names a folder that does not exist
                runs[name] = run
            elif entry is None and _has_journals(experiment / name):
                damaged.append(f"{experiment / name} (no {files.RUN})")
    once: dict[str, RunFolder] = {}
    for run in sorted(runs.values(), key=lambda run: (run.number, run.path.name)):
        if once.setdefault(run.id, run) is not run:
            damaged.append(f"{run.path} (a copy of {once[run.id].path.name})")
    return list(once.values())


def _has_journals(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return bool(files.journals_by_attempt(folder))
    return False


def _free_number(experiment: Path, runs: Iterable[RunFolder]) -> int:
    # unreadable folders keep their numbers too
    folders, others = _run_folders(experiment)
    numbers = [files.run_number(name) or 0 for name in (*folders, *others)]
    return max([0, *numbers, *(run.number for run in runs)]) + 1


def is_experiment(path: Path) -> bool:
    """Whether a folder holds the runs of a grid; False if the folder is not readable."""
    with contextlib.suppress(OSError):
        folders = (path / name for name in _run_folders(path)[0])  # the name may also be a date
        return (path / files.GRID).is_file() or any(
            (folder / files.RUN).exists() or _has_journals(folder) for folder in folders
        )
    return False


def experiments(root: Path) -> list[Path]:
    """Return the experiments in a folder; if the folder is an experiment, only the folder itself."""
    if not root.is_dir() or is_experiment(root):
        return [root]
    return sorted(folder for folder in root.iterdir() if folder.is_dir() and is_experiment(folder))


def no_runs(path: str | os.PathLike[str], what: str = "runs") -> str:
    """Return a message with advice for a folder without runs or epochs."""
    return f"no {what} under {os.fspath(path)}: start a grid first, or give the folder that it wrote"


def no_experiment(path: Path, asked: Path | None = None) -> str:
    """Return a message that the user's path `asked` is not an experiment, with existing experiments."""
    root = path if path.is_dir() and not is_experiment(path) else path.parent
    folders = experiments(root) if root.is_dir() and not is_experiment(root) else []
    if not folders:
        return f"{path} is no experiment, and none is beside it"
    names = listed((folder.name for folder in folders), _MOST_NAMES)
    return f"{path} is no experiment; {files.nearest(asked or path) or f'{root} has: {names}'}"


def _run_folders(experiment: Path) -> tuple[list[str], set[str]]:
    """Return the names of run folders, and similar names: links and files."""
    folders: list[str] = []
    others: set[str] = set()
    try:
        entries = [entry for entry in os.scandir(experiment) if files.run_number(entry.name) is not None]
    except OSError:
        return folders, others
    for entry in entries:
        # a link may lead anywhere, so it does not count as a run
        if entry.is_dir(follow_symlinks=False):
            folders.append(entry.name)
        else:
            others.add(entry.name)
    return sorted(folders), others


class RunFolders:
    """The run folders that a manager opens; the experiment is created when its first run begins.

    Raises:
        GridError: `experiment` cannot be a folder's name, or `root` cannot be a folder.
    """

    def __init__(self, experiment: str | Experiment | None, root: str | PathLike[str]) -> None:
        # the experiment; None until its folder exists
        self.opened = experiment if isinstance(experiment, Experiment) else None
        name = experiment.path.name if isinstance(experiment, Experiment) else experiment
        # name of the experiment; None for a name with date and time
        self.name = None if name is None else files.check_experiment(name)
        if self.opened is None:
            files.check_root(root, self.name)
        self._root = Path(root).absolute()  # the loop may change the working directory
        self._num_begun: dict[str, int] = {}  # identity of a run -> number of times that it has begun

    @property
    def experiment(self) -> Experiment:
        """The experiment; if its name has date and time, its folder is created now."""
        if self.opened is None:
            self.opened = Experiment(self._root / self.name if self.name else _dated(self._root))
        return self.opened

    def open_on_all_ranks(self, run: RunLike, *, again: bool) -> RunFolder:
        """Open the folder of a run that begins. All ranks call this; rank 0 opens the folder for all ranks."""
        folder, path = ranks.from_main(lambda: (self.open(run, again=again), self.experiment.path))
        self.opened = self.opened or Experiment(path)
        return folder

    def open(self, run: RunLike, *, again: bool = False) -> RunFolder:
        """Open the folder of the next run with these hyperparameters; with `again`, of the last such run."""
        id_ = id_of(run)
        repeat = self._num_begun.get(id_, 0) + (not again)
        folder = self.experiment.open(run, repeat)
        self._num_begun[id_] = repeat
        return folder


def _dated(root: Path) -> Path:
    """Create a folder named by date and time; two processes in the same second get different folders."""
    name = datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
    files.make_folder(root)
    for number in itertools.count(1):
        folder = root / (name if number == 1 else f"{name}_{number}")
        with files.explained(folder), suppress(FileExistsError):
            folder.mkdir()
            files.sync(root)
            break
    return folder
