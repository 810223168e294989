import math
import shutil
import sys
from contextlib import suppress

import pytest

from runmanager import RunManager, export_mlflow
from runmanager.errors import MissingExtraError, StorageError
from tests.integrations.study import study


@pytest.fixture
def mlflow(monkeypatch, tmp_path):
    """MLflow, which keeps what it makes under `tmp_path` and sends nothing."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    return pytest.importorskip("mlflow", reason="the extra mlflow is not installed")


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
    assert done.info.run_name == "001-lr=0.1-size=0_3-device=cpu"
    assert done.data.params == {"lr": "0.1", "size": "(0, 3)", "device": "cpu"}
    history = client.get_metric_history(done.info.run_id, "loss")
    assert sorted((metric.step, metric.value) for metric in history) == [(1, 0.5), (2, 0.25)]
    assert (done.info.status, failed.info.status) == ("FINISHED", "FAILED")
    assert done.info.end_time >= done.info.start_time > 1.6e12
    assert failed.data.tags["runmanager.error"] == "ValueError: too large (in study.py:17)"
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


def test_without_the_library_what_to_install_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)

    with pytest.raises(MissingExtraError) as caught:
        export_mlflow(tmp_path)

    assert caught.value.problems == ["export_mlflow needs mlflow: pip install 'torch-runmanager[mlflow]'"]
