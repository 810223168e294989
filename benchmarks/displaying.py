"""What showing a grid costs: 24 runs in 4 lanes that report often, in a terminal of 140 columns.

Target: CPU time of less than 1 % of the wall clock.
"""

import contextlib
import fcntl
import itertools
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measuring import spread
from runmanager.core.contracts import Slot
from runmanager.core.experiment import Design, RunFolder
from runmanager.core.grid import RunBuilder
from runmanager.core.outcome import EpochRecord, Outcome, Status
from runmanager.core.run import Run, id_of
from runmanager.core.state import RunResult
from runmanager.core.values import identity
from runmanager.executors import BatchProgress
from runmanager.screen.live import GridProgress

LANES, EPOCHS, STEPS = 4, 5, 20
REPORTS, SECONDS, TIMES = 24 * EPOCHS * STEPS, 10.0, 3
AXES = {"lr": [0.1, 0.01, 0.001], "batch_size": [100, 1000], "num_workers": [0, 1], "device": ["cpu", "cuda:0"]}


def main() -> None:
    """Print which part of the wall clock it is."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    command = [sys.executable, "-c", "from benchmarks.displaying import measure; measure()"]
    environment = os.environ | {"TERM": "xterm-256color"}
    with subprocess.Popen(  # noqa: S603 - this file
        command, stdout=follower, stderr=subprocess.PIPE, env=environment
    ) as process:
        os.close(follower)
        written = 0
        with contextlib.suppress(OSError):  # the terminal ends with the process
            while part := os.read(leader, 2**16):
                written += len(part)
        assert process.stderr is not None
        figures = json.loads(process.stderr.read())
    os.close(leader)
    shares = [100 * (shown - hidden) / wall for shown, hidden, wall in figures]
    print(
        f"{LANES} lanes, {REPORTS / SECONDS:.0f} reports/s, {written / (TIMES * SECONDS):,.0f} bytes/s written"
    )
    print(f"showing     {spread(shares, '%')} of the wall clock; target 1 %")


def measure() -> None:
    """Write the CPU seconds of a grid that is shown, of one that is not, and the wall clock of the first."""
    runs = RunBuilder.get_runs(AXES)
    figures = []
    execute(runs, SECONDS / 10, show=True)  # all is imported
    for _ in range(TIMES):
        shown, wall = execute(runs, SECONDS, show=True)
        figures.append((shown, execute(runs, SECONDS, show=False)[0], wall))
    print(json.dumps(figures), file=sys.stderr)


def execute(runs: Sequence[Run], seconds: float, *, show: bool) -> tuple[float, float]:
    """Tell of a grid that takes so many seconds; return the CPU seconds and those of the wall clock."""
    folders = [
        RunFolder(Path(str(number)), number, identity(run._asdict()), run._asdict())
        for number, run in enumerate(runs, 1)
    ]
    wall, cpu = time.monotonic(), time.process_time()
    progress = GridProgress("displaying", show=show)
    progress.states = {folder.id: RunResult(folder, Status.COMPLETED, [], 1, "", {}) for folder in folders}
    progress.start(Design(), list(AXES), LANES)
    progress.add_runs(folders)
    with progress:
        for first in range(0, len(runs), LANES):
            together = runs[first : first + LANES]
            slots = [Slot(id_of(run), lane, f"cuda:{lane}") for lane, run in enumerate(together)]
            for progress.run, progress.slot in zip(together, slots, strict=True):
                progress.run_began(progress.run, None, None)
            for epoch, step in itertools.product(range(1, EPOCHS + 1), range(1, STEPS + 1)):
                time.sleep(seconds * LANES / REPORTS)
                for progress.run, progress.slot in zip(together, slots, strict=True):
                    progress.step_ended(BatchProgress(epoch, step, EPOCHS))
                    if step == STEPS:
                        progress.epoch_ended(EpochRecord(epoch, {"loss": 1 / epoch, "accuracy": 0.5}), None)
            for progress.run, progress.slot in zip(together, slots, strict=True):
                progress.run_ended(Outcome(Status.COMPLETED, "", EPOCHS))
    return time.process_time() - cpu, time.monotonic() - wall
