"""Successive halving in 4 lanes whose epochs take unequally long: how long lanes are idle by either rule.

Epochs sleep: 27 runs of 9 epochs, an epoch of a run takes 20 to 400 ms, drawn once per run (log-uniform), as
larger networks and batches do. What is measured is the executor, the question after each epoch and the waiting
at rungs, not training. Idle is the part of 4 lanes, from the first run's beginning to the last one's end, in
which no run was executed. Both rules get the same runs in the same order.
"""

import heapq
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runmanager import EpochRecord, Run, RunBuilder, SuccessiveHalving, run_grid

if TYPE_CHECKING:
    from runmanager import RunManager

RUNS, EPOCHS, LANES, REPEATS = 27, 9, 4, 5
LEAST_S, MOST_S = 0.02, 0.4  # an epoch
RULES = {
    "synchronous": SuccessiveHalving("max:score", factor=3),
    "asynchronous": SuccessiveHalving("max:score", factor=3, asynchronous=True),
}


class Uneven:
    """Runs in a random order, with curves and epochs of unequal length.

    Args:
        curves: Of each run, its metric by epoch.
        seed: Of the order and the times.
    """

    def __init__(self, curves: Sequence[Sequence[float]], seed: int) -> None:
        draw = random.Random(seed)
        self.curves = curves
        self.order = draw.sample(range(len(curves)), len(curves))
        self.seconds = [math.exp(draw.uniform(math.log(LEAST_S), math.log(MOST_S))) for _ in curves]


def asynchronous(runs: Uneven, rule: SuccessiveHalving) -> list[int]:
    """Return the last epoch of each run if lanes execute them by the asynchronous rule, in epochs' time."""
    pruner, last = rule.pruner(), [0] * len(runs.curves)
    waiting = iter(runs.order)
    lanes = [(runs.seconds[index], index, 1) for index in (next(waiting) for _ in range(LANES))]
    heapq.heapify(lanes)
    while lanes:
        now, index, epoch = heapq.heappop(lanes)
        last[index] = epoch
        curve = runs.curves[index]
        why = pruner.should_stop(str(index), EpochRecord(epoch, {rule.goal.metric: curve[epoch - 1]}))
        if epoch < len(curve) and not why:
            heapq.heappush(lanes, (now + runs.seconds[index], index, epoch + 1))
        elif (following := next(waiting, None)) is not None:
            heapq.heappush(lanes, (now + runs.seconds[following], following, 1))
    return last


def main() -> None:
    """Print idle share and wall clock of both rules."""
    figures: dict[str, list[tuple[float, float, int, float]]] = {name: [] for name in RULES}
    for repeat in range(REPEATS):
        for name, rule in RULES.items():
            figures[name].append(measured(rule, repeat))
    print(
        f"{RUNS} runs of {EPOCHS} epochs of {LEAST_S:g} to {MOST_S:g} s, asleep, {LANES} lanes, n = {REPEATS}"
    )
    for name, values in figures.items():
        wall, idle, epochs, score = (list(column) for column in zip(*values, strict=True))
        print(f"{name}: {_spread(wall)} s, idle {_spread([100 * share for share in idle])} %, "
              f"{_spread(epochs)} epochs, score of the winner {_spread(score)}")  # fmt: skip


def measured(rule: SuccessiveHalving, seed: int) -> tuple[float, float, int, float]:
    """Execute a grid; return its wall clock (s), the idle share of its lanes, its epochs, its best score."""
    draw = random.Random(seed)
    runs = Uneven([[]] * RUNS, seed)
    axes = {
        ("quality", "seconds"): [(draw.random(), round(runs.seconds[index], 3)) for index in runs.order],
        "device": ["cpu"],
    }
    with tempfile.TemporaryDirectory() as root:
        outcome = run_grid(
            RunBuilder.get_runs(axes), train, experiment="uneven", root=root, jobs=LANES, prune=rule,
            tensorboard=False, display=False,
        )  # fmt: skip
        begun, ended = zip(*_attempts(Path(root)), strict=True)
        assert outcome.exit_code == 0
    wall = max(ended) - min(begun)
    completed = outcome.runs[outcome.runs["status"] == "completed"]
    busy = sum(ended) - sum(begun)
    return wall, 1 - busy / (LANES * wall), len(outcome.results), float(completed["score"].max())


def train(run: Run, manager: "RunManager") -> None:
    """Sleep; the score tends to the quality of the run, with noise that becomes less."""
    noise = random.Random(run.quality)
    with manager.run(run):
        for epoch in manager.epochs(EPOCHS, checkpoint={}):
            time.sleep(run.seconds)
            manager.track(score=run.quality + 0.2 * noise.gauss(0, 1) / epoch)


def _attempts(root: Path) -> list[tuple[float, float]]:
    """Return when the attempts under a root began and ended (s)."""
    times = []
    for path in root.glob("uneven/*/attempt-*[0-9].jsonl"):
        first, *_, last = map(json.loads, path.read_text().splitlines())
        times.append((first["t_wall"], last["t_wall"]))
    return times


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


if __name__ == "__main__":
    main()
