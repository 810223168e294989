import math
from pathlib import Path
from unittest import mock

import pytest
import torch

from runmanager import describe_devices
from runmanager.devices import torch_devices
from runmanager.devices.torch_devices import available_devices

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_every_device_of_the_machine_has_a_row():
    table = describe_devices()

    assert list(table["device"]) == available_devices()
    assert list(table) == ["device", "name", "memory_gib", "free_gib", "cores", "threads", "precisions"]


def test_the_cpu_is_described_by_its_machine():
    cpu = describe_devices().iloc[0]

    assert cpu["device"] == "cpu"
    assert torch.backends.cpu.get_cpu_capability() in cpu["name"]
    assert 0 < cpu["free_gib"] <= cpu["memory_gib"]
    assert cpu["cores"] >= 1
    assert cpu["threads"] == torch.get_num_threads()
    assert cpu["precisions"].startswith("fp32")


def test_the_precisions_of_the_cpu_are_those_that_torch_tells(monkeypatch):
    for has_bf16, has_fp16, expected in (
        (False, False, "fp32"),
        (True, False, "fp32, bf16"),
        (True, True, "fp32, bf16, fp16"),
    ):
        told = mock.Mock()
        told._is_mkldnn_bf16_supported.return_value = has_bf16
        told._is_mkldnn_fp16_supported.return_value = has_fp16
        monkeypatch.setattr(torch.ops, "mkldnn", told)

        assert describe_devices()["precisions"][0] == expected


def test_a_build_that_cannot_tell_its_precisions_has_fp32(monkeypatch):
    monkeypatch.setattr(torch.ops, "mkldnn", object())

    assert describe_devices()["precisions"][0] == "fp32"


def test_a_device_that_does_not_answer_is_listed_with_what_is_known(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch_devices, "available_devices", lambda: ["cpu", "cuda:0"])
    monkeypatch.setattr(torch_devices, "device_name", lambda d: "AVX2" if d.type == "cpu" else broken())
    monkeypatch.setattr(torch.accelerator, "get_memory_info", broken)
    monkeypatch.setattr(torch.cuda, "get_device_properties", broken)
    monkeypatch.setattr(torch.cuda, "device", broken)

    gpu = describe_devices().iloc[1]

    assert (gpu["device"], gpu["name"], gpu["precisions"]) == ("cuda:0", "cuda", "fp32")
    assert math.isnan(gpu["memory_gib"])
    assert math.isnan(gpu["cores"])


def test_a_machine_that_does_not_tell_its_memory_has_none_in_its_row(monkeypatch):
    monkeypatch.setattr(Path, "read_text", mock.Mock(side_effect=FileNotFoundError))

    cpu = describe_devices().iloc[0]

    assert math.isnan(cpu["memory_gib"])
    assert math.isnan(cpu["free_gib"])
    assert cpu["name"]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without an accelerator")
def test_describing_a_machine_without_a_gpu_initialises_no_cuda():
    describe_devices()

    assert not torch.cuda.is_initialized()


@pytest.mark.cuda
@needs_cuda
def test_a_gpu_is_described_by_torch():
    gpu = describe_devices().set_index("device").loc["cuda:0"]

    assert gpu["name"] == torch.cuda.get_device_name(0)
    assert 0 < gpu["free_gib"] <= gpu["memory_gib"]
    assert gpu["cores"] == torch.cuda.get_device_properties(0).multi_processor_count
    assert "fp16" in gpu["precisions"]
    assert ("bf16" in gpu["precisions"]) == torch.cuda.is_bf16_supported(including_emulation=False)
