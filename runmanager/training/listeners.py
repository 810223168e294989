"""The listeners that follow a run in the process that executes it: whatever they do, its numbers stay."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import nn

from runmanager.devices.torch_devices import undisturbed_random, wait_for
from runmanager.errors import RunsWarning
from runmanager.listener import Listener, Slot
from runmanager.outcome import BatchProgress, EpochRecord, Outcome
from runmanager.storage.folders import RunFolder
from runmanager.storage.steps import Block
from runmanager.training.grid_context import GridContext
from runmanager.wording import printable

EVERY_S = 0.5
"""From one step that is told to the next, at least."""


class Counts(Protocol):
    """Counts the predictions of each class in an evaluation."""

    def add(self, outputs: Any, targets: Any) -> None:
        """Count the predictions of a batch."""

    def add_ranks(self) -> None:
        """Add what the other ranks have counted."""


class RunListener(Listener):
    """Follows one run in its process, and hears more of it; no method raises.

    Attributes:
        learning_rate: That the epoch began with, None if it is not known.
    """

    learning_rate: float | None = None

    def attempt_began(
        self, records: Sequence[EpochRecord] = (), *, keep: str | None = None, until: float = 0.0
    ) -> None:
        """The journal has begun.

        Args:
            records: The epochs that were committed before.
            keep: What decides which weights are kept.
            until: A wall time (s) until which what was written counts: the attempt continues inside an epoch.
        """

    def steps_logged(self, block: Block) -> None:
        """The values of single steps were written."""

    def evaluated(self, values: Mapping[str, float]) -> None:
        """The network was evaluated before the first epoch."""

    def classes_counted(self, name: str, counts: Any, loader: Any) -> None:
        """The predictions of each class were counted in an evaluation."""


class RunListeners(Protocol):
    """Makes what follows each run in its process."""

    def follow(
        self, folder: RunFolder, attempt: int, grid: GridContext, details: Mapping[str, Any], kinds: Any
    ) -> RunListener:
        """Return what follows an attempt at a run."""

    def counts(self) -> Counts:
        """Return what counts the predictions of each class; the same on all ranks."""


class WorkerListeners:
    """Tells listeners of one run what happens to it; random states and the network's modes are given back.

    Attributes:
        seconds: How long they have taken so far (s), which is no part of any duration.
    """

    def __init__(self, listeners: Sequence[Listener], run: Any, id_: str, device: torch.device) -> None:
        self.seconds = 0.0
        self._listeners = listeners
        self._run, self._slot, self._device = run, Slot(id_, device=str(device)), device
        self._network: nn.Module | None = None
        self._next = 0.0
        self._has_said: set[int] = set()

    def run_began(self, network: nn.Module | None, loader: Any) -> None:
        """Tell that the run has begun."""
        self._network = network
        self._tell(lambda listener: listener.run_began(self._run, network, loader))

    def step_ended(self, progress: Callable[[], BatchProgress]) -> None:
        """Tell how far it is, unless that was just done."""
        if perf_counter() >= self._next:
            self._next = perf_counter() + EVERY_S
            self._tell(lambda listener: listener.step_ended(progress()), waits=False)

    def epoch_ended(self, record: EpochRecord, *, is_new: bool = True) -> str:
        """Tell of an epoch, and return why the run is to stop, "" to go on; an old one is only asked about."""
        heard = [listener for listener in self._listeners if is_new or listener.may_stop]
        answers = self._tell(lambda listener: listener.epoch_ended(record, self._network), heard)
        return next((why for each, why in zip(heard, answers, strict=True) if each.may_stop and why), "")

    def run_ended(self, outcome: Outcome) -> None:
        """Tell how the run has ended."""
        self._tell(lambda listener: listener.run_ended(outcome))

    def _tell(
        self,
        call: Callable[[Listener], Any],
        listeners: Sequence[Listener] | None = None,
        *,
        waits: bool = True,
    ) -> list[Any]:
        if not self._listeners:
            return []
        before, answers = perf_counter(), []
        with undisturbed_random(self._device), _same_modes(self._network):
            for index, listener in enumerate(self._listeners if listeners is None else listeners):
                listener.run, listener.slot = self._run, self._slot
                try:
                    answers.append(call(listener))
                except Exception as error:  # noqa: BLE001 - no listener may end a run
                    answers.append(None)
                    self._say(listener, index, error)
        if waits:  # for what it asked of the device: that counts into no epoch
            wait_for(self._device)
        self.seconds += perf_counter() - before
        return answers

    def _say(self, listener: Listener, index: int, error: Exception) -> None:
        if index not in self._has_said:
            self._has_said.add(index)
            cause = f"{type(error).__name__}: {printable(str(error))}; the run goes on"
            warnings.warn(f"listener {type(listener).__name__} raised {cause}", RunsWarning, stacklevel=5)


@contextmanager
def _same_modes(network: nn.Module | None) -> Iterator[None]:
    modes = [(module, module.training) for module in network.modules()] if network is not None else []
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
