"""Commands that put results where others can use them: report, export."""

from pathlib import Path
from typing import Annotated

import typer

from runmanager.cli.common import Folder, Largest, say
from runmanager.errors import GridError
from runmanager.hyperparameters import counted

Target = Annotated[Path | None, typer.Option(metavar="FILE", help="Write this file.")]


def report(
    folder: Folder = Path("runs"),
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")] = Path(
        "report.html"
    ),
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="COLUMN", help="The metric; without, the last accuracy or loss."),
    ] = None,
    largest: Largest = None,
) -> None:
    """Write one HTML file that shows which run is best, and why.

    It has the table, what matters, learning curves, the comparison of devices, what went wrong and how it was
    run, each with a sentence from the data. It needs no network when it is opened, and can be sent and printed.

    For example:

      runmanager report runs/fashion_grid -o report.html
      runmanager report runs/fashion_grid --by test_loss

    Exit codes: 0; 2 if there are no runs or no such metric; 74 if the file could not be written.
    """
    from runmanager.report import write_report

    write_report(folder, output, by, largest=largest)
    say(f"{output} is written: open it in a browser")


def export(
    folder: Folder = Path("runs"),
    csv: Target = None,
    json: Target = None,
    parquet: Target = None,
    epochs: Annotated[
        bool, typer.Option("--epochs", help="One row per epoch, instead of one per run.")
    ] = False,
    mlflow: Annotated[
        str | None, typer.Option("--mlflow", metavar="URI", help="Log the runs there, as sqlite:///mlflow.db.")
    ] = None,
    wandb: Annotated[
        Path | None, typer.Option("--wandb", metavar="FOLDER", help="Write W&B's offline format there.")
    ] = None,
) -> None:
    """Write the results as files that come back with every type, or log them to other tools.

    No text in the CSV is executed by a spreadsheet. Nothing is sent anywhere but to what --mlflow names.

    For example:

      runmanager export runs/fashion_grid --csv runs.csv
      runmanager export --epochs --parquet epochs.parquet
      runmanager export --mlflow sqlite:///mlflow.db

    Exit codes: 0; 2 if there is nothing to do, or no library for it; 74 if a file could not be written.
    """
    files = {suffix: path for suffix, path in ((".csv", csv), (".json", json), (".parquet", parquet)) if path}
    if not files and mlflow is None and wandb is None:
        raise GridError(["nothing to export to: give --csv, --json, --parquet, --mlflow or --wandb"])
    if files:
        _export_files(folder, files, epochs=epochs)
    if mlflow is not None:
        from runmanager.integrations.mlflow import export_mlflow

        number = len(export_mlflow(folder, tracking_uri=mlflow))
        say(f"{mlflow}: {counted(number, 'run')} logged; unchanged runs are left as they are")
    if wandb is not None:
        from runmanager.integrations.wandb import export_wandb

        number = len(export_wandb(folder, folder=wandb))
        say(f"{wandb}: {counted(number, 'run')} written")


def _export_files(folder: Path, files: dict[str, Path], *, epochs: bool) -> None:
    from runmanager.results.files import export as write
    from runmanager.results.loading import load_results, load_runs

    wrong = [
        f"--{suffix[1:]} writes a file that ends in {suffix}, got '{path}'"
        for suffix, path in files.items()
        if path.suffix.lower() != suffix
    ]
    if wrong:
        raise GridError(wrong)
    table = load_results(folder) if epochs else load_runs(folder)
    if table.empty:
        what = "epochs" if epochs else "runs"
        raise FileNotFoundError(
            f"no {what} under {folder}: start a grid first, or give the folder that it wrote"
        )
    for path in files.values():
        write(table, path)
        say(f"{path}: {counted(len(table), 'epoch' if epochs else 'run')}")
