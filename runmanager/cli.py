"""The `runmanager` command."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=True, help="Look after what runs have left behind.")

Root = Annotated[
    Path, typer.Argument(exists=True, file_okay=False, help="The root of all experiments, or one experiment.")
]


@app.callback()
def main() -> None:
    """Look after what runs have left behind."""


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
