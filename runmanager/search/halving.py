"""Successive halving: runs that are behind at a rung are stopped there.

Jamieson and Talwalkar (2016), Non-stochastic Best Arm Identification and Hyperparameter Optimization; it is one
bracket of Hyperband: Li, Jamieson, DeSalvo, Rostamizadeh and Talwalkar (2018).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from runmanager.errors import GridError, PruneError
from runmanager.goal import Goal, goal


@dataclass(frozen=True)
class SuccessiveHalving:
    """Train all runs for a few epochs, the best of them for more, and so on to the end.

    A rung is a number of epochs: `min_epochs`, then `factor` times as many each. All runs are trained to the
    first rung; of those that were at a rung, one in `factor` goes on to the next, at least one. So 27 runs of 9
    epochs take 27 x 1 + 9 x 2 + 3 x 6 = 63 epochs with the factor 3, not 243.

    Args:
        metric: What runs are compared by, at the epoch of the rung: a loss (the least is best) or an accuracy
            (the largest is), as "test_loss"; "min:<metric>" or "max:<metric>" of any other.
        factor: One run in so many goes on.
        min_epochs: The first rung.

    Raises:
        GridError: An argument cannot be used; with all problems.

    >>> SuccessiveHalving("test_loss").next_rung(0), SuccessiveHalving("test_loss").next_rung(3)
    (1, 9)
    """

    metric: str
    factor: int = 3
    min_epochs: int = 1

    def __post_init__(self) -> None:
        metric: object = self.metric
        problems: list[str] = []
        if not isinstance(metric, str) or self._goal() is None:
            rule = "metric must be a loss or an accuracy, as 'test_loss', or 'min:<metric>' or 'max:<metric>'"
            problems.append(f"{rule} of any other, got {metric!r}")
        numbers: tuple[tuple[str, object, int], ...] = (
            ("factor", self.factor, 2),
            ("min_epochs", self.min_epochs, 1),
        )
        for name, value, least in numbers:
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                problems.append(f"{name} must be a whole number, {least} or more, got {value!r}")
        if problems:
            raise GridError(problems)

    @property
    def goal(self) -> Goal:
        """The metric, and which value of it is the best."""
        found = self._goal()
        assert found is not None
        return found

    def rungs(self) -> Iterator[int]:
        """Yield the numbers of epochs after which runs are compared, without end."""
        rung = self.min_epochs
        while True:
            yield rung
            rung *= self.factor

    def next_rung(self, epoch: int) -> int:
        """Return the first rung after an epoch."""
        return next(rung for rung in self.rungs() if rung > epoch)

    def check(self, metrics: Mapping[str, float]) -> None:
        """Make sure that runs can be compared by what an epoch has.

        Raises:
            PruneError: They cannot: there is no such metric.
        """
        name = self.goal.metric
        if name not in metrics:
            known = ", ".join(metrics)
            raise PruneError(
                f"runs are to be compared by {name!r}, which the epoch of a rung does not have; it has: "
                f"{known}. Track it in every epoch"
            )

    def best(self, values: Sequence[float]) -> list[int]:
        """Return the places of the values that go on, the best one first.

        Args:
            values: The metric of each run that was to be at the rung, NaN where it has none: such a run is
                never among the best. Of equal runs the first is better.

        >>> SuccessiveHalving("accuracy").best([0.1, 0.3, math.nan, 0.3, 0.2, 0.4])
        [5, 1]
        """
        finite = [place for place, value in enumerate(values) if math.isfinite(value)]
        ordered = sorted(finite, key=lambda place: -self.goal.sign * values[place])
        return ordered[: max(len(values) // self.factor, 1)]

    def _goal(self) -> Goal | None:
        return goal(self.metric if ":" in self.metric else f"best:{self.metric}")
