"""Tables as files, and exports to MLflow and W&B (docs/command-line.md, docs/from-the-tutorial.md)."""

import importlib
import os
import shutil
import struct
import sys
from contextlib import suppress
from unittest import mock

import pandas as pd
import pytest

from runmanager import (
    MissingExtraError,
    OptunaSearch,
    RayExecutor,
    RunManager,
    StorageError,
    Uniform,
    best,
    export,
    export_mlflow,
    export_wandb,
    load_table,
)
from tests.border.experiments import complete, execute


def study(root, losses=((0.5, 0.25),)):
    """Leave behind completed runs and one that failed."""
    manager = RunManager("study", root, tensorboard=False, display=False)
    for number, values in enumerate(losses):
        complete({"lr": 0.1, "size": (number, 3), "device": "cpu"}, manager, values)
    with suppress(ValueError), manager.run({"lr": 10, "size": None, "device": "cpu"}):
        raise ValueError("too large")


# Files


def test_the_tutorials_results_csv_is_read(tmp_path):
    (tmp_path / "results.csv").write_text(
        ",run,epoch,loss,accuracy,epoch duration,run duration,lr,batch_size\n"
        "0,1,1,0.9,0.5,1.0,1.1,0.01,100\n1,1,2,0.7,0.6,1.0,2.1,0.01,100\n2,2,1,0.8,0.7,1.0,1.1,0.001,100\n"
    )

    table = load_table(tmp_path / "results.csv")

    rows = table.groupby("run").tail(1)
    assert rows["accuracy"].tolist() == [0.6, 0.7]
    assert best(rows, goal="max:accuracy")["lr"].tolist() == [0.001, 0.01]


@pytest.mark.parametrize(
    ("call", "module", "extra"),
    [
        (export_mlflow, "mlflow", "mlflow"), (export_wandb, "wandb", "wandb"),
        (lambda root: export(pd.DataFrame({"run": [1]}), root / "runs.parquet"), "pyarrow", "parquet"),
        (lambda _: RayExecutor(), "ray", "ray"),
        (lambda root: execute(root, {"x": Uniform(0, 1)}, print, search=OptunaSearch(2), goal="min:loss"),
         "optuna", "optuna"),
    ],
)  # fmt: skip
def test_without_the_library_the_extra_is_named(tmp_path, monkeypatch, call, module, extra):
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(MissingExtraError, match=rf"pip install 'torch-runmanager\[{extra}\]'"):
        call(tmp_path)


@pytest.mark.parametrize(
    ("extra", "modules"),
    [("huggingface", ["transformers"]), ("lightning", ["lightning.pytorch.callbacks", "pytorch_lightning"])],
)
def test_without_the_library_of_a_trainer_the_extra_is_named(extra, modules):
    name = f"runmanager.trainers.{extra}"
    with mock.patch.dict(sys.modules, dict.fromkeys([*modules, name])):
        del sys.modules[name]
        with pytest.raises(MissingExtraError, match=rf"pip install 'torch-runmanager\[{extra}\]'"):
            importlib.import_module(name)


# MLflow


@pytest.fixture
def mlflow(own_folder):
    """MLflow, which keeps what it writes in a folder of its own and sends nothing."""
    with mock.patch.dict(os.environ, MLFLOW_DISABLE_TELEMETRY="true"):
        yield pytest.importorskip("mlflow", reason="the extra mlflow is not installed")


def logged(mlflow, uri):
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("study")
    runs = client.search_runs([experiment.experiment_id])
    return client, {run.info.run_name[:3]: run for run in runs}


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_mlflow_gets_every_metric_of_every_epoch_and_changed_runs_once(tmp_path, mlflow):
    study(tmp_path / "runs")
    uri = f"sqlite:///{tmp_path}/mlflow.db"

    first = export_mlflow(tmp_path / "runs", tracking_uri=uri)
    again = export_mlflow(tmp_path / "runs/study", tracking_uri=uri)
    shutil.rmtree(tmp_path / "runs")
    study(tmp_path / "runs", [(0.5, 0.125)])
    export_mlflow(tmp_path / "runs", tracking_uri=uri)

    client, runs = logged(mlflow, uri)
    assert (len(first), again, sorted(runs)) == (2, [], ["001", "002"])
    done, failed = runs["001"], runs["002"]
    assert done.data.params == {"lr": "0.1", "size": "(0, 3)", "device": "cpu"}
    history = client.get_metric_history(done.info.run_id, "loss")
    assert sorted((metric.step, metric.value) for metric in history) == [(1, 0.5), (2, 0.125)]
    assert (done.info.status, failed.info.status) == ("FINISHED", "FAILED")
    assert any("too large" in tag for tag in failed.data.tags.values())
    own = {name for name in failed.data.tags if name.startswith("runmanager.")}
    assert own == {f"runmanager.{name}" for name in ("id", "status", "error", "state")}


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_run_that_mlflow_did_not_get_whole_is_logged_again(tmp_path, mlflow):
    study(tmp_path / "runs")
    uri = f"sqlite:///{tmp_path}/mlflow.db"

    full = mlflow.MlflowException("the disk is full")
    with (
        mock.patch.object(mlflow.MlflowClient, "log_batch", side_effect=full),
        pytest.raises(StorageError, match="the disk is full"),
    ):
        export_mlflow(tmp_path / "runs", tracking_uri=uri)

    assert len(export_mlflow(tmp_path / "runs", tracking_uri=uri)) == 2
    assert sorted(logged(mlflow, uri)[1]) == ["001", "002"]


# W&B

RECORD = struct.Struct("<IHB")
BLOCK = 2**15


@pytest.fixture
def wandb(tmp_path):
    """W&B, which keeps what it writes under `tmp_path` and sends nothing."""
    with mock.patch.dict(os.environ, WANDB_ERROR_REPORTING="false", WANDB_CONFIG_DIR=str(tmp_path / "config")):
        module = pytest.importorskip("wandb", reason="the extra wandb is not installed")
        yield module
        module.teardown()


def records(folder):
    """Read the records of an offline run: a log of LevelDB's form, with 7 bytes in front, of protos."""
    from wandb.proto import wandb_internal_pb2

    content, position, parts = next(folder.glob("*.wandb")).read_bytes(), 7, b""
    while position + RECORD.size <= len(content):
        if (left := BLOCK - position % BLOCK) < RECORD.size:
            position += left
            continue
        _, length, kind = RECORD.unpack_from(content, position)
        position += RECORD.size + length
        parts += content[position - length : position]
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


@pytest.mark.slow
def test_wandb_gets_every_metric_of_every_epoch(tmp_path, wandb):
    study(tmp_path / "runs")

    folders = export_wandb(tmp_path / "runs", folder=tmp_path / "new")
    again = export_wandb(tmp_path / "runs", folder=tmp_path / "again")
    wandb.teardown()  # its service writes on after it has answered

    logs = [list(records(folder)) for folder in folders]
    run = next(record.run for record in logs[0] if record.HasField("run"))
    config = {item.key: item.value_json for item in run.config.update}
    rows = [
        {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        for record in logs[0]
        if record.HasField("history")
    ]
    assert run.project == "study"
    assert (config["lr"], config["device"]) == ("0.1", '"cpu"')
    assert [(row["epoch"], row["loss"]) for row in rows] == [("1", "0.5"), ("2", "0.25")]
    assert [next(r.exit.exit_code for r in log if r.HasField("exit")) for log in logs] == [0, 1]
    assert [path.name[-8:] for path in again] == [path.name[-8:] for path in folders]  # the same ids
