"""What a rank learns from torchrun, and how ranks exchange messages; torch begins no group here."""

import pytest
import torch
from torch.distributed.distributed_c10d import BackendConfig

from runmanager.devices import ranks
from tests.accelerators import Machine, installed


@pytest.fixture
def second_of_two(monkeypatch):
    for name, value in {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "box"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("second_of_two")
@pytest.mark.parametrize(
    ("kind", "has_nccl", "expected"),
    [
        ("cuda", True, {"cpu": "gloo", "cuda": "nccl"}),
        ("cuda", False, {"cpu": "gloo", "cuda": "gloo"}),
        ("mps", True, {"cpu": "gloo", "mps": "gloo"}),
    ],
)
def test_messages_of_ranks_do_not_go_through_their_accelerators(
    monkeypatch, tmp_path, kind, has_nccl, expected
):
    configs = []
    distributed = torch.distributed
    monkeypatch.setattr(distributed, "is_backend_available", lambda name: has_nccl or name == "gloo")
    monkeypatch.setattr(
        distributed, "init_process_group", lambda backend="": configs.append(BackendConfig(backend))
    )

    with installed(Machine(tmp_path, 2, kind)):
        ranks.join_group()

    assert [config.get_device_backend_map() for config in configs] == [expected]


@pytest.mark.usefixtures("second_of_two")
@pytest.mark.parametrize(("count", "expected"), [(1, "cuda:0"), (2, "cuda:1"), (4, "cuda:1")])
def test_torchrun_tells_a_process_its_rank_and_its_gpu(tmp_path, count, expected):
    with installed(Machine(tmp_path, count)):
        assert (ranks.rank(), ranks.num_ranks(), ranks.is_main()) == (3, 4, False)
        assert ranks.device_of_rank("cuda") == torch.device(expected)
        assert ranks.device_of_rank("cuda:0") == torch.device("cuda:0")
        assert ranks.device_of_rank("cpu") == torch.device("cpu")
