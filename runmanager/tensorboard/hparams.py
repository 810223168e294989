"""The names of columns in TensorBoard, and the format of hyperparameters in HParams.

TensorBoard draws a run in parallel coordinates only if it has every column, and filters only columns of one
type. So a grid chooses the format before its first run, stores it, and updates earlier runs.
"""

import io
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runmanager.core import files
from runmanager.core.contracts import Search
from runmanager.core.experiment import Experiment, RunFolder, varying
from runmanager.core.files import LONGEST, shortened_name
from runmanager.core.goal import EVALUATED
from runmanager.core.state import read_run
from runmanager.core.values import NUMBER, TEXT, kinds_of, plain, text
from runmanager.errors import StorageError, warn

if TYPE_CHECKING:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

EPOCH = "time/epoch_s"

# TensorBoard sorts capitals first, and HParams shows the first five metrics: the values that rank the run, with
# the goal, then these four. All get a value at once, else parallel coordinates omit the run
LAST, KEPT = "Goal/last ", "Goal/kept "
BEST, BEST_EPOCH, EPOCH_SECONDS, BEST_AFTER = "Run/best", "Run/best_epoch", "Run/epoch_s", "Run/time_to_best_s"

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


def tag(column: str) -> str:
    """Return the TensorBoard tag of a result column."""
    if column in _TAGS:
        return _TAGS[column]
    name, _, kind = column.rpartition("_")
    if name and kind in ("loss", "accuracy"):
        return f"{kind}/{name}"
    data, _, metric = column.partition("_")
    return f"{metric}/{data}" if metric and data in EVALUATED else f"train/{column}"


def decide(experiment: Experiment, search: Search | None) -> None:
    """Choose the format; `grouped_by` names the hyperparameters of a Trial ID, None gives each run its own."""
    path = experiment.path / files.HPARAMS
    try:
        runs = sorted(experiment.runs.values(), key=lambda run: run.number)
        runs = [run for run in runs if not run.unavailable or run.path.is_dir()]  # as in TensorBoard's page
        design = experiment.design
        # a search will create runs that differ in its axes
        names = list(dict.fromkeys([*varying([run.params for run in runs]), *(search.axes if search else ())]))
        repeats = design.repeating(names)
        kinds = {n: kind for n, kind in kinds_of(run.params for run in runs).items() if n not in repeats}
        axes = [name for name in names if name not in repeats]
        # TensorBoard selects the first five axes by itself, and at a constant one all lines meet in a point
        constants = {name: repr(plain(runs[0].params[name])) for name in kinds if axes and name not in axes}
        form: dict[str, Any] = {
            "v": _VERSION, "kinds": kinds, "grouped_by": axes if repeats else None, "repeats": [*repeats],
            "constants": constants, "goals": [str(goal) for goal in design.all_goals[1:]],
            "is_settled": True,  # all runs have this format
        }  # fmt: skip
        if form == files.read_json(path):
            return
        # store the format before the updates, for runs that begin meanwhile
        files.write_file(path, files.strict_json({**form, "is_settled": False}))
        if all([_update(run, form) for run in runs if run.path.is_dir()]):  # noqa: C419 - update all runs
            files.write_file(path, files.strict_json(form))
    except StorageError:
        raise
    except Exception as error:  # noqa: BLE001 - no logging call may end a grid
        warn(f"{experiment.path}: HParams may miss runs ({type(error).__name__}: {error}); training goes on")


def session_start(
    run: RunFolder, form: Mapping[str, Any], start_time: float | None = None
) -> "HParamsPluginData":
    """Return the start of a run's HParams session; values other than numbers, bools and text become text."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

    trial = re.split("[-~]", run.path.name)[0]
    if form.get("grouped_by") is not None:
        values = [f"{name}={plain(run.params[name])!r}" for name in form["grouped_by"] if name in run.params]
        trial = _short(", ".join(values)) or "all"
    info = SessionStartInfo(
        group_name=f"{run.path.parent.name}/{trial}",
        start_time_secs=time.time() if start_time is None else start_time,
    )
    repeats, kinds, constants = (form.get(key, {}) for key in ("repeats", "kinds", "constants"))
    params = {**dict.fromkeys((*run.params, *kinds)), **run.params}
    for name, kind in kinds_of([params]).items():
        if name in repeats or constants.get(name) == repr(plain(params[name])):
            continue
        value = plain(params[name])
        if kind == TEXT or kinds.get(name, kind) != kind:
            value = "none" if value is None else text(value)
            info.hparams[name].string_value = _short(value)
        elif kind == NUMBER:
            info.hparams[name].number_value = value
        else:
            info.hparams[name].bool_value = value
    return HParamsPluginData(session_start_info=info)


def _short(name: str) -> str:
    """Return a name of 64 characters or fewer."""
    return name if len(name) <= LONGEST else shortened_name(name, name)


def _update(run: RunFolder, form: Mapping[str, Any]) -> bool:
    """Rewrite the session starts of a run that have another format; return False if the run is in progress."""
    from runmanager.tensorboard import event_file

    for path in event_file.event_files(run.path):
        buffer = io.BytesIO()
        with event_file.mapped(path) as content:
            session = event_file.read_session(content)
            if session is None:
                continue
            record, event, info = session
            start = session_start(run, form, info.start_time_secs)
            if start.session_start_info == info:
                continue
            if read_run(run).status.is_in_progress:
                return False  # the process of the run has the file open
            updated = event_file.event(event.step, {event_file.SESSION: start})
            updated.wall_time = event.wall_time
            buffer.write(content[: record.start])
            event_file.write(buffer, updated)
            buffer.write(content[record.stop :])
        event_file.replace(path, buffer.getvalue())
    return True
