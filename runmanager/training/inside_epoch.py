"""Checkpoints inside epochs: when they are written, and how a run continues with the next batch."""

import contextlib
import re
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from runmanager.devices import ranks, torch_devices
from runmanager.errors import CheckpointError, RunsWarning
from runmanager.outcome import EpochRecord, Inside
from runmanager.storage import checkpoints
from runmanager.storage.checkpoints import Checkpoint
from runmanager.storage.folders import RunFolder
from runmanager.storage.journal import Journal
from runmanager.training import loaders
from runmanager.training.batch_iterator import Asking
from runmanager.training.epoch_options import Interval
from runmanager.training.loader_position import LoaderPass, NotContinuedError, problem_of
from runmanager.training.open_epoch import OpenEpoch
from runmanager.training.resuming import ResumeState
from runmanager.training.step_log import StepLog

_COSTS = "so a kill inside an epoch costs that epoch"


class _Run(Protocol):
    """What it needs of the open run."""

    folder: RunFolder
    device: torch.device
    loader: Any
    steps: StepLog
    journal: Journal | None
    start: float

    @property
    def seconds(self) -> float:
        """The run's time so far (s)."""


class InsideEpoch:
    """Commits the state of a run inside its epochs, and continues it there.

    The state is that after a batch of `RunManager.batches`: of the parts and their gradients, the random
    states, the position of the loader and what the epoch has measured. The code in front of the loop over the
    batches is executed again; the state is restored behind it, before the next batch.

    Args:
        interval: From one commit to the next; without any it commits nothing, but continues.
        records: Those of the epochs that need not be executed again.
        problems: Gets a sentence for what cannot be continued.

    Raises:
        CheckpointError: What was saved has other parts.
    """

    def __init__(
        self,
        run: _Run,
        state: ResumeState,
        interval: Interval,
        records: Sequence[EpochRecord],
        problems: list[str],
    ) -> None:
        self._run, self._state = weakref.proxy(run), state  # else both stay until garbage is looked for
        self._seconds_before = records[-1].metrics["run duration"] if records else 0.0
        self._batches, self._seconds = interval
        self._said: set[str] = set()
        self._last = 0.0  # when the last commit ended (perf_counter, s)
        self._epoch = 0  # whose first loop over the batches has begun
        self._around: str | None = None  # what counts batches around the loop; None until the first one
        self._is_first = self._is_due = False  # whether no batch of the loop has ended; whether to commit
        self._pass: LoaderPass | None = None  # over the batches, while it can be saved
        self._others: list[tuple[Callable[[], int], int]] = []  # batches of other loaders: now, and before
        self._untrained: list[Any] = []  # what the parts held before the first batch
        self._is_untracked = False  # whether batches show in the parts alone
        self._saved = self._read(len(records), problems) if ranks.num_ranks() == 1 else None
        if interval == (None, None):
            return
        if ranks.num_ranks() > 1:
            self._batches = self._seconds = None
            problems.append(f"checkpoint_every= saves nothing with {ranks.num_ranks()} ranks, {_COSTS}")
        elif problem := problem_of(run.loader):
            advice = "give a DataLoader of a data set with indices, or torchdata's StatefulDataLoader"
            problems.append(f"checkpoint_every= saves nothing: {problem}, {_COSTS}; {advice}")

    @property
    def position(self) -> Inside | None:
        """Where the next epoch continues, None if with its first batch."""
        return None if self._saved is None else _position_of(self._saved)

    @property
    def until(self) -> float:
        """When the state was saved where the next epoch continues, as wall time (s); 0 if there is none."""
        return float(self._saved.inside["wall_time"]) if self._saved and self._saved.inside else 0.0

    def look_beside(self, epoch: OpenEpoch, asking: Asking) -> None:
        """Find what counts or loads beside the first loop over the batches, once in an attempt."""
        batches = asking()
        if self._around is not None or batches is None or not (self._is_on or self._saved):
            return
        before = perf_counter()
        self._around, others = batches.beside()
        self._others = [(num_yielded, num_yielded()) for num_yielded in others]
        epoch.add_checkpointing(perf_counter() - before)

    def _say_others(self) -> None:
        """Warn if loaders beside the loop have yielded batches since it began."""
        number = sum(num_yielded() > before for num_yielded, before in self._others)
        if number:
            self._others = []
            others = "a loader is" if number == 1 else f"{number} loaders are"
            self._say(
                f"{others} iterated over beside batches(): where the run continues inside an epoch, only "
                "batches() yields its next batch, others may begin again"
            )

    def begin_pass(self, epoch: OpenEpoch, loader: Any, asking: Asking) -> Iterator[Any]:
        """Begin to load batches: with the first one, or where a saved epoch was."""
        saved, self._saved, self._pass = self._saved, None, None
        if epoch.number == self._epoch:
            if self._is_on:
                self._say(
                    f"epoch {epoch.number} loops over batches() again: only its first loop has checkpoints"
                )
            return iter(loader)
        self._epoch, self._last = epoch.number, perf_counter()
        self._is_first, self._is_due, self._is_untracked = True, False, False
        if (saved is None and not self._is_on) or problem_of(loader):
            return iter(loader)
        if self._around:
            if saved is not None:
                self._start_over(saved, f"{self._around} around batches() counts from the beginning")
            self._say(
                f"checkpoint_every= saves nothing: {self._around} around batches() begins again where a run "
                f"continues, {_COSTS}; write `for batch in manager.batches():`, or enumerate() around it"
            )
            return iter(loader)
        loader_pass = self._continued(epoch, loader, saved) if saved is not None else None
        if loader_pass is None:
            loader_pass = LoaderPass(loader, self._run.device)
        elif saved is not None and (batches := asking()):
            batches.leave_out(_position_of(saved).batch)
        if loader_pass.is_continuable():
            self._pass = loader_pass
            self._untrained = list(_content(self._state.parts)) if self._is_on else []
        elif self._is_on:
            self._say(f"checkpoint_every= saves nothing: {_type(loader)} does not use its sampler, {_COSTS}")
        return loader_pass.batches

    def batch_ended(self, epoch: OpenEpoch) -> None:
        """Commit the state after a batch, if it is time.

        A batch that nothing was tracked of when the next one is asked for is left out: the loop may not have
        trained on it yet. Of the first one, a part may have changed instead, as a metric that counts.

        Raises:
            CheckpointError: It could not be loaded safely.
            StorageError: It could not be written; the one before is whole.
        """
        if self._pass is None or not self._is_on:
            return
        is_first, self._is_first = self._is_first, False
        if is_first and not epoch.sums.is_tracked:
            self._is_untracked = self._untrained != list(_content(self._state.parts))
        is_trained = epoch.sums.is_tracked or self._is_untracked
        if is_first and not is_trained:
            self._pass = None
            rule = f"nothing was tracked of batch {epoch.step} before the next one was asked for"
            advice = "call track_loss() or track() for each batch, before the loop takes another one"
            self._say(f"checkpoint_every= saves nothing: {rule}, {_COSTS}; {advice}")
            return
        if self._batches is not None:
            self._is_due |= epoch.step % self._batches == 0
        else:
            assert self._seconds is not None
            self._is_due = perf_counter() - self._last >= self._seconds
        if self._is_due and is_trained:
            self._say_others()
            self._commit(epoch, self._pass)
            self._last, self._is_due = perf_counter(), False

    def is_uncounted(self) -> None:
        """Say that batches come from elsewhere than `RunManager.batches`."""
        if self._is_on:
            advice = "write `for batch in manager.batches():`"
            self._say(f"checkpoint_every= counts the batches of batches(), which has none, {_COSTS}; {advice}")

    @property
    def _is_on(self) -> bool:
        return self._batches is not None or self._seconds is not None

    def _read(self, after: int, problems: list[str]) -> Checkpoint | None:
        """Read what was saved inside the epoch after the last one; anything else is removed."""
        folder = self._run.folder
        saved = checkpoints.load_checkpoint(folder.path, folder.id, problems, is_inside=True)
        if saved is not None and saved.record.epoch == after + 1 and saved.inside:
            if saved.states.keys() != self._state.parts.keys():
                names, given = ", ".join(saved.states), ", ".join(self._state.parts)
                raise CheckpointError(
                    f"the checkpoint inside epoch {after + 1} has the states of {names}, but the run has "
                    f"{given}: give epochs(checkpoint=...) the same names"
                )
            return saved
        checkpoints.remove_checkpoint_files(folder.path, is_inside=True)
        return None

    def _continued(self, epoch: OpenEpoch, loader: Any, saved: Checkpoint) -> LoaderPass | None:
        assert saved.inside is not None
        position = _position_of(saved)

        def restore(are_generators_saved: bool) -> None:
            self._restore(epoch, loader, saved, with_generators=are_generators_saved)

        try:
            loader_pass = LoaderPass(loader, self._run.device, saved.inside["loader"], restore)
        except NotContinuedError as reason:
            self._start_over(saved, reason)
            return None
        has_workers = bool(getattr(loader, "num_workers", 0))
        if has_workers or saved.inside["loader"]["is_ahead"]:
            drawing = "worker processes draw" if has_workers else "the loader draws for batches ahead"
            self._say(
                f"the run continues {position}: the batches are the same, but random numbers that {drawing}, "
                "as for augmentation, differ from those of a run that was not interrupted"
            )
        return loader_pass

    def _start_over(self, saved: Checkpoint, reason: object) -> None:
        position = _position_of(saved)
        self._say(f"epoch {position.epoch} starts over, not after batch {position.batch}: {reason}")

    def _commit(self, epoch: OpenEpoch, loader_pass: LoaderPass) -> None:
        run, state = self._run, self._state
        try:
            of_loader = loader_pass.state(epoch.step)
        except NotContinuedError as reason:
            self._pass = None
            self._say(f"checkpoint_every= saves nothing after batch {epoch.step}: {reason}, {_COSTS}")
            return
        torch_devices.wait_for(run.device)
        epoch.add_logging(run.steps.write())
        before = perf_counter()
        inside: dict[str, Any] = {
            "batch": epoch.step,
            "epoch": epoch.state(before),
            "run_seconds": run.seconds,
            "wall_time": time.time(),
            "steps": run.steps.state(),
            "loader": of_loader,
            "gradients": [parameter.grad for parameter in _parameters(state.parts)],
        }
        step = run.steps.before + max(epoch.step, run.steps.step)
        position = Inside(epoch.number, epoch.step, step, inside["loader"]["length"])
        inside["position"] = (position.epoch, position.batch, position.step, position.num_batches)
        state.save_inside(EpochRecord(epoch.number, {}), inside)
        assert run.journal is not None
        run.journal.inside(position)
        epoch.add_checkpointing(perf_counter() - before)

    def _restore(self, epoch: OpenEpoch, loader: Any, saved: Checkpoint, *, with_generators: bool) -> None:
        """Restore what was saved: the random states last, so that the next batch is loaded with them."""
        run, inside = self._run, saved.inside
        assert inside is not None
        of_loader = [] if with_generators else [generator for _, generator in loaders.generators(loader)]
        for name, part in self._state.parts.items():
            if not any(part is generator for generator in of_loader):  # else it is where its sampler is
                checkpoints.restore(name, part, saved.states[name])
        parameters = _parameters(self._state.parts)
        for parameter, gradient in zip(parameters, inside["gradients"], strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
        run.steps.load(inside["steps"])
        checkpoints.restore_random(saved.random, run.device)
        torch_devices.wait_for(run.device)
        run.start -= inside["run_seconds"] - self._seconds_before
        epoch.load(inside["epoch"])

    def _say(self, sentence: str) -> None:
        kind = re.sub(r"\d+", "", sentence)  # once, not for each epoch
        if kind not in self._said:
            self._said.add(kind)
            warnings.warn(f"run {self._run.folder.number}: {sentence}", RunsWarning, stacklevel=5)


def _position_of(saved: Checkpoint) -> Inside:
    assert saved.inside is not None
    return Inside(*saved.inside["position"])


def _parameters(parts: Mapping[str, Any]) -> list[torch.Tensor]:
    """Find the parameters of networks and optimizers, each once: their gradients may be half added up."""
    parameters: dict[int, torch.Tensor] = {}
    for part in parts.values():
        if isinstance(part, nn.Module):
            parameters |= {id(parameter): parameter for parameter in part.parameters()}
        elif isinstance(part, Optimizer):
            parameters |= {id(p): p for group in part.param_groups for p in group["params"]}
    return list(parameters.values())


def _content(parts: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what tells whether a part has changed: where each tensor is, and how often it was written."""
    waiting = [checkpoints.state_of(name, part) for name, part in parts.items()]
    while waiting:
        state = waiting.pop()
        if isinstance(state, torch.Tensor):
            with contextlib.suppress(RuntimeError):  # some kinds of tensors have neither
                yield state.data_ptr(), state._version  # noqa: SLF001 - as autograd counts
        elif isinstance(state, Mapping):
            waiting += state.values()
        elif isinstance(state, (list, tuple)):
            waiting += state
        elif isinstance(state, (int, float, str)):
            yield state


def _type(loader: object) -> str:
    return f"a {type(loader).__name__}"
