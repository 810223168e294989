"""Runs in this process, one after the other."""

import warnings
from collections import deque
from collections.abc import Generator, Sequence
from functools import partial

from runmanager.errors import InvalidArgumentError, RunsWarning
from runmanager.executors.base import Executor, Task, Watch
from runmanager.grid import Run, device_of
from runmanager.outcome import Outcome


class InlineExecutor(Executor):
    """Execute runs in this process, in their order: the simplest, and the one to debug with."""

    def __init__(self, *, jobs: int | str = 1, runs_per_device: int = 1, timeout: float | None = None) -> None:
        super().__init__(jobs=jobs, runs_per_device=runs_per_device, timeout=timeout)
        if jobs != 1 or timeout is not None:
            given = f"jobs={jobs!r}" if jobs != 1 else f"timeout={timeout!r}"
            rule = "the executor 'inline' executes one run after the other in this process"
            raise InvalidArgumentError([f"{rule}, got {given}: use executor='lanes'"])

    def num_lanes(self, runs: Sequence[Run]) -> int:  # noqa: ARG002 - however many
        """Return how many of the runs are executed at the same time: one."""
        return 1

    def execute(self, runs: deque[Run], task: Task, watch: Watch) -> Generator[tuple[Run, Outcome]]:
        """Execute the runs and yield each with its outcome."""
        from runmanager.devices.process_state import Leftovers

        leftovers = Leftovers()
        while runs:
            run = runs.popleft()
            if sentence := leftovers.run_begins(repr(run)):
                warnings.warn(sentence, RunsWarning, stacklevel=2)
            watch.run_started(run, 0, device_of(run))
            outcome = task(run, partial(watch.run_progressed, run))
            leftovers.run_ended()
            yield run, outcome
