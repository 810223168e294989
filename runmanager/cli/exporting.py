"""Commands that write results to files and to other tools: report, export."""

from pathlib import Path
from typing import Any

from runmanager.cli.common import say
from runmanager.cli.comparing import values_of_base
from runmanager.cli.rows import is_table, load_selected
from runmanager.core.wording import counted
from runmanager.errors import InvalidArgumentError

_RUNS = Path("runs")


def report_command(
    folders: list[Path] | None = None,
    *,
    output: Path | None = None,
    goals: list[str] | None = None,
    repeats: list[str] | None = None,
    base: str | None = None,
    hyperparameters: str | None = None,
    watch: bool = False,
) -> None:
    """Write an HTML page that shows the best run, and why.

    The page has the runs, the effect of each hyperparameter, learning curves, devices, failures and timings. It
    needs no network. With --watch, it follows a running grid, and so does a browser that shows it.

    For example:

      runmanager report runs/fashion_grid -o report.html
      runmanager report runs/fashion_grid --goal test_loss
      runmanager report runs/fashion_grid --goal loss --goal "min:run duration"
      runmanager report runs/ablation --base lr=0.1,width=64
      runmanager report wandb.csv --goal max:val/f1 --repeats seed
      runmanager report runs/before runs/after
      runmanager report runs
      runmanager report runs/fashion_grid --watch

    Exit codes: 0 written; 2 no runs or no such metric; 74 the file could not be written.

    Options:
        folders (FOLDER): An experiment, several to compare, a table of another tool, or the root of several, of
            which it writes an index and each page. Default: runs.
        output (FILE): File to write. Default: report.html in the experiment, or index.html in the root.
        base (VALUES): Compare all settings with the setting of these values, as lr=0.1,width=64.
        watch: Rewrite the page while runs are executed, until Ctrl-C.
    """
    from runmanager.report import write_report
    from runmanager.report.render import watch_runs
    from runmanager.tables.roots import absolute_path

    folders = folders or [_RUNS]
    source: Any = folders[0] if len(folders) == 1 else folders
    values, is_file = None, any(map(is_table, folders))
    if base or hyperparameters or is_file:
        runs = load_selected(*folders, goal=goals, repeats=repeats, hyperparameters=hyperparameters)
        source = runs if is_file else source
        values = values_of_base(base, runs)
    if watch and not is_file:
        watch_runs(source, output, goals, repeats, values, say=say)
        return
    page = write_report(source, output, goals, repeats=repeats, base=values)
    say(f"{absolute_path(page)} is written: open it in a browser")


def export_command(
    folder: Path = _RUNS,
    *,
    csv: Path | None = None,
    json: Path | None = None,
    parquet: Path | None = None,
    epochs: bool = False,
    mlflow: str | None = None,
    wandb: Path | None = None,
) -> None:
    """Export results to CSV, JSON, Parquet, MLflow or W&B.

    Files keep every type. A spreadsheet executes no text of the CSV as a formula. Nothing leaves this machine,
    except for the MLflow store.

    For example:

      runmanager export runs/fashion_grid --csv runs.csv
      runmanager export --epochs --parquet epochs.parquet
      runmanager export --mlflow sqlite:///mlflow.db

    Exit codes: 0 written; 2 nothing to do, or a library is missing; 74 a file could not be written.

    Options:
        csv (FILE): CSV file to write; its name ends in .csv.
        json (FILE): JSON file to write.
        parquet (FILE): Parquet file to write.
        epochs: One row per epoch, not per run.
        mlflow (URI): MLflow store to log to, such as sqlite:///mlflow.db.
        wandb (FOLDER): Folder for the offline format of W&B.
    """
    from runmanager.tables.formats import export
    from runmanager.tables.loading import load_results, load_runs
    from runmanager.tables.roots import no_runs

    paths = [*filter(None, (csv, json, parquet))]
    if not (paths or mlflow or wandb):
        raise InvalidArgumentError("nothing to export to: give --csv, --json, --parquet, --mlflow or --wandb")
    if paths:
        table, what = (load_results(folder), "epoch") if epochs else (load_runs(folder), "run")
        if table.empty:
            raise FileNotFoundError(no_runs(folder))
        for path in paths:
            export(table, path)
            say(f"{path}: {counted(len(table), what)}")
    if mlflow:
        from runmanager.trainers.mlflow import export_mlflow

        say(f"{mlflow}: {len(export_mlflow(folder, tracking_uri=mlflow)):,} new or changed runs logged")
    if wandb:
        from runmanager.trainers.wandb import export_wandb

        say(f"{wandb}: {counted(len(export_wandb(folder, folder=wandb)), 'run')} written")
