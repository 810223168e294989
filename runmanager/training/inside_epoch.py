"""Checkpoints inside epochs: when they are written, and how a run continues with the next batch.

The loader is asked where it is, or is gone through again: with the random states that its epoch began with, and
without the batches that were done.
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
        self._is_first = self._is_due = False  # whether no batch of the loop has ended; whether to commit
        self._pass: _LoaderPass | None = None  # over the batches, while it can be saved
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
        """Where the next epoch continues, None if with its first batch."""
        return None if self._saved is None else _position_of(self._saved)

    @property
    def until(self) -> float:
        """When the state was saved where the next epoch continues, as wall time (s); 0 if there is none."""
        return float(self._saved.inside["wall_time"]) if self._saved and self._saved.inside else 0.0

    def begin_pass(self, epoch: OpenEpoch, loader: Any, *, skip: bool) -> Iterator[Any]:
        """Begin to load batches: with the first one, or where a saved epoch was.

        With `skip`, worker processes need not load the batches that were done.
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
        """Commit the state after a batch, if it is time.

        A batch that nothing was tracked of when the next one is asked for is left out: the loop may not have
        trained on it yet.

        Raises:
            CheckpointError: It could not be loaded safely.
            StorageError: It could not be written; the one before is whole.
        """
        if self._pass is None or not self._is_on:
            return
        is_first, self._is_first = self._is_first, False
        if is_first and not epoch.sums.is_tracked:
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
        if self._is_due and epoch.sums.is_tracked:
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

    def _is_resumed(
        self, epoch: OpenEpoch, loader_pass: "_LoaderPass", saved: Checkpoint, *, skip: bool
    ) -> bool:
        """Go on where a saved epoch was, if the loader can be brought there."""
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
                "augmentation, may differ from those of a run that was not interrupted"
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
        run.journal.inside(position)
        epoch.add_checkpointing(perf_counter() - before)

    def _restore(self, epoch: OpenEpoch, saved: Checkpoint) -> None:
        """Restore what was saved: the random states last, so that the next batch is loaded with them."""
        run, inside = self._run, saved.inside
        assert inside is not None
        for name, part in self._state.parts.items():
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


class _NotResumedError(Exception):
    """A loader is not where it was; the message is the reason."""


class _LoaderPass:
    """One pass over a loader: `batches` yields what the loader does, and `state` says where it is.

    A DataLoader is gone through by another one with its options, so that the indices of its sampler are
    compared. What a subclass does beside is not known, and persistent workers belong to one loader: these are
    gone through themselves, and their order is not compared.
    """

    def __init__(self, loader: Any, device: torch.device) -> None:
        self._loader, self._device = loader, device
        self._generators = dict(loaders.generators(loader))
        self._order: _Order | None = None  # None where it is not compared
        self._begin: Mapping[str, Any] = {}
        self.batches: Iterator[Any] = iter(())
        self.drawing = ""  # who may have drawn other random numbers than in a pass that was not interrupted

    def begin(self) -> None:
        """Begin with the first batch."""
        self._begin = self._randoms()
        self.batches = self._started()

    def state(self, batch: int) -> dict[str, Any]:
        """Return where the loader is after a batch, from 1.

        Raises:
            _NotResumedError: It does not say, or repeats itself.
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
        """Go on after a batch; what is random is then restored from what was saved with it.

        `report` is called for each batch that is loaded meanwhile, or a run that takes its time would count as
        hung.

        Raises:
            _NotResumedError: It cannot; all random states are as before.
        """
        if saved["length"] != loaders.num_batches(self._loader):
            raise _NotResumedError("its loader is another one")
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
            raise _NotResumedError(f"its loader does not take its state: {error!r}") from error

    def _go_through(
        self, saved: Mapping[str, Any], batch: int, report: Callable[[], object], *, skip: bool
    ) -> None:
        """Draw the indices of the batches that were done, and load these where workers may draw for them."""
        has_workers = bool(getattr(self._loader, "num_workers", 0))
        self.batches = self._started(0 if has_workers and not skip else batch)
        if self._order is not None and not has_workers:
            self._order.skip()
        elif self._order is None or not skip:
            self._drop(batch, report)
        if self._order is not None and self._order.crcs[batch : batch + 1].tolist() != [saved.get("crc")]:
            raise _NotResumedError("its sampler gives another order")

    def _drop(self, number: int, report: Callable[[], object]) -> None:
        """Load batches again, and notice whether random numbers depend on what was between them."""
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
    """Gives what a loader's sampler gives, and takes a checksum of it; the first ones may be left out."""

    def __init__(self, loader: DataLoader[Any], num_skipped: int) -> None:
        self._sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self._num_skipped = num_skipped

    def __iter__(self) -> "_Order":
        self._indices = iter(self._sampler)  # some draw here, and a loader with workers asks for two
        self.crcs = array("L", [0])  # after each batch: that of all indices so far
        return self

    def __next__(self) -> Any:
        self.skip()
        return self._taken(next(self._indices))

    def skip(self) -> None:
        """Leave out the first ones, if that has not been done."""
        for index in itertools.islice(self._indices, max(0, self._num_skipped + 1 - len(self.crcs))):
            self._taken(index)

    def _taken(self, index: Any) -> Any:
        try:
            content = marshal.dumps(index, 2)  # without references, which differ from one execution to the next
        except ValueError:
            content = repr(index.tolist() if hasattr(index, "tolist") else index).encode()
        self.crcs.append(zlib.crc32(content, self.crcs[-1]))
        return index


def _alike(loader: DataLoader[Any], order: _Order) -> DataLoader[Any]:
    """Make a loader with the options of another: torch lets nobody exchange the sampler of one."""
    of_order = {"dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"}
    names = inspect.signature(DataLoader).parameters.keys() - of_order
    options: dict[str, Any] = {name: getattr(loader, name) for name in names if hasattr(loader, name)}
    if loader.batch_sampler is None:
        return DataLoader(loader.dataset, batch_size=None, sampler=order, **options)
    return DataLoader(loader.dataset, batch_sampler=order, **options)


def _problem_of(loader: Any) -> str:
    """Return why a loader cannot be continued inside an epoch, "" if it can.

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
    """Whether a loader restores itself."""
    if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
        return False
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return True
    # torchdata's restores its own samplers; it lets others draw again, from other states
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    return type(sampler).__module__.startswith("torchdata.") or hasattr(sampler, "state_dict")


def _as_list(state: Any) -> Any:
    """Turn the tensors of random states into what can be compared."""
    if isinstance(state, torch.Tensor):
        return state.tolist()
    if isinstance(state, Mapping):
        return [_as_list(value) for value in state.values()]
    return [_as_list(value) for value in state] if isinstance(state, tuple) else state
