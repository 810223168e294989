"""The import of event files of any tool into a table in the format of `load_results`."""

import itertools
import math
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd
from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import metadata as hparams_metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.util.tensor_util import make_ndarray

from runmanager.core.outcome import LEADING
from runmanager.core.state import is_sparse
from runmanager.errors import InvalidArgumentError
from runmanager.tables.columns import HYPERPARAMETERS, Epochs, epochs_table
from runmanager.tables.loading import warn_of
from runmanager.tensorboard import event_file

_SMALL = 1024  # the maximum number of bytes of a record without histogram or image
_TAG = re.compile(r"(?P<kind>loss|accuracy)/(?P<data>.+)|train/(?P<metric>.+)", re.IGNORECASE)
_OURS = ("run", "epoch", *LEADING)
_TIMES = {
    "time/epoch_s": "epoch duration", "time/run_s": "run duration", "time/steps": "steps seen",
    "time/samples": "samples seen",
}  # fmt: skip


def from_tensorboard(logdir: str | os.PathLike[str] = "runs") -> pd.DataFrame:
    """Load the scalars from event files of any tool: one row per run and step.

    A run without an HParams session uses the session of its parent folder, where Keras writes the session, or
    of its only subfolder, where torch's `add_hparams` writes the session. HParams has no integers: a column of
    whole numbers becomes integer. If a step was logged twice, the last value counts. Damaged records are
    skipped and listed in one `RunsWarning`. Incomplete records, histograms and images are skipped too.

    Args:
        logdir: A folder, or one event file.

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


@dataclass
class _Run:
    """The content of a run's event files."""

    points: dict[str, dict[int, float]] = field(default_factory=dict)  # tag -> step -> value
    hparams: dict[str, Any] | None = None  # the hyperparameters of the run's session
    # tag -> plugin; later values of a tag may omit the plugin
    plugins: dict[str, str] = field(default_factory=dict)

    def takes(self, value: Summary.Value) -> bool:
        """Whether a value is a scalar, or has hyperparameters."""
        kind = value.WhichOneof("value")  # torch writes hyperparameters without a value
        if kind == "simple_value":
            return True
        return kind in ("tensor", None) and self._plugin(value) in ("scalars", "hparams")

    def begin(self, step: int) -> None:
        """Drop points that a resumed run logs again."""
        for tag, points in self.points.items():
            self.points[tag] = {earlier: value for earlier, value in points.items() if earlier < step}

    def add(self, step: int, value: Summary.Value) -> None:
        """Add a scalar or hyperparameters."""
        if value.WhichOneof("value") == "simple_value":
            self.points.setdefault(value.tag, {})[step] = value.simple_value
            return
        plugin = self.plugins.setdefault(value.tag, self._plugin(value))
        if plugin == "scalars":
            if math.prod(dim.size for dim in value.tensor.tensor_shape.dim) != 1:
                # do not read the tensor: its shape could make NumPy allocate all memory
                raise ValueError("not one number")
            self.points.setdefault(value.tag, {})[step] = float(make_ndarray(value.tensor).item())
        elif value.tag == hparams_metadata.SESSION_START_INFO_TAG and self.hparams is None:
            content = HParamsPluginData.FromString(value.metadata.plugin_data.content)
            named = content.session_start_info.hparams.items()
            self.hparams = {name: getattr(v, v.WhichOneof("kind")) for name, v in sorted(named)}

    def _plugin(self, value: Summary.Value) -> str:
        return str(value.metadata.plugin_data.plugin_name) or self.plugins.get(value.tag, "")


def _find(path: Path) -> dict[str, list[Path]]:
    """Return the event files of each run, in the order in which TensorBoard reads them."""
    if path.is_file():
        path = path.resolve()  # an explicit link is followed
        return {path.parent.name: [path]}
    files_of: dict[str, list[Path]] = {}
    for folder, _, names in os.walk(path):
        files = sorted(Path(folder, name) for name in names if "tfevents" in name)
        if files:
            files_of[Path(folder).relative_to(path).as_posix()] = files
    if not files_of:
        subject = "event files in" if path.exists() else "such path:"
        raise InvalidArgumentError(
            f"no {subject} {str(path)!r}: give the folder that TensorBoard is started on"
        )
    return dict(sorted(files_of.items()))


def _read_run(files: Iterable[Path], damaged: list[str]) -> _Run:
    run = _Run()
    for path in files:
        try:
            failed = _read_file(path, run)
        except OSError as error:
            damaged.append(f"{path} ({error.strerror})")
            continue
        if failed:
            damaged.append(f"{path} ({failed} records)")
        steps = set().union(*run.points.values())
        if is_sparse(len(steps), len(run.points), sum(map(len, run.points.values()))):
            damaged.append(f"{path} (no table has room for its {len(run.points)} tags)")
            run.points.clear()
    return run


