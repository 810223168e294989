"""A loop of one's own on warm lanes: what a run costs beside its training, the first one and all others.

Target: from the second run on, no more than a run of `run_grid(search=...)` costs. Training does nothing here.
"""

import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager import AskTell, OptunaSearch, Uniform, run_grid

if TYPE_CHECKING:
    from runmanager import Run, RunManager

NUM_RUNS = 60


def train(run: "Run", manager: "RunManager") -> None:
    """Track one value."""
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track(score=run.height**2)


def main() -> None:
    """Print the figures, with a TensorBoard file per run and without."""
    with tempfile.TemporaryDirectory() as folder:
        for has_events in (False, True):
            print("with TensorBoard" if has_events else "without TensorBoard")
            _measure(Path(folder) / str(has_events), tensorboard=has_events)


def _measure(root: Path, **options: Any) -> None:
    axes = {"height": Uniform(-1, 1)}
    options |= {"root": root, "goal": "min:score", "display": False}
    seconds: list[float] = []
    with AskTell(axes, OptunaSearch(NUM_RUNS), experiment="loop", train=train, **options) as search:
        before = time.perf_counter()
        for _ in search.results():
            now = time.perf_counter()
            seconds.append(now - before)
            before = now
    first, *others = seconds
    print(f"  first run {first:.2f} s; later ones, median {1000 * statistics.median(others):.0f} ms")
    outcome = run_grid(axes, train, search=OptunaSearch(NUM_RUNS), experiment="grid", **options)
    ends = sorted(path.stat().st_mtime for path in outcome.folder.glob("*/attempt-1.jsonl"))
    gaps = [after - before for before, after in itertools.pairwise(ends)]
    print(f"  run_grid, from one end to the next, median {1000 * statistics.median(gaps):.0f} ms")
