"""An execution of a run in a fresh process, which writes digests of its state and may kill itself."""

import json
import math
import os
import random
import sys
import time
import types
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from multiprocessing import set_start_method
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch

from runmanager.checks.changed import Reached, short_hash
from runmanager.checks.shortened import Cut, shortened
from runmanager.core import checkpoint
from runmanager.core.checkpoint import ResumeState, TrainerState
from runmanager.core.contracts import RunListener
from runmanager.core.epoch import OpenEpoch
from runmanager.core.failure import failure_of
from runmanager.core.manager import LeaveTrain
from runmanager.core.open_run import OpenRun
from runmanager.core.outcome import EpochRecord, Outcome, Status
from runmanager.core.run import device_of
from runmanager.devices import ranks, torch_devices
from runmanager.errors import RunManagerError
from runmanager.executors import serialize
from runmanager.user_code import is_users_file

NUM_EPOCHS, NUM_STEPS = 2, 6
"""The maximum number of epochs, and of steps in an epoch."""

_PACKAGE = __name__.partition(".")[0]
_PLAIN = (bool, int, float, complex, str, bytes, tuple, type(None))  # equal objects may be one object
_MOST_BYTES = 1 << 22  # the maximum size of a tensor that is read as a whole
_MOST_OBJECTS = 10**5  # the maximum number of objects in a variable; of more, only the number is compared

Point = tuple[str, int, int]
"""The kind of a point, its epoch and its step: "begin" and "end" of an epoch, "step" before a batch is used,
"tracked" after a value of a batch was tracked."""

TIMES = ("epoch duration", "run duration")
"""Metrics that differ between executions."""

Functions = tuple[Callable[..., object], Callable[..., object]]
"""The functions that save and load the state of a loop; arguments after the folder are variables of `train`."""


