# ruff: noqa: E501 - messages as they were recorded
import multiprocessing
import os
import signal
import subprocess
import traceback
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from runmanager import RunManager, load_runs, run_grid
from runmanager.errors import InvalidArgumentError
from runmanager.outcome import Status
from runmanager.training.causes import cause_of, explain_devices, status_of
from tests.locations import line_with

CPU, CUDA = torch.device("cpu"), torch.device("cuda:1")
ADVICE = (
    "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
    "avoid fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
ASYNCHRONOUS = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might "
    "be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)

CupyError = type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy.cuda.memory"})

OUT_OF_MEMORY = [  # what torch raised -> the cause, where no device tells more
    (
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 7.49 GiB. GPU 0 has a total capacity of 15.47 GiB of which 6.71 "
            "GiB is free. Process 28800 has 15.53 MiB memory in use. Process 54776 has 7.75 GiB memory in use. "
            "Including non-PyTorch memory, this process has 222.00 MiB memory in use. Of the allocated memory 0 "
            f"bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated. {ADVICE}"
        ),
        "out of GPU memory on cuda:1 (asked for 7.49 GiB, 6.71 GiB of 15.47 GiB free; process 54776 holds 7.75 GiB, process 28800 holds 15.53 MiB)",
    ),
    (
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.18 GiB of which 1.20 GiB "
            "is free. Process 691 has 550.00 MiB memory in use. Process 700 has 1.61 GiB memory in use. Process 702 "
            "has 14.00 MiB memory in use. Process 705 has 70.10 GiB memory in use. Process 9 has 8 bytes memory in use."
        ),
        "out of GPU memory on cuda:1 (asked for 2.00 GiB, 1.20 GiB of 79.18 GiB free; process 705 holds 70.10 GiB, process 700 holds 1.61 GiB, process 691 holds 550.00 MiB, 2 others)",
    ),
    (
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has a total capacty of 4.00 GiB of which 0 bytes "
            "is free. Including non-PyTorch memory, this process has 3.44 GiB memory in use. Of the allocated memory "
            f"2.58 GiB is allocated by PyTorch, and 1.90 MiB is reserved by PyTorch but unallocated. {ADVICE}"
        ),
        "out of GPU memory on cuda:1 (asked for 32.00 MiB, 0 bytes of 4.00 GiB free)",
    ),
    (
        RuntimeError(
            "CUDA out of memory. Tried to allocate 264.00 MiB (GPU 0; 2.00 GiB total capacity; 788.51 MiB already "
            "allocated; 145.93 MiB free; 1.02 GiB reserved in total by PyTorch)"
        ),
        "out of GPU memory on cuda:1 (asked for 264.00 MiB)",
    ),
    (
        torch.OutOfMemoryError(
            "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 22.43 "
            "GiB\nRequested               : 4.07 GiB\nDevice limit            : 16.00 GiB\n"
            "Free (according to CUDA): 0 bytes"
        ),
        "out of GPU memory on cuda:1 (asked for 4.07 GiB)",
    ),
    (
        torch.AcceleratorError(f"CUDA error: out of memory{ASYNCHRONOUS}"),
        "out of GPU memory on cuda:1",
    ),
    (
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        "out of GPU memory on cuda:1",
    ),
    (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "out of GPU memory on cuda:1"),
    (RuntimeError("CUDA driver error: out of memory"), "out of GPU memory on cuda:1"),  # expandable segments
    (RuntimeError("HIP driver error: out of memory"), "out of GPU memory on cuda:1"),
    (RuntimeError("Triton Error [CUDA]: out of memory"), "out of GPU memory on cuda:1"),
    (
        RuntimeError(
            "NCCL error in: NCCLUtils.cpp:77, unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'"
        ),
        "out of GPU memory on cuda:1",
    ),
    (RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"), "out of GPU memory on cuda:1"),
    (
        RuntimeError(
            'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":1154, '
            "please report a bug to PyTorch. "
        ),
        "out of GPU memory on cuda:1",
    ),
    (
        torch.OutOfMemoryError(
            "HIP out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 287.98 GiB of which 275.86 "
            "GiB is free. 1.05 GiB allowed; Of the allocated memory 1017.01 MiB is allocated by PyTorch, with 17.00 "
            "MiB allocated in private pools (e.g., HIP Graphs), and 54.99 MiB is reserved by PyTorch but unallocated."
        ),
        "out of GPU memory on cuda:1 (asked for 2.00 MiB, 275.86 GiB of 287.98 GiB free)",
    ),
    (
        RuntimeError(
            "XPU out of memory. Tried to allocate 59.61 GiB. GPU 0 has a total capacity of 28.55 GiB of which 12.01 "
            "GiB is free."
        ),
        "out of GPU memory on cuda:1 (asked for 59.61 GiB, 12.01 GiB of 28.55 GiB free)",
    ),
    (
        RuntimeError(
            "MPS backend out of memory (MPS allocated: 9.57 GiB, other allocations: 17.35 GiB, max allowed: 27.20 "
            "GiB). Tried to allocate 292.50 MiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable "
            "upper limit for memory allocations (may cause system failure)."
        ),
        "out of GPU memory on cuda:1 (asked for 292.50 MiB)",
    ),
    (
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
            "allocate 132426121216 bytes. Error code 12 (Cannot allocate memory)"
        ),
        "out of main memory (asked for 123.33 GiB)",
    ),
    (
        RuntimeError(
            r"[enforce fail at C:\b\pytorch\work\c10\core\impl\alloc_cpu.cpp:81] data. DefaultCPUAllocator: not enough "
            "memory: you tried to allocate 1048576 bytes."
        ),
        "out of main memory (asked for 1048576 bytes)",
    ),
    (
        RuntimeError(
            "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  ...\n"
            "RuntimeError: [enforce fail at CPUAllocator.cpp:64] . DefaultCPUAllocator: can't allocate memory: you "
            "tried to allocate 67108864 bytes. Error code 12 (Cannot allocate memory)\n"
        ),
        "out of main memory (asked for 67108864 bytes) in worker 0 of the loader",
    ),
    (MemoryError(), "out of main memory"),
    (
        CupyError("Out of memory allocating 170,034,987,008 bytes (allocated so far: 0 bytes)."),
        "out of memory (asked for 158.36 GiB)",
    ),
    (
        MemoryError(
            "Unable to allocate 7.28 PiB for an array with shape (1000000000000000,) and data type float64"
        ),
        "out of main memory (asked for 7.28 PiB)",
    ),
]

