"""The link that configures TensorBoard's page: folder, pinned charts and colors."""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

from runmanager.console import in_notebook
from runmanager.core.design import Design
from runmanager.core.files import slug
from runmanager.core.folder_names import telling_first, varying
from runmanager.core.folders import Experiment, RunFolder, experiments, read_runs
from runmanager.core.goal import companion, default_goal
from runmanager.core.state import read_run
from runmanager.core.values import text
from runmanager.core.wording import did_you_mean
from runmanager.errors import InvalidArgumentError, RunManagerError
from runmanager.tensorboard import hparams
from runmanager.tensorboard.tags import EPOCH, LAST, tag

DEFAULT_URL = "http://localhost:6006/"
"""The default address of `tensorboard --logdir`."""

_COLORS = 7  # number of distinct colors for groups of runs
_DEVICE = "device"

Experiments = Mapping[str, Sequence[RunFolder]]


@dataclass(frozen=True)
class TensorBoardPage:
    """The log folder for TensorBoard, and the settings of its page."""

    logdir: Path
    query: str  # the encoded settings of the Time Series page

    def link(self, url: str = DEFAULT_URL) -> str:
        """Return the link to the configured page of the TensorBoard at `url`."""
        # the query configures Time Series, the fragment configures Scalars and Custom Scalars
        return f"{url.rstrip('/')}/?{self.query}#timeseries&_smoothingWeight=0"


def shared_hparams(root: Path) -> list[str]:
    """Return the hyperparameters that all runs in a folder have, with one type in all runs."""
    of_experiments = [[run.params for run in read_runs(folder) if run.is_here] for folder in experiments(root)]
    first, *others = [*filter(None, map(hparams.common_kinds, of_experiments))] or [{}]
    return [name for name, kind in first.items() if all(other.get(name) == kind for other in others)]


def page_of(root: Path, experiment: str | None = None) -> TensorBoardPage:
    """Configure TensorBoard's page for the runs in a folder, or for one experiment."""
    if not root.is_dir():
        raise InvalidArgumentError(f"no folder {str(root)!r}: give the one that RunManager or run_grid wrote")
    folders = {folder.resolve().name: folder for folder in experiments(root)}
    all_runs = {name: [run for run in read_runs(folder) if run.is_here] for name, folder in folders.items()}
    runs = {name: runs for name, runs in all_runs.items() if runs}
    if experiment is not None and experiment not in runs:
        hint = did_you_mean(experiment, runs, "it has those of")
        raise InvalidArgumentError(f"{str(root)!r} has no runs of an experiment {experiment!r}; {hint}")
    if not runs and next(root.rglob("*tfevents*"), None) is None:
        raise InvalidArgumentError(
            f"no runs in {str(root)!r}: start a grid first, or give the folder that it wrote"
        )
    if experiment is not None:
        root, runs = folders[experiment], {experiment: runs[experiment]}
    return TensorBoardPage(root, _query(runs))


def hint(experiment: Path) -> list[str]:
    """Return the line on how to open an experiment in TensorBoard, if it has runs here."""
    root, name = experiment.parent, experiment.name
    try:
        page_of(experiment)
    except (OSError, RunManagerError):
        return []
    if in_notebook():
        return [f"TensorBoard: open_tensorboard({str(root)!r}, {name!r})"]
    start = f"runmanager tensorboard {shlex.quote(str(root))} --experiment {name}"
    return [f"TensorBoard: {start}"]


def _query(experiments: Experiments) -> str:
    parts = {"smoothing": "0"}  # the default smoothing, 0.6, distorts short curves
    color = _color(experiments)
    if color:
        parts["runColorGroup"] = f"regex:{color}"
    if experiments:
        pinned = [{"plugin": "scalars", "tag": tag} for tag in _pinned(experiments.values())]
        parts["pinnedCards"] = json.dumps(pinned, separators=(",", ":"))
    return urlencode(parts, quote_via=quote, safe=":,/=")


def _color(experiments: Experiments) -> str | None:
    """Return a regular expression; runs with the same match of its group have the same color."""
    rows = [run.params for runs in experiments.values() for run in runs]
    designs = [(_design(runs), varying([run.params for run in runs])) for runs in experiments.values()]
    axes = {axis for _, names in designs for axis in names}
    if len(experiments) > 1 and _DEVICE not in axes:
        return "^([^/]+)/"
    repeats = [axis for design, names in designs for axis in design.repeating(names)]
    names = telling_first((name for params in rows for name in params if name in axes), repeats)
    few = (name for name in names if len({text(params.get(name)) for params in rows}) <= _COLORS)
    axis = _DEVICE if _DEVICE in axes else next(few, "")
    # the value of the axis in a folder's name ends before the next name
    return rf"-{re.escape(slug(axis))}=(.*?)(?:-[a-zA-Z][\w.]*=|~|$)" if axis else None


def _design(runs: Sequence[RunFolder]) -> Design:
    return Experiment(runs[0].path.parent).design


def _pinned(experiments: Iterable[Sequence[RunFolder]]) -> list[str]:
    """Return the tags of the goal's metric, of its loss, and of the epoch duration."""
    deciding: dict[str, Mapping[str, float]] = {}  # metric -> the metrics of a run
    for runs in filter(None, experiments):
        begun = (read_run(run) for run in runs if run.path.is_dir())
        first = next((run for run in begun if run.epochs), None)  # reading all runs would be slow
        metrics = first.epochs[-1].metrics if first else {}
        goal = _design(runs).decisive([first.start] if first else [])
        if goal := goal or default_goal(metrics):
            deciding.setdefault(goal.metric, metrics)
    # if no run has metrics, the link is the same as before the first epoch
    metric, metrics = next(iter(deciding.items()), ("accuracy", {}))
    if len(deciding) > 1:
        return [LAST, tag("loss"), EPOCH]
    pinned = filter(None, (metric, companion(metric, metrics or ["loss"])))
    return [*map(tag, pinned), EPOCH]
