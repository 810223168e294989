import json
import struct
import sys

import pytest

from runmanager import export_wandb
from runmanager.errors import MissingExtraError, RunsWarning
from tests.integrations.study import PARAMS, TEXT, odd_study, study

RECORD = struct.Struct("<IHB")
BLOCK = 2**15


@pytest.fixture
def wandb(monkeypatch, tmp_path):
    """W&B, which keeps what it makes under `tmp_path` and sends nothing."""
    for name, value in {"WANDB_ERROR_REPORTING": "false", "WANDB_CONFIG_DIR": str(tmp_path / "config")}.items():
        monkeypatch.setenv(name, value)
    module = pytest.importorskip("wandb", reason="the extra wandb is not installed")
    yield module
    module.teardown()


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
        ("study", "001-lr=0.1-size=0_3"),
        ("study", "002-lr=10-size=None"),
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


def test_without_the_library_what_to_install_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)

    with pytest.raises(MissingExtraError) as caught:
        export_wandb(tmp_path)

    assert caught.value.problems == ["export_wandb needs wandb: pip install 'torch-runmanager[wandb]'"]


@pytest.mark.slow
def test_names_and_values_that_wandb_does_not_take_are_changed_and_none_is_lost(tmp_path, wandb):
    name = "50% of #1: a? " + "n" * 200
    odd_study(tmp_path / "runs", name)

    with pytest.warns(RunsWarning) as caught:
        (folder,) = export_wandb(tmp_path / "runs", folder=tmp_path / "new")
    wandb.teardown()

    assert [str(each.message).partition(": ")[0] for each in caught] == ["changed for W&B"]
    log = list(records(wandb, folder))
    run = next(record.run for record in log if record.HasField("run"))
    assert (run.project, len(run.run_group)) == (f"50_ of _1_ a_ {'n' * 114}", 128)
    config = {item.key: json.loads(item.value_json) for item in run.config.update if item.key != "_wandb"}
    assert len(config) == len(PARAMS)
    assert sorted(v for v in config.values() if type(v) is int) == list(range(1, 23))
    assert (config["nan"], config["inf"], config["half"], config["text"]) == ("nan", "inf", "\\ud800", TEXT)
    row = next(record.history.item for record in log if record.HasField("history"))
    metrics = {item.nested_key[0]: json.loads(item.value_json) for item in row}
    assert sorted(v for v in metrics.values() if type(v) is int and v < 99) == sorted([1, 1, *range(1, 24)])
    assert (metrics["_step"], metrics["epoch"], metrics["own_step"], metrics["own_step_2"]) == (1, 1, 14, 11)
