# ruff: noqa: E501 - messages as they were recorded
import traceback

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from runmanager import RunManager, load_runs
from runmanager.core.failure import explain_devices, failure_of
from runmanager.core.outcome import Status
from runmanager.errors import InvalidArgumentError
from tests.locations import line_with

CPU, CUDA = torch.device("cpu"), torch.device("cuda:1")

OUT_OF_MEMORY = [  # what torch raised -> the cause
    (
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 7.49 GiB. GPU 0 has a total capacity of 15.47 GiB of which 6.71 "
            "GiB is free."
        ),
        "out of GPU memory on cuda:1",
    ),
    (
        RuntimeError("CUDA out of memory. Tried to allocate 264.00 MiB (GPU 0; 2.00 GiB total capacity)"),
        "out of GPU memory on cuda:1",
    ),
    (torch.AcceleratorError("CUDA error: out of memory"), "out of GPU memory on cuda:1"),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "out of GPU memory on cuda:1"),
    (RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"), "out of GPU memory on cuda:1"),
    (RuntimeError("HIP driver error: out of memory"), "out of GPU memory on cuda:1"),
    (RuntimeError("Triton Error [CUDA]: out of memory"), "out of GPU memory on cuda:1"),
    (RuntimeError("NCCL error in: NCCLUtils.cpp:77\nLast error:\nCuda failure 2 'out of memory'"), "out of GPU memory on cuda:1"),
    (RuntimeError("NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp"), "out of GPU memory on cuda:1"),
    (
        RuntimeError("MPS backend out of memory (max allowed: 27.20 GiB). Tried to allocate 292.50 MiB on private pool."),
        "out of GPU memory on cuda:1",
    ),
    (
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 132426121216 bytes."),
        "out of main memory",
    ),
    (MemoryError(), "out of main memory"),
    (MemoryError("Unable to allocate 7.28 PiB for an array"), "out of main memory"),
]  # fmt: skip

DEVICE_ERRORS = [
    (torch.AcceleratorError("CUDA error: device-side assert triggered\nSearch for"), "device-side assert triggered"),
    (RuntimeError("CUDA error: uncorrectable ECC error encountered\n"), "uncorrectable ECC error encountered"),
    (RuntimeError("cuda runtime error (59) : device-side assert triggered at Copy.cu:100"), "device-side assert triggered"),
    (RuntimeError("HIP error: unspecified launch failure"), "unspecified launch failure"),
    (torch.AcceleratorError("the device went away"), "the device went away"),
]  # fmt: skip

