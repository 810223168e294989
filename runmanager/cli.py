"""The `runmanager` command."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from runmanager.commands import changing, looking, taking
from runmanager.commands.frame import STORAGE_FAILED, Commands, Damage, add, say

RESULTS, CARE = "Results", "Looking after runs and machines"

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
    help="""See what runs have left behind, decide, and look after them.

    Start with [bold]runmanager list[/bold], then [bold]runmanager best[/bold]; each command has examples:
    [bold]runmanager list --help[/bold].

    Exit codes: 0 done, 1 something was damaged, different or not confirmed, 2 refused, 74 storage failed.""",
)
add(app, looking.list_runs, RESULTS, "list")
add(app, looking.show, RESULTS)
add(app, looking.best, RESULTS)
add(app, looking.compare, RESULTS)
add(app, taking.report, RESULTS)
add(app, taking.export, RESULTS)
add(app, changing.verify, CARE)
add(app, changing.rm, CARE)

Root = Annotated[
    Path, typer.Argument(exists=True, file_okay=False, help="The root of all experiments, or one experiment.")
]


@app.callback()
def main() -> None:
    """See what runs have left behind, decide, and look after them."""


@app.command(rich_help_panel=CARE)
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


@app.command(rich_help_panel=CARE)
def rebuild_tensorboard(root: Root = Path("runs")) -> None:
    """Make the event files anew from the journals, after they were damaged or lost.

    Histograms, images and graphs are kept as far as the old files can be read; these are renamed, not removed.
    """
    from runmanager.board.rebuild import rebuild
    from runmanager.storage.folders import experiments

    damaged = Damage()
    try:
        for experiment in experiments(root):
            typer.echo(f"{experiment}: {rebuild(experiment, damaged)} runs rebuilt")
    except OSError as error:
        say(f"cannot write {error.filename} ({error.strerror}): the journals are as they were")
        raise typer.Exit(STORAGE_FAILED) from error
    damaged.tell()
