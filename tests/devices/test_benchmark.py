import math
import random
import time

import pytest
import torch

from runmanager import benchmark_devices
from runmanager.devices import benchmark, describe, torch_devices
from runmanager.errors import DeviceError, RunsWarning

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Work that takes no time, timed as the real one is."""
    monkeypatch.setattr(benchmark, "_SIZE", 16)
    monkeypatch.setattr(benchmark, "_BATCH", 4)
    monkeypatch.setattr(benchmark, "_SHORTEST", 0.001)


def test_the_cpu_is_timed_beside_itself():
    table = benchmark_devices([])

    assert set(table["device"]) == {"cpu"}
    assert {"16 x 16 product, fp32", "training step of 4, fp32"} <= set(table["work"])
    assert ("training step of 4, bf16" in set(table["work"])) == ("16 x 16 product, bf16" in set(table["work"]))
    assert list(table["times the cpu"]) == [1.0] * len(table)


def test_the_rates_of_a_device_have_a_spread():
    table = benchmark_devices(["cpu"])

    assert (table["least"] <= table["median"]).all()
    assert (table["median"] <= table["most"]).all()
    assert (table["least"] > 0).all()
    assert set(table["unit"]) == {"GFLOP/s", "images/s"}


def test_a_device_is_compared_with_the_cpu_on_the_same_work(monkeypatch):
    fast, slow = [0.5, 1.0, 4.0], [4.0, 4.0, 4.0]
    monkeypatch.setattr(benchmark, "seconds_of", lambda _, d: fast if d.type == "meta" else slow)

    table = benchmark_devices(["meta"])

    meta = table[table["device"] == "meta"]
    assert list(meta["times the cpu"]) == [4.0] * len(meta)
    product = meta[meta["work"] == "16 x 16 product, fp32"].iloc[0]
    assert product["median"] == pytest.approx(2 * 16**3 / 1e9)
    assert (product["least"], product["most"]) == pytest.approx((product["median"] / 4, product["median"] * 2))


def test_the_clock_is_read_only_when_the_device_is_done(monkeypatch):
    seen: list[str] = []

    def clock() -> float:
        seen.append("read")
        return float(len(seen))

    monkeypatch.setattr(torch_devices, "wait_for", lambda _: seen.append("waited"))
    monkeypatch.setattr(time, "perf_counter", clock)

    benchmark.seconds_of(lambda: seen.append("step"), torch.device("cpu"))

    readings = [number for number, what in enumerate(seen) if what == "read"]
    assert {seen[number - 1] for number in readings} == {"waited"}
    assert seen[:5] == ["waited", "read", "step", "step", "waited"]  # first use is not in the times


def test_quick_steps_are_timed_many_at_once():
    calls: list[None] = []

    taken = benchmark.seconds_of(lambda: calls.append(None), torch.device("cpu"))

    assert len(taken) == 7
    assert len(calls) > 100


def test_the_network_is_the_tutorials():
    assert sum(parameter.numel() for parameter in benchmark._network().parameters()) == 32_998


def test_random_states_are_left_alone():
    states = random.getstate(), torch.get_rng_state().tolist()

    benchmark_devices([])

    assert (random.getstate(), torch.get_rng_state().tolist()) == states


def test_inference_mode_does_not_hinder_the_training_step():
    with torch.inference_mode():
        table = benchmark_devices([])

    assert "training step of 4, fp32" in set(table["work"])


def test_work_that_a_device_cannot_do_costs_its_row_and_one_warning(monkeypatch):
    def out_of_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nlong advice")

    monkeypatch.setattr(benchmark, "_training", out_of_memory)

    with pytest.warns(RunsWarning) as caught:
        table = benchmark_devices([])

    assert str(caught[0].message) == (
        "cpu: training step of 4, fp32 could not be timed (CUDA out of memory. Tried to allocate 2 GiB)"
    )
    assert "training step of 4, fp32" not in set(table["work"])


def test_without_the_cpus_time_there_is_no_ratio(monkeypatch):
    prepare = benchmark._training
    broken = RuntimeError("no")

    def training(device, *precision):
        if device.type == "cpu":
            raise broken
        return prepare(device, *precision)

    monkeypatch.setattr(benchmark, "_training", training)
    monkeypatch.setattr(benchmark, "seconds_of", lambda *_: [1.0])

    with pytest.warns(RunsWarning):
        table = benchmark_devices(["meta"])

    row = table[table["work"] == "training step of 4, fp32"].iloc[0]
    assert row["device"] == "meta"
    assert math.isnan(row["times the cpu"])


def test_a_precision_that_a_device_lacks_is_left_out(monkeypatch):
    monkeypatch.setattr(describe, "native_precisions", lambda _: ["fp32"])

    table = benchmark_devices([])

    assert not any("bf16" in work for work in table["work"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(DeviceError, match="this machine has cpu"):
        benchmark_devices(["cuda:0"])


@pytest.mark.cuda
@needs_cuda
def test_a_gpu_is_timed_beside_the_cpu():
    table = benchmark_devices(["cuda:0"])

    assert set(table["device"]) == {"cpu", "cuda:0"}
    assert (table["median"] > 0).all()
    is_fp32 = table["work"].str.contains("fp32")  # a cpu may have no other precision to compare with
    assert table[is_fp32]["times the cpu"].notna().all()
    assert set(table[table["device"] == "cuda:0"]["work"]) >= set(table[table["device"] == "cpu"]["work"])
