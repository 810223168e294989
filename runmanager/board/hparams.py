"""How HParams shows hyperparameters: no name missing, and one type per name, in all runs under a root.

TensorBoard draws a run in parallel coordinates only where it has every column, and filters only columns of one
type. So each experiment has a file that says how its runs write their hyperparameters; it is decided from all
experiments under the root, and what was written otherwise before is mended.
"""

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runmanager.errors import HeldError, RunsWarning, StorageError
from runmanager.hyperparameters import plain, text
from runmanager.storage import durable, paths, processes
from runmanager.storage.folders import RunFolder, experiments, is_experiment, read_runs, varying
from runmanager.storage.journal import read_attempt, strict_json
from runmanager.storage.lock import hold

BOOL, NUMBER, TEXT = "bool", "number", "text"
SEED = "seed"
"""The hyperparameter over which `group_seeds` averages."""

_VERSION = 1
_HEAD = 2**18  # bytes of an event file in which its session begins


@dataclass(frozen=True)
class Columns:
    """How the runs of an experiment write their hyperparameters.

    Attributes:
        kinds: Name -> how its values are written, of every hyperparameter under the root.
        grouped_by: The hyperparameters that name a Trial ID, whose runs are averaged over their seeds; None if
            each run has its own.
    """

    kinds: Mapping[str, str] = field(default_factory=dict)
    grouped_by: Sequence[str] | None = None

    def hparams(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the hyperparameters of a run as they are written: bool, number or text.

        >>> Columns({"lr": NUMBER, "momentum": TEXT}).hparams({"lr": 0.1})
        {'lr': 0.1, 'momentum': 'none'}
        """
        own = self.shown(params)
        kinds = {**{name: kind(value) for name, value in own.items()}, **self.kinds}
        return {name: _written(own.get(name), kinds[name]) for name in dict.fromkeys((*own, *kinds))}

    def trial(self, folder: RunFolder) -> str:
        """Return the Trial ID of a run."""
        experiment = folder.path.parent.name
        if self.grouped_by is None:
            return f"{experiment}/{folder.path.name.partition('_')[0]}"
        named = {name: folder.params[name] for name in self.grouped_by if name in folder.params}
        return f"{experiment}/{paths.combination(named) or 'all'}"

    def fit(self, params: Mapping[str, Any]) -> bool:
        """Whether a run with these hyperparameters can be written so."""
        own = self.shown(params)
        found = {name: kind(own[name]) if name in own else TEXT for name in (*own, *self.kinds)}
        return all(self.kinds.get(name) in (TEXT, found[name]) for name in found)

    def shown(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the hyperparameters of a run that its Trial ID has."""
        is_averaged = self.grouped_by is not None
        return {name: value for name, value in params.items() if not (is_averaged and name == SEED)}


def kind(value: Any) -> str:
    """Return how a value is written if all of its column are of its kind.

    >>> kind(True), kind(3), kind(float("nan")), kind(None)
    ('bool', 'number', 'text', 'text')
    """
    value = plain(value)
    if isinstance(value, bool):
        return BOOL
    is_number = isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
    return NUMBER if is_number else TEXT


def read(experiment: Path) -> Columns:
    """Read how the runs of an experiment write their hyperparameters; each by its own kind if it is new."""
    return _read(experiment)[0]


def join(run: RunFolder) -> None:
    """Make the hyperparameters of a run known that no grid has announced.

    Raises:
        StorageError: The experiment could not be written.
    """
    experiment = run.path.parent
    known = read(experiment)
    if not known.fit(run.params):
        settle(experiment.parent, experiment, known.grouped_by)


def settle(root: Path, own: Path | None = None, grouped_by: Sequence[str] | None = None) -> None:
    """Decide how all runs under a root write their hyperparameters, and mend those that did otherwise.

    Other experiments that a process holds or that cannot be written, and runs that are being executed, are left
    as they are, to be mended the next time. What cannot be shown is a warning.

    Args:
        root: The folder of the experiments.
        own: The experiment that this process holds, or writes.
        grouped_by: None if each run of `own` has a Trial ID of its own; else it is named by what varies in all
            runs of the experiment, of which the grid knows only a part.

    Raises:
        StorageError: The file of `own` could not be written.
    """
    try:
        _settle(root, own, grouped_by)
    except StorageError:
        raise
    except Exception as error:  # noqa: BLE001 - no logging call may end a grid
        problem = f"{root}: HParams may miss runs ({type(error).__name__}: {error}); training goes on"
        warnings.warn(problem, RunsWarning, stacklevel=3)


def settle_below(folder: Path) -> None:
    """Do so for what TensorBoard is about to show: a root of experiments, one of them, or any folder."""
    folder = folder.resolve()  # "." has neither a name nor a folder above it
    for root in {experiment.parent for experiment in experiments(folder) if is_experiment(experiment)}:
        settle(root)


def _settle(root: Path, own: Path | None, grouped_by: Sequence[str] | None) -> None:
    places = dict.fromkeys(path for path in (own, *experiments(root)) if path and path.parent == root)
    known = {path: _read(path) for path in places}
    groups = {path: columns.grouped_by for path, (columns, _) in known.items()}
    if own:
        groups[own] = grouped_by
    runs = {path: [run for run in read_runs(path) if _is_shown(run)] for path in places}
    groups = {path: None if names is None else _grouped_by(runs[path]) for path, names in groups.items()}
    kinds = _kinds([Columns({}, groups[path]).shown(run.params) for path in places for run in runs[path]])
    for path in places:
        wanted = Columns(kinds, groups[path])
        if known[path] == (wanted, True):
            continue
        if path == own:
            _apply(path, runs[path], wanted)
            continue
        with suppress(HeldError, OSError), hold(path, is_brief=True):  # its holder does so at its end
            _apply(path, runs[path], wanted)


def _grouped_by(runs: Sequence[RunFolder]) -> list[str]:
    """Return what tells the runs of all grids of an experiment apart, except for their seeds."""
    return [name for name in varying([run.params for run in runs]) if name != SEED]


def _is_shown(run: RunFolder) -> bool:
    """Whether TensorBoard shows a run, or will when its grid has been executed."""
    return not run.unavailable or run.path.is_dir()


def _kinds(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for params in rows:
        for name, value in params.items():
            found.setdefault(name, []).append(kind(value))
    is_one = {name: len(kinds) == len(rows) and len(set(kinds)) == 1 for name, kinds in found.items()}
    return {name: kinds[0] if is_one[name] else TEXT for name, kinds in sorted(found.items())}


def _apply(experiment: Path, runs: Sequence[RunFolder], columns: Columns) -> None:
    begun = [run for run in runs if run.path.is_dir()]
    _write(experiment, columns, is_settled=not begun)  # first, for the runs that begin from now on
    if begun and all([_mend(run, columns) for run in begun]):  # noqa: C419 - each of them
        _write(experiment, columns, is_settled=True)


def _mend(run: RunFolder, columns: Columns) -> bool:
    """Write a run's hyperparameters anew where they are others; False if it may be being executed."""
    from runmanager.board import archive, event_file

    hparams, trial = columns.hparams(run.params), columns.trial(run)
    for path in archive.event_files(run.path):
        with path.open("rb") as file:
            found = archive.session_start(file.read(_HEAD))
        if found is None:
            continue
        place, event, info = found
        value = event_file.session_start(hparams, trial, info.start_time_secs)
        if archive.started(value) == info:
            continue
        if _may_be_executed(run):
            return False
        content = path.read_bytes()
        record = event_file.framed(event_file.event(event.step, [value], event.wall_time).SerializeToString())
        event_file.replace(path, content[: place.start] + record + content[place.stop :])
    return True


def _may_be_executed(run: RunFolder) -> bool:
    """Whether a process, here or on another machine, may have the event file of a run open."""
    try:
        journals = list(paths.attempts(run.path).values())
        last = read_attempt(journals[-1]) if journals else None
    except OSError:
        return True
    return last is not None and last.outcome is None and processes.lives(last.start) is not False


def _written(value: Any, wanted: str) -> Any:
    value = plain(value)
    if wanted != TEXT and kind(value) == wanted:
        return value
    return "none" if value is None else paths.shortened(text(value))


def _read(experiment: Path) -> tuple[Columns, bool]:
    """Read the columns of an experiment, and whether all of its runs were mended to be so."""
    try:
        document = json.loads((experiment / paths.HPARAMS).read_bytes())
        kinds = {str(name): str(kind) for name, kind in document["kinds"].items()}
        names = document["grouped_by"]
        grouped_by = None if names is None else [str(name) for name in names]
        return Columns(kinds, grouped_by), document["is_settled"] is True
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Columns(), False


def _write(experiment: Path, columns: Columns, *, is_settled: bool) -> None:
    document = {"kinds": dict(columns.kinds), "grouped_by": columns.grouped_by, "is_settled": is_settled}
    durable.write_file(experiment / paths.HPARAMS, strict_json({"v": _VERSION, **document}))
