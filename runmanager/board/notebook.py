"""TensorBoard below a notebook's cell."""

import os
from pathlib import Path
from urllib.parse import urlsplit

from runmanager.board.server import Server
from runmanager.board.view import look
from runmanager.console import in_notebook

_SERVERS: dict[Path, Server] = {}  # a cell that is executed again shows the one that it started


def open_tensorboard(
    root: str | os.PathLike[str] = "runs", experiment: str | None = None, *, height: int = 800
) -> None:
    """Start TensorBoard on this machine and show it below the cell, set up for these runs.

    It is started once for a folder and ends with the kernel. Where the notebook is served through a proxy, set
    the variable TENSORBOARD_PROXY_URL to what leads to a port, as ``/proxy/%PORT%/``. Outside of a notebook,
    only the link is printed.

    Args:
        root: The root of all experiments, an experiment's folder, or any folder with event files.
        experiment: The name of the one to show.
        height: In pixels.

    Raises:
        FileNotFoundError: There is no such folder.
        BoardError: It has no runs, or none of that experiment, or TensorBoard did not start.
    """
    view = look(Path(root), experiment)
    logdir = view.logdir.resolve()
    server = _SERVERS.get(logdir)
    if server is None or not server.lives:
        server = _SERVERS[logdir] = Server(logdir)
    proxy = os.environ.get("TENSORBOARD_PROXY_URL", server.url)
    link = view.link(proxy.replace("%PORT%", str(urlsplit(server.url).port)))
    print(*view.notes, f"TensorBoard: {link}", sep="\n")  # noqa: T201 - where the user looks
    if in_notebook():
        from IPython.display import IFrame, display

        display(IFrame(link, width="100%", height=height))
