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
import tempfile
import termios
import time
from collections import deque
from collections.abc import Generator, Sequence

from benchmarks.measuring import spread
from runmanager import Executor, RunManager, run_grid
from runmanager.core.contracts import Task, Watch, uncommitted
from runmanager.core.outcome import BatchProgress, EpochRecord, Outcome, Status
from runmanager.core.run import Run

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
    figures = []
    execute(SECONDS / 10, show=True)  # all is imported
    for _ in range(TIMES):
        shown, wall = execute(SECONDS, show=True)
        figures.append((shown, execute(SECONDS, show=False)[0], wall))
    print(json.dumps(figures), file=sys.stderr)


class Reporting(Executor):
    """Reports the progress of runs that train nothing."""

    is_in_process = True
    seconds = SECONDS  # of all runs

    def num_lanes(self, runs: Sequence[Run]) -> int:
        """Return the number of lanes."""
        return LANES

    def missing(self, device: str) -> str:
        """Return that each device is there."""
        return ""

    def execute(self, runs: deque[Run], task: Task, watch: Watch) -> Generator[tuple[Run, Outcome]]:
        """Report steps and epochs in all lanes at once."""
        while runs:
            together = [runs.popleft() for _ in range(LANES)]
            for lane, run in enumerate(together):
                watch.run_started(run, lane, f"cuda:{lane}")
            for epoch, step in itertools.product(range(1, EPOCHS + 1), range(1, STEPS + 1)):
                time.sleep(self.seconds * LANES / REPORTS)
                for run in together:
                    watch.run_progressed(run, BatchProgress(epoch, step, EPOCHS))
                    if step == STEPS:
                        watch.run_progressed(run, EpochRecord(epoch, {"loss": 1 / epoch, "accuracy": 0.5}))
            for run in together:
                yield run, uncommitted(Status.COMPLETED, "")


def train(run: Run, manager: RunManager) -> None:
    """Train nothing."""


def execute(seconds: float, *, show: bool) -> tuple[float, float]:
    """Execute a grid that takes so many seconds; return the CPU seconds and those of the wall clock."""
    executor = Reporting()
    executor.seconds = seconds
    with tempfile.TemporaryDirectory() as root:
        wall, cpu = time.monotonic(), time.process_time()
        run_grid(
            AXES, train, experiment="displaying", root=root, executor=executor, tensorboard=False, display=show
        )
        return time.process_time() - cpu, time.monotonic() - wall
