"""Checkpoints inside epochs, at intervals, of loaders with `state_dict` and `load_state_dict`."""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import msgspec
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from runmanager.core import checkpoint, files, loaders
from runmanager.core.checkpoint import Interval, ResumeState
from runmanager.core.epoch import OpenEpoch, num_batches
from runmanager.core.outcome import EpochRecord, Inside
from runmanager.devices import ranks, torch_devices
from runmanager.errors import warn

_NOTHING, _COSTS = "checkpoint_every= saves nothing", "so a kill inside an epoch costs that epoch"
_ADVICE = "use TensorLoader or torchdata's StatefulDataLoader"


class InsideEpoch:
    """Commits the state of a run inside its epochs, and resumes a run inside an epoch."""

    def __init__(
        self,
        run: Any,
        state: ResumeState,
        interval: Interval,
        records: Sequence[EpochRecord],
        problems: list[str],
    ) -> None:
        # a reference cycle would keep both objects alive until garbage collection
        self._run: Any = weakref.proxy(run)
        self._state, self._interval = state, interval
        self._seconds_before = records[-1].metrics["run duration"] if records else 0.0
        self._epoch = 0  # the epoch whose first loop over the batches has begun
        self.position: Inside | None = None
        self._saved: checkpoint.Saved = {}  # the checkpoint at this position
        problem, saved = "" if run.loader is None else _problem_of(run.loader), None
        if ranks.num_ranks() > 1:
            problem = f"{ranks.num_ranks()} ranks train together"
        else:
            names = [files.INSIDE_CHECKPOINT]
            saved = checkpoint.load_checkpoint(run.folder.path, run.folder.id, problems, names)
        if saved and saved["inside"]["position"]["epoch"] == len(records) + 1:
            position = msgspec.convert(saved["inside"]["position"], Inside)
            state.check_names(saved)
            is_changed = position.num_batches != num_batches(run.loader)
            if why := problem or ("its loader has changed" if is_changed else ""):
                problems.append(_start_over(position, why))
            else:
                self.position, self._saved = position, saved
                rule = "random numbers that worker processes draw inside an epoch may differ"
                state.inexact = saved.get("inexact") or (rule if loaders.draws_in_workers(run.loader) else "")
        self._is_usable = bool(interval) and not problem
        self._is_saving = self._is_usable  # in this epoch
        self._said: set[str] = set()
        if interval and problem:
            problems.append(f"{_NOTHING}: {problem}, {_COSTS}")

    def begin_epoch(self, epoch: OpenEpoch) -> None:
        """Follow an epoch, which may resume at the saved position."""
        epoch.inside = self
        if self.position and self.position.epoch == epoch.number:
            epoch.resume_batch = self.position.batch

    def begin_pass(self, epoch: OpenEpoch, loader: Any) -> Iterator[Any]:
        """Begin to load batches, at the first batch or after a saved position."""
        position, saved = self.position, self._saved
        self.position, self._saved = None, {}
        is_first, self._epoch = epoch.number != self._epoch, epoch.number
        self._is_saving = self._is_usable
        if self._state.unsaved and is_first:
            self._state.unsaved.begin_pass()
        batches = None
        if position and position.epoch == epoch.number:
            random = torch_devices.random_states(self._run.device)
            try:
                loader.load_state_dict(saved["inside"]["loader"])
                batches = iter(loader)
            except Exception as error:  # noqa: BLE001 - of a user's loader
                torch_devices.restore_random(random, self._run.device)
                self._warn(_start_over(position, f"its loader cannot load its state: {error!r}"))
            else:
                self._restore(epoch, saved)
        batches = iter(loader) if batches is None else batches
        # of several loops in an epoch, only the first one has checkpoints
        return self._watched(epoch, loader, batches) if is_first and self._is_saving else batches

    def stop_saving(self, why: str, step: str) -> None:
        """Save no more checkpoints in this pass, and warn of it once; `step` is what to write."""
        self._is_saving = False
        if self._is_usable and why not in self._said:
            self._said.add(why)
            self._warn(f"{_NOTHING}: {why}, {_COSTS}{step}")

    def _watched(self, epoch: OpenEpoch, loader: Any, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches; commit the state after a batch, if it is due, when the next one is requested."""
        interval, last = self._interval, perf_counter()
        is_first, is_due, state = True, False, None
        for batch in batches:
            if isinstance(interval, int):
                is_over = (epoch.step + 1) % interval == 0
            else:
                is_over = perf_counter() - last >= (interval or 0.0)
            is_due = is_due or is_over  # until a batch has a tracked value
            if is_due and self._is_saving:
                try:
                    state = loader.state_dict()
                except Exception as error:  # noqa: BLE001 - of a user's loader
                    self.stop_saving(f"its loader has no state: {error!r}", "")
            yield batch
            if is_first and not epoch.sums.is_tracked:
                rule = "the first batch had no tracked value before the next one was requested"
                step = "; call track_loss() or track() for each batch, before the loop takes another one"
                self.stop_saving(rule, step)
            is_first = False
            if is_due and self._is_saving and epoch.sums.is_tracked:
                before, is_due = perf_counter(), False
                self._commit(epoch, state)
                last = perf_counter()
                epoch.add_seconds("phase_data_s", before - last)  # the caller measures the time until a batch

    def _commit(self, epoch: OpenEpoch, of_loader: Any) -> None:
        run = self._run
        torch_devices.wait_for(run.device)
        logged: tuple[int, Mapping[str, int]] = (0, {})
        if run.steps:
            epoch.add_seconds("phase_log_s", run.steps.write())
            logged = run.steps.position(epoch.number)
        before = perf_counter()
        step = run.num_steps + max(epoch.step, logged[0])
        position = Inside(epoch.number, epoch.step, step, num_batches(run.loader))
        inside: dict[str, Any] = {
            "epoch": epoch.state(before),
            "run_seconds": run.seconds,
            "steps": logged,
            "loader": of_loader,
            "gradients": [parameter.grad for parameter in _parameters(self._state.parts)],
            "position": msgspec.to_builtins(position),
        }
        self._state.save_inside(inside)
        run.journal.inside(position)
        epoch.add_seconds("phase_checkpoint_s", perf_counter() - before)

    def _restore(self, epoch: OpenEpoch, saved: checkpoint.Saved) -> None:
        run, inside = self._run, saved["inside"]
        self._state.load(saved)
        parameters = _parameters(self._state.parts)
        for parameter, gradient in zip(parameters, inside["gradients"], strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
        if inside["steps"][1]:
            run.step_log().resume(epoch.number, inside["steps"])
        torch_devices.wait_for(run.device)
        run.start -= inside["run_seconds"] - self._seconds_before
        epoch.load(inside["epoch"])

    def _warn(self, sentence: str) -> None:
        warn(f"run {self._run.folder.number}: {sentence}")


def _parameters(parts: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the parameters of networks and optimizers; gradients may be accumulating in them."""
    parameters: list[torch.Tensor] = []
    for part in parts.values():
        if isinstance(part, nn.Module):
            parameters += part.parameters()
        elif isinstance(part, Optimizer):
            parameters += [parameter for group in part.param_groups for parameter in group["params"]]
    return parameters


def _start_over(position: Inside, why: str) -> str:
    return f"epoch {position.epoch} starts over, not after batch {position.batch}: {why}"


def _problem_of(loader: Any) -> str:
    """Return the reason why a loader cannot resume inside an epoch, "" if it can."""
    if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
        return f"a {type(loader).__name__} has no state_dict(): {_ADVICE}"
    if isinstance(loader, loaders.TensorLoader) or not isinstance(loader, DataLoader):
        return ""  # it restores itself
    if isinstance(loader.dataset, IterableDataset):
        return ""
    # torchdata's loader restores its own samplers, but lets other samplers draw again, from other random states
    for sampler in (loader.batch_sampler, loader.sampler):
        is_own = sampler is None or type(sampler).__module__.startswith("torchdata.")
        if not (is_own or type(sampler) is SequentialSampler or hasattr(sampler, "state_dict")):
            return f"its {type(sampler).__name__} has no state_dict(): write shuffle=True instead"
    return ""
