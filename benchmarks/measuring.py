"""Time things, and say by how much the times spread."""

import statistics
import time
from collections.abc import Callable, Sequence


def seconds(function: Callable[[], object], times: int) -> list[float]:
    """Call a function several times and return how long each call took."""
    taken = []
    for _ in range(times):
        before = time.perf_counter()
        function()
        taken.append(time.perf_counter() - before)
    return taken


def spread(values: Sequence[float], unit: str = "s", scale: float = 1.0) -> str:
    """Write the median of values, their least and their most."""
    median, least, most = (scale * v for v in (statistics.median(values), min(values), max(values)))
    return f"{median:.3g} {unit} (median of {len(values)}; {least:.3g} to {most:.3g})"
