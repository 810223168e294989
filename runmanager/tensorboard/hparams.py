"""The format of hyperparameters in HParams: all runs of an experiment have the same names and types.

TensorBoard draws a run in parallel coordinates only if the run has every column, and filters only columns of
one type. So a grid chooses the format before its first run, from all runs of its experiment. It stores the
format in a file of the experiment, and updates runs written in an earlier format.
"""

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runmanager.core import files
from runmanager.core.files import strict_json
from runmanager.core.folder_names import varying
from runmanager.core.folders import Experiment, RunFolder, read_runs
from runmanager.core.state import read_run
from runmanager.core.values import TEXT, common_kind, kind, plain, text
from runmanager.errors import RunsWarning, StorageError
from runmanager.user_frames import user_level

_VERSION = 1
_LARGEST = 2**24  # largest size of an experiment's format file (bytes)
_HEAD = 2**18  # number of bytes at the beginning of an event file that contain the start of the session


@dataclass(frozen=True)
class SessionFormat:
    """The format of the hyperparameters in an experiment.

    `grouped_by` names the hyperparameters that form a Trial ID. TensorBoard averages the runs with one Trial ID
    over the repeat axes. With None, each run has a separate Trial ID.
    """

    kinds: Mapping[str, str] = field(default_factory=dict)  # name of a hyperparameter -> type
    grouped_by: Sequence[str] | None = None
    repeats: Sequence[str] = ()  # the repeat axes, if runs are grouped

    def hparams(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the hyperparameters of a run in this format: bool, number or text.

        >>> SessionFormat({"lr": "number", "momentum": "text"}).hparams({"lr": 0.1})
        {'lr': 0.1, 'momentum': 'none'}
        """
        values = self.without_repeats(params)
        kinds = {**{name: kind(value) for name, value in values.items()}, **self.kinds}
        return {name: _as_kind(values.get(name), kinds[name]) for name in dict.fromkeys((*values, *kinds))}

    def trial_id(self, folder: RunFolder) -> str:
        """Return the Trial ID of a run."""
        experiment = folder.path.parent.name
        if self.grouped_by is None:
            return f"{experiment}/{re.split('[-~]', folder.path.name)[0]}"
        group = {name: folder.params[name] for name in self.grouped_by if name in folder.params}
        return f"{experiment}/{files.combination(group) or 'all'}"

    def without_repeats(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the hyperparameters of a run, without repeat axes if runs are averaged over them."""
        averaged = () if self.grouped_by is None else self.repeats
        return {name: value for name, value in params.items() if name not in averaged}


def read_format(experiment: Path, kinds: Mapping[str, str] | None = None) -> SessionFormat:
    """Read the format of an experiment."""
    stored, _ = _read(experiment)
    kinds = {**stored.without_repeats(kinds or {}), **stored.kinds}
    return SessionFormat(kinds, stored.grouped_by, stored.repeats)


def decide(experiment: Path) -> None:
    """Choose the format of an experiment's hyperparameters, and update runs in an earlier format."""
    try:
        _decide(experiment)
    except StorageError:
        raise
    except Exception as error:  # noqa: BLE001 - no logging call may end a grid
        problem = f"{experiment}: HParams may miss runs ({type(error).__name__}: {error}); training goes on"
        warnings.warn(problem, RunsWarning, stacklevel=user_level())


def _decide(experiment: Path) -> None:
    stored, is_settled = _read(experiment)
    runs = [run for run in read_runs(experiment) if run.is_here]
    names = varying([run.params for run in runs])
    repeats = Experiment(experiment).design.repeating(names)
    form = SessionFormat({}, [name for name in names if name not in repeats] if repeats else None, repeats)
    decided = replace(form, kinds=common_kinds([form.without_repeats(run.params) for run in runs]))
    if is_settled and decided == stored:
        return
    begun = [run for run in runs if run.path.is_dir()]
    # store the format before the updates, for runs that begin meanwhile
    _write(experiment, decided, is_settled=not begun)
    if begun and all([_update(run, decided) for run in begun]):  # noqa: C419 - update all runs
        _write(experiment, decided, is_settled=True)


def common_kinds(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the type of each hyperparameter."""
    values: dict[str, list[Any]] = {}
    for params in rows:
        for name, value in params.items():
            values.setdefault(name, []).append(value)
    return {
        name: common_kind(values[name]) if len(values[name]) == len(rows) else TEXT for name in sorted(values)
    }


def _update(run: RunFolder, form: SessionFormat) -> bool:
    """Rewrite the session starts of a run that have another format; return False if the run is in progress."""
    from runmanager.tensorboard import event_file

    hparams, trial_id = form.hparams(run.params), form.trial_id(run)
    for path in event_file.event_files(run.path):
        session = event_file.read_session(files.read_file(path, _HEAD)[0])
        if session is None:
            continue
        record, event, info = session
        value = event_file.session_start(hparams, trial_id, info.start_time_secs)
        if event_file.started(value) == info:
            continue
        if read_run(run).status.is_in_progress:
            return False  # the process of the run has the file open
        with event_file.mapped(path) as mapped:
            content = mapped[:]
        updated = event_file.event(event.step, [value], event.wall_time).SerializeToString()
        event_file.replace(path, content[: record.start] + event_file.framed(updated) + content[record.stop :])
    return True


def _as_kind(value: Any, expected: str) -> Any:
    value = plain(value)
    if expected != TEXT and kind(value) == expected:
        return value
    return "none" if value is None else files.shortened(text(value))


def _read(experiment: Path) -> tuple[SessionFormat, bool]:
    """Read the format of an experiment, and whether all of its runs are in this format."""
    try:
        document = json.loads(files.read_file(experiment / files.HPARAMS, _LARGEST)[0])
        kinds = {str(name): str(kind) for name, kind in document["kinds"].items()}
        names = document["grouped_by"]
        grouped_by = None if names is None else [str(name) for name in names]
        repeats = tuple(str(name) for name in document["repeats"])
        return SessionFormat(kinds, grouped_by, repeats), document["is_settled"] is True
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return SessionFormat(), False


def _write(experiment: Path, form: SessionFormat, *, is_settled: bool) -> None:
    document: dict[str, Any] = {"kinds": dict(form.kinds), "grouped_by": form.grouped_by}
    document |= {"repeats": list(form.repeats), "is_settled": is_settled}
    files.write_file(experiment / files.HPARAMS, strict_json({"v": _VERSION, **document}))
