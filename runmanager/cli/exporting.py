"""Commands that write results to files and to other tools: report, export."""

from pathlib import Path

from runmanager.cli.common import check_target, say
from runmanager.core.wording import counted
from runmanager.errors import InvalidArgumentError

_RUNS = Path("runs")


def report_command(
    folders: list[Path] | None = None,
    *,
    output: Path | None = None,
    goals: list[str] | None = None,
    repeats: list[str] | None = None,
    watch: bool = False,
) -> None:
    """Write an HTML page that shows the best run, and why.

    The page has the runs, the effect of each hyperparameter, learning curves, devices, failures and timings. It
    needs no network. With --watch, it follows a running grid, and so does a browser that shows it.

    For example:

      runmanager report runs/fashion_grid -o report.html
      runmanager report runs/fashion_grid --goal test_loss
      runmanager report runs/fashion_grid --goal loss --goal "min:run duration"
      runmanager report runs/before runs/after
      runmanager report runs
      runmanager report runs/fashion_grid --watch

    Exit codes: 0 written; 2 no runs or no such metric; 74 the file could not be written.

    Options:
        folders (FOLDER): An experiment, several to compare, or the root of several, of which it writes an index
            and each page. Default: runs.
        output (FILE): File to write. Default: report.html, or index.html in the root.
        watch: Rewrite the page while runs are executed, until Ctrl-C.
    """
    from runmanager.report import write_report
    from runmanager.report.render import watch_runs
    from runmanager.tables.roots import absolute_path

    goal = goals[0] if goals and len(goals) == 1 else goals or None
    path: Path | list[Path] = folders[0] if folders and len(folders) == 1 else folders or _RUNS
    if output:
        check_target(output)
    if watch:
        watch_runs(path, output, goal, repeats, say=say)
        return
    page = write_report(path, output, goal, repeats=repeats)
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
        csv (FILE): CSV file to write.
        json (FILE): JSON file to write.
        parquet (FILE): Parquet file to write.
        epochs: One row per epoch, not per run.
        mlflow (URI): MLflow store to log to, such as sqlite:///mlflow.db.
        wandb (FOLDER): Folder for the offline format of W&B.
    """
    files = {suffix: path for suffix, path in ((".csv", csv), (".json", json), (".parquet", parquet)) if path}
    if not files and mlflow is None and wandb is None:
        raise InvalidArgumentError(["nothing to export to: give --csv, --json, --parquet, --mlflow or --wandb"])
    if files:
        _export_files(folder, files, epochs=epochs)
    if mlflow is not None:
        from runmanager.trainers.mlflow import export_mlflow

        number = len(export_mlflow(folder, tracking_uri=mlflow))
        rest = "each replaces its earlier export, runs that have not changed are not logged again"
        say(f"{mlflow}: {counted(number, 'run')} logged; {rest}")
    if wandb is not None:
        from runmanager.trainers.wandb import export_wandb

        number = len(export_wandb(folder, folder=wandb))
        say(f"{wandb}: {counted(number, 'run')} written")


def _export_files(folder: Path, files: dict[str, Path], *, epochs: bool) -> None:
    from runmanager.tables.formats import export as write
    from runmanager.tables.loading import load_results, load_runs
    from runmanager.tables.roots import no_runs

    problems = [
        f"--{suffix[1:]} writes a file that ends in {suffix}, got '{path}'"
        for suffix, path in files.items()
        if path.suffix.lower() != suffix
    ]
    if problems:
        raise InvalidArgumentError(problems)
    for path in files.values():
        check_target(path)
    table = load_results(folder) if epochs else load_runs(folder)
    if table.empty:
        raise FileNotFoundError(no_runs(folder, "epochs" if epochs else "runs"))
    for path in files.values():
        write(table, path)
        say(f"{path}: {counted(len(table), 'epoch' if epochs else 'run')}")