OTHERS = [
    (ValueError("no\nmore"), "ValueError: no"),
    (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED."), "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED."),
    (ValueError("my cache is out of memory"), "ValueError: my cache is out of memory"),
    (ValueError("CUDA error: device-side assert triggered"), "ValueError: CUDA error: device-side assert triggered"),
    (AssertionError(), "AssertionError"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "cause"), OUT_OF_MEMORY)
def test_messages_of_too_little_memory_are_known(error, cause):
    assert failure_of(error, CPU)[0] is Status.OUT_OF_MEMORY
    assert failure_of(error, CUDA)[1] == cause


@pytest.mark.parametrize(("error", "what"), DEVICE_ERRORS)
def test_messages_of_devices_that_failed_are_known(error, what):
    assert failure_of(error, CPU)[0] is Status.FAILED
    assert failure_of(error, CUDA, 3, 210)[1] == f"GPU error on cuda:1 ({what}) in epoch 3, step 210"


@pytest.mark.parametrize(("error", "cause"), OTHERS)
def test_other_errors_are_named_with_their_first_line(error, cause):
    assert failure_of(error, CPU)[0] is Status.FAILED
    assert failure_of(error, CUDA)[1] == cause


@pytest.mark.parametrize(
    ("message", "is_explained"),
    [
        (
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
            True,
        ),
        ("Tensor on device cuda:0 is not on the expected device meta!", True),
        ("Placeholder storage has not been allocated on MPS device!", True),
        ("Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same", True),
        ("CUDA error: device-side assert triggered", False),
        ("CUDA error: out of memory\nenable device-side assertions", False),
    ],
)
def test_only_a_network_and_a_batch_on_two_devices_are_explained_as_such(message, is_explained):
    error = RuntimeError(message)

    explain_devices(error, CUDA, nn.Linear(2, 1))

    assert hasattr(error, "__notes__") is is_explained


@pytest.mark.parametrize(
    ("epoch", "step", "where"),
    [(0, 0, ""), (0, 5, ""), (3, 0, "in epoch 3"), (3, 210, "in epoch 3, step 210")],
)
def test_the_cause_says_where(epoch, step, where):
    assert failure_of(ValueError("no"), CPU, epoch, step)[1] == "ValueError: no" + (
        f" ({where})" if where else ""
    )
    assert failure_of(MemoryError(), CPU, epoch, step)[1] == f"out of main memory {where}".strip()


def test_what_torch_raises_here_is_known():
    for allocate in (lambda: torch.empty(10**15), lambda: np.empty(10**15)):
        with pytest.raises((RuntimeError, MemoryError)) as caught:
            allocate()

        assert failure_of(caught.value, CPU)[0] is Status.OUT_OF_MEMORY
        assert failure_of(caught.value, CPU)[1].startswith("out of main memory")


@pytest.mark.parametrize("handled", [False, True])
def test_an_error_that_came_of_another_is_what_the_other_is(handled):
    error, device = ValueError("batch 3"), ValueError("batch 3")
    how = "__context__" if handled else "__cause__"
    setattr(error, how, MemoryError())
    setattr(device, how, DEVICE_ERRORS[0][0])

    assert failure_of(error, CPU)[0] is Status.OUT_OF_MEMORY
    assert failure_of(error, CPU)[1] == "out of main memory"
    assert failure_of(device, CUDA)[1] == "GPU error on cuda:1 (device-side assert triggered)"


def test_an_error_that_hides_another_is_itself():
    error = ValueError("batch 3")
    error.__context__, error.__suppress_context__ = MemoryError(), True

    assert failure_of(error, CPU)[0] is Status.FAILED


def test_errors_that_refer_to_each_other_are_looked_at_once():
    error, other = ValueError("a"), ValueError("b")
    error.__cause__, other.__cause__ = other, error

    assert failure_of(error, CPU)[0] is Status.FAILED


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_that_is_full_is_known():
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(2**50, device="cuda")

    assert failure_of(caught.value, CPU)[0] is Status.OUT_OF_MEMORY
    assert failure_of(caught.value, torch.device("cuda"))[1].startswith("out of GPU memory on cuda")


class Spoiled(Dataset[torch.Tensor]):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise ValueError(f"sample {index} is spoiled")


def test_an_error_in_a_worker_of_the_loader_names_its_cause():
    with pytest.raises(ValueError, match="Caught ValueError in DataLoader worker") as caught:
        next(iter(DataLoader(Spoiled(), num_workers=1)))

    line = line_with('raise ValueError(f"sample')
    assert (
        failure_of(caught.value, CPU)[1]
        == f"ValueError: sample 0 is spoiled (in worker 0 of the loader, {line})"
    )
    assert failure_of(caught.value, CPU, 2, 5)[1] == (
        f"ValueError: sample 0 is spoiled (in worker 0 of the loader, epoch 2, step 5, {line})"
    )
    traceback.clear_frames(caught.tb)  # or the loader, once it is garbage, waits five seconds for its worker


def test_a_loader_whose_process_got_sigterm_is_not_at_fault():
    error = RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated. ")

    assert failure_of(error, CPU)[0] is Status.KILLED
    assert failure_of(error, CPU, 2)[1] == "a process of its loader was ended (SIGTERM) in epoch 2"


def test_an_error_in_an_evaluation_says_so_and_not_the_step_of_the_training(tmp_path):
    batches = [(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))]
    manager = RunManager("exp", tmp_path, tensorboard=False, display=False)

    def train():
        with manager.run({"lr": 0.1}, torch.nn.Linear(4, 3), batches):
            for _ in manager.epochs(1):
                for _ in manager.batches():
                    manager.track_loss(1.0)
                manager.evaluate([(*batches[0], "weights")], "validation")

    with pytest.raises(InvalidArgumentError, match="got a tuple: write step=lambda network, batch"):
        train()

    (error,) = load_runs(tmp_path)["error"]
    assert error == (
        "InvalidArgumentError: evaluate() takes batches of (inputs, labels), got a tuple: write step=lambda network, "
        "batch: (loss, outputs, targets) (in epoch 1, evaluate(..., 'validation'), "
        f"{line_with('manager.evaluate([(*batches')})"
    )
