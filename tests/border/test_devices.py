"""The devices of this machine, by name."""

import pytest
import torch

from runmanager import available_devices, describe_devices, num_gpus, try_all_gpus, try_gpu

NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")


def test_devices_are_listed_and_described():
    devices = available_devices()
    table = describe_devices()

    assert devices[0] == "cpu"
    assert table["device"].tolist() == devices
    assert table["memory_gib"][0] > 0
    assert table["cores"][0] >= 1
    assert "fp32" in table["precisions"][0]


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
