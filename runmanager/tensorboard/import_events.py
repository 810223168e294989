"""The import of event files of any tool into a table in the format of `load_results`."""

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd
from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.util.tensor_util import make_ndarray

from runmanager.core.outcome import LEADING
from runmanager.errors import InvalidArgumentError
from runmanager.tables.columns import HYPERPARAMETERS, epochs_table
from runmanager.tables.loading import warn_of
from runmanager.tensorboard import event_file

_TAG = re.compile(r"(?P<kind>loss|accuracy)/(?P<data>.+)|train/(?P<metric>.+)", re.IGNORECASE)
_TIMES = {
    "time/epoch_s": "epoch duration", "time/run_s": "run duration", "time/steps": "steps seen",
    "time/samples": "samples seen",
}  # fmt: skip


def from_tensorboard(logdir: str | os.PathLike[str] = "runs") -> pd.DataFrame:
    """Load the scalars from event files of any tool: one row per run and step.

    A run without an HParams session uses the session of its parent folder, where Keras writes the session, or
    of its only subfolder, where torch's `add_hparams` writes the session. HParams has no integers: a column of
    whole numbers becomes integer. If a step was logged twice, the last value counts. Damaged records are
    skipped and listed in one `RunsWarning`; after a damaged length, the rest of a file is skipped. Incomplete
    records, histograms and images are skipped too.

    Args:
        logdir: The folder that TensorBoard is started on.

    Returns:
        The columns `run` (the run's folder below `logdir`, as in TensorBoard), `epoch` (TensorBoard's step),
        the hyperparameters of HParams, then the scalars. For runs without HParams, `load_table` names the
        hyperparameters.

        A scalar with a column in `load_results` gets the name and the position of this column: ``loss/train``
        is `loss`, ``Accuracy/test`` is `test_accuracy`; all others keep their tags. A hyperparameter with the
        name of another column, such as `epoch`, becomes ``hparams/epoch``.

    Raises:
        InvalidArgumentError: The path does not exist, or holds no event file.

    Example:
        >>> from torch.utils.tensorboard import SummaryWriter
        >>> with SummaryWriter("logs/first") as writer:
        ...     writer.add_scalar("loss/train", 0.5, 1)
        >>> from_tensorboard("logs")[["run", "epoch", "loss"]].values.tolist()
        [['first', 1, 0.5]]
    """
    damaged: list[str] = []
    runs = {name: _read_run(files, damaged) for name, files in _find(Path(logdir)).items()}
    table = _table({name: run for name, run in runs.items() if run.points}, _hparams(runs))
    warn_of(damaged, logdir)
    return table


class EventRun:
    """The content of a run's event files."""

    def __init__(self) -> None:
        self.points: dict[str, dict[int, float]] = {}  # tag -> step -> value
        self.hparams: dict[str, Any] | None = None  # of the run's session
        self._scalars: set[str] = set()  # tags of the plugin, which later values of a tag may omit

    def add(self, event: Event) -> None:
        """Add the scalars and hyperparameters of an event."""
        if event.session_log.status == SessionLog.START:  # a resumed run logs its last points again
            for tag, points in self.points.items():
                self.points[tag] = {step: value for step, value in points.items() if step < event.step}
        for tag, value in self.scalars(event):
            self.points.setdefault(tag, {})[event.step] = value
        for content in event.summary.value:
            if content.tag == event_file.SESSION and self.hparams is None:
                plugin = HParamsPluginData.FromString(content.metadata.plugin_data.content)
                params = plugin.session_start_info.hparams
                self.hparams = {name: getattr(v, v.WhichOneof("kind")) for name, v in sorted(params.items())}

    def scalars(self, event: Event) -> Iterator[tuple[str, float]]:
        """Yield the scalars of an event, by tag."""
        for value in event.summary.value:
            kind = value.WhichOneof("value")
            if value.metadata.plugin_data.plugin_name == "scalars":
                self._scalars.add(value.tag)
            if kind == "simple_value":
                yield value.tag, value.simple_value
            elif kind == "tensor" and value.tag in self._scalars:
                if math.prod(dim.size for dim in value.tensor.tensor_shape.dim) != 1:
                    # do not read the tensor: its shape could make NumPy allocate all memory
                    raise ValueError("not one number")
                yield value.tag, float(make_ndarray(value.tensor).item())


