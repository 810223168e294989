import json
import math
import shutil
import sys
import warnings
from contextlib import suppress

import pytest

from runmanager import RunManager, export_mlflow
from runmanager.errors import MissingExtraError, RunsWarning, StorageError
from tests.integrations.study import METRICS, PARAMS, odd_study, study


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
    assert done.info.run_name == "001-lr=0.1-size=0_3"
    assert done.data.params == {"lr": "0.1", "size": "(0, 3)", "device": "cpu"}
    history = client.get_metric_history(done.info.run_id, "loss")
    assert sorted((metric.step, metric.value) for metric in history) == [(1, 0.5), (2, 0.25)]
    assert (done.info.status, failed.info.status) == ("FINISHED", "FAILED")
    assert done.info.end_time >= done.info.start_time > 1.6e12
    assert failed.data.tags["runmanager.error"] == "ValueError: too large (in study.py:20)"
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


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("is_database", [True, False])
def test_names_and_values_that_mlflow_does_not_take_are_changed_and_none_is_lost(
    tmp_path, mlflow, monkeypatch, is_database
):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    odd_study(tmp_path / "runs")
    uri = f"sqlite:///{tmp_path}/mlflow.db" if is_database else f"{tmp_path}/mlruns"

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        export_mlflow(tmp_path / "runs", tracking_uri=uri)
        again = export_mlflow(tmp_path / "runs", tracking_uri=uri)

    (warning,) = [str(each.message) for each in caught if each.category is RunsWarning]
    (run,) = logged(mlflow, uri)[1].values()
    params, metrics = run.data.params, run.data.metrics
    assert again == []
    assert warning.startswith("changed for MLflow: ")
    assert warning.endswith(" more")
    assert len(params) == len(PARAMS)
    assert sorted(int(v) for v in params.values() if v.isdigit() and len(v) < 9) == list(range(1, 23))
    assert (len(params["text"]), params["half"], params["zero"]) == (6000, "\\ud800", "a\\0b")
    assert len(metrics) == len(METRICS) - 1  # inf
    whole = [value for value in metrics.values() if value == value // 1 and 0 < value < 100]
    assert sorted(whole) == list(range(1, 24))
    assert (metrics["loss"], metrics["f1_"], metrics["large"]) == (0.25, 3, 1e308)
    assert math.isnan(metrics["nan"])
    assert run.data.tags["runmanager.error"].startswith("ValueError: \\ud800\\0t")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_run_whose_identity_is_part_of_a_query_is_exported_alone(tmp_path, mlflow):
    study(tmp_path / "runs")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    export_mlflow(tmp_path / "runs", tracking_uri=uri)
    (path,) = (tmp_path / "runs/study").glob("001*/run.json")
    document = json.loads(path.read_text())
    del document["crc"]
    path.write_text(json.dumps({**document, "id": "a' OR tags.`x` != '`"}))
    (tmp_path / "runs/study/grid.json").unlink()

    ids = export_mlflow(tmp_path / "runs", tracking_uri=uri)

    client, _ = logged(mlflow, uri)
    experiment = client.get_experiment_by_name("study")
    assert (len(ids), len(client.search_runs([experiment.experiment_id]))) == (1, 3)