@dataclass
class Observer(RunListener):
    """Writes digests at the points of a run, ends the run after two epochs, or kills its process at a point.

    Attributes:
        experiment: The path of the temporary experiment.
        trace: The file that gets a line of JSON for each point.
        seed: The seed of the random states that a fresh process draws.
        kill_at: The point at which the process kills itself, None for none.
        commit_every: The number of batches between two checkpoints inside an epoch, if the run saves them.
        longest_s: The time limit (s) from the first epoch on.
        start_method: The parent's start method of processes.
        environment: The parent's environment variables.
        functions: The functions that save and load, None for checkpoint=.
    """

    experiment: Path
    trace: Path
    seed: int
    kill_at: Point | None
    commit_every: int
    longest_s: float
    start_method: str
    environment: Mapping[str, str]
    functions: Functions | None

    rule = None
    _manager: Any = None
    _until = math.inf  # time.monotonic (s)

    def follow(self, train: Callable[..., object], run: Any, manager: Any) -> None:
        """Call the training function, whose manager this observer follows."""
        self._manager = manager
        train(run, manager)

    def run_began(self, run: Any, network: Any, loader: Any) -> None:
        """Resume after the last epoch that the functions have saved."""
        if self.functions:
            _ = self._manager.resume_epoch  # a loop that reads it saves its own state

    def epoch_began(self) -> None:
        """Write the state before an epoch that has just been opened."""
        opened, is_first = self._opened, self._until == math.inf
        if is_first:
            self._until = time.monotonic() + self.longest_s
        if self.functions:
            self._use(self.functions, opened, is_first=is_first)
        self.write({"is_saved": bool(opened.state and opened.state.is_saved), "device": str(opened.device)})
        self.point("begin", opened.number, 0)

    def epoch_ended(self, record: EpochRecord, network: Any) -> str | None:
        """Write the state and the metrics after the epoch; return a reason to stop after the last epoch."""
        values = {f"metric {name}": value for name, value in record.metrics.items() if name not in TIMES}
        self.point("end", record.epoch, 0, values)
        return self.asked_again(record)

    def asked_again(self, record: EpochRecord) -> str | None:
        """Return a reason to stop after the last epoch."""
        return "enough was tried" if record.epoch >= NUM_EPOCHS else None

    def point(self, kind: str, epoch: int, step: int, values: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Write the digests of a point; kill the process if this is the point to do so."""
        if self.kill_at == (kind, epoch, step):
            with suppress(RunManagerError):  # the others may be dead
                ranks.gather(None)  # no rank fails because another one has died before this point
            os.kill(os.getpid(), 9)  # SIGKILL; on Windows, the end of the process with this exit code
        if time.monotonic() > self._until:
            self.write({"is_late": True})
            os._exit(1)
        state, variables = self._opened.state, self._variables()
        compared, parts = dict(values), {}
        if isinstance(state, ResumeState):  # a loop that saves its own state may do without random states
            parts, random_states = state.parts, torch_devices.random_states(self._opened.device)
            compared |= {f"random state of {name}": value for name, value in random_states.items()}
            compared |= {f"state of {name}": checkpoint.state_of(name, part) for name, part in parts.items()}
        names = {id(value): name for name, value in variables.items() if not isinstance(value, _PLAIN)}
        digests = {}
        for name, value in variables.items():
            is_part = any(value is part for part in parts.values())
            with suppress(Exception):  # the object's own methods raise whatever they like
                if kind == "end" and _has_state(value) and not is_part:
                    compared[f"state of {name}"] = value.state_dict()
                rule = self._rule(name, value, is_part=is_part)
                for path, content in _contents(name, value):
                    digests[path] = digest_of(content, names), rule
        digests_of_compared = {name: digest_of(value) for name, value in compared.items()}
        self.write({"point": (kind, epoch, step), "compared": digests_of_compared, "variables": digests})

    def _variables(self) -> dict[str, Any]:
        """Return the variables of the user's frames and of their files."""
        frame, frames = sys._getframe(1), []  # noqa: SLF001 - inspect.currentframe() is the same
        while frame.f_back is not None and frame.f_code is not Cut.__call__.__code__:
            file = frame.f_code.co_filename
            frames += [frame] if is_users_file(file) or file.startswith("<") else []
            frame = frame.f_back
        scopes = ChainMap(*(frame.f_locals for frame in frames), *(frame.f_globals for frame in frames))
        return {
            name: value
            for name, value in [*scopes.items()]
            if not (name.startswith("_") or isinstance(value, types.ModuleType) or value is self._manager)
        }

    def _rule(self, name: str, value: Any, *, is_part: bool) -> str:
        """Return what to do if a variable was not restored."""
        if self.functions:
            return "write it in save= and read it in load="
        if isinstance(self._opened.state, TrainerState):
            return (
                "let the trainer's checkpoint keep it, as by state_dict() and load_state_dict() of a callback"
            )
        if is_part:
            return "its state_dict() leaves this out"
        if _has_state(value) or isinstance(value, torch.Generator):
            return f"write checkpoint={{..., {name!r}: {name}}}"
        return "keep it in a dict, or an object with state_dict(), of checkpoint="

    def write(self, content: Mapping[str, Any]) -> None:
        """Append a line to the trace; a line that is written survives the end of the process."""
        with self.trace.open("a", encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")

    @property
    def _opened(self) -> OpenRun:
        opened: OpenRun = self._manager._current
        return opened

    def _use(self, functions: Functions, opened: OpenRun, *, is_first: bool) -> None:
        """Load the state of the last epoch if the run has just resumed; let the run save each epoch."""
        assert isinstance(opened.state, TrainerState)
        folder, (save_state, load_state) = self.experiment.parent / "saved", functions

        def call(function: Callable[..., object], number: int) -> None:
            path, variables = folder / str(number), self._variables()
            path.mkdir(parents=True, exist_ok=True)
            names = [name for name in [*signature(function).parameters][1:] if name in variables]
            function(path, **{name: variables[name] for name in names})

        opened.state.save_epoch = partial(call, save_state)
        if is_first and opened.records:
            call(load_state, opened.records[-1].epoch)


class ObservedEpoch(OpenEpoch):
    """An epoch of at most six steps, whose points are observed."""

    observer: ClassVar[Observer]  # a process executes one run

    def __init__(self, number: int, *args: Any) -> None:
        if number > NUM_EPOCHS:  # a loop that does not use `epochs` begins another epoch
            raise LeaveTrain
        super().__init__(number, *args)
        self.observer.epoch_began()

    def batches(self) -> Iterator[Any]:
        """Yield the first batches of the loader."""
        for batch in super().batches():
            self.observer.point("step", self.number, self.step, {"inputs": batch})
            yield batch
            if self.step >= NUM_STEPS:
                return

    def add_loss(self, loss: Any, batch: Any) -> None:
        """Add the mean loss of a batch."""
        super().add_loss(loss, batch)
        if not self.counts_batches:
            self.observer.point("tracked", self.number, self.step, {"inputs": batch, "loss": loss})


def execute_observed(sent: bytes, sent_observer: bytes) -> None:
    """Execute a task and a run with an observer, all from `serialize.dump`, in this process."""
    observer: Observer = serialize.load_dumped(sent_observer)
    output = os.open(observer.trace.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ.clear()
    os.environ.update(observer.environment)
    set_start_method(observer.start_method, force=True)
    serialize.send_to_children_by_value()
    # a process that is started again draws other states, unlike one that is forked again
    torch.manual_seed(observer.seed)
    random.seed(observer.seed)
    np.random.seed(observer.seed)  # noqa: NPY002 - the users' state
    task, run = serialize.load_dumped(sent)
    ObservedEpoch.observer, ObservedEpoch.commit_every = observer, observer.commit_every
    task = shortened(task, observer.experiment, observer, ObservedEpoch)
    try:
        outcome = replace(task, train=partial(observer.follow, task.train))(run, lambda _: None)
    except Exception as error:  # noqa: BLE001 - ranks raise what train has raised
        outcome = Outcome(Status.FAILED, failure_of(error, torch.device(device_of(run)))[1])
    observer.write({"status": outcome.status, "error": outcome.error})


def _has_state(value: Any) -> bool:
    """Whether a variable may be a part of a checkpoint; a loader saves its own state."""
    return hasattr(value, "state_dict") and not isinstance(value, type) and not hasattr(value, "dataset")


def _contents(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is compared of a variable: its state or content, and the attributes of the user's objects."""
    kind = value if isinstance(value, type) else type(value)
    if kind.__module__.partition(".")[0] == _PACKAGE:
        return
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    attributes = getattr(value, "__dict__", {}) if file is None or is_users_file(file) else {}
    if _has_state(value) or not attributes:
        yield name, value.state_dict() if _has_state(value) else value
    yield from ((f"{name}.{key}", item) for key, item in attributes.items() if not key.startswith("__"))


def digest_of(value: object, names: Mapping[int, str] = MappingProxyType({})) -> str:
    """Return a digest of an object's content; `names` maps the ids of other objects that count by name.

    >>> digest_of(torch.zeros(2)) == digest_of(torch.zeros(2)), digest_of([1]) == digest_of([1.0])
    (True, False)
    """
    texts = {identity: name for identity, name in names.items() if identity != id(value)}
    content = Reached(
        is_data=True, is_exact=True, most_bytes=_MOST_BYTES, most_objects=_MOST_OBJECTS, texts=texts
    )
    return short_hash(content.text(value))
