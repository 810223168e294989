"""`manager.log` per call, and what a million logged steps cost whoever reads them.

Targets: a call with a scalar on a cpu at most 50 us, the writing of blocks left out; `load_runs` of an
experiment with a million steps at most 1.1x of the same without.
"""

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from unittest import mock

import torch

from benchmarks.measuring import seconds, spread
from runmanager import RunManager, load_runs, load_steps
from runmanager.core import step_log
from runmanager.core.experiment import Experiment
from runmanager.core.journal import Journal
from runmanager.core.outcome import EpochRecord, Outcome, Status
from runmanager.core.step_log import StepLog

CALLS, ROUNDS = 2000, 9
RUNS, EPOCHS, STEPS, AT_ONCE = 10, 20, 5000, 1000  # steps of an epoch, and of a block: a million in all


def main() -> None:
    """Print the microseconds per call, and the seconds that each reader takes."""
    calls()
    reading()


def calls() -> None:
    """Time calls in a real epoch; blocks are written between the rounds."""
    loss = torch.tensor(0.5, requires_grad=True) * 1
    several = dict.fromkeys(("loss_a", "loss_b", "loss_c", "norm"), loss)
    with tempfile.TemporaryDirectory() as root:
        manager = RunManager("calls", root, display=False)
        with mock.patch.object(step_log, "BLOCK", 10**9), mock.patch.object(step_log, "LATEST_S", 1e9):
            taken: dict[str, list[float]] = {"every step": [], "every=50": [], "four values": [], "a block": []}
            with manager.run({"lr": 0.1}):
                for _ in manager.epochs(1 + ROUNDS):
                    for name, values, every in (
                        ("every step", {"step_loss": loss}, 1),
                        ("every=50", {"rare_loss": loss}, 50),
                        ("four values", several, 1),
                    ):
                        before = time.perf_counter()
                        for _ in range(CALLS):
                            manager.log(values, every=every)
                        taken[name].append((time.perf_counter() - before) / CALLS)
                    opened = manager._open_run("steps")  # the writing by itself
                    before = time.perf_counter()
                    assert opened.steps is not None
                    opened.steps.write()
                    taken["a block"].append(time.perf_counter() - before)
    for name in ("every step", "every=50", "four values"):
        print(f"log(), {name:<12}{spread(taken[name][1:], 'us', 1e6)}; target 50")
    num_values = CALLS * 5 + CALLS // 50
    per_value = [value / num_values for value in taken["a block"][1:]]
    print(f"writing, per value {spread(per_value, 'us', 1e6)}, TensorBoard included")


def reading() -> None:
    """Time the readers of runs with and without a million steps, in turn."""
    with tempfile.TemporaryDirectory() as root:
        plain, logged = Path(root) / "plain", Path(root) / "logged"
        make(plain, with_steps=False)
        make(logged, with_steps=True)
        taken: dict[Path, list[float]] = {plain: [], logged: []}
        for _ in range(1 + ROUNDS):
            for path in taken:
                taken[path] += seconds(partial(load_runs, path), 5)
        steps = seconds(lambda: load_steps(logged), 5)
        assert len(load_steps(logged)) == RUNS * EPOCHS * STEPS
        size = sum(path.stat().st_size for path in logged.glob("*/*.steps.jsonl"))
    without, with_ = (statistics.median(of_path[5:]) for of_path in taken.values())
    print(f"{RUNS * EPOCHS * STEPS:,} steps of {RUNS} runs x {EPOCHS} epochs, {size / 2**20:.0f} MiB")
    print(f"load_runs without  {spread(taken[plain][5:], 'ms', 1e3)}")
    print(f"load_runs with     {spread(taken[logged][5:], 'ms', 1e3)}; ratio {with_ / without:.2f}, target 1.1")
    print(f"load_steps         {spread(steps)}")


def make(path: Path, *, with_steps: bool) -> None:
    """Write the journals of runs, without waiting for the disk."""
    numbers = torch.rand(AT_ONCE, generator=torch.Generator().manual_seed(0)).tolist()
    with mock.patch("os.fsync"):
        for run in Experiment(path).plan([{"lr": number} for number in range(RUNS)], {}):
            run.path.mkdir()
            journal, file = Journal(run.path, 1, {"after": 0}), StepLog(run.path, 1, {}, ())
            for epoch in range(1, EPOCHS + 1):
                first = STEPS * (epoch - 1) + 1
                for start in range(first, first + STEPS, AT_ONCE) if with_steps else ():
                    for step, number in enumerate(numbers, start):
                        file.add({"step_loss": number}, 1, epoch=epoch, batch=step, before=0)
                    file.write()
                journal.epoch(EpochRecord(epoch, {"loss": 0.5}, {}, steps=STEPS))
            journal.end(Outcome(Status.COMPLETED, "", EPOCHS))
            file.close()
