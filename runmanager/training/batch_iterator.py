"""The iterator over the batches of an epoch, and what else counts or loads while a loop takes them."""

import gc
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import GeneratorType
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

_STATELESS = frozenset((map, filter, itertools.filterfalse, itertools.starmap))
_COUNTING = {
    enumerate,
    zip,
    *(each for each in vars(itertools).values() if isinstance(each, type)),
} - _STATELESS
_NESTED = {tuple, *_STATELESS, *_COUNTING}
_DEEPEST = 4  # iterators and tuples between one that counts and the batches

Asking = Callable[[], "BatchIterator | None"]
"""Returns the iterator that asks for batches."""


class BatchIterator:
    """Iterates over the batches of an epoch.

    It is no generator: one that is asked for a batch cannot be asked for others meanwhile, as `leave_out` does.

    Args:
        load: Given what returns this iterator, yields the batches.
    """

    def __init__(self, load: Callable[[Asking], Iterator[Any]]) -> None:
        self._batches = load(weakref.ref(self))
        self._left_out = 0  # batches that are still to be counted, not loaded

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._left_out:
            self._left_out -= 1
            return None
        return next(self._batches)

    def leave_out(self, number: int) -> None:
        """Let an `enumerate` around it, which waits for its first batch, count some that are not loaded."""
        for counter in gc.get_referrers(self):
            if isinstance(counter, enumerate):
                self._left_out = number
                deque(itertools.islice(counter, number), maxlen=0)

    def beside(self) -> tuple[str, list[Callable[[], int]]]:
        """Find what begins again where a loop over the batches is continued.

        Returns:
            The iterator around the batches that does, as "zip()", "" if there is none; and how many batches
            each iterator over another loader has yielded, which may be one that nobody uses any more.
        """
        counting = ""
        others: list[Callable[[], int]] = []
        loaders = _subclasses(_BaseDataLoaderIter)
        for each in gc.get_objects():
            kind = type(each)
            if kind in _COUNTING:
                is_counter = kind is enumerate and any(part is self for part in gc.get_referents(each))
                if not is_counter and self._is_in(each):
                    counting = f"{kind.__name__}()"
            elif kind in loaders and not getattr(each, "_persistent_workers", False):
                others.append(partial(_num_yielded, weakref.ref(each)))
        return counting, others

    def _is_in(self, iterator: object, depth: int = _DEEPEST) -> bool:
        """Whether an iterator takes what it yields from the batches, or from a generator that runs now."""
        for part in gc.get_referents(iterator):
            if part is self or (isinstance(part, GeneratorType) and part.gi_running):
                return True
            if depth and type(part) in _NESTED and self._is_in(part, depth - 1):
                return True
        return False


def _num_yielded(iterator: Callable[[], Any]) -> int:
    return getattr(iterator(), "_num_yielded", 0)


def _subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(_subclasses, kind.__subclasses__()))
