import math
import shutil
import struct
import sys
from contextlib import suppress

import pytest

from runmanager import GridError, RunManager, export_mlflow, export_wandb
from runmanager.errors import StorageError
from runmanager.storage.folders import Experiment

RECORD = struct.Struct("<IHB")
BLOCK = 2**15


def study(root, losses=((0.5, 0.25),)):
    """Leave behind completed runs, one that failed in its first epoch and one that was not begun."""
    manager = RunManager("study", root, tensorboard=False, display=False)
    for number, values in enumerate(losses):
        with manager.run({"lr": 0.1, "size": (number, 3), "device": "cpu"}):
            for epoch in manager.epochs(len(values)):
                manager.track_loss(values[epoch - 1], 10)
    with suppress(ValueError), manager.run({"lr": 10, "size": None, "device": "cpu"}):
        raise ValueError("too large")
    done = [run.params for run in Experiment(root / "study").runs.values()]
    Experiment(root / "study").plan([*done, {"lr": 1, "size": 1, "device": "cuda"}], {})


@pytest.fixture
def mlflow(monkeypatch, tmp_path):
    """MLflow, which keeps what it makes under `tmp_path` and sends nothing."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    return pytest.importorskip("mlflow", reason="the extra mlflow is not installed")


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    """W&B, which keeps what it makes under `tmp_path` and sends nothing."""
    for name, value in {"WANDB_ERROR_REPORTING": "false", "WANDB_CONFIG_DIR": str(tmp_path / "config")}.items():
        monkeypatch.setenv(name, value)
    module = pytest.importorskip("wandb", reason="the extra wandb is not installed")
    yield module
    module.teardown()


def logged(mlflow, uri):
    """Read the runs of the experiment `study` back, by their number."""
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("study")
    return client, {
        run.data.tags["runmanager.run"]: run for run in client.search_runs([experiment.experiment_id])
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_mlflow_gets_every_metric_of_every_epoch(tmp_path, mlflow):
    study(tmp_path / "runs")
    uri = f"sqlite:///{tmp_path}/mlflow.db"

    ids = export_mlflow(tmp_path / "runs", tracking_uri=uri)

    client, runs = logged(mlflow, uri)
    assert sorted(ids) == sorted(run.info.run_id for run in runs.values())
    assert sorted(runs) == ["1", "2"]  # not the one that was not begun
    done, failed = runs["1"], runs["2"]
    assert done.info.run_name == "001_lr=0.1,size=0_3,device=cpu"
    assert done.data.params == {"lr": "0.1", "size": "(0, 3)", "device": "cpu"}
    history = client.get_metric_history(done.info.run_id, "loss")
    assert sorted((metric.step, metric.value) for metric in history) == [(1, 0.5), (2, 0.25)]
    assert (done.info.status, failed.info.status) == ("FINISHED", "FAILED")
    assert done.info.end_time >= done.info.start_time > 1.6e12
    assert failed.data.tags["runmanager.error"] == "ValueError: too large"
    assert failed.data.params["size"] == "None"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_exporting_to_mlflow_again_adds_only_what_is_new(tmp_path, mlflow):
    study(tmp_path / "runs")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    first = export_mlflow(tmp_path / "runs", tracking_uri=uri)
    before = export_mlflow(tmp_path / "runs" / "study", tracking_uri=uri)
    with suppress(KeyboardInterrupt):
        manager = RunManager("study", tmp_path / "runs", tensorboard=False, display=False)
        with manager.run({"lr": 1, "size": 1, "device": "cuda:0"} | {"device": "cpu"}):
            for _ in manager.epochs(2):
                manager.track_loss(math.inf, 10)
                raise KeyboardInterrupt

    new = export_mlflow(tmp_path / "runs", tracking_uri=uri)

    _, runs = logged(mlflow, uri)
    assert (len(first), before, len(new), len(runs)) == (2, [], 1, 3)
    (added,) = (run for run in runs.values() if run.info.run_id in new)
    assert (added.info.status, added.data.tags["runmanager.status"]) == ("KILLED", "interrupted")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_run_that_was_executed_anew_replaces_what_mlflow_had_of_it(tmp_path, mlflow):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for loss in (0.5, 0.25):
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        study(tmp_path / "runs", [(loss,)])
        export_mlflow(tmp_path / "runs", tracking_uri=uri)

    _, runs = logged(mlflow, uri)

    assert (len(runs), runs["1"].data.metrics["loss"]) == (2, 0.25)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_what_mlflow_did_not_get_whole_is_logged_again(tmp_path, mlflow, monkeypatch):
    study(tmp_path / "runs")
    uri = f"sqlite:///{tmp_path}/mlflow.db"

    def refuse(*_, **__):
        raise mlflow.MlflowException("the disk is full\nand more")

    with monkeypatch.context() as patched:
        patched.setattr(mlflow.MlflowClient, "log_batch", refuse)
        with pytest.raises(StorageError, match=r"refuses: the disk is full$"):
            export_mlflow(tmp_path / "runs", tracking_uri=uri)
    again = export_mlflow(tmp_path / "runs", tracking_uri=uri)

    _, runs = logged(mlflow, uri)
    assert (len(again), sorted(runs), runs["1"].data.metrics["loss"]) == (2, ["1", "2"], 0.25)


def records(module, folder):
    """Read the records of a W&B run: a log of LevelDB's form, with 7 bytes in front, of their protos."""
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.glob("*.wandb")
    content = file.read_bytes()
    place, parts = 7, b""
    while place + RECORD.size <= len(content):
        left = BLOCK - place % BLOCK
        if left < RECORD.size:
            place += left
            continue
        _, length, kind = RECORD.unpack_from(content, place)
        parts += content[place + RECORD.size : place + RECORD.size + length]
        place += RECORD.size + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


