"""The options of a loop over epochs: checkpoints, kept weights, and early stopping."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runmanager.errors import Problems, is_count

Interval = tuple[int | None, float | None]
"""The number of batches, or the seconds, between two commits inside an epoch; (None, None) for no commits."""

_PARTS = "checkpoint={'network': network, 'optimizer': optimizer}"
_UNITS = {"s": 1, "min": 60, "h": 3600}
_DURATION = re.compile(r"(?P<number>\d+(\.\d+)?) ?(?P<unit>s|min|h)")


@dataclass(frozen=True)
class EpochOptions:
    """The options of `RunManager.epochs`, which documents them, and of `fit`."""

    checkpoint: Mapping[str, Any] | None = None
    keep: str | None = None
    patience: int | None = None
    min_delta: float = 0.0
    max_seconds: float | None = None
    checkpoint_every: int | str | None = None

    def problems(self) -> Problems:
        """Return the errors of the options."""
        problems = Problems()
        parts: object = self.checkpoint
        if parts is not None and not isinstance(parts, Mapping):
            problems.append(f"checkpoint must map names to parts, got {type(parts).__name__}: write {_PARTS}")
            return problems
        if self.patience is not None:
            problems.check_count("patience", self.patience, 1)
        elif self.min_delta:
            advice = "write patience=10, the epochs to wait"
            problems.append(f"min_delta={self.min_delta!r} without patience=: {advice}")
        delta: object = self.min_delta
        if not isinstance(delta, (int, float)) or isinstance(delta, bool) or not 0 <= delta < math.inf:
            problems.append(f"min_delta must be a number, 0 or more, got {delta!r}")
        problems.check_seconds("max_seconds", self.max_seconds)
        problems += self._problems_inside_epochs()
        return problems

    @property
    def interval(self) -> Interval:
        """The interval between two commits inside an epoch.

        >>> EpochOptions(checkpoint_every=500).interval, EpochOptions(checkpoint_every="1.5h").interval
        ((500, None), (None, 5400.0))
        """
        every = self.checkpoint_every
        if not isinstance(every, str):
            return every, None
        match = _DURATION.fullmatch(every)
        assert match
        return None, float(match["number"]) * _UNITS[match["unit"]]

    def _problems_inside_epochs(self) -> Problems:
        problems, every = Problems(), self.checkpoint_every
        if every is None:
            return problems
        is_duration = (
            isinstance(every, str) and (match := _DURATION.fullmatch(every)) and float(match["number"])
        )
        if not is_duration and not is_count(every, 1):
            rule = "checkpoint_every must be a number of batches, 1 or more, or a duration"
            problems.append(f"{rule} such as '30s', '10min' or '2h', got {every!r}")
        elif self.checkpoint is None:
            problems.append(f"checkpoint_every={every!r} without checkpoint=: write {_PARTS}")
        for name, part in (self.checkpoint or {}).items():
            # torchmetrics' metrics are not in state_dict() by default
            if getattr(part, "metric_state", None) and not part.state_dict():
                advice = "call its persistent(True) before epochs()"
                problems.append(f"checkpoint[{name!r}] is a metric that saves no state inside epochs: {advice}")
        return problems
