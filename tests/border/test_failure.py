# ruff: noqa: E501 - messages as they were recorded
"""What a run has failed of, in one sentence: memory, a device, a process of the loader, or an error of the user's code."""

import traceback
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from runmanager import RunManager, load_runs, run_grid

GPU, MAIN = "out of GPU memory on meta", "out of main memory"


def of_device(reason):
    return f"GPU error on meta ({reason})"


def caused(by, how="__cause__"):
    error = ValueError("batch 3")
    setattr(error, how, by)
    return error


def hiding(error, other):
    error.__context__, error.__suppress_context__ = other, True
    return error


BROKEN = torch.AcceleratorError("CUDA error: device-side assert triggered\nSearch for")
CIRCLE, OTHER = ValueError("a"), ValueError("b")
CIRCLE.__cause__, OTHER.__cause__ = OTHER, CIRCLE
RAISED = [  # what torch raised -> status, cause
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7.49 GiB. GPU 0 has a total capacity of 15.47 GiB of which 6.71 GiB is free."), "out of memory", f"{GPU} (asked for 7.49 GiB, 6.71 GiB of 15.47 GiB free)"),
    (RuntimeError("CUDA out of memory. Tried to allocate 264.00 MiB (GPU 0; 2.00 GiB total capacity)"), "out of memory", f"{GPU} (asked for 264.00 MiB)"),
    (torch.AcceleratorError("CUDA error: out of memory"), "out of memory", GPU),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "out of memory", GPU),
    (RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"), "out of memory", GPU),
    (RuntimeError("HIP driver error: out of memory"), "out of memory", GPU),
    (RuntimeError("Triton Error [CUDA]: out of memory"), "out of memory", GPU),
    (RuntimeError("NCCL error in: NCCLUtils.cpp:77\nLast error:\nCuda failure 2 'out of memory'"), "out of memory", GPU),
    (RuntimeError("NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp"), "out of memory", GPU),
    (RuntimeError("MPS backend out of memory (max allowed: 27.20 GiB). Tried to allocate 292.50 MiB on private pool."), "out of memory", f"{GPU} (asked for 292.50 MiB)"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 132426121216 bytes."), "out of memory", f"{MAIN} (asked for 123.33 GiB)"),
    (MemoryError("Unable to allocate 7.28 PiB for an array"), "out of memory", f"{MAIN} (asked for 7.28 PiB)"),
    (lambda: torch.empty(10**15), "out of memory", f"{MAIN} (asked for 3725290.30 GiB)"),
    (lambda: np.empty(10**15), "out of memory", f"{MAIN} (asked for 7.11 PiB)"),
    (BROKEN, "failed", of_device("device-side assert triggered")),
    (RuntimeError("CUDA error: uncorrectable ECC error encountered\n"), "failed", of_device("uncorrectable ECC error encountered")),
    (RuntimeError("cuda runtime error (59) : device-side assert triggered at Copy.cu:100"), "failed", of_device("device-side assert triggered")),
    (RuntimeError("HIP error: unspecified launch failure"), "failed", of_device("unspecified launch failure")),
    (torch.AcceleratorError("the device went away"), "failed", of_device("the device went away")),
    (ValueError("no\nmore"), "failed", "ValueError: no"),
    (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED."), "failed", "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED."),
    (ValueError("my cache is out of memory"), "failed", "ValueError: my cache is out of memory"),
    (ValueError("CUDA error: device-side assert triggered"), "failed", "ValueError: CUDA error: device-side assert triggered"),
    (AssertionError(), "failed", "AssertionError"),
    (RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated. "), "killed", "a process of its loader was ended (SIGTERM)"),
    (caused(MemoryError()), "out of memory", MAIN),
    (caused(MemoryError(), "__context__"), "out of memory", MAIN),
    (caused(BROKEN), "failed", of_device("device-side assert triggered")),
    (hiding(ValueError("batch 3"), MemoryError()), "failed", "ValueError: batch 3"),
    (CIRCLE, "failed", "ValueError: a"),
]  # fmt: skip


def fail(run, manager):
    error, *_ = RAISED[run.number]
    if run.number % 2:  # before the run, of which the grid knows the device all the same
        raise error if isinstance(error, BaseException) else error()
    with manager.run(run, None, [1] * 3):
        for epoch in manager.epochs(2):
            for step, _ in enumerate(manager.batches(), 1):
                manager.track_loss(1.0, 1)
                if (epoch, step) == (2, 3):
                    raise error if isinstance(error, BaseException) else error()


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Execute a run for each error."""
    return run_grid(
        {"number": range(len(RAISED)), "device": ["meta"]}, fail, experiment="e", executor="inline", display=False,
        root=tmp_path_factory.mktemp("failures"), tensorboard=False, on_error="continue",
    ).runs  # fmt: skip


@pytest.mark.parametrize("number", range(len(RAISED)))
def test_a_cause_is_known_by_what_was_raised_and_says_where(ended, number):
    _, status, cause = RAISED[number]

    row = ended.iloc[number]
    is_bare = status == "out of memory" or cause.startswith(("GPU", "a process"))
    where = "test_failure.py:" if number % 2 else "epoch 2, step 3, "
    assert row["status"] == status
    assert row["error"].startswith(f"{cause} in " if is_bare else f"{cause} (in ")
    assert where in row["error"].removeprefix(cause)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_that_is_full_is_known(tmp_path):
    manager = RunManager("e", tmp_path, tensorboard=False, display=False)
    with suppress(torch.OutOfMemoryError), manager.run({"device": "cuda"}):
        torch.empty(2**50, device="cuda")

    assert load_runs(tmp_path)["status"].tolist() == ["out of memory"]
    assert load_runs(tmp_path)["error"][0].startswith("out of GPU memory on cuda")


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
def test_only_a_network_and_a_batch_on_two_devices_are_explained_as_such(tmp_path, message, is_explained):
    manager, error = RunManager("e", tmp_path, tensorboard=False, display=False), RuntimeError(message)

    with suppress(RuntimeError), manager.run({"device": "meta"}, nn.Linear(2, 1)):
        raise error

    notes = "".join(getattr(error, "__notes__", []))
    named = ("run's device is meta", "network is on meta", "manager.batches()", ".to('meta')")
    assert [part in notes for part in named] == [is_explained] * 4


class Spoiled(Dataset[torch.Tensor]):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise ValueError(f"sample {index} is spoiled")


def train(root, loader, evaluated=()):
    """Train with a loader, and evaluate others; return what the run has failed of."""
    manager = RunManager("e", root, tensorboard=False, display=False)
    try:
        with manager.run({"lr": 0.1}, nn.Linear(4, 3), loader):
            for _ in manager.epochs(1):
                for _ in manager.batches():
                    manager.track_loss(1.0, 1)
                manager.evaluate(evaluated, "validation")
    except (RuntimeError, ValueError) as error:
        traceback.clear_frames(error.__traceback__)  # or the loader waits five seconds for its worker
    return load_runs(root)["error"][0]


def test_an_error_in_a_worker_of_the_loader_names_its_cause(tmp_path):
    error = train(tmp_path, DataLoader(Spoiled(), num_workers=1))

    assert error.startswith("ValueError: sample 0 is spoiled (in worker 0 of the loader, epoch 1, ")
    assert "test_failure.py:" in error


def test_labels_that_do_not_suit_the_loss_of_an_evaluation_ask_for_another_loss(tmp_path):
    error = train(tmp_path, [(torch.zeros(2, 4), torch.zeros(2))], [(torch.zeros(2, 4), torch.zeros(2))])

    assert "evaluate(..., 'validation'): is loss= for " in error
    assert ", (2,)]" in error


def test_an_error_in_an_evaluation_says_so_and_not_the_step_of_the_training(tmp_path):
    error = train(tmp_path, [(torch.zeros(2, 4), torch.zeros(2))], [(torch.zeros(2, 4), 0, "weights")])

    assert "(in epoch 1, evaluate(..., 'validation'), " in error
    assert "step " not in error.partition("(in epoch")[2]
