"""Checkpoints inside epochs: they are written at intervals, and a run resumes at the next batch.

The loader restores its own state, or is replayed: its order is drawn again with the random states from the
start of the epoch, and finished batches are dropped.
"""

import inspect
import itertools
import marshal
import re
import time
import warnings
import weakref
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from runmanager.devices import ranks, torch_devices
from runmanager.errors import CheckpointError, RunsWarning
from runmanager.outcome import EpochRecord, Inside
from runmanager.storage import checkpoints
from runmanager.storage.checkpoints import Checkpoint
from runmanager.storage.folders import RunFolder
from runmanager.storage.journal import Journal
from runmanager.training import loaders
from runmanager.training.epoch_options import Interval
from runmanager.training.open_epoch import OpenEpoch
from runmanager.training.resuming import ResumeState
from runmanager.training.step_log import StepLog
from runmanager.user_frames import user_level

_COSTS = "so a kill inside an epoch costs that epoch"


class _Run(Protocol):
    """The part of the open run that checkpoints inside epochs need."""

    folder: RunFolder
    device: torch.device
    loader: Any
    steps: StepLog
    journal: Journal | None
    start: float

    @property
    def seconds(self) -> float:
        """The run's time so far (s)."""

    def newly_loaded(self) -> dict[str, Any]:
        """Return facts about files of other runs that the run has loaded since the last call."""