def _find(path: Path) -> dict[str, list[Path]]:
    """Return the event files of each run, in the order in which TensorBoard reads them."""
    files_of: dict[str, list[Path]] = {}
    for file in sorted(path.rglob("*tfevents*")):
        if file.is_file() or file.is_symlink():  # a dangling link counts as damaged
            files_of.setdefault(file.parent.relative_to(path).as_posix(), []).append(file)
    if not files_of:
        raise InvalidArgumentError(
            f"no event files in {str(path)!r}: give the folder that TensorBoard is started on"
        )
    return dict(sorted(files_of.items()))


def _read_run(files: Iterable[Path], damaged: list[str]) -> EventRun:
    run = EventRun()
    for path in files:
        failed = 0
        try:
            with event_file.mapped(path) as content:
                for position in event_file.records(content):
                    try:
                        run.add(event_file.read_event(content[position]))
                    except (DecodeError, ValueError, TypeError, KeyError, AttributeError):
                        failed += 1
        except OSError as error:
            damaged.append(f"{path} ({error.strerror})")
            continue
        if failed:
            damaged.append(f"{path} ({failed} records)")
    return run


def _hparams(runs: Mapping[str, EventRun]) -> dict[str, dict[str, Any]]:
    """Return the hyperparameters of each run, else of its nearest parent folder, else of its only subfolder."""
    sessions = {name: run.hparams for name, run in runs.items() if run.hparams is not None}
    below: dict[str, list[str]] = {}
    for name in sessions:
        below.setdefault(str(PurePosixPath(name).parent), []).append(name)
    hparams: dict[str, dict[str, Any]] = {}
    for name in runs:
        above, inner = [name, *map(str, PurePosixPath(name).parents)], below.get(name, [])
        folders = [*above, *inner] if len(inner) == 1 else above
        hparams[name] = next((sessions[folder] for folder in folders if folder in sessions), {})
    return hparams


def _table(runs: Mapping[str, EventRun], hparams: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Return the points of runs as a table in the format of `load_results`."""
    tags = dict.fromkeys(tag for run in runs.values() for tag in run.points)
    names = dict.fromkeys(param for name in runs for param in hparams[name])
    of_params, of_tags = _columns(names, tags)
    params = {of_params[name]: _typed([hparams[run].get(name, pd.NA) for run in runs]) for name in names}
    frames = [pd.DataFrame(run.points).sort_index() for run in runs.values()] or [pd.DataFrame()]
    points, counts = pd.concat(frames), [len(frame) for frame in frames[: len(runs)]]
    of_epochs = {"epoch": points.index.to_numpy(np.int64)}
    of_epochs |= {column: points[tag].to_numpy() for tag, column in of_tags.items()}
    of_runs = {"run": pd.Series(list(runs), dtype="str")}
    table = epochs_table(counts, of_runs, params, pd.DataFrame(of_epochs))
    if not params:
        del table.attrs[HYPERPARAMETERS]  # an answer then says how to name them
    return table.drop(columns=[name for name in LEADING if name not in of_tags.values()])


def _columns(params: Iterable[str], tags: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the column of each hyperparameter, and of each tag: the tag itself if its column is taken."""
    ours = {"run", "epoch", *LEADING}
    ours |= {_column(tag) for tag in tags if _column(tag) not in (tag, tag.partition("/")[2])}
    of_params = {name: f"hparams/{name}" if name in ours else name for name in params}
    taken = {"run", "epoch", *of_params.values()}
    of_tags: dict[str, str] = {}
    for tag in tags:
        name = tag if _column(tag) in taken else _column(tag)
        while name in taken:
            name += " (2)"
        of_tags[tag] = name
        taken.add(name)
    return of_params, of_tags


def _column(tag: str) -> str:
    """Return the column of `load_results` for a tag; the tag itself if no column matches."""
    match = _TAG.fullmatch(tag)
    if tag in _TIMES or not match:
        return _TIMES.get(tag, tag)
    kind, data = match["kind"], match["data"]
    if not kind:
        return str(match["metric"])
    data = "train" if data == "train_eval" else "" if data == "train" else data
    return f"{data}_{kind.lower()}" if data else str(kind.lower())


def _typed(values: Sequence[Any]) -> list[Any]:
    """Convert numbers to integers if all numbers are whole, as HParams has only floats."""
    numbers = [value for value in values if isinstance(value, float)]
    if all(number.is_integer() for number in numbers):
        return [int(value) if isinstance(value, float) else value for value in values]
    return list(values)
