"""What only a machine with a GPU can show: the checks of ``python -m benchmarks gpu``, one by one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu

HOME = Path(__file__).parents[1]
APART = ("machine", "marked", "tutorial")  # prints, executes these tests, takes minutes
NAMES = [check.__name__ for check in gpu.CHECKS if check.__name__ not in APART]


def executed(name, device):
    environment = {
        **os.environ, "RUNMANAGER_GPU_CHECK_DEVICE": device, "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "PYTHONPATH": str(HOME),
    }  # fmt: skip
    command = [sys.executable, "-c", f"from benchmarks import gpu; gpu.check({name!r})"]
    return subprocess.run(
        command, cwd=HOME, env=environment, capture_output=True, text=True, check=False, timeout=gpu.LIMIT_S
    )


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", NAMES)
def test_the_checks_of_a_gpu_hold(name):
    done = executed(name, "cuda")

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_checks_themselves_can_be_executed_without_a_gpu(name):
    done = executed(name, "cpu")

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_check_that_does_not_hold_is_counted(capsys, monkeypatch):
    def broken():
        yield "this holds", True
        yield "this does not", False

    monkeypatch.setattr(gpu, "CHECKS", (broken,))

    with pytest.raises(SystemExit) as caught:
        gpu.check("broken")

    assert caught.value.code == 1
    assert capsys.readouterr().out == "held: this holds\nDID NOT HOLD: this does not\n"


def test_a_check_that_is_unknown_is_refused_with_those_there_are(capsys):
    with pytest.raises(SystemExit):
        gpu.main(["nothing"])

    assert "no check nothing; there are: machine, marked, images" in capsys.readouterr().err