@pytest.mark.slow
def test_wandb_gets_every_metric_of_every_epoch(tmp_path, wandb):
    study(tmp_path / "runs")

    folders = export_wandb(tmp_path / "runs", folder=tmp_path / "new")
    wandb.teardown()  # its service writes on after it has answered

    assert [folder.parent for folder in folders] == [tmp_path / "new" / "wandb"] * 2
    found = [list(records(wandb, folder)) for folder in folders]
    runs = [next(r.run for r in each if r.HasField("run")) for each in found]
    assert [(run.project, run.display_name) for run in runs] == [
        ("study", "001_lr=0.1,size=0_3,device=cpu"),
        ("study", "002_lr=10,size=None,device=cpu"),
    ]
    config = {item.key: item.value_json for item in runs[0].config.update}
    assert {name: config[name] for name in ("lr", "size", "device")} == {
        "lr": "0.1", "size": '"(0, 3)"', "device": '"cpu"',
    }  # fmt: skip
    rows = [
        {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        for record in found[0]
        if record.HasField("history")
    ]
    assert [(row["_step"], row["epoch"], row["loss"]) for row in rows] == [
        ("1", "1", "0.5"),
        ("2", "2", "0.25"),
    ]
    exits = [next(r.exit.exit_code for r in each if r.HasField("exit")) for each in found]
    assert exits == [0, 1]


@pytest.mark.slow
def test_a_run_has_the_same_wandb_id_whenever_it_is_exported(tmp_path, wandb):
    study(tmp_path / "runs", losses=())

    (first,) = export_wandb(tmp_path / "runs", folder=tmp_path / "a", project="p")
    (second,) = export_wandb(tmp_path / "runs" / "study", folder=tmp_path / "b", project="p")

    assert first.name.rsplit("-", 1)[1] == second.name.rsplit("-", 1)[1]


@pytest.mark.parametrize(("function", "library"), [(export_mlflow, "mlflow"), (export_wandb, "wandb")])
def test_without_the_library_what_to_install_is_named(tmp_path, monkeypatch, function, library):
    monkeypatch.setitem(sys.modules, library, None)

    with pytest.raises(GridError) as caught:
        function(tmp_path)

    assert caught.value.problems == [
        f"{function.__name__} needs {library}: pip install 'runmanager[{library}]'"
    ]
