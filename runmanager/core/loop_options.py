"""The options of a loop over epochs, and early stopping by them."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from runmanager.core.contracts import RunListener
from runmanager.core.outcome import EpochRecord
from runmanager.errors import Problems, is_count

if TYPE_CHECKING:
    from runmanager.core.checkpoint import Interval, Keep
    from runmanager.core.goal import Goal

_PARTS = "checkpoint={'network': network, 'optimizer': optimizer}"
_UNITS = {"s": 1, "min": 60, "h": 3600}
_DURATION = re.compile(r"(?P<number>\d+(\.\d+)?) ?(?P<unit>s|min|h)")


@dataclass(frozen=True)
class LoopOptions:
    """The options of `RunManager.epochs`, which documents them, and of `fit`."""

    checkpoint: Mapping[str, Any] | None = None
    keep: "Keep | None" = None
    patience: int | None = None
    min_delta: float = 0.0
    max_seconds: float | None = None
    checkpoint_every: int | str | None = None

    def problems(self) -> Problems:
        """Return the errors of the options."""
        problems, every = Problems(), self.checkpoint_every
        parts: object = self.checkpoint
        if parts is not None and not isinstance(parts, Mapping):
            problems.append(f"checkpoint must map names to parts, got {type(parts).__name__}: write {_PARTS}")
            return problems
        if self.patience is not None:
            problems.check_count("patience", self.patience, 1)
        delta: object = self.min_delta
        if not isinstance(delta, (int, float)) or isinstance(delta, bool) or not 0 <= delta < math.inf:
            problems.append(f"min_delta must be a number, 0 or more, got {delta!r}")
        problems.check_seconds("max_seconds", self.max_seconds)
        if every is None:
            return problems
        if not self.interval:
            problems.append(
                "checkpoint_every must be a number of batches, 1 or more, or a duration such as '30s', '10min' "
                f"or '2h', got {every!r}"
            )
        elif self.checkpoint is None:
            problems.append(f"checkpoint_every={every!r} without checkpoint=: write {_PARTS}")
        for name, part in (self.checkpoint or {}).items():
            # torchmetrics' metrics are not in state_dict() by default
            if getattr(part, "metric_state", None) and not part.state_dict():
                problems.append(
                    f"checkpoint[{name!r}] is a metric that saves no state inside epochs: "
                    "call its persistent(True) before epochs()"
                )
        return problems

    @property
    def interval(self) -> "Interval":
        """The interval between two commits inside an epoch; None for none, or if it is invalid."""
        every = self.checkpoint_every
        if isinstance(every, str):
            match = _DURATION.fullmatch(every)
            return float(match["number"]) * _UNITS[match["unit"]] if match else None
        return every if is_count(every, 1) else None


class EarlyStop(RunListener):
    """Early stopping that uses only committed epochs, so that a resumed run stops after the same epoch."""

    rule = None  # a loop that ends early counts as completed

    def __init__(self, options: LoopOptions, goal: "Goal | None" = None) -> None:
        self._options, self._goal = options, goal
        self._best: EpochRecord | None = None
        self._reason: str | None = None

    def attempt_began(
        self,
        records: Sequence[EpochRecord] = (),
        facts: Mapping[str, Any] = MappingProxyType({}),
        last_step: int = 0,
    ) -> None:
        """Count the epochs of earlier attempts."""
        for record in records:
            self.epoch_ended(record, None)

    def epoch_ended(self, record: EpochRecord, network: Any) -> str | None:
        """Return the reason why the loop should stop, None to continue."""
        from runmanager.core.checkpoint import score_of

        patience, most, goal = self._options.patience, self._options.max_seconds, self._goal
        if patience is not None and goal is not None:
            score, best = score_of(record, goal, "patience="), self._best
            if best is None or score > goal.score(best.metrics) + self._options.min_delta:
                self._best = best = record
            if record.epoch - best.epoch >= patience:
                where = f"{best.metrics[goal.metric]:.4g} in epoch {best.epoch}"
                self._reason = f"{goal.metric} was not better than {where} for {patience} epochs"
        duration = record.metrics["run duration"]
        if not self._reason and most is not None and duration >= most:
            self._reason = f"max_seconds={most:g} were over after {duration:.4g} s"
        return self._reason

    def asked_again(self, record: EpochRecord) -> str | None:
        """Return the reason after the epochs of earlier attempts."""
        return self._reason
