"""The job scripts of docs/clusters.md, without SLURM: what they do when all of their processes get SIGTERM."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.border.work import wait_until
from tests.docs.test_pages import ROOT, blocks

PAGE = ROOT / "docs" / "clusters.md"
PATIENCE_S = 180  # on a busy machine


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the files of the page, and an `scontrol` that notes what it is asked for."""
    (tmp_path / "circle.py").write_text(blocks(PAGE, "python", slow=True)[-1])
    for name, script in zip(("job.sh", "long.sh", "array.sh"), blocks(PAGE, "bash"), strict=True):
        (tmp_path / name).write_text(script)
    (tmp_path / "bin").mkdir()
    programs = {"python": f'exec {sys.executable} "$@"', "scontrol": f'echo "$@" >> {tmp_path}/asked.txt'}
    for name, line in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def submit(folder, name, *flags, **variables):
    environment = {
        **os.environ, **variables, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "SLURM_JOB_ID": "7",
    }  # fmt: skip
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(
            ["/bin/bash", name, *flags], cwd=folder, stdout=log, stderr=log, env=environment
        )


def processes_of(pid):
    """Return a process and those that it has started, themselves or through others."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    processes = [pid]
    for process in processes:
        processes += children.get(process, [])
    return processes


def cancel(job, folder):
    """Send SIGTERM to all processes of a job that has committed an epoch."""
    wait_until(lambda: list(folder.glob("runs/*/*/checkpoint.pt")), PATIENCE_S)
    for process in reversed(processes_of(job.pid)):
        os.kill(process, signal.SIGTERM)
    return job.wait(PATIENCE_S)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="SLURM runs on Linux")
@pytest.mark.parametrize("name", ["job.sh", pytest.param("long.sh", marks=pytest.mark.nightly)])
def test_a_job_that_is_cancelled_stops_in_order_and_is_continued_by_the_same_command(folder, name):
    flags = ("--num-epochs", "60", "--width", "8")

    code = cancel(submit(folder, name, *flags), folder)
    stopped = (folder / "log.txt").read_text()
    again = submit(folder, name, *flags).wait(PATIENCE_S)

    assert code == (143 if name == "job.sh" else 0)  # of `long.sh`: that of its last line
    assert re.search(r"; the same command resumes\. .+\n━━ runs/circle · ", stopped)
    assert [word for word in ("Traceback", "\x1b", "\r") if word in stopped] == []
    assert not list(folder.glob("runs/*/holder.json"))
    log = (folder / "log.txt").read_text()
    assert (again, log.count("begun before"), "━━ runs/circle · 2 completed ━" in log) == (0, 1, True)
    assert not (folder / "asked.txt").exists()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="SLURM runs on Linux")
def test_a_job_whose_time_is_over_asks_to_be_started_again(folder):
    code = submit(folder, "long.sh", "--num-epochs", "100000", "--max-seconds", "5").wait(PATIENCE_S)

    assert (code, (folder / "asked.txt").read_text()) == (0, "requeue 7\n")
    assert "max_seconds=5 are over. Stopping" in (folder / "log.txt").read_text()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="SLURM runs on Linux")
def test_the_tasks_of_an_array_have_a_part_of_the_grid_each_at_the_same_time(folder):
    tasks = [submit(folder, "array.sh", SLURM_ARRAY_TASK_ID=str(index)) for index in range(2)]

    assert [task.wait(PATIENCE_S) for task in tasks] == [0, 0]
    parts = sorted(path.parent.relative_to(folder).as_posix() for path in folder.rglob("grid.json"))
    assert parts == ["runs/array/lr-0.01", "runs/array/lr-0.1"]
