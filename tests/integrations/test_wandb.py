import struct
import sys

import pytest

from runmanager import export_wandb
from runmanager.errors import MissingExtraError
from tests.integrations.study import study

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
        ("study", "001-lr=0.1-size=0_3-device=cpu"),
        ("study", "002-lr=10-size=None-device=cpu"),
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
