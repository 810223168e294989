"""An execution of a run in a fresh process, which writes digests of its state and may kill itself."""

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from inspect import signature
from multiprocessing import set_start_method
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader

from runmanager.devices import ranks
from runmanager.errors import RunManagerError
from runmanager.executors import serialize
from runmanager.outcome import EpochRecord, Outcome, Status
from runmanager.run import device_of
from runmanager.session.source_lines import Files
from runmanager.session.trial import CheckedEvaluation, Cut
from runmanager.session.variables import Variable, digest_of, reached, user_variables
from runmanager.storage import checkpoints
from runmanager.storage.folders import Experiment
from runmanager.training.causes import cause_of
from runmanager.training.ending import LeaveTrain
from runmanager.training.hooks import Hooks
from runmanager.training.listeners import RunListener
from runmanager.training.open_epoch import OpenEpoch
from runmanager.training.open_run import OpenRun
from runmanager.training.resuming import ResumeState
from runmanager.training.trainer_state import TrainerState

NUM_EPOCHS, NUM_STEPS = 2, 6
"""The maximum number of epochs, and of steps in an epoch."""

Point = tuple[str, int, int]
"""The kind of a point, its epoch and its step: "begin" and "end" of an epoch, "step" before a batch is used,
"tracked" after a value of a batch was tracked."""


TIMES = ("epoch duration", "run duration")
"""Metrics that differ between executions."""

Functions = tuple[Callable[..., object], Callable[..., object]]
"""The functions that save and load the state of a loop; arguments after the folder are variables of `train`."""


