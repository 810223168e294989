"""Where a loader is within an epoch: saved after a batch, and continued with the next one."""

import itertools
import marshal
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from runmanager.storage import checkpoints
from runmanager.training import loaders

_ORDER, _STATE, _LIST = "order", "state", "list"
"""How a loader is continued: by the order of its indices, by its own state, or as the list that it is."""


class NotContinuedError(Exception):
    """A loader cannot be continued where it was; the message is the reason."""


def problem_of(loader: Any) -> str:
    """Return why a loader cannot be continued inside an epoch, "" if it can.

    >>> problem_of([1, 2]), problem_of(iter([1, 2]))
    ('', 'a list_iterator has no state_dict()')
    """
    if loader is None or _kind_of(loader):
        return ""
    of = " of an IterableDataset" if isinstance(loader, DataLoader) else ""
    return f"a {type(loader).__name__}{of} has no state_dict()"


class LoaderPass:
    """One pass over a loader: `batches` yields what the loader does, and `state` says where it is.

    Args:
        saved: The state of a pass, which this one continues.
        restore: Called before the next batch is loaded, with whether the loader's generators are where they
            were; once the position has been found.

    Raises:
        NotContinuedError: The saved position is not found; all random states are as before.
    """

    def __init__(
        self,
        loader: Any,
        device: torch.device,
        saved: Mapping[str, Any] | None = None,
        restore: Callable[[bool], object] = lambda _: None,
    ) -> None:
        self._loader, self._device = loader, device
        self._kind = _kind_of(loader)
        self._generators = dict(loaders.generators(loader))
        self._indices: _Indices | None = None
        self._begin = self._randoms()
        if saved is None:
            self.batches: Iterator[Any] = self._started(0, 0, _nothing)
            self._begun = self._randoms()["generators"]
            return
        now = self._begin
        try:
            self._continue(saved, restore)
        except NotContinuedError:
            self._set_randoms(now)
            raise

    def is_continuable(self) -> bool:
        """Whether its position can be saved: it has loaded its first batch by the indices that were counted."""
        return self._kind != _ORDER or (self._indices is not None and self._indices.is_used)

    def is_ahead(self, batch: int) -> bool:
        """Whether the loader has drawn for more than the batches up to one of them, as worker processes do."""
        if self._kind == _STATE:
            has_drawn = any(not g.get_state().equal(self._begun[name]) for name, g in self._generators.items())
            return has_drawn and bool(getattr(self._loader, "num_workers", 0))
        return self._indices is not None and self._indices.num_batches > batch

    def state(self, batch: int) -> dict[str, Any]:
        """Return where the loader is after a batch, from 1.

        Raises:
            NotContinuedError: It does not say, or has gone through its sampler more than once.
        """
        state = {"kind": self._kind, "batch": batch, "begin": self._begin, "is_ahead": self.is_ahead(batch)}
        state |= {"begun": self._begun, "length": loaders.num_batches(self._loader)}
        if self._indices is not None:
            if batch > self._indices.num_batches:
                raise NotContinuedError("its loader yields more batches than its sampler gives")
            state["crc"] = self._indices.crc(batch)
        if self._kind == _STATE:
            try:
                state["loader"] = self._loader.state_dict()
            except Exception as error:
                raise NotContinuedError(f"its loader has no state: {error!r}") from error
        return state

    def _continue(self, saved: Mapping[str, Any], restore: Callable[[bool], object]) -> None:
        batch, is_exact = saved["batch"], not saved["is_ahead"]
        if (saved["kind"], saved["length"]) != (self._kind, loaders.num_batches(self._loader)):
            raise NotContinuedError("its loader is another one")
        self._begin, self._begun = saved["begin"], saved["begun"]
        self._set_randoms(self._begin)
        if self._kind == _ORDER:
            self.batches = self._started(batch, saved["crc"], lambda: restore(is_exact))
            return
        if self._kind == _STATE:
            try:
                self._loader.load_state_dict(saved["loader"])
                self.batches = iter(self._loader)
            except Exception as error:
                raise NotContinuedError(f"its loader does not take its state: {error}") from error
        else:
            self.batches = itertools.islice(self._loader, batch, None)
        restore(is_exact)

    def _started(self, skip: int, crc: int, then: Callable[[], object]) -> Iterator[Any]:
        """Begin to load, with the first batch after `skip` ones."""
        if self._kind != _ORDER:
            return iter(self._loader)
        name = _sampler_of(self._loader)
        self._indices = _Indices(getattr(self._loader, name), skip, crc, then)
        # a loader may be a generator, whose iterator begins with the first batch
        with _standing_in(self._loader, name, self._indices):
            iterator = iter(self._loader)
            first = list(itertools.islice(iterator, 1))
        if skip and not self._indices.is_used:
            raise NotContinuedError("its loader does not use its sampler")
        return itertools.chain(first, iterator)

    def _randoms(self) -> dict[str, Any]:
        generators = {name: generator.get_state() for name, generator in self._generators.items()}
        return {"random": checkpoints.random_states(self._device), "generators": generators}

    def _set_randoms(self, state: Mapping[str, Any]) -> None:
        checkpoints.restore_random(state["random"], self._device)
        for name, generator in self._generators.items():
            if name in state["generators"]:
                generator.set_state(state["generators"][name])