def _read_file(path: Path, run: _Run) -> int:
    """Read one file; return the number of damaged records."""
    failed = 0
    with event_file.mapped(path) as content:
        for position in event_file.records(content):
            record = content[position]
            try:
                if not record:
                    raise ValueError("its length is damaged")  # noqa: TRY301 - counted below
                event = Event.FromString(event_file.body(record))
                values = [value for value in event.summary.value if run.takes(value)]
                begins = event.session_log.status == SessionLog.START
                is_checked = values or len(record) <= _SMALL  # the content of unchecked records is not used
                if is_checked and not event_file.is_intact(record):
                    raise ValueError("its checksum differs")  # noqa: TRY301 - counted below
                if begins:
                    run.begin(event.step)
                for value in values:
                    run.add(event.step, value)
            except (DecodeError, ValueError, TypeError, KeyError, AttributeError):
                failed += 1
    return failed


def _hparams(runs: Mapping[str, _Run]) -> dict[str, dict[str, Any]]:
    """Return the hyperparameters of each run, else of its nearest parent folder, else of its only subfolder."""
    sessions = {name: run.hparams for name, run in runs.items() if run.hparams is not None}
    below: dict[str, list[str]] = {}
    for name in sessions:
        below.setdefault(PurePosixPath(name).parent.as_posix(), []).append(name)
    hparams: dict[str, dict[str, Any]] = {}
    for name in runs:
        above = [name, *(folder.as_posix() for folder in PurePosixPath(name).parents)]
        nearest = next((folder for folder in above if folder in sessions), None)
        only = below.get(name, [])
        chosen = nearest or (only[0] if len(only) == 1 else None)
        hparams[name] = sessions[chosen] if chosen else {}
    return hparams


def _table(runs: Mapping[str, _Run], hparams: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Return the points of runs as a table in the format of `load_results`."""
    steps = {name: sorted(set().union(*run.points.values())) for name, run in runs.items()}
    counts = [len(numbers) for numbers in steps.values()]
    tags = dict.fromkeys(tag for run in runs.values() for tag in run.points)
    names = _param_columns(dict.fromkeys(param for name in runs for param in hparams[name]), tags)
    params = {
        column: _typed([hparams[name].get(param, pd.NA) for name in runs]) for param, column in names.items()
    }
    columns = _columns(tags, params)
    metrics = {column: np.full(sum(counts), np.nan) for column in dict.fromkeys((*LEADING, *columns.values()))}
    for run, numbers, end in zip(runs.values(), steps.values(), itertools.accumulate(counts), strict=True):
        rows = dict(zip(numbers, range(end - len(numbers), end), strict=True))
        for tag, points in run.points.items():
            metrics[columns[tag]][[rows[step] for step in points]] = list(points.values())
    epochs = np.array(list(itertools.chain(*steps.values())), dtype=np.int64)
    positions = list(range(len(runs)))
    cold = np.array([], dtype=np.bool_)  # cold starts are unknown
    table = epochs_table(Epochs(positions, counts, params, [1] * len(runs), epochs, metrics, cold))
    table["run"] = pd.Series(list(runs), dtype="str").take(table["run"].to_numpy()).array
    if not params:
        del table.attrs[HYPERPARAMETERS]  # an answer then says how to name them
    return table.drop(columns=[name for name in LEADING if name not in columns.values()])


def _param_columns(params: Collection[str], tags: Iterable[str]) -> dict[str, str]:
    """Return the column of each hyperparameter, with a prefix if another column has the same name."""
    ours = {*_OURS, *(_column(tag) for tag in tags if _is_standard(tag))}
    reserved = {*ours, *params}
    columns: dict[str, str] = {}
    for param in params:
        column = param
        while param in ours and column in reserved:
            column = f"hparams/{column}"
        columns[param] = column
        reserved.add(column)
    return columns


def _columns(tags: Iterable[str], params: Iterable[str]) -> dict[str, str]:
    """Return the column of each tag; if another tag has the column, return the tag, with a number if needed."""
    taken = {"run", "epoch", *params}
    columns: dict[str, str] = {}
    for tag in tags:
        names = itertools.chain((_column(tag), tag), (f"{tag} ({number})" for number in itertools.count(2)))
        columns[tag] = next(name for name in names if name not in taken)
        taken.add(columns[tag])
    return columns


def _column(tag: str) -> str:
    """Return the column of `load_results` for a tag; the tag itself if no column matches.

    >>> _column("Loss/train"), _column("accuracy/test"), _column("train/f1"), _column("grad norm")
    ('loss', 'test_accuracy', 'f1', 'grad norm')
    """
    match = _TAG.fullmatch(tag)
    if tag in _TIMES or not match:
        return _TIMES.get(tag, tag)
    kind, data = match["kind"], match["data"]
    if not kind:
        return str(match["metric"])
    data = "train" if data == "train_eval" else "" if data == "train" else data
    return f"{data}_{kind.lower()}" if data else str(kind.lower())


def _is_standard(tag: str) -> bool:
    """Whether a tag is a loss, an accuracy or a duration; the column of such a tag is reserved."""
    match = _TAG.fullmatch(tag)
    return tag in _TIMES or bool(match and match["kind"])


def _typed(values: Sequence[Any]) -> list[Any]:
    """Convert numbers to integers if all numbers are whole, as HParams has only floats."""
    numbers = [value for value in values if isinstance(value, float)]
    if all(number.is_integer() for number in numbers):
        return [int(value) if isinstance(value, float) else value for value in values]
    return list(values)
