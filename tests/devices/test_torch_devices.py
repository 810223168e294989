import random
import subprocess
import sys
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from runmanager.devices import torch_devices

CPU, META = torch.device("cpu"), torch.device("meta")
Sample = namedtuple("Sample", "image label")  # noqa: PYI024 - as users write it

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
needs_no_accelerator = pytest.mark.skipif(
    torch.accelerator.is_available(), reason="needs a machine without an accelerator"
)


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine with two CUDA devices, as far as torch is asked about it."""
    monkeypatch.setattr(torch_devices, "_accelerator", lambda: "cuda")
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def random_states():
    return random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()  # noqa: NPY002


def draw():
    return random.random(), np.random.rand(), torch.rand(()).item()  # noqa: NPY002, S311


@needs_no_accelerator
def test_a_machine_without_an_accelerator_has_the_cpu_alone():
    assert torch_devices.available_devices() == ["cpu"]
    assert torch_devices.num_gpus() == 0
    assert torch_devices.try_gpu() == CPU
    assert torch_devices.try_all_gpus() == [CPU]


@pytest.mark.usefixtures("two_gpus")
def test_a_machine_with_two_gpus_lists_them():
    assert torch_devices.available_devices() == ["cpu", "cuda:0", "cuda:1"]
    assert torch_devices.num_gpus() == 2
    assert torch_devices.try_all_gpus() == [torch.device("cuda:0"), torch.device("cuda:1")]
    assert [torch_devices.try_gpu(i) for i in (0, 1, 2, -1)] == [*torch_devices.try_all_gpus(), CPU, CPU]


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("device", "expected"),
    [("cpu", True), ("meta", True), ("cuda", True), ("cuda:1", True), ("cuda:2", False), ("mps", False)],
)
def test_a_device_is_available_if_its_number_is_there(device, expected):
    assert (torch_devices.missing(device) == "") is expected
    assert (torch_devices.missing(torch.device(device)) == "") is expected


@pytest.mark.usefixtures("two_gpus")
def test_the_message_of_a_missing_device_lists_the_gpus():
    assert torch_devices.missing("cuda:3") == (
        "device 'cuda:3' is not there, this machine has cpu, cuda:0, cuda:1"
    )


def test_the_cpu_is_named_by_what_it_can_do():
    assert torch_devices.device_name(CPU) == torch.backends.cpu.get_cpu_capability()
    assert torch_devices.device_name(META) == "meta"


@pytest.mark.parametrize("device", [CPU, META])
def test_warming_leaves_random_states_alone(device):
    before = random_states()

    torch_devices.warm(device)
    torch_devices.wait_for(device)

    assert random_states() == before


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_warming_works_in_every_mode_and_leaves_it(mode):
    with mode():
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

        torch_devices.warm(CPU)

        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before


def test_every_tensor_of_a_nested_batch_is_sent():
    def one():
        return torch.ones(2)

    batch = OrderedDict(
        image=one(), pair=(one(), [one(), "name", 3, None]), sample=Sample(one(), {"label": one()})
    )

    sent = torch_devices.send(batch, META)

    assert [tensor.device for tensor in (sent["image"], sent["pair"][0], sent["pair"][1][0])] == [META] * 3
    assert [sent["sample"].image.device, sent["sample"].label["label"].device] == [META] * 2
    assert sent["pair"][1][1:] == ["name", 3, None]
    assert [type(sent["pair"]), type(sent["pair"][1]), type(sent["sample"])] == [tuple, list, Sample]


def test_a_batch_that_is_there_already_is_not_copied():
    images, labels = torch.ones(2), torch.ones(2)

    sent = torch_devices.send((images, labels), CPU)

    assert sent[0] is images
    assert sent[1] is labels


def test_a_batch_that_moves_itself_is_asked_to():
    packed = pack_sequence([torch.ones(3), torch.ones(2)])

    sent = torch_devices.send(packed, META)

    assert isinstance(sent, PackedSequence)
    assert (sent.data.device, sent.batch_sizes.device) == (META, CPU)  # torch wants the sizes on the cpu


def test_the_places_of_a_network_are_those_of_its_parameters_and_buffers():
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False, device="meta"))

    assert torch_devices.devices_of(network) == {CPU, META}
    assert torch_devices.devices_of(nn.ReLU()) == set()


@pytest.mark.parametrize("device", [CPU, META])
def test_random_states_are_given_back_as_they_were(device):
    before = random_states()

    with torch_devices.undisturbed_random(device):
        first = draw()
        torch.manual_seed(3)

    assert random_states() == before
    assert draw() == first


def test_random_states_are_given_back_after_an_error_too():
    before = random_states()

    with pytest.raises(KeyError), torch_devices.undisturbed_random(CPU):
        raise KeyError(draw())

    assert random_states() == before


@pytest.mark.cuda
@needs_cuda
def test_cuda_is_there_and_begins_when_it_is_warmed_not_before():
    program = (
        "import torch; from runmanager.devices import torch_devices as d\n"
        "device = d.try_gpu(); before = torch.cuda.is_initialized(), torch.cuda.memory_reserved()\n"
        "state = torch.get_rng_state(); d.warm(device); d.wait_for(device)\n"
        "cuda = torch.cuda; print(before, cuda.is_initialized(), cuda.memory_reserved() > 0)\n"
        "print(cuda.memory_allocated() < 2**27, torch.equal(state, torch.get_rng_state()))\n"
        "print(d.device_name(device) == cuda.get_device_name(0))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    # cuBLAS keeps its workspace, 65 MiB on an H100
    assert done.stdout == "(False, 0) True True\nTrue True\nTrue\n"


@pytest.mark.cuda
@needs_cuda
def test_cuda_random_state_is_given_back_as_it_was():
    device = torch.device("cuda:0")
    before = torch.cuda.get_rng_state(device)

    with torch_devices.undisturbed_random(device):
        torch.rand(3, device=device)

    assert torch.equal(torch.cuda.get_rng_state(device), before)


@pytest.mark.cuda
@needs_cuda
def test_what_is_sent_from_cuda_to_the_cpu_is_complete_when_it_is_read():
    values = torch.zeros(2**26, device="cuda")
    for _ in range(50):
        values += 1

    sent = torch_devices.send(values, CPU)

    assert sent.min().item() == 50


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_where_nothing_counts_memory_no_peak_is_known(device):
    assert torch_devices.take_peak(torch.device(device)) is None


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_peak_is_the_most_that_tensors_took_since_it_was_reset():
    device = torch.device("cuda")
    torch.empty(2**26, dtype=torch.uint8, device=device)

    torch_devices.take_peak(device)
    before = torch_devices.take_peak(device)
    torch.empty(2**24, dtype=torch.uint8, device=device)

    assert before is not None
    assert torch_devices.take_peak(device) == before + 2**24
