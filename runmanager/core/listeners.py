"""The listeners of an open run, in the process that executes it."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from runmanager.core import loaders
from runmanager.core.listener import Listener, Slot, fault_of, problem_of
from runmanager.core.outcome import BatchProgress, EpochRecord, Outcome
from runmanager.core.steps import Block
from runmanager.core.user_code import caller
from runmanager.core.wording import printable
from runmanager.devices import ranks
from runmanager.devices.torch_devices import undisturbed_random, wait_for
from runmanager.errors import RunsWarning

EVERY_S = 0.5
"""The minimum time (s) between two reports of steps."""


class Counts(Protocol):
    """Counts predictions per class in an evaluation."""

    def add(self, outputs: Any, targets: Any) -> None:
        """Count the predictions of a batch."""

    def add_ranks(self) -> None:
        """Add the counts of the other ranks."""


class RunListener(Listener):
    """A listener within this package, which follows one run and receives further events.

    Its exceptions end the run. The answer None continues the run; any text stops the run, even "".

    Attributes:
        rule: The name to record in the journal if the listener stops the run; a rule stops a run only once. ""
            if the listener stops no run; None if the stopped run counts as completed.
        last_epoch: The epoch after which the listener stops the run, None if this is unknown in advance.
        seconds: The time (s) spent in the listener so far that is part of no duration.
    """

    rule: str | None = ""
    last_epoch: int | None = None
    seconds = 0.0

    def attempt_began(
        self,
        records: Sequence[EpochRecord] = (),
        *,
        keep: str | None = None,
        last_step: int = 0,
    ) -> None:
        """Called when the journal is created.

        Args:
            records: The epochs of earlier attempts that are not executed again.
            keep: The rule that selects the kept weights.
            last_step: The last step that is not executed again; later steps of earlier attempts do not count.
        """

    def epoch_began(self, *, is_saved: bool, learning_rate: float | None) -> None:
        """Called when an epoch begins.

        Args:
            is_saved: Whether the run saves checkpoints.
            learning_rate: The learning rate of the epoch, None if unknown.
        """

    def asked_again(self, record: EpochRecord) -> str | None:
        """Answer again for the epoch after which the run was resumed: return the reason to stop, or None."""

    def steps_logged(self, block: Block) -> None:
        """Called when values of single steps are written."""

    def image_logged(self, name: str, image: Any) -> None:
        """Called with the first image of a name in an epoch: a figure, or uint8 ``(C, H, W)`` on the CPU."""

    def evaluated(self, values: Mapping[str, float]) -> None:
        """Called when the network was evaluated before the first epoch."""

    def classes_counted(self, name: str, counts: Any, loader: Any) -> None:
        """Called when the predictions per class were counted in an evaluation."""


Reason = tuple[str, str | None]
"""The reason why a listener stops a run, "" for none, and the rule of the listener."""


class Listeners:
    """Passes the events of one run to its listeners, in order."""

    def __init__(self, listeners: Sequence[RunListener], run: Any, slot: Slot) -> None:
        self._listeners = listeners
        self._next = 0.0  # time of the next report of a step
        self._waited = 0.0  # time of waiting for rank 0's listeners (s)
        self._network: nn.Module | None = None
        for listener in listeners:
            listener.run, listener.slot = run, slot

    def __iter__(self) -> Iterator[RunListener]:
        return iter(self._listeners)

    @property
    def hear_steps(self) -> bool:
        """Whether a listener overrides `step_ended`."""
        return any(type(listener).step_ended is not Listener.step_ended for listener in self)

    @property
    def last_epoch(self) -> int | None:
        """The first epoch after which a listener stops the run, None if this is unknown in advance."""
        return min((listener.last_epoch for listener in self if listener.last_epoch is not None), default=None)

    @property
    def seconds(self) -> float:
        """The time (s) spent in the listeners so far that is part of no duration."""
        return self._waited + sum(listener.seconds for listener in self)

    def run_began(self, network: nn.Module | None, loader: Any) -> None:
        """Report the start of the run."""
        self._network = network
        for listener in self:
            listener.run_began(listener.run, network, loader)

    def step_ended(self, progress: Callable[[], BatchProgress]) -> float:
        """Report a step, but limit the rate of reports."""
        now = perf_counter()
        if now < self._next:
            return 0.0
        self._next = now + EVERY_S
        before, step = self.seconds, progress()
        for listener in self:
            listener.step_ended(step)
        return self.seconds - before

    def epoch_ended(self, record: EpochRecord) -> Reason | None:
        """Report a committed epoch; return the first answer on rank 0 that stops the run."""
        return self._first(lambda listener: listener.epoch_ended(record, self._network))

    def asked_again(self, record: EpochRecord) -> Reason | None:
        """Ask again about the epoch after which the run was resumed; return the same as `epoch_ended`."""
        return self._first(lambda listener: listener.asked_again(record))

    def _first(self, ask: Callable[[RunListener], str | None]) -> Reason | None:
        answers = [(listener, ask(listener)) for listener in self]
        reason = next(((why, listener.rule) for listener, why in answers if why is not None), None)
        before = perf_counter()
        # broadcast after TensorBoard has drawn, so that no other rank waits for rank 0 in the next epoch
        reason = ranks.broadcast(reason)
        self._waited += perf_counter() - before
        return reason


# id -> listener of this process that a warning was about
_warned_of: "WeakValueDictionary[int, Listener]" = WeakValueDictionary()


class UserListeners(RunListener):
    """The listeners of a user: their exceptions are reported once, and they cannot change numbers.

    Random states, and modes and buffers of the network, are restored. The time of the listeners is part of no
    duration.

    Args:
        listeners: The listeners in this process.
        run: A copy of the run for the listeners; reading the copy does not count as reading by `train`.
        rule: The rule to record for runs that the listeners stop.
    """

    def __init__(self, listeners: Sequence[Listener], run: Any, rule: str) -> None:
        self._listeners, self._run, self.rule = listeners, run, rule
        self._network: nn.Module | None = None
        self._loader: Any = None

    def run_began(self, run: Any, network: nn.Module | None, loader: Any) -> None:
        """Report the start of the run."""
        self._network, self._loader = network, loader
        self._tell("run_began", lambda: (self._run, network, loader))

    def step_ended(self, progress: BatchProgress) -> None:
        """Report a step."""
        self._tell("step_ended", lambda: (progress,))

    def epoch_ended(self, record: EpochRecord, network: Any) -> str | None:
        """Report an epoch; return the reason why the run should stop."""
        return self._answer(record, self._listeners)

    def asked_again(self, record: EpochRecord) -> str | None:
        """Ask again the listeners whose answers count."""
        return self._answer(record, [listener for listener in self._listeners if listener.may_stop])

    def run_ended(self, outcome: Outcome) -> None:
        """Report the outcome of the run."""
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
        # wait for the listener's work on the device, so that its time is part of no epoch
        if method != "step_ended":
            wait_for(device)
        self.seconds += perf_counter() - before
        return answers


def _warn(listener: Listener, problem: str) -> None:
    """Warn about the first problem of a listener, at the line of the user's code that caused it."""
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