DEVICE_ERRORS = [
    (
        torch.AcceleratorError(
            "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in "
            "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information."
            f"{ASYNCHRONOUS}"
        ),
        "device-side assert triggered",
    ),
    (
        RuntimeError(f"CUDA error: uncorrectable ECC error encountered{ASYNCHRONOUS}"),
        "uncorrectable ECC error encountered",
    ),
    (
        torch.AcceleratorError(f"CUDA error: an illegal memory access was encountered{ASYNCHRONOUS}"),
        "an illegal memory access was encountered",
    ),
    (RuntimeError("CUDA error: unspecified launch failure"), "unspecified launch failure"),
    (
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa)`"),
        "CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa)`",
    ),
    (
        RuntimeError("cuda runtime error (59) : device-side assert triggered at /pytorch/aten/Copy.cu:100"),
        "device-side assert triggered",
    ),
    (RuntimeError("HIP error: unspecified launch failure"), "unspecified launch failure"),
    (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"), "CUDNN_STATUS_INTERNAL_ERROR"),
    (
        torch.AcceleratorError(
            "CUDA error: misaligned address\nSearch for `cudaErrorMisalignedAddress' in "
            "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information."
            f"{ASYNCHRONOUS}"
        ),
        "misaligned address",
    ),
    (
        torch.AcceleratorError(
            f"CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?{ASYNCHRONOUS}"
        ),
        "invalid device ordinal",
    ),
    (
        torch.AcceleratorError(
            f"CUDA error: operation failed due to a previous error during capture{ASYNCHRONOUS}"
        ),
        "operation failed due to a previous error during capture",
    ),
    (RuntimeError("CUDA driver error: device not ready"), "device not ready"),
    (RuntimeError("Triton Error [CUDA]: misaligned address"), "misaligned address"),
    (
        RuntimeError(
            "NCCL error: unhandled cuda error\nLast error:\nCuda failure 700 'an illegal memory access was encountered'"
        ),
        "an illegal memory access was encountered",
    ),
    (torch.AcceleratorError("the device went away"), "the device went away"),
]

IN_A_LOADER = torch.AcceleratorError(
    "Caught AcceleratorError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  ...\n"
    f"torch.AcceleratorError: CUDA error: initialization error{ASYNCHRONOUS}"
)

