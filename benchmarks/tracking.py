"""Writing down a run that trains nothing, 10 epochs of 5 metrics, by us, by a SummaryWriter and by MLflow.

Ours is on the disk after every epoch, in the journal and in TensorBoard; a SummaryWriter's is with the system;
MLflow's is in SQLite, one call per value (default) or per epoch (tuned). Needs MLflow:
``pip install -e '.[peers]'``. Target: none.
"""

import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from benchmarks.measuring import quiet_manager, spread

RUNS, EPOCHS = 9, 10
PARAMS = {"lr": 0.01, "batch_size": 64, "device": "cpu"}
METRICS = {"loss": 0.5, "f1": 0.5, "test_loss": 0.5, "test_accuracy": 0.5, "seconds": 1.0}


def main() -> None:
    """Print the milliseconds per run of each, in turn, and their ratio to ours."""
    sides: dict[str, Callable[[str, int], None]] = {"ours": ours, "SummaryWriter": summary_writer}
    if find_spec("mlflow"):
        sides |= {"MLflow, default": mlflow_by_value, "MLflow, tuned": mlflow_by_epoch}
    else:
        print("MLflow is not there: pip install -e '.[peers]'")
    taken: dict[str, list[float]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as root, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(1 + RUNS):
            for name, write in sides.items():
                before = time.perf_counter()
                write(root, number)
                taken[name].append(time.perf_counter() - before)
    for name, values in taken.items():
        print(f"{name:<16}{spread(values[1:], 'ms', 1e3)}; first {values[0]:.2f} s")
        if name != "ours":
            ratios = [value / own for value, own in zip(values[1:], taken["ours"][1:], strict=True)]
            print(f"{'':<16}{spread(ratios, 'x')} of ours")


def ours(root: str, number: int) -> None:
    """Commit the run."""
    manager = quiet_manager("ours", root)
    with manager.run(PARAMS | {"number": number}):
        for _ in manager.epochs(EPOCHS):
            manager.track_loss(METRICS["loss"], 1)
            manager.track({name: value for name, value in METRICS.items() if name != "loss"})


def summary_writer(root: str, number: int) -> None:
    """Write the run for TensorBoard."""
    with SummaryWriter(f"{root}/summary_writer/{number}") as writer:
        writer.add_hparams(PARAMS, {"loss": 0.5}, run_name=".")
        for epoch in range(1, EPOCHS + 1):
            for name, value in METRICS.items():
                writer.add_scalar(name, value, epoch)
            writer.flush()


def mlflow_by_value(root: str, _: int) -> None:
    """Send each value to MLflow."""
    import mlflow

    _set_up(root)
    with mlflow.start_run():
        for name, value in PARAMS.items():
            mlflow.log_param(name, value)
        for epoch in range(1, EPOCHS + 1):
            for name, metric in METRICS.items():
                mlflow.log_metric(name, metric, step=epoch)


def mlflow_by_epoch(root: str, _: int) -> None:
    """Send the values of an epoch to MLflow at once."""
    import mlflow

    _set_up(root)
    with mlflow.start_run():
        mlflow.log_params(PARAMS)
        for epoch in range(1, EPOCHS + 1):
            mlflow.log_metrics(METRICS, step=epoch)


def _set_up(root: str) -> None:
    import mlflow

    logging.getLogger("alembic").setLevel(logging.WARNING)
    mlflow.set_tracking_uri(f"sqlite:///{root}/mlflow.db")
