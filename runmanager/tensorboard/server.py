"""TensorBoard's server, which ends with this process, and the link that configures its page."""

import contextlib
import io
import json
import os
import re
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from runmanager.answers.usual_goals import companion
from runmanager.core.experiment import Experiment, RunFolder, read_runs, varying
from runmanager.core.files import slug
from runmanager.core.goal import default_goal, goal_of_kept
from runmanager.core.state import read_run
from runmanager.core.values import text
from runmanager.core.wording import did_you_mean
from runmanager.drawing.console import in_notebook
from runmanager.errors import InvalidArgumentError, RunManagerError
from runmanager.executors.signals import signals_blocked
from runmanager.tables.roots import experiments
from runmanager.tensorboard.hparams import EPOCH, tag

_COLORS = 7  # number of distinct colors for groups of runs
_DEVICE = "device"
LOCALHOST = "127.0.0.1"

_ADDRESSES: dict[Path, str] = {}  # a repeated cell reuses its server
_STARTED: list[object] = []  # TensorBoard's data server ends when its owner is collected


def open_tensorboard(
    root: str | os.PathLike[str] = "runs", experiment: str | None = None, *, height: int = 800
) -> None:
    """Start TensorBoard on this machine and show it below the cell, configured for these runs.

    TensorBoard starts once per folder and ends with the kernel. Behind a notebook proxy, set the environment
    variable TENSORBOARD_PROXY_URL to the proxy's path of a port, such as ``/proxy/%PORT%/``. Outside a
    notebook, only the link is printed.

    Args:
        root: The root of all experiments, an experiment's folder, or any folder with event files.
        experiment: The name of the experiment to show; None for all.
        height: The height in pixels.

    Raises:
        InvalidArgumentError: The folder does not exist or has no runs, or the experiment does not exist.
        RunManagerError: TensorBoard did not start.

    Example:
        >>> from runmanager import RunManager
        >>> manager = RunManager("example", display=False)
        >>> with manager.run({"lr": 0.1}):
        ...     for epoch in manager.epochs(1):
        ...         manager.track_loss(0.5, 8)
        >>> open_tensorboard("runs", "example")  # doctest: +ELLIPSIS
        TensorBoard: http://...
    """
    page = page_of(Path(root), experiment)
    logdir = page.logdir.resolve()
    if logdir not in _ADDRESSES:
        _ADDRESSES[logdir] = start(page)
    address = _ADDRESSES[logdir]
    proxy = os.environ.get("TENSORBOARD_PROXY_URL", address)
    link = page.link(proxy.replace("%PORT%", str(urlsplit(address).port)))
    print(f"TensorBoard: {link}")  # noqa: T201 - for the user
    if in_notebook():
        from IPython.display import IFrame, display

        display(IFrame(link, width="100%", height=height))


def start(page: "TensorBoardPage", port: int | None = 0, host: str | None = LOCALHOST) -> str:
    """Start TensorBoard in a thread; port 0 is any, None 6006 or the next; host None is all addresses."""
    # else gRPC writes a line to standard error for each process that a loader forks while the page is read
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    words = io.StringIO()  # a note on how TensorBoard reads files, or why it does not start
    # TensorBoard's data server starts with signals blocked: Ctrl-C, or an interrupted cell, would end it
    with contextlib.redirect_stderr(words), warnings.catch_warnings(action="ignore"), signals_blocked():
        from tensorboard import program

        def serve(app: Any, flags: Any) -> Any:
            def answer(request: Mapping[str, str], respond: Callable[..., object]) -> Any:
                if request["PATH_INFO"] != "/" or request["QUERY_STRING"]:
                    return app(request, respond)
                respond("302 Found", [("Location", page.link("").lstrip("/"))])  # relative, for a proxy
                return []

            return program.create_port_scanning_werkzeug_server(answer, flags)

        board = program.TensorBoard(server_class=serve)
        _STARTED.append(board)
        board.configure(logdir=str(page.logdir.resolve()), port=port, host=host, bind_all=host is None)
        try:
            return str(board.launch())
        except program.TensorBoardPortInUseError:
            raise RunManagerError(f"port {port} is in use: choose another, or 0 for any that is free") from None
        except (program.TensorBoardServerException, SystemExit) as error:
            cause = f"{error}\n{words.getvalue()}".rstrip().rpartition("\n")[2]
            raise RunManagerError(
                f"TensorBoard did not start on {host or 'all interfaces'}, port {port}: {cause}"
            ) from None