OTHERS = [
    (ValueError("no\nmore"), "ValueError: no"),
    (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input."),
     "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input."),
    (RuntimeError("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"),
     "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"),
    (ValueError("my cache is out of memory"), "ValueError: my cache is out of memory"),
    (ValueError("CUDA error: device-side assert triggered"), "ValueError: CUDA error: device-side assert triggered"),
    (KeyError("lr"), "KeyError: 'lr'"),
    (AssertionError(), "AssertionError"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def no_device_tells(monkeypatch):
    def fail(_):
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.accelerator, "get_memory_info", fail)


@pytest.mark.parametrize(("error", "cause"), OUT_OF_MEMORY)
def test_messages_of_too_little_memory_are_known(error, cause):
    assert status_of(error) is Status.OUT_OF_MEMORY
    assert cause_of(error, CUDA) == cause


@pytest.mark.parametrize(("error", "what"), DEVICE_ERRORS)
def test_messages_of_devices_that_failed_are_known(error, what):
    assert status_of(error) is Status.FAILED
    assert cause_of(error, CUDA, 3, 210) == f"GPU error on cuda:1 ({what}) in epoch 3, step 210"


def test_a_loader_whose_processes_would_need_the_gpu_says_what_to_do():
    assert cause_of(IN_A_LOADER, CUDA) == (
        "GPU error on cuda:1 (initialization error: keep the data of a loader with num_workers on the cpu) "
        "in worker 0 of the loader"
    )


@pytest.mark.parametrize(("error", "cause"), OTHERS)
def test_other_errors_are_named_with_their_first_line(error, cause):
    assert status_of(error) is Status.FAILED
    assert cause_of(error, CUDA) == cause


@pytest.mark.parametrize(
    ("message", "is_explained"),
    [
        (
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
            True,
        ),
        ("Tensor on device cuda:0 is not on the expected device meta!", True),
        (
            "Expected all tensors to be on the same device, but got mat1 is on cpu, different from other tensors on cuda:0",
            True,
        ),
        (
            "Input and parameter tensors are not at the same device, found input tensor at cpu and parameter tensor at cuda:0",
            True,
        ),
        ("indices should be either on cpu or on the same device as the indexed tensor (cpu)", True),
        ("Placeholder storage has not been allocated on MPS device!", True),
        ("Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same", True),
        ("Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same", True),
        (
            "Input type (torch.cuda.FloatTensor) and weight type (torch.cuda.HalfTensor) should be the same",
            False,
        ),
        (f"CUDA error: device-side assert triggered{ASYNCHRONOUS}", False),
        (f"CUDA error: an illegal memory access was encountered{ASYNCHRONOUS}", False),
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
    assert cause_of(ValueError("no"), CPU, epoch, step) == "ValueError: no" + (f" ({where})" if where else "")
    assert cause_of(MemoryError(), CPU, epoch, step) == f"out of main memory {where}".strip()


def test_what_torch_raises_here_is_known():
    for allocate in (lambda: torch.empty(10**15), lambda: np.empty(10**15)):
        with pytest.raises((RuntimeError, MemoryError)) as caught:
            allocate()

        assert status_of(caught.value) is Status.OUT_OF_MEMORY
        assert cause_of(caught.value, CPU).startswith("out of main memory (asked for ")


@pytest.mark.parametrize("handled", [False, True])
def test_an_error_that_came_of_another_is_what_the_other_is(handled):
    error, device = ValueError("batch 3"), ValueError("batch 3")
    how = "__context__" if handled else "__cause__"
    setattr(error, how, MemoryError())
    setattr(device, how, DEVICE_ERRORS[0][0])

    assert status_of(error) is Status.OUT_OF_MEMORY
    assert cause_of(error, CPU) == "out of main memory"
    assert cause_of(device, CUDA) == "GPU error on cuda:1 (device-side assert triggered)"


def test_an_error_that_hides_another_is_itself():
    error = ValueError("batch 3")
    error.__context__, error.__suppress_context__ = MemoryError(), True

    assert status_of(error) is Status.FAILED


def test_errors_that_refer_to_each_other_are_looked_at_once():
    error, other = ValueError("a"), ValueError("b")
    error.__cause__, other.__cause__ = other, error

    assert status_of(error) is Status.FAILED


def test_a_device_is_asked_for_what_the_message_does_not_say(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda _: (3 * 2**28, 8 * 2**30))

    cause = cause_of(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"), CUDA)

    assert cause == "out of GPU memory on cuda:1 (0.75 GiB of 8.00 GiB free)"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_says_how_much_was_asked_for_and_is_free():
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(2**50, device="cuda")

    assert status_of(caught.value) is Status.OUT_OF_MEMORY
    assert "asked for" in cause_of(caught.value, torch.device("cuda"))
    assert "free" in cause_of(caught.value, torch.device("cuda"))


class Spoiled(Dataset[torch.Tensor]):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise ValueError(f"sample {index} is spoiled")


def test_an_error_in_a_worker_of_the_loader_names_its_cause():
    with pytest.raises(ValueError, match="Caught ValueError in DataLoader worker") as caught:
        next(iter(DataLoader(Spoiled(), num_workers=1)))

    line = line_with('raise ValueError(f"sample')
    assert cause_of(caught.value, CPU) == f"ValueError: sample 0 is spoiled (in worker 0 of the loader, {line})"
    assert cause_of(caught.value, CPU, 2, 5) == (
        f"ValueError: sample 0 is spoiled (in worker 0 of the loader, epoch 2, step 5, {line})"
    )
    traceback.clear_frames(caught.tb)  # or the loader, once it is garbage, waits five seconds for its worker


def test_a_dataset_that_the_processes_of_a_loader_cannot_get_says_what_to_write():
    class Local(Dataset[int]):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return index

    loader = DataLoader(Local(), num_workers=1, multiprocessing_context="spawn")
    with pytest.warns(UserWarning, match="pickle"), pytest.raises(Exception, match="local object") as caught:
        iter(loader)

    sentence = cause_of(caught.value, CPU, 1)

    assert "local object" in sentence
    assert (
        ": a loader with num_workers sends its dataset to other processes by pickle: define classes and "
        in sentence
    )
    assert (
        "functions at the top of a module, not inside a function, or write num_workers=0 (in epoch 1, "
        in sentence
    )


def end_the_processes_of(loader):
    """Take batches of a loader whose processes get SIGTERM after the first one."""
    for batch in loader:
        for process in multiprocessing.active_children():
            subprocess.run(["/bin/kill", str(process.pid)], check=True)  # from its parent, it would end with 0
        yield batch


class Ending:
    """A process that has closed its files, as its sentinel shows, and has no exit code until it is waited for."""

    def __init__(self):
        self.sentinel, other = os.pipe()
        os.close(other)
        self.exitcode: int | None = None

    def join(self, timeout):
        assert timeout > 0
        self.exitcode = -signal.SIGTERM


class Lost(_MultiProcessingDataLoaderIter):
    def __init__(self, workers):
        self._workers = workers

    def __del__(self):
        """End no processes."""

    def fetch(self):
        raise ConnectionResetError("Connection reset by peer")


def test_a_process_of_a_loader_that_is_about_to_have_an_exit_code_is_waited_for():
    process = Ending()
    try:
        with pytest.raises(ConnectionResetError) as caught:
            Lost([process]).fetch()

        assert status_of(caught.value) is Status.KILLED
    finally:
        os.close(process.sentinel)


# torch opens files to count them when a process is lost, and a second one that is lost may interrupt it
@pytest.mark.slow(everywhere=True)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_run_whose_loader_lost_a_process_to_sigterm_is_not_at_fault_and_is_resumed(tmp_path):
    is_ended = [True]

    def train(run, manager):
        loader: Any = DataLoader(torch.ones(40, 1), batch_size=1, num_workers=1)  # type: ignore[arg-type]
        network = nn.Linear(1, 1)
        with manager.run(run, network, loader):
            for epoch in manager.epochs(2, checkpoint={"network": network}):
                for batch in end_the_processes_of(loader) if epoch == 2 and is_ended.pop() else loader:
                    manager.track_loss(network(batch).sum(), 1)

    options = {"experiment": "exp", "root": tmp_path, "executor": "inline", "display": False}
    stopped = run_grid({"lr": [0.1]}, train, **options)
    is_ended.append(False)
    resumed = run_grid({"lr": [0.1]}, train, changed="keep", **options)

    (_, outcome), exit_code = stopped.outcomes[0], stopped.exit_code
    assert (outcome.status, outcome.epochs, exit_code) == (Status.KILLED, 1, 1)
    assert outcome.error.startswith("a process of its loader was ended (SIGTERM) in epoch 2, ")
    assert resumed.runs[["status", "attempts", "epochs"]].values.tolist() == [["completed", 2, 2]]


def test_an_error_in_an_evaluation_says_so_and_not_the_step_of_the_training(tmp_path):
    batches = [(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))]
    manager = RunManager("exp", tmp_path, tensorboard=False, display=False)

    def train():
        with manager.run({"lr": 0.1}, torch.nn.Linear(4, 3), batches):
            for _ in manager.epochs(1):
                for _ in manager.batches():
                    manager.track_loss(1.0)
                manager.evaluate([(*batches[0], "weights")], "validation")

    with pytest.raises(InvalidArgumentError, match="got a tuple of 3: write step=lambda network, batch"):
        train()

    (error,) = load_runs(tmp_path)["error"]
    assert error == (
        "InvalidArgumentError: evaluate() takes batches of (inputs, labels), got a tuple of 3: write step=lambda network, "
        "batch: (loss, outputs, targets) (in epoch 1, evaluate(..., 'validation'), "
        f"{line_with('manager.evaluate([(*batches')})"
    )
