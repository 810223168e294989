"""The devices of this machine, by name, and the settings of its process (docs/devices-and-outcomes.md)."""

import os
from collections import OrderedDict, namedtuple
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from runmanager import (
    RunBuilder,
    RunManager,
    RunsWarning,
    available_devices,
    describe_devices,
    num_gpus,
    run_grid,
    try_all_gpus,
    try_gpu,
)
from tests.accelerators import DEAD, Machine, installed
from tests.border.experiments import QUIET

NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")


@NO_CUDA
def test_without_a_gpu_the_cpu_is_taken():
    assert num_gpus() == 0
    assert try_gpu() == try_gpu(3) == torch.device("cpu")
    assert try_all_gpus() == [torch.device("cpu")]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_with_gpus_they_are_taken():
    assert num_gpus() == torch.cuda.device_count() == len(try_all_gpus())
    assert try_gpu() == torch.device("cuda", 0)
    assert "cuda:0" in available_devices()


def test_the_gpus_of_a_machine_are_found_and_one_that_does_not_answer_is_listed(tmp_path):
    machine = Machine(tmp_path)
    gpus = [torch.device("cuda", 0), torch.device("cuda", 1)]
    with installed(machine):
        assert available_devices() == ["cpu", "cuda:0", "cuda:1"]
        assert (num_gpus(), try_all_gpus()) == (2, gpus)
        assert [try_gpu(i) for i in (0, 1, 2, -1)] == [*gpus, torch.device("cpu"), torch.device("cpu")]
        machine.set(1, DEAD)
        table = describe_devices().set_index("device")

    assert list(table.index) == ["cpu", "cuda:0", "cuda:1"]
    assert (table.loc["cuda:1", "name"], table.loc["cuda:1", "precisions"]) != ("", "")
    assert table.loc["cuda:1", ["memory_gib", "free_gib"]].isna().all()


def test_the_cpu_is_described_by_its_machine_and_what_torch_tells(monkeypatch):
    table = describe_devices()
    cpu = table.iloc[0]
    assert table["device"].tolist() == available_devices()
    assert torch.backends.cpu.get_cpu_capability() in cpu["name"]
    assert 0 < cpu["free_gib"] <= cpu["memory_gib"]
    assert cpu["cores"] >= 1
    assert cpu["threads"] == torch.get_num_threads()

    for told, expected in (
        ((False, False), "fp32"),
        ((True, False), "fp32, bf16"),
        ((True, True), "fp32, bf16, fp16"),
    ):
        build = mock.Mock()
        build._is_mkldnn_bf16_supported.return_value, build._is_mkldnn_fp16_supported.return_value = told
        monkeypatch.setattr(torch.ops, "mkldnn", build)
        assert describe_devices()["precisions"][0] == expected
    monkeypatch.setattr(torch.ops, "mkldnn", object())  # a build that cannot tell
    monkeypatch.setattr(Path, "read_text", mock.Mock(side_effect=FileNotFoundError))
    cpu = describe_devices().iloc[0]
    assert cpu["precisions"] == "fp32"
    assert cpu[["memory_gib", "free_gib"]].isna().all()


Sample = namedtuple("Sample", "image label")  # noqa: PYI024 - as users write it


def test_every_tensor_of_a_nested_batch_is_sent_and_one_that_moves_itself_is_asked_to(tmp_path):
    def one():
        return torch.ones(2)

    nested = OrderedDict(
        image=one(), pair=(one(), [one(), "name", 3, None]), sample=Sample(one(), {"label": one()})
    )
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    manager = RunManager("e", tmp_path, display=False, tensorboard=False)
    with manager.run({"device": "meta"}, None, [nested, packed]):
        for _ in manager.epochs(1):
            sent, sequence = list(manager.batches())
            manager.track_loss(1.0, 1)

    meta, pair, sample = torch.device("meta"), sent["pair"], sent["sample"]
    there = [sent["image"], pair[0], pair[1][0], sample.image, sample.label["label"]]
    assert [tensor.device for tensor in there] == [meta] * 5
    assert pair[1][1:] == ["name", 3, None]
    assert [type(pair), type(pair[1]), type(sample)] == [tuple, list, Sample]
    assert isinstance(sequence, PackedSequence)
    assert sequence.data.device == meta
    assert sequence.batch_sizes.device.type == "cpu"  # where torch wants them


# Settings of the process


def train(run, manager):
    """Train an epoch; leave another folder if the run says so."""
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(1.0, 1)
            if run.leaves:
                os.chdir(os.sep)


@pytest.mark.usefixtures("own_folder")
def test_what_a_run_of_a_grid_leaves_in_this_process_is_set_back_and_said_once(tmp_path):
    runs = RunBuilder.get_runs({("number", "leaves"): [(0, False), (1, True), (2, False), (3, True)]})

    with pytest.warns(RunsWarning) as warned:
        run_grid(runs, train, experiment="exp", root=tmp_path, **QUIET)

    (message,) = (str(warning.message) for warning in warned)
    for part in ("number=1", "the working directory", "restored"):
        assert part in message
    assert Path.cwd() == tmp_path


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="an older torch has no fp32_precision")
@pytest.mark.parametrize("name", ["matmul", "conv"])
def test_a_precision_that_torch_cannot_read_by_its_old_name_ends_no_run(tmp_path, name):
    backend = torch.backends.cuda.matmul if name == "matmul" else getattr(torch.backends.cudnn, name)
    before, precision = backend.fp32_precision, {"matmul": "tf32", "conv": "ieee"}[name]
    backend.fp32_precision = precision
    try:
        runs = RunBuilder.get_runs({"leaves": [False]})
        train(runs[0], RunManager("own", tmp_path, display=False, tensorboard=False))
        outcome = run_grid(runs, train, experiment="exp", root=tmp_path, **QUIET)
        after = backend.fp32_precision
    finally:
        backend.fp32_precision = before

    assert (outcome.runs["status"].tolist(), after) == (["completed"], precision)
