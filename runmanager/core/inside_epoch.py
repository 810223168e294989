"""Checkpoints inside epochs: they are written at intervals, and a run resumes at the next batch.

Only a loader with `state_dict` and `load_state_dict` resumes inside an epoch.
"""

import re
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from runmanager.core import checkpoints, loaders
from runmanager.core.checkpoints import Checkpoint
from runmanager.core.epoch import OpenEpoch
from runmanager.core.loop_options import Interval
from runmanager.core.outcome import EpochRecord, Inside
from runmanager.core.resuming import ResumeState
from runmanager.devices import ranks, torch_devices
from runmanager.errors import CheckpointError, RunsWarning
from runmanager.user_frames import user_level

_COSTS = "so a kill inside an epoch costs that epoch"
_ADVICE = "use TensorLoader or torchdata's StatefulDataLoader"


class InsideEpoch:
    """Commits the state of a run inside its epochs, and resumes a run inside an epoch.

    The state after a batch of `RunManager.batches` has the parts and their gradients, the random states, the
    state of the loader and the epoch's partial metrics. On resume, the code before the loop over the batches
    is executed again; then the state is restored, before the next batch.

    Args:
        run: The `OpenRun`.
        interval: The interval between commits; without an interval, runs are resumed, but nothing is saved.
        records: The records of the completed epochs.
        problems: Receives sentences about states that cannot be resumed.

    Raises:
        CheckpointError: The saved state has other parts.
    """

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
        self._state = state
        self._seconds_before = records[-1].metrics["run duration"] if records else 0.0
        self._batches, self._seconds = interval
        self._warned: set[str] = set()
        self._last = 0.0  # the end of the last commit (perf_counter, s)
        self._epoch = 0  # the epoch whose first loop over the batches has begun
        # whether the first batch has not ended; whether a commit is due after this batch
        self._is_first = self._is_due = False
        self._is_saving = False  # whether the current loop over the batches has checkpoints
        self._loader_state: Any = None  # the loader's state after the current batch, if a commit is due
        problem = "" if run.loader is None else _problem_of(run.loader)
        if ranks.num_ranks() > 1:
            problem = f"{ranks.num_ranks()} ranks train together"
        self._saved = self._read(len(records), problems) if ranks.num_ranks() == 1 else None
        if (position := self.position) is not None:
            assert self._saved is not None
            if not problem and position.num_batches != loaders.num_batches(run.loader):
                problem = "its loader has changed"
            if problem:
                problems.append(
                    f"epoch {position.epoch} starts over, not after batch {position.batch}: {problem}"
                )
                self._saved = None
        if problem and self._is_on:
            self._batches = self._seconds = None
            problems.append(f"checkpoint_every= saves nothing: {problem}, {_COSTS}")

    @property
    def position(self) -> Inside | None:
        """The position where the next epoch resumes, None if the epoch begins at its first batch."""
        return Inside(*self._saved.inside["position"]) if self._saved and self._saved.inside else None

    def begin_pass(self, epoch: OpenEpoch, loader: Any) -> Iterator[Any]:
        """Begin to load batches, at the first batch or after a saved position."""
        position, saved, self._saved = self.position, self._saved, None
        self._is_saving = False
        if epoch.number == self._epoch:
            if self._is_on:
                self._say(
                    f"epoch {epoch.number} loops over batches() again: only its first loop has checkpoints"
                )
            return iter(loader)
        self._epoch, self._last = epoch.number, perf_counter()
        self._is_first, self._is_due, self._is_saving = True, False, self._is_on
        batches = None
        if saved is not None and position is not None:
            try:
                batches = self._resumed(loader, saved)
            except ValueError as reason:
                self._say(f"epoch {position.epoch} starts over, not after batch {position.batch}: {reason}")
            else:
                self._restore(epoch, saved)
                is_exact = (
                    isinstance(loader, loaders.TensorLoader) and type(loader.dataset) is loaders.ImageTensors
                )
                if getattr(loader, "num_workers", 0) and not is_exact:
                    self._say(
                        f"the run continues {position}: random numbers that worker processes draw, as for "
                        "augmentation, may differ from those of an uninterrupted run"
                    )
        batches = iter(loader) if batches is None else batches
        return self._watched(epoch, loader, batches) if self._is_on else batches

    def batch_ended(self, epoch: OpenEpoch) -> None:
        """Commit the state after a batch, if a commit is due."""
        is_first, self._is_first = self._is_first, False
        if not self._is_saving:
            return
        if is_first and not epoch.sums.is_tracked:
            self._is_saving = False
            rule = f"batch {epoch.step} had no tracked value before the next one was requested"
            advice = "call track_loss() or track() for each batch, before the loop takes another one"
            self._say(f"checkpoint_every= saves nothing: {rule}, {_COSTS}; {advice}")
        elif self._is_due and epoch.sums.is_tracked:
            self._commit(epoch)
            self._last, self._is_due = perf_counter(), False

    def is_uncounted(self) -> None:
        """Warn once that batches do not come from `RunManager.batches`."""
        if self._is_on:
            advice = "write `for batch in manager.batches():`"
            rule = "checkpoint_every= counts the batches of manager.batches(), which is not used"
            self._say(f"{rule}, {_COSTS}; {advice}")

    @property
    def _is_on(self) -> bool:
        return self._batches is not None or self._seconds is not None

    def _read(self, after: int, problems: list[str]) -> Checkpoint | None:
        """Read the checkpoint inside the next epoch; remove a checkpoint inside any other epoch."""
        folder = self._run.folder
        saved = checkpoints.load_checkpoint(folder.path, folder.id, problems, is_inside=True)
        if saved is not None and saved.record.epoch == after + 1 and saved.inside:
            if saved.states.keys() != self._state.parts.keys():
                names, parts = ", ".join(saved.states), ", ".join(self._state.parts)
                raise CheckpointError(
                    f"the checkpoint inside epoch {after + 1} has the states of {names}, but the run has "
                    f"{parts}: give epochs(checkpoint=...) the same names"
                )
            return saved
        checkpoints.remove_checkpoint_files(folder.path, is_inside=True)
        return None

    def _resumed(self, loader: Any, saved: Checkpoint) -> Iterator[Any]:
        """Return the batches after the saved one; if the loader refuses, random states are unchanged."""
        assert saved.inside is not None
        before = torch_devices.random_states(self._run.device)
        try:
            loader.load_state_dict(saved.inside["loader"])
            return iter(loader)
        except Exception as error:
            torch_devices.restore_random(before, self._run.device)
            raise ValueError(f"its loader cannot load its state: {error!r}") from error

    def _watched(self, epoch: OpenEpoch, loader: Any, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches; note the loader's state if a commit is due after the batch."""
        for batch in batches:
            if self._batches is not None:
                self._is_due |= (epoch.step + 1) % self._batches == 0
            elif self._seconds is not None:
                self._is_due = perf_counter() - self._last >= self._seconds
            if self._is_saving and self._is_due:
                try:
                    self._loader_state = loader.state_dict()
                except Exception as error:  # noqa: BLE001 - of a user's loader
                    self._is_saving = False
                    self._say(f"checkpoint_every= saves nothing: its loader has no state: {error!r}, {_COSTS}")
            yield batch

    def _commit(self, epoch: OpenEpoch) -> None:
        run, state = self._run, self._state
        torch_devices.wait_for(run.device)
        epoch.add_seconds("phase_log_s", run.steps.write())
        before = perf_counter()
        step = run.steps.before + max(epoch.step, run.steps.step)
        position = Inside(epoch.number, epoch.step, step, loaders.num_batches(run.loader))
        inside: dict[str, Any] = {
            "epoch": epoch.state(before),
            "run_seconds": run.seconds,
            "steps": run.steps.state(),
            "loader": self._loader_state,
            "gradients": [parameter.grad for parameter in _parameters(state.parts)],
            "position": (position.epoch, position.batch, position.step, position.num_batches),
        }
        state.save_inside(EpochRecord(epoch.number, {}), inside)
        run.journal.inside(position, **run.newly_loaded())
        epoch.add_seconds("phase_checkpoint_s", perf_counter() - before)

    def _restore(self, epoch: OpenEpoch, saved: Checkpoint) -> None:
        """Restore the saved state."""
        run, inside = self._run, saved.inside
        assert inside is not None
        checkpoints.restore(run.folder.path, self._state.parts, saved.states)
        parameters = _parameters(self._state.parts)
        for parameter, gradient in zip(parameters, inside["gradients"], strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
        run.steps.load(inside["steps"])
        torch_devices.restore_random(saved.random, run.device)
        torch_devices.wait_for(run.device)
        run.start -= inside["run_seconds"] - self._seconds_before
        epoch.load(inside["epoch"])

    def _say(self, sentence: str) -> None:
        # numbers are ignored, so that the warning is given once and not in each epoch
        kind = re.sub(r"\d+", "", sentence)
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(f"run {self._run.folder.number}: {sentence}", RunsWarning, stacklevel=user_level())


def _parameters(parts: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the parameters of networks and optimizers, each once; gradients may be accumulating in them."""
    parameters: dict[int, torch.Tensor] = {}
    for part in parts.values():
        if isinstance(part, nn.Module):
            parameters |= {id(parameter): parameter for parameter in part.parameters()}
        elif isinstance(part, Optimizer):
            parameters |= {id(p): p for group in part.param_groups for p in group["params"]}
    return list(parameters.values())


def _problem_of(loader: Any) -> str:
    """Return the reason why a loader cannot resume inside an epoch, "" if it can.

    >>> _problem_of([1, 2])
    "a list has no state_dict(): use TensorLoader or torchdata's StatefulDataLoader"
    """
    if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
        return f"a {type(loader).__name__} has no state_dict(): {_ADVICE}"
    if isinstance(loader, loaders.TensorLoader) or not isinstance(loader, DataLoader):
        return ""
    if isinstance(loader.dataset, IterableDataset):
        return ""
    # torchdata's loader restores its own samplers, but lets other samplers draw again, from other random states
    for sampler in (loader.batch_sampler, loader.sampler):
        is_own = sampler is None or type(sampler).__module__.startswith("torchdata.")
        if not (is_own or type(sampler) is SequentialSampler or hasattr(sampler, "state_dict")):
            return f"its {type(sampler).__name__} has no state_dict(): write shuffle=True instead"
    return ""
