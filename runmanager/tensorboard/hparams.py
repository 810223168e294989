"""The names of columns in TensorBoard, and the format of hyperparameters in HParams.

TensorBoard draws a run in parallel coordinates only if the run has every column, and filters only columns of
one type. So a grid chooses the format before its first run, from all runs of its experiment. It stores the
format in a file of the experiment, and updates runs written in an earlier format.
"""

import json
import re
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.core import files
from runmanager.core.experiment import Experiment, RunFolder, read_runs, varying
from runmanager.core.goal import EVALUATED
from runmanager.core.state import read_run
from runmanager.core.values import NUMBER, TEXT, kind_of, plain, text
from runmanager.errors import RunsWarning, StorageError
from runmanager.user_frames import user_level

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary

EPOCH = "time/epoch_s"

# TensorBoard sorts capitals first, and HParams shows the first five metrics, which are these five. All five get
# a value with the first value of the goal, so that parallel coordinates draw the run
BEST, BEST_AFTER, BEST_EPOCH, EPOCH_SECONDS, LAST = OF_GOAL = (
    "Goal/best", "Goal/best_after_s", "Goal/best_epoch", "Goal/epoch_s", "Goal/last",
)  # fmt: skip
"""The tags of the goal, for any metric."""

_TAGS = {
    "loss": "loss/train",
    "accuracy": "accuracy/train",
    "epoch duration": EPOCH,
    "run duration": "time/run_s",
    "steps seen": "time/steps",
    "samples seen": "time/samples",
    # the tag of evaluate(loader, "train"), as loss/train is the tag of the training loss
    "train_loss": "loss/train_eval",
    "train_accuracy": "accuracy/train_eval",
}
_VERSION = 1
_LARGEST = 2**24  # largest size of an experiment's format file (bytes)
_HEAD = 2**18  # number of bytes at the beginning of an event file that contain the start of the session


def tag(column: str) -> str:
    """Return the TensorBoard tag of a result column.

    >>> tag("loss"), tag("test_accuracy"), tag("validation_f1_macro"), tag("f1")
    ('loss/train', 'accuracy/test', 'f1_macro/validation', 'train/f1')
    """
    if column in _TAGS:
        return _TAGS[column]
    name, _, kind = column.rpartition("_")
    if name and kind in ("loss", "accuracy"):
        return f"{kind}/{name}"
    data, _, metric = column.partition("_")
    return f"{metric}/{data}" if metric and data in EVALUATED else f"train/{column}"


@dataclass(frozen=True)
class SessionFormat:
    """The format of the hyperparameters in an experiment.

    `grouped_by` names the hyperparameters that form a Trial ID. TensorBoard averages the runs with one Trial ID
    over the repeat axes. With None, each run has a separate Trial ID.
    """

    kinds: Mapping[str, str] = field(default_factory=dict)  # name of a hyperparameter -> type
    grouped_by: Sequence[str] | None = None
    repeats: Sequence[str] = ()  # the repeat axes, which are no hyperparameters of a session; () with None
    is_settled: bool = False  # whether all runs have this format


def session_start(run: RunFolder, form: SessionFormat, start_time: float | None = None) -> "Summary.Value":
    """Return the start of a run's HParams session; values other than numbers, bools and text become text."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

    trial = re.split("[-~]", run.path.name)[0]
    if form.grouped_by is not None:
        trial = files.combination({n: run.params[n] for n in form.grouped_by if n in run.params}) or "all"
    info = SessionStartInfo(
        group_name=f"{run.path.parent.name}/{trial}",
        start_time_secs=time.time() if start_time is None else start_time,
    )
    names = [name for name in run.params if name not in form.repeats]
    for name in dict.fromkeys((*names, *form.kinds)):
        value = plain(run.params.get(name)) if name in names else None
        expected = form.kinds.get(name, kind_of([value]))
        if expected == TEXT or kind_of([value]) != expected:
            value = "none" if value is None else files.shortened(text(value))
            info.hparams[name].string_value = value
        elif expected == NUMBER:
            info.hparams[name].number_value = value
        else:
            info.hparams[name].bool_value = value
    content = metadata.create_summary_metadata(HParamsPluginData(session_start_info=info))
    return Summary.Value(tag=metadata.SESSION_START_INFO_TAG, metadata=content, tensor=metadata.NULL_TENSOR)


def read_format(experiment: Path) -> SessionFormat:
    """Read the format of an experiment, the default format if there is none."""
    try:
        document = json.loads(files.read_file(experiment / files.HPARAMS, _LARGEST)[0])
        names = document["grouped_by"]
        return SessionFormat(
            {str(name): str(kind) for name, kind in document["kinds"].items()},
            None if names is None else [str(name) for name in names],
            () if names is None else tuple(str(name) for name in document["repeats"]),
            document["is_settled"] is True,
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return SessionFormat()


def runs_here(experiment: Path) -> list[RunFolder]:
    """Return the runs of an experiment that have begun, or can be executed on this machine."""
    return [run for run in read_runs(experiment) if not run.unavailable or run.path.is_dir()]


def decide(experiment: Path) -> None:
    """Choose the format of an experiment's hyperparameters, and update runs in an earlier format."""
    try:
        stored = read_format(experiment)
        runs = runs_here(experiment)
        names = varying([run.params for run in runs])
        repeats = Experiment(experiment).design.repeating(names)
        rows = [{name: value for name, value in run.params.items() if name not in repeats} for run in runs]
        grouped_by = [name for name in names if name not in repeats] if repeats else None
        form = SessionFormat(common_kinds(rows), grouped_by, repeats, is_settled=True)
        if form == stored:
            return
        begun = [run for run in runs if run.path.is_dir()]
        document: dict[str, Any] = {"v": _VERSION, "kinds": dict(form.kinds), "grouped_by": grouped_by}
        document |= {"repeats": list(repeats), "is_settled": not begun}
        # store the format before the updates, for runs that begin meanwhile
        files.write_file(experiment / files.HPARAMS, files.strict_json(document))
        if begun and all([_update(run, form) for run in begun]):  # noqa: C419 - update all runs
            document["is_settled"] = True
            files.write_file(experiment / files.HPARAMS, files.strict_json(document))
    except StorageError:
        raise
    except Exception as error:  # noqa: BLE001 - no logging call may end a grid
        problem = f"{experiment}: HParams may miss runs ({type(error).__name__}: {error}); training goes on"
        warnings.warn(problem, RunsWarning, stacklevel=user_level())


def common_kinds(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the type of each hyperparameter."""
    values: dict[str, list[Any]] = {}
    for params in rows:
        for name, value in params.items():
            values.setdefault(name, []).append(value)
    return {name: kind_of(values[name]) if len(values[name]) == len(rows) else TEXT for name in sorted(values)}


def _update(run: RunFolder, form: SessionFormat) -> bool:
    """Rewrite the session starts of a run that have another format; return False if the run is in progress."""
    from runmanager.tensorboard import event_file

    for path in event_file.event_files(run.path):
        session = event_file.read_session(files.read_file(path, _HEAD)[0])
        if session is None:
            continue
        record, event, info = session
        value = session_start(run, form, info.start_time_secs)
        if event_file.started(value) == info:
            continue
        if read_run(run).status.is_in_progress:
            return False  # the process of the run has the file open
        with event_file.mapped(path) as mapped:
            content = mapped[:]
        del event.summary.value[:]
        event.summary.value.append(value)
        updated = event_file.framed(event.SerializeToString())
        event_file.replace(path, content[: record.start] + updated + content[record.stop :])
    return True
