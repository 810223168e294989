"""Commands that put results where others can use them: report."""

from pathlib import Path
from typing import Annotated

import typer

from runmanager.commands.frame import Folder, say


def report(
    folder: Folder = Path("runs"),
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")] = Path(
        "report.html"
    ),
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="COLUMN", help="The metric; without, the last accuracy or loss."),
    ] = None,
) -> None:
    """Write one HTML file that shows which run is best, and why.

    It has the table, what matters, learning curves, the comparison of devices, what went wrong and how it was
    run, each with a sentence from the data. It needs no network when it is opened, and can be sent and printed.

    For example:

      runmanager report runs/fashion_grid -o report.html
      runmanager report runs/fashion_grid --by test_loss

    Exit codes: 0; 2 if there are no runs or no such metric; 74 if the file could not be written.
    """
    from runmanager.page import write_report

    write_report(folder, output, by)
    say(f"{output} is written: open it in a browser")
