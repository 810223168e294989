"""The listeners of a user, in the process that executes the run."""

import warnings
from collections.abc import Sequence
from time import perf_counter
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from runmanager.core import loaders
from runmanager.core.contracts import Listener, RunListener, guarded
from runmanager.core.outcome import BatchProgress, EpochRecord, Outcome
from runmanager.core.wording import printable
from runmanager.devices.torch_devices import wait_for
from runmanager.errors import RunsWarning
from runmanager.user_code import caller

# id -> listener of this process that a warning was about
_warned_of: "WeakValueDictionary[int, Listener]" = WeakValueDictionary()


class UserListeners(RunListener):
    """The listeners of a user: their exceptions are reported once, and they cannot change numbers."""

    def __init__(self, listeners: Sequence[Listener], run: Any, rule: str) -> None:
        self._listeners, self._run, self.rule = listeners, run, rule
        self._network: nn.Module | None = None
        self._loader: Any = None

    def run_began(self, run: Any, network: nn.Module | None, loader: Any) -> None:
        """Report the start of the run."""
        self._network, self._loader = network, loader
        self._call("run_began", self._listeners, self._run, network, loader)

    def step_ended(self, progress: BatchProgress) -> None:
        """Report a step."""
        self._call("step_ended", self._listeners, progress)

    def epoch_ended(self, record: EpochRecord, network: Any) -> str | None:
        """Report an epoch; return the reason why the run should stop."""
        return self._call("epoch_ended", self._listeners, record, network)

    def asked_again(self, record: EpochRecord) -> str | None:
        """Ask again the listeners whose answers count."""
        asked = [listener for listener in self._listeners if listener.may_stop]
        return self._call("epoch_ended", asked, record, self._network)

    def run_ended(self, outcome: Outcome) -> None:
        """Report the outcome of the run."""
        self._call("run_ended", self._listeners, outcome)

    def _call(self, method: str, listeners: Sequence[Listener], *arguments: Any) -> str | None:
        """Call a method of the listeners; return the first reason to stop."""
        reasons: list[str] = []
        is_step = method == "step_ended"
        before, device, network = perf_counter(), torch.device(self.slot.device), self._network
        buffers = network.buffers() if network is not None and not is_step else ()
        copies = [(buffer, buffer.clone()) for buffer in buffers if not is_lazy(buffer)]
        try:
            with (
                loaders.undisturbed(network, self._loader, device),
                torch.set_grad_enabled(torch.is_grad_enabled()),
            ):
                for listener in listeners:
                    # a listener may change its record
                    sent = [part.copy() if isinstance(part, EpochRecord) else part for part in arguments]
                    why, problem = guarded(listener, method, self._run, self.slot, *sent)
                    reasons += [why] if why else []
                    if problem and _warned_of.get(id(listener)) is not listener:
                        _warned_of[id(listener)] = listener
                        message = f"listener {type(listener).__name__}: {printable(problem)}; the run goes on"
                        warnings.warn_explicit(message, RunsWarning, *caller())
        finally:
            with torch.no_grad():
                for buffer, content in copies:
                    buffer.copy_(content)
        # wait for the listener's work on the device, so that its time is part of no epoch
        if not is_step:
            wait_for(device)
        self.seconds += perf_counter() - before
        return next(iter(reasons), None)
