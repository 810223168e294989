"""An open epoch: its sums, its clock and the parts of its time."""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import Any

import torch

from runmanager.core import metrics
from runmanager.core.goal import seen
from runmanager.core.outcome import LEADING, EpochRecord
from runmanager.devices import ranks, torch_devices

_OUTSIDE = ("phase_eval_s", "phase_log_s", "phase_checkpoint_s")
"""Phases whose time is not part of the epoch's duration."""
# pairs (process, device) whose first epoch has been marked in the tables
_begun: set[tuple[int, str, int]] = set()


class OpenEpoch:
    """The measurements between `begin_epoch` and `end_epoch`."""

    most_steps: int | None = None
    """The maximum number of batches of an epoch when a run is only checked."""

    commit_every: int | None = None
    """The number of batches between two checkpoints inside an epoch, in place of ``checkpoint_every=``."""

    def __init__(
        self,
        number: int,
        device: torch.device,
        loader: Any = None,
        params: Mapping[str, Any] = MappingProxyType({}),
        on_step: Callable[[], None] = lambda: None,
        measure: Callable[[Any], int] | None = None,
    ) -> None:
        self.number = number
        self.step: int = 0  # the number of the current batch, from 1
        self.sums: metrics.EpochSums = metrics.EpochSums(
            measure, loader, partial(metrics.check_column, params=params)
        )
        self.counts_batches: bool = False  # whether `step` counts batches of `batches` instead of losses
        self.is_whole: bool = True  # false while batches of `batches` remain
        self.is_left = False  # whether break or an exception ended the loop over `epochs` in this epoch
        self.inside: Any = None  # the `InsideEpoch`, which writes checkpoints inside the epoch; or None
        self._device, self._loader, self._on_step = device, loader, on_step
        self.evaluations: list[list[Any]] = []  # id, loader, and how the loader was evaluated
        self._evaluated: dict[str, float] = {}
        self._times: dict[str, float] = {}
        self._end: float | None = None
        # the last batch saved by an earlier attempt, after which `batches` resumes; 0 if there is none
        self.resume_batch: int = 0
        self._continued = 0.0  # time when the state was restored (perf_counter, s)
        first_use = (os.getpid(), device.type, device.index or 0)
        self._is_cold = first_use not in _begun
        _begun.add(first_use)
        torch_devices.wait_for(device)
        self.start: float = perf_counter()
        self.start_time: float = time.time()  # wall time (s)

    def batches(self) -> Iterator[Any]:
        """Start loading, and return an iterator over the loader's batches on the device."""
        self.counts_batches, self.is_whole = True, False
        step, before = self.step, perf_counter()
        iterator = self.inside.begin_pass(self, self._loader) if self.inside else iter(self._loader)
        self.resume_batch = self.step - step
        self.add_seconds("phase_data_s", perf_counter() - max(before, self._continued))
        return self._sent(iterator)

    def _sent(self, iterator: Iterator[Any]) -> Iterator[Any]:
        end = object()
        while True:
            before = perf_counter()
            batch = next(iterator, end)
            self.add_seconds("phase_data_s", perf_counter() - before)
            if batch is end:
                self.is_whole = True
                return
            batch = torch_devices.send(batch, self._device)
            self.step += 1
            self.sums.begin_batch(batch)
            self._on_step()
            yield batch

    def add_loss(self, loss: torch.Tensor | float, batch: Any) -> None:
        """Add the mean loss of a batch, see `EpochSums.add_loss`."""
        self.sums.add_loss(loss, batch)
        if not self.counts_batches:
            self.step += 1
            self._on_step()
            if self.inside is not None:
                rule = "it counts the batches of manager.batches(), which is not used"
                self.inside.stop_saving(rule, "; write `for batch in manager.batches():`")

    def track(self, values: Mapping[str, torch.Tensor | float], how: metrics.How = "mean") -> None:
        """Add values of the current batch, see `RunManager.track`."""
        for name, value in values.items():
            self.sums.track(name, value, how)

    def add_evaluation(self, values: Mapping[str, float], seconds: float) -> None:
        """Add the columns and the duration of an evaluation."""
        self._evaluated.update(values)
        self.add_seconds("phase_eval_s", seconds)

    def add_seconds(self, phase: str, seconds: float) -> None:
        """Add seconds to a phase of the epoch."""
        self._times[phase] = self._times.get(phase, 0.0) + seconds

    def state(self, now: float) -> dict[str, Any]:
        """Return the measurements until `now` (perf_counter, s) for a checkpoint; waits for the device."""
        return {
            "step": self.step,
            "seconds": now - self.start,
            "times": self._times,
            "evaluated": self._evaluated,
            "cold": self._is_cold,
            "sums": self.sums.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume an epoch from saved measurements, replacing the current measurements."""
        self._continued = perf_counter()
        self.start = self._continued - state["seconds"]
        self.step = state["step"]
        self._times, self._evaluated = state["times"], state["evaluated"]
        self._is_cold = self._is_cold or state["cold"]
        self.sums.load(state["sums"], self._device)

    def stop_clock(self, at: float | None = None) -> None:
        """Stop the clock, unless it has stopped: later time is not part of the epoch's duration.

        `at` is the time (perf_counter, s) at which the epoch ended elsewhere.
        """
        if self._end is None:
            torch_devices.wait_for(self._device)
            self._end = perf_counter() if at is None else at
            outside = sum(self._times.get(name, 0.0) for name in _OUTSIDE)
            self._seconds = self._end - self.start - outside

    def record(
        self,
        run_start: float,
        earlier: Sequence[EpochRecord],
        num_logged: int,
        x_axis: str | None,
    ) -> EpochRecord:
        """Read the sums of all ranks after the clock has stopped; `run_start` is of perf_counter (s)."""
        assert self._end is not None
        means = self.sums.means()
        columns = {name: means.pop(name) for name in LEADING if name in means}
        of_ranks = ranks.gather((self._seconds, self._end - run_start, self.sums.loss.weight))
        epoch_seconds, run_seconds, num_samples = zip(*of_ranks, strict=True)
        columns |= {"epoch duration": max(epoch_seconds), "run duration": max(run_seconds)}
        if "phase_data_s" in self._times:
            self._times["phase_train_s"] = self._seconds - self._times["phase_data_s"]
        if any(num_samples):
            self._times["throughput_images_per_s"] = sum(num_samples) / max(epoch_seconds)
        num_steps = max(self.step, num_logged)
        counted = seen(x_axis, earlier, num_steps, sum(num_samples)) if x_axis else {}
        values = {**columns, **self._evaluated, **means, **counted}
        return EpochRecord(self.number, values, self._times, self._is_cold, num_steps)

    def divergence(self, record: EpochRecord, earlier: Sequence[EpochRecord]) -> str:
        """Return a sentence about the first loss that is not finite, and the loss before it."""
        step, loss, before = self.sums.first_not_finite() or (0, record.metrics["loss"], math.nan)
        if step == 1:
            before = earlier[-1].metrics.get("loss", math.nan) if earlier else math.nan
        where = f"epoch {self.number}" + (f", step {step}" if step else "")
        finite = f"; before it was {before:.4g}" if math.isfinite(before) else ""
        return f"loss became {loss} in {where}{finite}"


def num_batches(loader: Any) -> int | None:
    """Return the number of batches of a loader, None if unknown."""
    with suppress(Exception):  # __len__ of a user's data set may raise any exception
        return len(loader)
    return None
