"""The `runmanager` command."""

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