@dataclass(frozen=True)
class TensorBoardPage:
    """The log folder for TensorBoard, and the settings of its page."""

    logdir: Path
    query: str  # the encoded settings of the Time Series page

    def link(self, url: str) -> str:
        """Return the link to the configured page of the TensorBoard at `url`."""
        # the query configures Time Series, the fragment configures Scalars and Custom Scalars
        return f"{url.rstrip('/')}/?{self.query}#timeseries&_smoothingWeight=0"


def page_of(root: Path, experiment: str | None = None) -> TensorBoardPage:
    """Configure TensorBoard's page for the runs in a folder, or for one experiment."""
    folders = {folder.resolve().name: folder for folder in experiments(root)}
    runs = {name: here for name, folder in folders.items() if (here := _runs_here(folder))}
    if experiment is not None and experiment not in runs:
        hint = did_you_mean(experiment, runs, "it has those of")
        raise InvalidArgumentError(f"{str(root)!r} has no runs of an experiment {experiment!r}; {hint}")
    if not runs and next(root.rglob("*tfevents*"), None) is None:
        raise InvalidArgumentError(
            f"no runs in {str(root)!r}: start a grid first, or give the folder that it wrote"
        )
    if experiment is not None:
        root, runs = folders[experiment], {experiment: runs[experiment]}
    return TensorBoardPage(root, _query([*runs.values()]))


def _runs_here(experiment: Path) -> list[RunFolder]:
    """Return the runs that have begun, or can be executed on this machine."""
    return [run for run in read_runs(experiment) if not run.unavailable or run.path.is_dir()]


def hint(experiment: Path) -> list[str]:
    """Return the line on how to open an experiment in TensorBoard, if it has runs here."""
    if not _runs_here(experiment):
        return []
    if in_notebook():
        return [f"TensorBoard: open_tensorboard({str(experiment.parent)!r}, {experiment.name!r})"]
    return [f"TensorBoard: runmanager tensorboard {shlex.quote(str(experiment))}"]


def _query(experiments: Sequence[Sequence[RunFolder]]) -> str:
    """Return the settings of the page: colors, and pinned charts of goals, losses and duration."""
    parts = {"smoothing": "0"}  # the default smoothing, 0.6, distorts short curves
    tags: dict[str, None] = {}
    for runs in experiments:
        design = Experiment(runs[0].path.parent).design
        begun = (read_run(run) for run in runs if run.path.is_dir())
        first = next((run for run in begun if run.epochs), None)  # reading all runs would be slow
        metrics = first.epochs[-1].metrics if first else {}
        goal = design.goal or goal_of_kept([first.start] if first else []) or default_goal(metrics)
        # if no run has metrics, the link is the same as before the first epoch
        metric = goal.metric if goal else "accuracy"
        beside = companion(metric, metrics or ["loss"])
        tags |= dict.fromkeys(tag(column) for column in (metric, beside) if column)
    if len(experiments) > 1:
        parts["runColorGroup"] = "regex:^([^/]+)/"
    elif experiments:
        rows = [run.params for run in runs]
        axes = varying(rows)
        few = (
            name
            for name in sorted(axes, key=design.repeating(axes).__contains__)
            if len({text(params.get(name)) for params in rows}) <= _COLORS
        )
        if axis := _DEVICE if _DEVICE in axes else next(few, ""):
            # runs with one match have one color; a value in a folder's name ends before the next name
            parts["runColorGroup"] = rf"regex:-{re.escape(slug(axis))}=(.*?)(?:-[a-zA-Z][\w.]*=|~|$)"
    if tags:
        pinned = [{"plugin": "scalars", "tag": name} for name in (*tags, EPOCH)]
        parts["pinnedCards"] = json.dumps(pinned, separators=(",", ":"))
    return urlencode(parts, quote_via=quote, safe=":,/=")
