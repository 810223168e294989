import pytest

from runmanager.executors.placement import Placement

THERE = ["cpu", "cuda:0", "cuda:1", "cuda:2"]


def test_cuda_is_any_device_that_is_free_and_a_number_is_that_one():
    placing = Placement(8, 1, THERE, num_cores=8)

    assert placing.take("cuda:1") == "cuda:1"
    assert [placing.take("cuda"), placing.take("cuda")] == ["cuda:0", "cuda:2"]
    assert placing.take("cuda") is None
    assert placing.take("cuda:1") is None
    placing.give_back("cuda:1")
    assert placing.take("cuda") == "cuda:1"


def test_an_accelerator_without_a_number_is_the_first_one():
    placing = Placement(8, 2, ["cpu", "mps"], num_cores=8)

    assert [placing.take("mps"), placing.take("mps:0"), placing.take("mps")] == ["mps", "mps", None]
    assert placing.why_never("mps:1") == "no device 'mps:1'"
    assert placing.why_never("xpu") == "no device 'xpu'"


def test_a_device_that_rests_gets_no_run_for_the_time_being():
    placing = Placement(8, 1, THERE, num_cores=8)

    placing.resting = {"cuda:0"}

    assert [placing.take("cuda"), placing.take("cuda:0")] == ["cuda:1", None]
    assert placing.why_never("cuda:0") == ""


def test_runs_share_a_device_evenly():
    placing = Placement(8, 2, THERE, num_cores=8)

    taken = [placing.take("cuda") for _ in range(7)]

    assert taken == ["cuda:0", "cuda:1", "cuda:2", "cuda:0", "cuda:1", "cuda:2", None]


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_never_more_runs_at_a_time_than_are_wanted(jobs):
    placing = Placement(jobs, 4, THERE, num_cores=8)

    taken = [placing.take(device) for device in ["cpu", "cuda", "cpu", "cuda", "cpu", "cuda"]]

    assert sum(device is not None for device in taken) == jobs == placing.most


def test_auto_is_a_lane_for_every_device_and_for_every_two_cores():
    placing = Placement("auto", 2, THERE, num_cores=5)

    assert placing.most == 3 * 2 + 2
    assert [placing.take("cpu") for _ in range(3)] == ["cpu", "cpu", None]
    assert placing.take("cuda") == "cuda:0"


def test_a_device_that_is_lost_gets_no_more_runs():
    placing = Placement(8, 1, THERE[:3], num_cores=8)

    placing.lost["cuda:0"] = "cuda:0 stopped answering"

    assert placing.take("cuda") == "cuda:1"
    assert placing.take("cuda:0") is None
    assert placing.why_never("cuda") == ""
    assert placing.why_never("cuda:0") == "cuda:0 stopped answering"
    placing.lost["cuda:1"] = "cuda:1 stopped answering"
    assert placing.why_never("cuda") == "cuda:0 stopped answering; cuda:1 stopped answering"


def test_the_cpu_is_always_there():
    placing = Placement("auto", 1, ["cpu"], num_cores=1)

    assert placing.most == 1
    assert placing.take("meta") == "cpu"
    assert placing.why_never("cpu") == ""
    assert placing.why_never("mps") == "no device 'mps'"


def test_as_many_lanes_as_the_devices_allow_are_reached():
    placing = Placement(4, 1, ["cpu", "cuda:0"], num_cores=8)

    assert placing.reachable(["cuda"] * 9) == 1
    assert placing.reachable(["cuda", "cpu", "cpu"]) == 3
    assert placing.reachable(["cpu"] * 9) == 4
    assert placing.reachable([]) == 1
    assert placing.take("cuda") == "cuda:0"  # nothing is taken by asking
