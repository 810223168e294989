"""What only a machine with a GPU can show: the checks of ``python -m benchmarks gpu``, one by one."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch

from benchmarks import gpu, gpu_checks
from tests.accelerators import PRETENDED
from tests.border.work import wait_until

HOME = Path(__file__).parents[1]
APART = ("machine", "marked", "suite", "tutorial")  # prints, executes these tests, takes minutes
EXPECTED = {check.__name__: seconds for check, seconds in gpu_checks.CHECKS.items()}
NAMES = [name for name in EXPECTED if name not in APART]


def executed(name, device):
    environment = {
        **os.environ, "RUNMANAGER_GPU_CHECK_DEVICE": device, "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "PYTHONPATH": str(HOME),
    }  # fmt: skip
    command = [sys.executable, "-c", f"from benchmarks import gpu; gpu.check({name!r})"]
    return subprocess.run(command, cwd=HOME, env=environment, capture_output=True, text=True, check=False)


ON_CUDA = [
    pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "device", [pytest.param("cuda", marks=ON_CUDA), pytest.param("cpu", marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("name", NAMES)
def test_the_checks_of_a_gpu_hold_and_can_be_executed_without_one(name, device):
    done = executed(name, device)

    assert done.returncode == 0, done.stdout + done.stderr


# what pretended devices cannot show: failures of kernels, recordings, speed
BEYOND = ("faults",)
# the services of Ray do not start in time where each process begins with pretended devices
WHOLE = [name for name in EXPECTED if name != "ray"]
# together the others take half an hour
QUICK = ("machine", "numbers", "alternate", "resume", "memory", "images")
REHEARSED = [name for name in WHOLE if name in QUICK or os.environ.get("RUNMANAGER_REHEARSE") == "all"]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", REHEARSED)
def test_the_list_is_rehearsed_over_pretended_devices(tmp_path, name):
    results, devices = tmp_path / "gpu.txt", tmp_path / "devices"
    devices.mkdir()
    (tmp_path / "sitecustomize.py").write_text("from tests.accelerators import pretend\npretend()\n")
    environment = {
        **os.environ, PRETENDED: str(devices), "RUNMANAGER_GPU_CHECK_SMALL": "1",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(HOME)]), "PYTEST_ADDOPTS": "--collect-only",
    }  # fmt: skip
    command = [sys.executable, "-m", "benchmarks", "gpu", name, "--results", str(results)]

    done = subprocess.run(command, cwd=HOME, env=environment, capture_output=True, text=True, check=False)

    claims = gpu.claims(results)
    output = done.stdout + done.stderr + results.read_text()
    assert list(claims) == [name], output
    assert claims[name], output
    assert not re.search("broke off|did not end|exit code", "".join(claims[name])), output
    assert name in BEYOND or not gpu.has_failed(claims[name]), output


def good():
    yield "this holds", True
    yield "this needs a GPU", None


def bad():
    yield "this does not", False
    raise ValueError("no\nand more")


@pytest.mark.parametrize(
    ("check", "code", "claims"),
    [
        (good, 0, ["held: this holds", "not tried: this needs a GPU"]),
        (bad, 1, ["DID NOT HOLD: this does not", "DID NOT HOLD: it broke off by ValueError: no"]),
    ],
)
def test_a_check_that_does_not_hold_or_breaks_off_is_counted(capsys, check, code, claims):
    with mock.patch.dict(gpu.ALL, {check: 1}), pytest.raises(SystemExit) as caught:
        gpu.check(check.__name__)

    assert caught.value.code == code
    assert capsys.readouterr().out.splitlines() == claims


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without an accelerator")
def test_checks_whose_device_is_missing_are_not_tried_and_say_so(capsys):
    assert gpu.main(["syncs", "ray"]) == 2

    why = "not tried: device 'cuda' is not there, this machine has cpu"
    assert capsys.readouterr().out.splitlines()[:2] == [f"{name:<10} {why}" for name in ("syncs", "ray")]


ENDS = {
    "images": ("import sys; print('held: a'); print('not tried: b'); sys.exit(3)",
               ["held: a", "not tried: b", "DID NOT HOLD: it ended with exit code 3"]),
    "ray": ("import os; print('DID NOT HOLD: d', flush=True); os.abort()",
            ["DID NOT HOLD: d", "DID NOT HOLD: it ended with exit code -6"]),
    "faults": ("import sys; print('DID NOT HOLD: e', flush=True); sys.exit(1)", ["DID NOT HOLD: e"]),
    "clocks": ("print('== other'); print('noise'); print('held: c')", ["held: c"]),
}  # fmt: skip


@pytest.fixture
def processes():
    """Let each check be this code."""
    popen, codes = subprocess.Popen, {name: code for name, (code, _) in ENDS.items()}

    def begin(command, **options):
        name = command[-1].split("'")[1]
        return popen([*command[:2], codes[name]], **options)

    with mock.patch.object(subprocess, "Popen", begin):
        yield codes


@pytest.mark.usefixtures("processes")
def test_what_a_check_claims_is_in_the_file_however_it_ends_and_the_end_counts_it(capsys, tmp_path):
    file = tmp_path / "gpu.txt"

    assert gpu.main([*ENDS, "--device", "cpu", "--results", str(file)]) == 3

    assert gpu.claims(file) == {name: lines for name, (_, lines) in ENDS.items()}
    printed = capsys.readouterr().out.splitlines()
    assert printed[:3] == [
        "images     1 held, 1 not tried, 1 DID NOT HOLD, 0 s", "             not tried: b",
        "             DID NOT HOLD: it ended with exit code 3",
    ]  # fmt: skip
    assert printed[-2:] == [
        "all        2 held, 1 not tried, 4 DID NOT HOLD: images, ray, faults", f"all output is in {file}",
    ]  # fmt: skip


@pytest.mark.slow(everywhere=True)
def test_a_check_that_takes_too_long_ends_with_what_it_has_started(processes, tmp_path):
    file = tmp_path / "gpu.txt"
    processes["images"] = (
        "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(60)"
    )

    assert gpu.execute("images", "cpu", file, limit_s=1) == ["DID NOT HOLD: it did not end within 1 s"]

    pid = next(int(line) for line in file.read_text().splitlines() if line.isdigit())
    wait_until(lambda: is_ended(pid), 30)


def is_ended(pid):
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@pytest.mark.usefixtures("processes")
def test_a_call_ends_in_time_and_says_how_to_go_on(capsys, tmp_path):
    file = tmp_path / "gpu.txt"
    with mock.patch.object(gpu, "CALL_S", 30):  # of which images take 10
        gpu.main(["images", "ray", "clocks", "--device", "cpu", "--results", str(file)])

    assert capsys.readouterr().out.endswith(
        f"go on by: python -m benchmarks gpu --device cpu --results {file} ray clocks\n"
    )


def test_the_list_has_every_check_with_its_seconds_and_each_fits_into_a_call(capsys):
    assert gpu.main(["--list"]) == 0

    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in listed] == [
        [check.__name__, str(seconds)] for check, seconds in gpu.ALL.items()
    ]
    assert max(gpu.ALL.values()) < gpu.CALL_S < 9 * 60
    with pytest.raises(SystemExit):
        gpu.main(["nothing"])
    assert "no check nothing; there are: machine, numbers, alternate" in capsys.readouterr().err
