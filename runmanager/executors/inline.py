"""Runs in this process, one after the other."""

from collections import deque
from collections.abc import Generator, Sequence
from functools import partial

from runmanager.core.contracts import Executor, Task, Watch
from runmanager.core.outcome import Outcome
from runmanager.core.run import Run, device_of
from runmanager.errors import InvalidArgumentError, warn


class InlineExecutor(Executor):
    """Execute runs in this process, in order: the simplest executor, for debugging.

    Args:
        jobs: Must be 1.
        runs_per_device: Has no effect, as runs never overlap.
        timeout: Must be None, as a run in this process cannot be ended.

    Raises:
        InvalidArgumentError: `jobs` or `timeout` has another value.

    Example:
        >>> from runmanager import run_grid
        >>> def train(run, manager):
        ...     with manager.run(run):
        ...         for epoch in manager.epochs(1):
        ...             manager.track_loss(run.lr, 1)
        >>> executor = InlineExecutor()
        >>> run_grid({"lr": [0.1]}, train, experiment="inline", executor=executor, display=False).exit_code
        0
    """

    is_in_process = True

    def __init__(self, *, jobs: int | str = 1, runs_per_device: int = 1, timeout: float | None = None) -> None:
        arguments = {"jobs": (jobs, 1), "timeout": (timeout, None)}.items()
        unused = [f"{name}={value!r}" for name, (value, default) in arguments if value != default]
        if unused:
            rule = "the executor 'inline' executes one run after the other in this process"
            raise InvalidArgumentError(f"{rule}, got {' and '.join(unused)}: use executor='lanes'")

    def num_lanes(self, runs: Sequence[Run]) -> int:
        """Return 1, as runs never overlap."""
        return 1

    def execute(self, runs: deque[Run], task: Task, watch: Watch) -> Generator[tuple[Run, Outcome]]:
        """Execute the runs, and yield each run with its outcome."""
        from runmanager.devices.torch_devices import process_state, set_back

        is_reported = False
        while runs:
            run = runs.popleft()
            before = process_state()
            watch.run_started(run, 0, device_of(run))
            try:
                outcome = task(run, partial(watch.run_progressed, run))
            finally:
                changed = set_back(before) if process_state() != before else []
            if changed and not is_reported:
                is_reported = True
                fact = f"{run!r} left settings of this process changed: {', '.join(changed)}"
                warn(f"{fact}; they are restored after each run")
            yield run, outcome