class Order(NamedTuple):
    """What to execute.

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


def execute_observed(sent: bytes, sent_order: bytes) -> None:
    """Execute a task and a run by an `Order`, all from `serialize.dump`, in this process."""
    order: Order = serialize.load_dumped(sent_order)
    output = os.open(order.trace.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ.clear()
    os.environ.update(order.environment)
    set_start_method(order.start_method, force=True)
    serialize.send_to_children_by_value()
    # a process that is started again draws other states, unlike one that is forked again
    torch.manual_seed(order.seed)
    random.seed(order.seed)
    np.random.seed(order.seed)  # noqa: NPY002 - the users' state
    task, run = serialize.load_dumped(sent)
    observer = Observer(order)
    task = replace(
        task, experiment=Experiment(order.experiment), train=Cut(task.train),
        manager_of=observer.following(task.manager_of), tensorboard=False, prune=None, rule="", asks=False,
        listeners=[observer], raises=False, epoch_type=observer.epoch_type(), evaluation_type=CheckedEvaluation,
    )  # fmt: skip
    try:
        outcome = task(run, lambda _: None)
    except Exception as error:  # noqa: BLE001 - ranks raise what train has raised
        outcome = Outcome(Status.FAILED, cause_of(error, torch.device(device_of(run))))
    observer.write({"status": outcome.status, "error": outcome.error})


class Observer(RunListener):
    """Writes digests at the points of a run, ends the run after two epochs, or kills its process at a point."""

    rule = None
    last_epoch = NUM_EPOCHS

    def __init__(self, order: Order) -> None:
        self._order = order
        self._files = Files()
        self._hooks: Hooks | None = None
        self._timer: threading.Timer | None = None

    def following(self, manager_of: Callable[[Hooks], Any]) -> Callable[[Hooks], Any]:
        """Return a function that creates a manager whose hooks this observer follows."""

        def follow(hooks: Hooks) -> Any:
            self._hooks = hooks
            return manager_of(hooks)

        return follow

    def run_began(self, run: Any, network: Any, loader: Any) -> None:
        """Resume after the last epoch that the functions have saved."""
        if self._order.functions and self._hooks:
            _ = self._hooks.resume_epoch  # a loop that reads it saves its own state

    def epoch_began(self, *, is_saved: bool, learning_rate: float | None) -> None:
        """Write the state before the epoch."""
        opened, is_first = self._opened, self._timer is None
        if self._timer is None:
            self._timer = threading.Timer(self._order.longest_s, self._end_late)
            self._timer.daemon = True
            self._timer.start()
        if self._order.functions:
            self._use(self._order.functions, opened, is_first=is_first)
        is_trainers = isinstance(opened.resume_state, TrainerState)
        self.write({"is_saved": is_saved, "is_trainers": is_trainers, "device": str(opened.device)})
        self.point("begin", opened.number + 1, 0)

    def epoch_ended(self, record: EpochRecord, network: Any) -> str | None:
        """Write the state and the metrics after the epoch; return a reason to stop after the last epoch."""
        values = {f"metric {name}": value for name, value in record.metrics.items() if name not in TIMES}
        self.point("end", record.epoch, 0, values)
        return "enough was tried" if record.epoch >= NUM_EPOCHS else None

    def point(self, kind: str, epoch: int, step: int, values: Mapping[str, Any] | None = None) -> None:
        """Write the digests of a point; kill the process if this is the point to do so."""
        if self._order.kill_at == (kind, epoch, step):
            with suppress(RunManagerError):  # the others may be dead
                ranks.gather(None)  # no rank fails because another one has died before this point
            os.kill(os.getpid(), 9)  # SIGKILL; on Windows, the end of the process with this exit code
        state = self._opened.resume_state
        parts: Mapping[str, Any] = {}
        compared: dict[str, Any] = {}
        if isinstance(state, ResumeState):  # a loop that saves its own state may do without random states
            parts = state.parts
            random_states = checkpoints.random_states(self._opened.device)
            compared = {f"random state of {name}": value for name, value in random_states.items()}
        compared |= {f"state of {name}": checkpoints.state_of(name, part) for name, part in parts.items()}
        variables = user_variables(self._files)
        live = {name: one for name, one in variables.items() if one.is_read}
        state_now = reached(live, parts)
        for name, value in state_now.stateful.items() if kind == "end" else ():
            with suppress(Exception):  # the object's own method raises whatever it likes
                compared[f"state of {name}"] = value.state_dict()
        digests, hidden = {}, dict(state_now.hidden)
        for name, value in {**(values or {}), **compared}.items():
            try:
                digests[name] = digest_of(value)
            except Exception:  # noqa: BLE001 - some tensors have no content, and objects raise what they like
                hidden[name] = type(value).__name__
        self.write({
            "point": (kind, epoch, step),
            "seconds": time.perf_counter(),
            "compared": digests,
            "leaves": state_now.leaves,
            "hidden": hidden,
            "iterators": state_now.iterators,
            "stateful": [*state_now.stateful],
            "lines": {**self._files.attributes(), **{name: one.line for name, one in live.items()}},
            "workers": [name for name, one in variables.items() if _keeps_workers(one)],
        })  # fmt: skip

    def write(self, content: Mapping[str, Any]) -> None:
        """Append a line to the trace; a line that is written survives the end of the process."""
        with self._order.trace.open("a", encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")

    def epoch_type(self) -> type[OpenEpoch]:
        """Return the class of the observed epochs."""
        observer = self

        class ObservedEpoch(OpenEpoch):
            commit_every = observer._order.commit_every

            def __init__(self, number: int, *args: Any) -> None:
                if number > NUM_EPOCHS:  # a loop that does not use `epochs` begins another epoch
                    raise LeaveTrain
                super().__init__(number, *args)

            def batches(self) -> Iterator[Any]:
                for batch in super().batches():
                    observer.point("step", self.number, self.step, {"inputs": batch})
                    yield batch
                    if self.step >= NUM_STEPS:
                        return

            def add_loss(self, loss: Any, batch: Any) -> None:
                super().add_loss(loss, batch)
                if not self.counts_batches:
                    observer.point("tracked", self.number, self.step, {"inputs": batch, "loss": loss})

        return ObservedEpoch

    @property
    def _opened(self) -> OpenRun:
        assert self._hooks is not None
        assert self._hooks.current is not None
        return self._hooks.current

    def _use(self, functions: Functions, opened: OpenRun, *, is_first: bool) -> None:
        """Load the state of the last epoch if the run has just resumed; let the run save each epoch."""
        assert isinstance(opened.resume_state, TrainerState)
        folder, (save_state, load_state) = self._order.experiment.parent / "saved", functions
        variables = user_variables(self._files)

        def save(number: int) -> None:
            path = folder / str(number)
            path.mkdir(parents=True, exist_ok=True)
            save_state(path, **_arguments(save_state, user_variables(self._files)))

        opened.resume_state.save_epoch = save
        if is_first and opened.number:
            load_state(folder / str(opened.number), **_arguments(load_state, variables))

    def _end_late(self) -> None:
        self.write({"is_late": True})
        os._exit(1)


def _arguments(function: Callable[..., object], variables: Mapping[str, Variable]) -> dict[str, Any]:
    """Return the variables of `train` that a function's parameters after the first name."""
    names = [*signature(function).parameters][1:]
    return {name: variables[name].value for name in names if name in variables}


def _keeps_workers(variable: Variable) -> bool:
    return isinstance(variable.value, DataLoader) and variable.value.persistent_workers
