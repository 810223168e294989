"""What only a machine with a GPU can show: the checks of ``python -m benchmarks gpu``, one by one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from runmanager.devices import torch_devices

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


def test_what_only_a_gpu_can_show_is_not_counted_without_one(capsys, monkeypatch):
    def careful():
        yield gpu.of_gpu("this needs a GPU", held=False)
        yield "this does not", True

    monkeypatch.setattr(gpu, "CHECKS", (careful,))
    monkeypatch.setattr(gpu, "GPU", False)

    with pytest.raises(SystemExit) as caught:
        gpu.check("careful")

    assert caught.value.code == 0
    assert capsys.readouterr().out == "not tried: this needs a GPU\nheld: this does not\n"


def test_a_check_that_breaks_off_did_not_hold(capsys, monkeypatch, tmp_path):
    def breaking():
        yield "this holds", True
        raise ValueError("no\nand more")

    monkeypatch.setattr(gpu, "CHECKS", (breaking,))
    monkeypatch.setenv(gpu.CLAIMS, str(tmp_path / "claims"))

    with pytest.raises(SystemExit) as caught:
        gpu.check("breaking")

    assert caught.value.code == 1
    lines = ["held: this holds", "DID NOT HOLD: it broke off by ValueError: no"]
    assert (tmp_path / "claims").read_text().splitlines() == lines
    assert capsys.readouterr().out.splitlines() == lines


def test_checks_whose_device_is_missing_are_not_tried_and_say_so(capsys, monkeypatch):
    monkeypatch.setattr(torch_devices, "available_devices", lambda: ["cpu"])
    monkeypatch.setattr(torch_devices, "is_available", lambda _: False)

    assert gpu.main(["syncs", "ray"]) == 2

    why = "not tried: device 'cuda' is not there, this machine has cpu"
    assert capsys.readouterr().out.splitlines()[:2] == [f"{name:<10} {why}" for name in ("syncs", "ray")]


def test_the_end_says_of_each_check_what_held_and_what_did_not(capsys, monkeypatch):
    ended = {
        "images": ["held: one", "held: two", "not tried: three"], "ray": ["held: one", "DID NOT HOLD: two"],
    }  # fmt: skip
    monkeypatch.setattr(gpu, "execute", lambda name, _: (ended[name], 3.2))

    assert gpu.main(["images", "ray", "--device", "cpu"]) == 1

    assert capsys.readouterr().out.splitlines() == [
        "",
        "images     2 held, 1 not tried, 3 s",
        "             not tried: three",
        "ray        1 held, 1 DID NOT HOLD, 3 s",
        "             DID NOT HOLD: two",
        "",
        "all        3 held, 1 not tried, 1 DID NOT HOLD: ray",
    ]


@pytest.mark.parametrize(
    ("code", "limit_s", "line"),
    [
        ("import sys; sys.exit(3)", 60, "DID NOT HOLD: it ended with exit code 3"),
        ("import time; time.sleep(60)", 1, "DID NOT HOLD: it did not end within 1 s"),
    ],
)
def test_a_check_that_dies_or_hangs_did_not_hold(monkeypatch, code, limit_s, line):
    run = subprocess.run
    monkeypatch.setattr(gpu, "LIMIT_S", limit_s)
    monkeypatch.setattr(subprocess, "run", lambda command, **options: run([*command[:2], code], **options))

    lines, _ = gpu.execute("images", "cpu")

    assert lines == [line]


def test_a_check_that_is_unknown_is_refused_with_those_there_are(capsys):
    with pytest.raises(SystemExit):
        gpu.main(["nothing"])

    assert "no check nothing; there are: machine, marked, images" in capsys.readouterr().err
