"""The `runmanager` command."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    help="See what a machine can do, and look after what runs have left behind.",
)

Root = Annotated[
    Path, typer.Argument(exists=True, file_okay=False, help="The root of all experiments, or one experiment.")
]


@app.callback()
def main() -> None:
    """See what a machine can do, and look after what runs have left behind."""


@app.command()
def devices(
    benchmark: Annotated[
        bool,
        typer.Option("--benchmark", help="Time a matrix product and a training step on each, against the cpu."),
    ] = False,
) -> None:
    """List the devices of this machine: name, memory, cores and precisions."""
    from runmanager.display import print_table
    from runmanager.inventory import describe_devices

    print_table(describe_devices(), title="Devices")
    if benchmark:
        from runmanager.speed import benchmark_devices

        print_table(benchmark_devices(), title="\nSpeed, warm and synchronised, of several timings")


@app.command()
def tensorboard(
    root: Root = Path("runs"),
    experiment: Annotated[str | None, typer.Option(help="The name of the one to show.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="0 for any; without, 6006 or the next that is free.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="The address to answer on; without, localhost.")] = None,
    bind_all: Annotated[
        bool, typer.Option("--bind-all", help="Answer whoever reaches this machine, who may then see the runs.")
    ] = False,
) -> None:
    """Start TensorBoard on this machine and open it, or print its link; Ctrl-C ends it.

    The link pins accuracy, loss and epoch duration, switches the smoothing of curves off, shows the experiment,
    and colors runs by device if it varies, else by the first axis that does.
    """
    from runmanager.board.columns import settle_below
    from runmanager.board.server import EVERYWHERE, HERE, Server
    from runmanager.board.view import look
    from runmanager.errors import BoardError

    if host in EVERYWHERE or (bind_all and host):
        rule = "all addresses of this machine are asked for by --bind-all, without --host"
        raise typer.BadParameter(f"{rule}; got --host {host!r}")
    try:
        view = look(root, experiment)
        settle_below(root)
        with Server(view.logdir, port, None if bind_all else host or HERE) as server:
            link = view.link(server.url)
            typer.echo("\n".join([*view.notes, f"TensorBoard: {link}", "Ctrl-C ends it."]))
            if _has_display():
                import webbrowser

                webbrowser.open(link)
            server.wait()
    except BoardError as error:
        typer.echo(f"runmanager: {error}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        typer.echo("")


def _has_display() -> bool:
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


@app.command()
def rebuild_tensorboard(root: Root = Path("runs")) -> None:
    """Make the event files anew from the journals, after they were damaged or lost.

    Histograms, images and graphs are kept as far as the old files can be read; these are renamed, not removed.
    """
    from runmanager.board.rebuild import rebuild
    from runmanager.storage.folders import experiments

    damaged: list[str] = []
    try:
        for experiment in experiments(root):
            typer.echo(f"{experiment}: {rebuild(experiment, damaged)} runs rebuilt")
    except OSError as error:
        typer.echo(f"cannot write {error.filename} ({error.strerror}): the journals are as they were", err=True)
        raise typer.Exit(74) from error
    for problem in damaged:
        typer.echo(f"! {problem}", err=True)
    raise typer.Exit(1 if damaged else 0)