class _Indices:
    """Stands in for a loader's sampler during a pass: counts the indices, and skips those before a batch."""

    def __init__(self, sampler: Any, skip: int, crc: int, then: Callable[[], object]) -> None:
        self._sampler, self._skip, self._crc, self._then = sampler, skip, crc, then
        self._crcs = array("L", [0])  # after each batch: that of all indices so far
        self.is_used = False

    @property
    def num_batches(self) -> int:
        return len(self._crcs) - 1

    def crc(self, batch: int) -> int:
        return self._crcs[batch]

    def __iter__(self) -> Iterator[Any]:
        # a loader that repeats itself asks again; one with worker processes asks twice before it begins
        return iter(self._sampler) if self.is_used else self._counted()

    def _counted(self) -> Iterator[Any]:
        self.is_used = True
        indices = iter(self._sampler)
        for index in itertools.islice(indices, self._skip):
            self._add(index)
        if self._skip and (self.num_batches, self._crcs[-1]) != (self._skip, self._crc):
            raise NotContinuedError("its sampler gives another order")
        self._then()
        self._then = _nothing  # what it restores holds the run, and so its loader
        for index in indices:
            self._add(index)
            yield index

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def _add(self, index: Any) -> None:
        try:
            content = marshal.dumps(index, 2)  # without references, which differ from one execution to the next
        except ValueError:
            content = repr(index.tolist() if hasattr(index, "tolist") else index).encode()
        self._crcs.append(zlib.crc32(content, self._crcs[-1]))


def _nothing() -> None:
    """Restore nothing."""


@contextmanager
def _standing_in(loader: DataLoader[Any], name: str, indices: _Indices) -> Iterator[None]:
    """Let a loader take its indices from elsewhere in the block; torch lets nobody set its sampler."""
    attributes = vars(loader)
    before = attributes[name]
    attributes[name] = indices
    lasting = getattr(loader, "_iterator", None)  # that of persistent workers, which has the sampler too
    if lasting is not None:
        lasting._index_sampler = indices  # noqa: SLF001 - as above
    try:
        yield
    finally:
        attributes[name] = before
        lasting = getattr(loader, "_iterator", None)
        if lasting is not None:
            lasting._index_sampler = before  # noqa: SLF001 - as above


def _kind_of(loader: Any) -> str:
    has_state = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
    if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
        name = _sampler_of(loader)
        sampler = vars(loader).get(name)
        # torchdata's loader is continued by its own samplers; it lets others draw again, from other states
        is_stateful = type(sampler).__module__.startswith("torchdata.") or hasattr(sampler, "state_dict")
        if sampler is not None and not (has_state and is_stateful):
            return _ORDER
    if has_state:
        return _STATE
    return _LIST if isinstance(loader, (list, tuple)) else ""


def _sampler_of(loader: DataLoader[Any]) -> str:
    return "sampler" if loader.batch_sampler is None else "batch_sampler"
