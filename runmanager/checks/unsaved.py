"""What the loaders and random generators of a loop keep, and its checkpoint does not save."""

import inspect
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import cycle
from types import FunctionType, GeneratorType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from runmanager.checks.changed import Reached
from runmanager.core.loaders import draws_in_workers
from runmanager.core.wording import listed
from runmanager.user_code import is_users_file, user_level

# every checkpoint has the states of these generators
_GLOBAL = (
    torch.default_generator,
    random.seed.__self__,  # type: ignore[attr-defined]  # a bound method
    np.random.get_state.__self__,  # type: ignore[attr-defined]  # as above
)
_OPEN = (list, tuple, dict, FunctionType, ModuleType, DataLoader, Dataset, Sampler)
_MOST, _MOST_ITEMS, _MOST_NUMBERS = 10_000, 64, 2**20


class Unsaved:
    """Notices what changes while a loop trains, and would start over on resume."""

    def __init__(self, loader: Any, saved: Iterable[Any]) -> None:
        self._by_workers = ""
        frame = sys._getframe(user_level() - 1)  # noqa: SLF001 - as warnings does
        reached = [(name, frame.f_globals.get(name)) for name in frame.f_code.co_names]
        variables = [("loader", loader), *frame.f_locals.items(), *reached]
        # only these, as the other variables may hold the manager, which would stay in memory
        self._watched = [*self._reached(variables, saved)]
        self._before = self._states()

    def begin_pass(self) -> None:
        """Forget how numbers have changed so far: the loop may set them, as set_epoch() does."""
        self._before |= {key: state for key, state in self._states().items() if key[1]}

    def reason(self, *, is_inside: bool) -> str:
        """Return the reason why a run that is resumed now may differ, "" if there is none."""
        now, sentence = self._states(), ""
        names = [
            key[0].rpartition("__.")[2]  # without the method that reaches it
            for key, state in self._before.items()
            if now.get(key, state) != state and not (key[1] and is_inside)
        ]
        if names:
            step = "set this in each epoch, as by generator.manual_seed(epoch), or add an object that has it"
            rule = f"checkpoint= does not save {listed(names)}, which the loop changes: {step}"
            sentence = f"{rule}, with state_dict() and load_state_dict()"
        return "; ".join(filter(None, (sentence, self._by_workers)))

    def _reached(self, variables: Iterable[tuple[str, Any]], saved: Iterable[Any]) -> Iterator[tuple[str, Any]]:
        """Yield generators, iterators, and what may have numbers of a loader, with their names."""
        seen, queue = {*map(id, (*_GLOBAL, *saved))}, [*variables]
        for name, value in queue:
            if id(value) in seen or len(seen) > _MOST:
                continue
            seen.add(id(value))
            with suppress(Exception):  # of the objects of users
                if _state_of(value):
                    yield name, value
                    continue
                if isinstance(value, DataLoader):
                    self._by_workers = self._by_workers or by_workers(value)
                is_users = is_of_user(type(value))
                is_loader = isinstance(value, Dataset) or (is_users and hasattr(value, "__iter__"))
                # a random generator within another object of a library, as of a logger, is none of the loop
                if is_users or isinstance(value, _OPEN) or name.startswith("loader") or ".dataset" in name:
                    queue += [(f"{name}.{key}", item) for key, item in _parts(value).items()]
                    # the loop sets the epoch of the others
                    if ".dataset" in name or (is_loader and not hasattr(value, "set_epoch")):
                        yield name, value

    def _states(self) -> dict[tuple[str, bool, Any], Any]:
        """Return the states of generators and iterators, and the numbers in loaders."""
        states: dict[tuple[str, bool, Any], Any] = {}
        for name, value in self._watched:
            with suppress(Exception):  # of the objects of users
                if state := _state_of(value):
                    states[name, False, state[0]] = state[1]
                    continue
                for key, item in _parts(value).items():
                    if type(item) in (int, float):
                        states[f"{name}.{key}", True, 0] = str(item)
                    elif _is_numbers(item):  # another list was computed by the pass itself
                        states[f"{name}.{key}", True, id(item)] = Reached().text(item)
        return states


def _state_of(value: Any) -> tuple[int, Any] | None:
    """Return the seed or identity, and the state, of a generator or an iterator; None for other objects."""
    if isinstance(value, (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)):
        return getattr(value, "initial_seed", int)(), Reached().text(value)
    # those of libraries are loops of ours, blocks of `with`, or progress bars
    is_users = isinstance(value, GeneratorType) and is_users_file(value.gi_code.co_filename)
    if is_users or isinstance(value, (_BaseDataLoaderIter, cycle)):
        # two of them do not say how far they are
        return 0, getattr(value, "_num_yielded", getattr(value, "gi_suspended", True) and object())
    return None


def by_workers(loader: Any) -> str:
    """Return the reason why a run with a loader cannot be resumed exactly after an epoch, "" if it can."""
    if not (getattr(loader, "persistent_workers", False) and draws_in_workers(loader)):
        return ""
    rule = "random numbers that persistent workers draw, as for augmentation, cannot be resumed exactly"
    return f"{rule}: with persistent_workers=False they can"


def is_of_user(kind: type) -> bool:
    """Whether a class is the user's; a module that is not loaded has been sent from another process."""
    module = sys.modules.get(kind.__module__)
    is_sent = module is None or kind.__module__ == "__main__"
    return is_sent or is_users_file(getattr(module, "__file__", None) or "<built-in>")


def _is_numbers(item: Any) -> bool:
    """Whether an item is an array or a list of numbers, and not too large to be compared."""
    if isinstance(item, list):
        return 0 < len(item) <= _MOST_NUMBERS and type(item[0]) in (int, float)
    return isinstance(item, (np.ndarray, torch.Tensor)) and item.nbytes <= _MOST_NUMBERS


def _parts(value: Any) -> Mapping[Any, Any]:
    """Return what an object holds, or a function reaches, by name."""
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        return value if len(value) <= _MOST_ITEMS else {}
    if isinstance(value, FunctionType):
        if not is_users_file(value.__code__.co_filename):
            return {}
        reached = inspect.getclosurevars(value)
        return {**reached.globals, **reached.nonlocals}
    if isinstance(value, ModuleType) and not is_users_file(str(value.__file__)):
        return {}
    return {**vars(type(value)), **vars(value)}
