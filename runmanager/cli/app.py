"""The `runmanager` command: the list of its subcommands, and the subcommands for TensorBoard."""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from runmanager import __version__
from runmanager.cli import comparing, exporting, inspecting, listing, maintaining, removing, running
from runmanager.cli.common import Commands, write_out
from runmanager.cli.declare import declare
from runmanager.errors import InvalidArgumentError

_LAST_PORT = 65535

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
    help="""Inspect, compare and maintain the runs of your experiments.

    Start with [bold]runmanager list[/bold], then [bold]runmanager best[/bold].

    [bold]Exit codes:[/bold] 0 done; 1 damaged, different or not confirmed; 2 refused;
    74 storage failed; 130 interrupted.""",
)


def _version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"runmanager {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Declare the options that come before a command."""


def tensorboard_command(
    root: Path = Path("runs"), *, experiment: str | None = None, port: int | None = None, bind_all: bool = False
) -> None:
    """Start TensorBoard and open it in a browser.

    The server listens only on this machine. Its page pins accuracy, loss and epoch duration, without
    smoothing. It colors runs by device if that varies, else by the first axis that varies. With
    --experiment, every page shows that experiment alone, and HParams draws one line per run.

    For example:

      runmanager tensorboard runs/fashion_grid
      runmanager tensorboard runs --experiment fashion_grid --port 0

    Options:
        experiment (NAME): Show this experiment alone.
        port (PORT): 0 takes any free one. Default: 6006, or the next free one.
        bind_all: Listen on all addresses: whoever reaches this machine sees the runs.
    """
    from runmanager.tensorboard.server import LOCALHOST, page_of, start

    if port is not None and not 0 <= port <= _LAST_PORT:
        raise InvalidArgumentError(f"--port is a number from 0 to {_LAST_PORT}, got {port}")
    try:
        address = start(page_of(root, experiment), port, None if bind_all else LOCALHOST)
        write_out(f"TensorBoard: {address}\nCtrl-C ends it.")
        if sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))):
            import webbrowser

            webbrowser.open(address)
        threading.Event().wait()
    except KeyboardInterrupt:
        typer.echo("")


COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Results": {
        "list": listing.list_command,
        "show": inspecting.show_command,
        "best": comparing.best_command,
        "compare": comparing.compare_command,
        "decide": comparing.decide_command,
        "diff": comparing.diff_command,
        "report": exporting.report_command,
        "export": exporting.export_command,
        "tensorboard": tensorboard_command,
    },
    "Maintenance": {
        "note": maintaining.note_command,
        "rm": removing.rm_command,
        "devices": maintaining.devices_command,
    },
}
app.command("run", cls=running.Words, rich_help_panel="Experiments", help=running.HELP)(running.run_command)
for panel, commands in COMMANDS.items():
    for name, function in commands.items():
        declare(app, name, function, panel)
