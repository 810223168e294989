"""What a page of TensorBoard is to show, as one URL: a deep link."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from urllib.parse import quote, urlencode

from runmanager.console import in_notebook
from runmanager.errors import BoardError
from runmanager.storage.folders import RunFolder, experiments, read_runs, varying
from runmanager.storage.run_state import read_run

LOCAL = "http://localhost:6006/"
"""Where `tensorboard --logdir` answers as a rule."""

_SELECTED = 500  # runs up to which the Time Series page selects any by itself
_ROWS = 100  # that HParams shows at first
_DEVICE = "device"

Experiments = Mapping[str, Sequence[RunFolder]]


@dataclass(frozen=True)
class View:
    """What TensorBoard is started on, and how its page is set up.

    Attributes:
        logdir: The folder.
        query: What a link says of the Time Series page, encoded.
        notes: What the limits of TensorBoard's pages would hide, a sentence each.
    """

    logdir: Path
    query: str
    notes: Sequence[str] = ()

    def link(self, url: str = LOCAL) -> str:
        """Return the deep link into the TensorBoard that answers at `url`."""
        return f"{url.rstrip('/')}/?{self.query}#timeseries"


def look(root: Path, experiment: str | None = None) -> View:
    """Find out how the runs in a folder are shown best.

    Curves are not smoothed; accuracy, loss and epoch duration are pinned; the color is that of the axis that
    matters: device if it varies, else the first that does, or the experiment where there are several.

    Args:
        root: The root of all experiments, an experiment's folder, or any folder with event files.
        experiment: The name of the one to show.

    Raises:
        FileNotFoundError: There is no such folder.
        BoardError: It has no runs, or none of that experiment.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {str(root)!r}: give the one that RunManager or run_grid wrote")
    folders = {folder.resolve().name: folder for folder in experiments(root)}
    runs = {name: [run for run in read_runs(folder) if run.is_here] for name, folder in folders.items()}
    runs = {name: runs_of_one for name, runs_of_one in runs.items() if runs_of_one}
    if experiment is not None and experiment not in runs:
        names = ", ".join(runs) or "none"
        raise BoardError(f"{str(root)!r} has no runs of an experiment {experiment!r}; it has those of: {names}")
    if not runs and next(root.rglob("*tfevents*"), None) is None:
        raise BoardError(f"no runs in {str(root)!r}: start a grid first, or give the folder that it wrote")
    if experiment is not None:
        root, runs = folders[experiment], {experiment: runs[experiment]}
    return View(root, _query(runs), _limits(root, runs))


def hint(experiment: Path) -> list[str]:
    """Say in a few lines how an experiment is seen in TensorBoard; nothing if that is not known."""
    root, name = experiment.parent, experiment.name
    try:
        view = look(root, name)
    except (OSError, BoardError):
        return []
    if in_notebook():
        return [f"TensorBoard: open_tensorboard({str(root)!r}, {name!r})"]
    start = f"runmanager tensorboard {shlex.quote(str(root))} --experiment {name}"
    plain = f"tensorboard --logdir {shlex.quote(str(view.logdir))}"
    return [f"TensorBoard: {start} (or {plain} and this link)", f"    {view.link()}", *view.notes]


def _limits(root: Path, experiments: Experiments) -> list[str]:
    notes = []
    number = sum(map(len, experiments.values()))
    if number > _SELECTED:
        step = "tick those you want, or filter them by name"
        if len(experiments) > 1:
            step = f"show one experiment: runmanager tensorboard {shlex.quote(str(root))} --experiment NAME"
        notes.append(f"! {number} runs; above {_SELECTED}, TensorBoard selects none by itself: {step}")
    if number > _ROWS:
        notes.append(f"! HParams shows {_ROWS} of {number} runs: choose more rows a page below its table")
    return notes


def _query(experiments: Experiments) -> str:
    parts = {"smoothing": "0"}  # 0.6, the default, misdraws short curves
    color = _color(experiments)
    if color:
        parts["runColorGroup"] = f"regex:{color}"
    if experiments:
        pinned = [{"plugin": "scalars", "tag": tag} for tag in _pinned(experiments.values())]
        parts["pinnedCards"] = json.dumps(pinned, separators=(",", ":"))
    return urlencode(parts, quote_via=quote, safe=":,/=")


def _color(experiments: Experiments) -> str | None:
    """Return a regular expression; runs for which its group matches the same have the same color."""
    axes = [varying([run.params for run in runs]) for runs in experiments.values()]
    if _DEVICE in chain(*axes):
        axis = _DEVICE
    elif len(experiments) > 1:
        return "^([^/]+)/"
    else:
        axis = next(chain(*axes), "")
    return rf"(?:\d_|,){axis}=([^,~]*)" if axis else None


def _pinned(experiments: Iterable[Sequence[RunFolder]]) -> list[str]:
    begun = (read_run(run).epochs for runs in experiments for run in runs if run.path.is_dir())
    metrics = next((epochs[-1].metrics for epochs in begun if epochs), {})
    kinds = [(kind, "test" if f"test_{kind}" in metrics else "train") for kind in ("accuracy", "loss")]
    return [*(f"{kind}/{data}" for kind, data in kinds), "time/epoch_s"]
