"""What only a machine with a GPU can show: the checks of ``python -m benchmarks gpu``, one by one."""

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, gpu_checks
from tests.accelerators import PRETENDED

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


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", NAMES)
def test_the_checks_of_a_gpu_hold(name):
    done = executed(name, "cuda")

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_the_checks_themselves_can_be_executed_without_a_gpu(name):
    done = executed(name, "cpu")

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


def test_a_check_that_does_not_hold_is_counted(capsys, monkeypatch):
    def broken():
        yield "this holds", True
        yield "this does not", False

    monkeypatch.setattr(gpu, "ALL", {broken: 1})

    with pytest.raises(SystemExit) as caught:
        gpu.check("broken")

    assert caught.value.code == 1
    assert capsys.readouterr().out == "held: this holds\nDID NOT HOLD: this does not\n"


def test_what_only_a_gpu_can_show_is_not_counted_without_one(capsys, monkeypatch):
    def careful():
        yield gpu_checks.of_gpu("this needs a GPU", held=False)
        yield "this does not", True

    monkeypatch.setattr(gpu, "ALL", {careful: 1})
    monkeypatch.setattr(gpu_checks, "GPU", False)

    with pytest.raises(SystemExit) as caught:
        gpu.check("careful")

    assert caught.value.code == 0
    assert capsys.readouterr().out == "not tried: this needs a GPU\nheld: this does not\n"


def test_a_check_that_breaks_off_did_not_hold(capsys, monkeypatch):
    def breaking():
        yield "this holds", True
        raise ValueError("no\nand more")

    monkeypatch.setattr(gpu, "ALL", {breaking: 1})

    with pytest.raises(SystemExit) as caught:
        gpu.check("breaking")

    assert caught.value.code == 1
    lines = ["held: this holds", "DID NOT HOLD: it broke off by ValueError: no"]
    assert capsys.readouterr().out.splitlines() == lines


@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without an accelerator")
def test_checks_whose_device_is_missing_are_not_tried_and_say_so(capsys):
    assert gpu.main(["syncs", "ray"]) == 2

    why = "not tried: device 'cuda' is not there, this machine has cpu"
    assert capsys.readouterr().out.splitlines()[:2] == [f"{name:<10} {why}" for name in ("syncs", "ray")]


@pytest.fixture
def ended(monkeypatch):
    """Let checks end at once, with these claims."""
    ended = {
        "images": ["held: one", "held: two", "not tried: three"], "ray": ["held: one", "DID NOT HOLD: two"],
        "clocks": ["held: one"],
    }  # fmt: skip
    monkeypatch.setattr(gpu, "execute", lambda name, *_: ended[name])
    return ended


def test_the_end_says_of_each_check_what_held_and_what_did_not(capsys, ended, tmp_path):
    file = tmp_path / "gpu.txt"

    assert gpu.main(["images", "ray", "clocks", "--device", "cpu", "--results", str(file)]) == 1

    assert capsys.readouterr().out.splitlines() == [
        "images     2 held, 1 not tried, 0 s",
        "             not tried: three",
        "ray        1 held, 1 DID NOT HOLD, 0 s",
        "             DID NOT HOLD: two",
        "clocks     1 held, 0 s",
        "",
        "all        4 held, 1 not tried, 1 DID NOT HOLD: ray",
        f"all output is in {file}",
    ]


def test_a_call_ends_in_time_and_says_how_to_go_on(capsys, ended, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "CALL_S", 30)  # of which images take 10

    gpu.main(["images", "ray", "clocks", "--device", "cpu", "--results", str(tmp_path / "gpu.txt")])

    last = capsys.readouterr().out.splitlines()[-1]
    assert last == (
        "no time was left; go on by: python -m benchmarks gpu --device cpu "
        f"--results {tmp_path}/gpu.txt ray clocks"
    )


def test_the_list_has_every_check_with_its_seconds_and_each_fits_into_a_call(capsys):
    assert gpu.main(["--list"]) == 0

    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in listed] == [
        [check.__name__, str(seconds)] for check, seconds in gpu.ALL.items()
    ]
    assert max(gpu.ALL.values()) < gpu.CALL_S < 9 * 60


ENDS = {
    "import sys; print('held: a'); sys.exit(3)": ["held: a", "DID NOT HOLD: it ended with exit code 3"],
    "import time; print('held: b', flush=True); time.sleep(60)": [
        "held: b", "DID NOT HOLD: it did not end within 1 s",
    ],
    "import os; print('DID NOT HOLD: d', flush=True); os.abort()": [
        "DID NOT HOLD: d", "DID NOT HOLD: it ended with exit code -6",
    ],
    "import sys; print('DID NOT HOLD: e', flush=True); sys.exit(1)": ["DID NOT HOLD: e"],
    "print('== other'); print('noise'); print('held: c')": ["held: c"],
}  # fmt: skip


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize(("code", "lines"), ENDS.items())
def test_what_a_check_claims_is_in_the_file_however_it_ends(monkeypatch, tmp_path, code, lines):
    popen, file = subprocess.Popen, tmp_path / "gpu.txt"
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: popen([*command[:2], code], **options))

    for name in ("images", "ray"):
        assert gpu.execute(name, "cpu", file, limit_s=1 if "sleep" in code else 60) == lines

    assert gpu.claims(file) == {"images": lines, "ray": lines}


def test_what_a_check_started_ends_with_it(monkeypatch, tmp_path):
    popen, file = subprocess.Popen, tmp_path / "gpu.txt"
    code = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid)"
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: popen([*command[:2], code], **options))

    gpu.execute("images", "cpu", file, limit_s=60)

    pid = int(file.read_text().split()[-1])
    wait_until(lambda: is_ended(pid))


def is_ended(pid):
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def wait_until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_check_that_is_unknown_is_refused_with_those_there_are(capsys):
    with pytest.raises(SystemExit):
        gpu.main(["nothing"])

    assert "no check nothing; there are: machine, numbers, alternate" in capsys.readouterr().err
