"""The listeners of an open run, in the process that executes it."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from runmanager.devices import ranks
from runmanager.devices.torch_devices import undisturbed_random, wait_for
from runmanager.errors import RunsWarning
from runmanager.listener import Listener, Slot, fault_of, problem_of
from runmanager.outcome import BatchProgress, EpochRecord, Outcome
from runmanager.storage.steps import Block
from runmanager.storage.user_code import caller
from runmanager.training import loaders
from runmanager.wording import printable

EVERY_S = 0.5
"""From one step that listeners hear of to the next, at least."""


class Counts(Protocol):
    """Counts the predictions of each class in an evaluation."""

    def add(self, outputs: Any, targets: Any) -> None:
        """Count the predictions of a batch."""

    def add_ranks(self) -> None:
        """Add what the other ranks have counted."""


class RunListener(Listener):
    """A listener of the program's own: it follows one run, and hears more of it.

    What it raises ends the run. Its answer None lets the run go on; any text stops it, also "".

    Attributes:
        rule: What the journal names if it stops the run: the same rule stops no run a second time. "" if the
            run only waits for the others; None if it is completed, as at the end of its loop.
        last_epoch: After which it stops the run, None if that is not known before.
        seconds: How long it has taken so far (s), where that is no part of any duration.
    """

    rule: str | None = ""
    last_epoch: int | None = None
    seconds = 0.0

    def attempt_began(
        self,
        records: Sequence[EpochRecord] = (),
        *,
        num_committed: int = 0,
        keep: str | None = None,
        until: float = 0.0,
    ) -> None:
        """The journal has begun.

        Args:
            records: The epochs that need not be executed again.
            num_committed: How many of them earlier journals have.
            keep: What decides which weights are kept.
            until: A wall time (s) until which what was written counts: the attempt continues inside an epoch.
        """

    def epoch_began(self, *, is_saved: bool, learning_rate: float | None) -> None:
        """An epoch begins.

        Args:
            is_saved: Whether the run saves checkpoints.
            learning_rate: That of the epoch, None if it is not known.
        """

    def asked_again(self, record: EpochRecord) -> str | None:
        """The run was resumed after an epoch: there may have been no answer. Return why it is to stop."""

    def steps_logged(self, block: Block) -> None:
        """The values of single steps were written."""

    def evaluated(self, values: Mapping[str, float]) -> None:
        """The network was evaluated before the first epoch."""

    def classes_counted(self, name: str, counts: Any, loader: Any) -> None:
        """The predictions of each class were counted in an evaluation."""


class Reason(NamedTuple):
    """Why a listener stops the run.

    Attributes:
        why: In words, "" for none.
        rule: That of the listener.
    """

    why: str
    rule: str | None


class Listeners:
    """Tells the listeners of one run, in their order, what happens to it."""

    def __init__(self, listeners: Sequence[RunListener], run: Any, slot: Slot) -> None:
        self._listeners = listeners
        self._next = 0.0  # when they hear of a step
        self._waited = 0.0  # for those of rank 0 (s)
        self._network: nn.Module | None = None
        for listener in listeners:
            listener.run, listener.slot = run, slot

    def __iter__(self) -> Iterator[RunListener]:
        return iter(self._listeners)

    @property
    def hear_steps(self) -> bool:
        """Whether one of them wants to hear of steps."""
        return any(type(listener).step_ended is not Listener.step_ended for listener in self)

    @property
    def last_epoch(self) -> int | None:
        """After which one of them stops the run, None if that is not known before."""
        return min((each.last_epoch for each in self if each.last_epoch is not None), default=None)

    @property
    def seconds(self) -> float:
        """How long they have taken so far (s), where that is no part of any duration."""
        return self._waited + sum(listener.seconds for listener in self)

    def run_began(self, network: nn.Module | None, loader: Any) -> None:
        """Tell that the run has begun."""
        self._network = network
        for listener in self:
            listener.run_began(listener.run, network, loader)

    def step_ended(self, progress: Callable[[], BatchProgress]) -> float:
        """Tell how far the run is, unless that was just done; return the seconds that are no part of it."""
        now = perf_counter()
        if now < self._next:
            return 0.0
        self._next = now + EVERY_S
        before, step = self.seconds, progress()
        for listener in self:
            listener.step_ended(step)
        return self.seconds - before

    def epoch_ended(self, record: EpochRecord) -> Reason | None:
        """Tell of an epoch that is committed; return the first answer of rank 0 that stops the run."""
        return self._first(lambda listener: listener.epoch_ended(record, self._network))

    def asked_again(self, record: EpochRecord) -> Reason | None:
        """Ask about the epoch after which the run was resumed; return as for `epoch_ended`."""
        return self._first(lambda listener: listener.asked_again(record))

    def _first(self, ask: Callable[[RunListener], str | None]) -> Reason | None:
        answers = [(listener, ask(listener)) for listener in self]
        reason = next((Reason(why, listener.rule) for listener, why in answers if why is not None), None)
        before = perf_counter()
        reason = ranks.broadcast(reason)  # when all is drawn: no rank is to wait for that in its next epoch
        self._waited += perf_counter() - before
        return reason


_warned_of: "WeakValueDictionary[int, Listener]" = WeakValueDictionary()  # in this process, by id


class UserListeners(RunListener):
    """The listeners of a user: what they raise is said once, and they change no number.

    Random states, and modes and buffers of the network, are given back. Their time is no part of any duration.

    Args:
        listeners: Those that follow runs in this process.
        run: What they get: reading it is no reading of `train`.
        rule: By which they stop runs.
    """

    def __init__(self, listeners: Sequence[Listener], run: Any, rule: str) -> None:
        self._listeners, self._run, self.rule = listeners, run, rule
        self._network: nn.Module | None = None
        self._loader: Any = None

    def run_began(self, run: Any, network: nn.Module | None, loader: Any) -> None:
        """Tell that the run has begun."""
        self._network, self._loader = network, loader
        self._tell("run_began", lambda: (self._run, network, loader))

    def step_ended(self, progress: BatchProgress) -> None:
        """Tell how far it is."""
        self._tell("step_ended", lambda: (progress,))

    def epoch_ended(self, record: EpochRecord, network: Any) -> str | None:
        """Tell of an epoch; return why the run is to stop."""
        return self._answer(record, self._listeners)

    def asked_again(self, record: EpochRecord) -> str | None:
        """Ask those whose answers count."""
        return self._answer(record, [each for each in self._listeners if each.may_stop])

    def run_ended(self, outcome: Outcome) -> None:
        """Tell how the run has ended."""
        self._tell("run_ended", lambda: (outcome,))

    def _answer(self, record: EpochRecord, listeners: Sequence[Listener]) -> str | None:
        answers = self._tell("epoch_ended", lambda: (record.copy(), self._network), listeners)
        reasons = []
        for listener, why in zip(listeners, answers, strict=True):
            if listener.may_stop and (problem := problem_of(why)):
                _warn(listener, problem)
            elif listener.may_stop and why:
                reasons.append(why)
        return next(iter(reasons), None)

    def _tell(
        self, method: str, arguments: Callable[[], tuple[Any, ...]], listeners: Sequence[Listener] | None = None
    ) -> list[Any]:
        answers: list[Any] = []
        before, device = perf_counter(), torch.device(self.slot.device)
        with (
            undisturbed_random(device),
            loaders.same_generators(self._loader),
            torch.set_grad_enabled(torch.is_grad_enabled()),
            _same_network(self._network, with_buffers=method != "step_ended"),
        ):
            for listener in self._listeners if listeners is None else listeners:
                answers.append(None)
                try:
                    listener.run, listener.slot = self._run, self.slot
                    answers[-1] = getattr(listener, method)(*arguments())
                except KeyboardInterrupt:
                    raise
                except BaseException as error:  # noqa: BLE001 - no listener may end a run, by SystemExit neither
                    _warn(listener, fault_of(method, error))
        if method != "step_ended":  # for what it asked of the device: that counts into no epoch
            wait_for(device)
        self.seconds += perf_counter() - before
        return answers


def _warn(listener: Listener, problem: str) -> None:
    """Warn of the first problem of a listener, at the line of the user that led to it."""
    if _warned_of.get(id(listener)) is not listener:
        _warned_of[id(listener)] = listener
        message = f"listener {type(listener).__name__}: {printable(problem)}; the run goes on"
        warnings.warn_explicit(message, RunsWarning, *caller())


@contextmanager
def _same_network(network: nn.Module | None, *, with_buffers: bool) -> Iterator[None]:
    modules = list(network.modules()) if network is not None else []
    modes = [module.training for module in modules]
    buffers = network.buffers() if network is not None and with_buffers else ()
    copies = [(buffer, buffer.clone()) for buffer in buffers if not is_lazy(buffer)]
    try:
        yield
    finally:
        for module, training in zip(modules, modes, strict=True):
            module.training = training
        with torch.no_grad():
            for buffer, content in copies:
                buffer.copy_(content)
