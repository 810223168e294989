"""Time things, and say by how much the times spread."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from runmanager import RunManager
from runmanager.core.contracts import Boards
from runmanager.core.experiment import Experiment
from runmanager.core.grid_context import GridContext
from runmanager.tensorboard.pictures import Confusion
from runmanager.tensorboard.run_log import RunLog


def seconds(function: Callable[[], object], times: int) -> list[float]:
    """Call a function several times and return how long each call took."""
    taken = []
    for _ in range(times):
        before = time.perf_counter()
        function()
        taken.append(time.perf_counter() - before)
    return taken


def spread(values: Sequence[float], unit: str = "s", scale: float = 1.0) -> str:
    """Write the median of values, where it is with 95 % confidence, their least and their most."""
    ordered = sorted(scale * value for value in values)
    middle = f"{statistics.median(ordered):.3g} {unit}".rstrip()
    low, high = interval(ordered)
    within = f", 95 % {low:.3g} to {high:.3g}" if (low, high) != (ordered[0], ordered[-1]) else ""
    return f"{middle} (median of {len(ordered)}{within}; {ordered[0]:.3g} to {ordered[-1]:.3g})"


def interval(ordered: Sequence[float]) -> tuple[float, float]:
    """Return where the median is with 95 % confidence whatever the distribution, as far as so few values tell.

    The k-th value from either end encloses it with probability 1 - 2 P(B < k), B binomial(n, 1/2): Conover,
    Practical Nonparametric Statistics, 3.2.
    """
    count, outside, left_out = len(ordered), 0.0, 0
    while left_out < (count - 1) // 2:
        outside += 2 * math.comb(count, left_out) / 2**count
        if outside > 0.05:  # noqa: PLR2004 - 95 %
            break
        left_out += 1
    left_out = max(left_out - 1, 0)
    return ordered[left_out], ordered[-1 - left_out]


def quiet_manager(
    experiment: str, root: str | Path, *, tensorboard: bool = True, histogram_every: int = 1
) -> RunManager:
    """Make a manager as a grid gives it to a training function: tables and screen belong to the grid."""
    boards = Boards(partial(RunLog, histogram_every=histogram_every), Confusion) if tensorboard else None
    return RunManager.of_grid(Experiment(Path(root) / experiment), GridContext(boards=boards))