class InsideEpoch:
    """Commits the state of a run inside its epochs, and resumes a run inside an epoch.

    The state after a batch of `RunManager.batches` has the parts and their gradients, the random states, the
    position of the loader and the epoch's partial metrics. On resume, the code before the loop over the batches
    is executed again; then the state is restored, before the next batch.

    Args:
        interval: The interval between commits; without an interval, runs are resumed, but nothing is saved.
        records: The records of the completed epochs.
        problems: Receives sentences about states that cannot be resumed.

    Raises:
        CheckpointError: The saved state has other parts.
    """

    def __init__(
        self,
        run: _Run,
        state: ResumeState,
        interval: Interval,
        records: Sequence[EpochRecord],
        problems: list[str],
    ) -> None:
        # a reference cycle would keep both objects alive until garbage collection
        self._run, self._state = weakref.proxy(run), state
        self._seconds_before = records[-1].metrics["run duration"] if records else 0.0
        self._batches, self._seconds = interval
        self._warned: set[str] = set()
        self._last = 0.0  # the end of the last commit (perf_counter, s)
        self._epoch = 0  # the epoch whose first loop over the batches has begun
        # whether the first batch has not ended; whether a commit is due after this batch
        self._is_first = self._is_due = False
        self._pass: _LoaderPass | None = None  # the current pass, while it can be saved
        self._saved = self._read(len(records), problems) if ranks.num_ranks() == 1 else None
        if interval == (None, None):
            return
        if ranks.num_ranks() > 1:
            self._batches = self._seconds = None
            problems.append(f"checkpoint_every= saves nothing with {ranks.num_ranks()} ranks, {_COSTS}")
        elif problem := _problem_of(run.loader):
            advice = "give a DataLoader of a data set with indices, or torchdata's StatefulDataLoader"
            problems.append(f"checkpoint_every= saves nothing: {problem}, {_COSTS}; {advice}")

    @property
    def position(self) -> Inside | None:
        """The position where the next epoch resumes, None if the epoch begins at its first batch."""
        return None if self._saved is None else _position_of(self._saved)

    @property
    def until(self) -> float:
        """The wall time (s) of the saved state from which the next epoch resumes; 0 without a saved state."""
        return float(self._saved.inside["wall_time"]) if self._saved and self._saved.inside else 0.0

    def begin_pass(self, epoch: OpenEpoch, loader: Any, *, skip: bool) -> Iterator[Any]:
        """Begin to load batches, at the first batch or after a saved position.

        With `skip`, worker processes do not load finished batches.
        """
        saved, self._saved, self._pass = self._saved, None, None
        if epoch.number == self._epoch:
            if self._is_on:
                self._say(
                    f"epoch {epoch.number} loops over batches() again: only its first loop has checkpoints"
                )
            return iter(loader)
        self._epoch, self._last = epoch.number, perf_counter()
        self._is_first, self._is_due = True, False
        if (saved is None and not self._is_on) or _problem_of(loader):
            return iter(loader)
        self._pass = _LoaderPass(loader, self._run.device)
        if saved is None or not self._is_resumed(epoch, self._pass, saved, skip=skip):
            self._pass.begin()
        return self._pass.batches

    def batch_ended(self, epoch: OpenEpoch) -> None:
        """Commit the state after a batch, if a commit is due.

        A batch without tracked values is skipped: it is unknown whether the loop has trained on this batch
        already.

        Raises:
            CheckpointError: The state could not be loaded safely.
            StorageError: The state could not be written; the previous checkpoint is intact.
        """
        if self._pass is None or not self._is_on:
            return
        is_first, self._is_first = self._is_first, False
        if is_first and not epoch.sums.is_tracked:
            self._pass = None
            rule = f"batch {epoch.step} had no tracked value before the next one was requested"
            advice = "call track_loss() or track() for each batch, before the loop takes another one"
            self._say(f"checkpoint_every= saves nothing: {rule}, {_COSTS}; {advice}")
            return
        if self._batches is not None:
            self._is_due |= epoch.step % self._batches == 0
        else:
            assert self._seconds is not None
            self._is_due = perf_counter() - self._last >= self._seconds
        if self._is_due and epoch.sums.is_tracked:
            self._commit(epoch, self._pass)
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

    def _is_resumed(
        self, epoch: OpenEpoch, loader_pass: "_LoaderPass", saved: Checkpoint, *, skip: bool
    ) -> bool:
        """Resume a saved epoch, if the loader can resume at the saved batch."""
        assert saved.inside is not None
        position = _position_of(saved)
        try:
            loader_pass.resume(saved.inside["loader"], position.batch, epoch.report_step, skip=skip)
        except _NotResumedError as reason:
            self._say(f"epoch {position.epoch} starts over, not after batch {position.batch}: {reason}")
            return False
        self._restore(epoch, saved)
        if loader_pass.drawing:
            self._say(
                f"the run continues {position}: random numbers that {loader_pass.drawing}, as for "
                "augmentation, may differ from those of an uninterrupted run"
            )
        return True

    def _commit(self, epoch: OpenEpoch, loader_pass: "_LoaderPass") -> None:
        run, state = self._run, self._state
        try:
            of_loader = loader_pass.state(epoch.step)
        except _NotResumedError as reason:
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
        position = Inside(epoch.number, epoch.step, step, loaders.num_batches(run.loader))
        inside["position"] = (position.epoch, position.batch, position.step, position.num_batches)
        state.save_inside(EpochRecord(epoch.number, {}), inside)
        assert run.journal is not None
        run.journal.inside(position, **run.newly_loaded())
        epoch.add_checkpointing(perf_counter() - before)

    def _restore(self, epoch: OpenEpoch, saved: Checkpoint) -> None:
        """Restore the saved state.

        Random states come last, so that the next batch is loaded with these states.
        """
        run, inside = self._run, saved.inside
        assert inside is not None
        checkpoints.restore(run.folder.path, self._state.parts, saved.states)
        parameters = _parameters(self._state.parts)
        for parameter, gradient in zip(parameters, inside["gradients"], strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
        run.steps.load(inside["steps"])
        checkpoints.restore_random(saved.random, run.device)
        torch_devices.wait_for(run.device)
        run.start -= inside["run_seconds"] - self._seconds_before
        epoch.load(inside["epoch"])

    def _say(self, sentence: str) -> None:
        # numbers are ignored, so that the warning is given once and not in each epoch
        kind = re.sub(r"\d+", "", sentence)
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(f"run {self._run.folder.number}: {sentence}", RunsWarning, stacklevel=user_level())


def _position_of(saved: Checkpoint) -> Inside:
    assert saved.inside is not None
    return Inside(*saved.inside["position"])


def _parameters(parts: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the parameters of networks and optimizers, each once; gradients may be accumulating in them."""
    parameters: dict[int, torch.Tensor] = {}
    for part in parts.values():
        if isinstance(part, nn.Module):
            parameters |= {id(parameter): parameter for parameter in part.parameters()}
        elif isinstance(part, Optimizer):
            parameters |= {id(p): p for group in part.param_groups for p in group["params"]}
    return list(parameters.values())


class _NotResumedError(Exception):
    """A loader cannot resume; the message states the reason."""


class _LoaderPass:
    """One pass over a loader: `batches` yields its batches, and `state` returns its position.

    A DataLoader is replaced by a copy whose sampler is wrapped, to verify the order of its indices. A subclass
    of DataLoader may behave differently from its copy, and persistent workers belong to one loader: such
    loaders are not copied, and their order is not verified.
    """

    def __init__(self, loader: Any, device: torch.device) -> None:
        self._loader, self._device = loader, device
        self._generators = dict(loaders.generators(loader))
        self._order: _Order | None = None  # the order of indices; None if it is not verified
        self._begin: Mapping[str, Any] = {}
        self.batches: Iterator[Any] = iter(())
        # the source of random numbers that may differ from the numbers of an uninterrupted pass
        self.drawing = ""

    def begin(self) -> None:
        """Begin at the first batch."""
        self._begin = self._randoms()
        self.batches = self._started()

    def state(self, batch: int) -> dict[str, Any]:
        """Return the loader's position after a batch, from 1.

        Raises:
            _NotResumedError: The loader has no state, or replays its sampler.
        """
        length = loaders.num_batches(self._loader)
        state: dict[str, Any] = {"begin": self._begin, "length": length}
        if self._order is not None:
            return {**state, "crc": self._order.crcs[batch]}
        if _has_state(self._loader):
            try:
                return {**state, "loader": self._loader.state_dict()}
            except Exception as error:
                raise _NotResumedError(f"its loader has no state: {error!r}") from error
        if length is not None and batch > length:
            raise _NotResumedError("its loader yields more batches than its sampler gives")
        return state

    def resume(self, saved: Mapping[str, Any], batch: int, report: Callable[[], object], *, skip: bool) -> None:
        """Resume after a batch; the caller then restores the saved random states.

        `report` is called for each dropped batch, so that a slow replay does not count as hung.

        Raises:
            _NotResumedError: The loader cannot resume; all random states are unchanged.
        """
        if saved["length"] != loaders.num_batches(self._loader):
            raise _NotResumedError("its loader has changed")
        before, self._begin = self._randoms(), saved["begin"]
        self._set_randoms(self._begin)
        try:
            if _has_state(self._loader):
                self._load_state(saved)
            else:
                self._go_through(saved, batch, report, skip=skip)
        except _NotResumedError:
            self._set_randoms(before)
            raise
        has_workers = bool(getattr(self._loader, "num_workers", 0))
        if has_workers and (_has_state(self._loader) or self._loader.persistent_workers):
            self.drawing = "worker processes draw"

    def _started(self, num_skipped: int = 0) -> Iterator[Any]:
        self._order = None
        if type(self._loader) is not DataLoader or self._loader.persistent_workers:
            return iter(self._loader)
        self._order = _Order(self._loader, num_skipped)
        return iter(_alike(self._loader, self._order))

    def _load_state(self, saved: Mapping[str, Any]) -> None:
        try:
            self._loader.load_state_dict(saved["loader"])
            self.batches = iter(self._loader)
        except Exception as error:
            raise _NotResumedError(f"its loader cannot load its state: {error!r}") from error

    def _go_through(
        self, saved: Mapping[str, Any], batch: int, report: Callable[[], object], *, skip: bool
    ) -> None:
        """Replay the finished batches: draw their indices.

        Also load the batches if workers may draw random numbers.
        """
        has_workers = bool(getattr(self._loader, "num_workers", 0))
        self.batches = self._started(0 if has_workers and not skip else batch)
        if self._order is not None and not has_workers:
            self._order.skip()
        elif self._order is None or not skip:
            self._drop(batch, report)
        if self._order is not None and self._order.crcs[batch : batch + 1].tolist() != [saved.get("crc")]:
            raise _NotResumedError("its sampler gives another order")

    def _drop(self, number: int, report: Callable[[], object]) -> None:
        """Load and drop batches; detect a loader that draws random numbers for later batches."""
        num_dropped, before = 0, {}
        for num_dropped, _ in enumerate(itertools.islice(self.batches, number), 1):
            report()
            if num_dropped == 1:
                before = self._randoms()["random"]
        if num_dropped < number:
            raise _NotResumedError(f"its loader has {num_dropped} batches only")
        if self._order is None and _as_list(before) != _as_list(self._randoms()["random"]):
            self.drawing = "the loader draws for batches ahead"

    def _randoms(self) -> dict[str, Any]:
        generators = {name: generator.get_state() for name, generator in self._generators.items()}
        return {"random": checkpoints.random_states(self._device), "generators": generators}

    def _set_randoms(self, state: Mapping[str, Any]) -> None:
        checkpoints.restore_random(state["random"], self._device)
        for name, generator in self._generators.items():
            if name in state["generators"]:
                generator.set_state(state["generators"][name])


class _Order:
    """Yields the indices of a loader's sampler and computes their checksums; it can skip the first indices."""

    def __init__(self, loader: DataLoader[Any], num_skipped: int) -> None:
        self._sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self._num_skipped = num_skipped

    def __iter__(self) -> "_Order":
        # some samplers draw random numbers in this call, and a loader with workers creates two iterators
        self._indices = iter(self._sampler)
        self.crcs = array("L", [0])  # the checksum of all indices so far, after each batch
        return self

    def __next__(self) -> Any:
        self.skip()
        return self._checksummed(next(self._indices))

    def skip(self) -> None:
        """Skip the first indices, unless they have been skipped already."""
        for index in itertools.islice(self._indices, max(0, self._num_skipped + 1 - len(self.crcs))):
            self._checksummed(index)

    def _checksummed(self, index: Any) -> Any:
        try:
            content = marshal.dumps(index, 2)  # version 2 writes no references, which differ between executions
        except ValueError:
            content = repr(index.tolist() if hasattr(index, "tolist") else index).encode()
        self.crcs.append(zlib.crc32(content, self.crcs[-1]))
        return index


def _alike(loader: DataLoader[Any], order: _Order) -> DataLoader[Any]:
    """Copy a loader with another sampler, as torch cannot exchange the sampler of a loader."""
    of_order = {"dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"}
    names = inspect.signature(DataLoader).parameters.keys() - of_order
    options: dict[str, Any] = {name: getattr(loader, name) for name in names if hasattr(loader, name)}
    if loader.batch_sampler is None:
        return DataLoader(loader.dataset, batch_size=None, sampler=order, **options)
    return DataLoader(loader.dataset, batch_sampler=order, **options)


def _problem_of(loader: Any) -> str:
    """Return the reason why a loader cannot resume inside an epoch, "" if it can.

    >>> _problem_of([1, 2]), _problem_of(iter([1, 2]))
    ('', 'a list_iterator has no state_dict()')
    """
    is_stream = isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)
    if loader is None or isinstance(loader, (list, tuple)) or _has_state(loader):
        return ""
    if isinstance(loader, DataLoader) and not is_stream:
        return ""
    return f"a {type(loader).__name__}{' of an IterableDataset' if is_stream else ''} has no state_dict()"


def _has_state(loader: Any) -> bool:
    """Whether a loader can restore its own state by load_state_dict()."""
    if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
        return False
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return True
    # torchdata's loader restores its own samplers, but lets other samplers draw again, from other random states
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    return type(sampler).__module__.startswith("torchdata.") or hasattr(sampler, "state_dict")


def _as_list(state: Any) -> Any:
    """Convert the tensors of random states to lists, which can be compared."""
    if isinstance(state, torch.Tensor):
        return state.tolist()
    if isinstance(state, Mapping):
        return [_as_list(value) for value in state.values()]
    return [_as_list(value) for value in state] if isinstance(state, tuple) else state
