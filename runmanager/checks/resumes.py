"""The check that runs resume: undisturbed and killed executions in fresh processes are compared."""

import json
import os
import random
import shutil
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from traceback import walk_stack
from typing import Any, ClassVar

import numpy as np
import torch

from runmanager.checks.changed import Reached, short_hash
from runmanager.checks.check import CheckTask, ShortEpoch, ShortRun, shortened
from runmanager.checks.unsaved import is_of_user
from runmanager.core import checkpoint
from runmanager.core.checkpoint import ResumeState
from runmanager.core.contracts import Report
from runmanager.core.failure import failure_of
from runmanager.core.outcome import BatchProgress, EpochRecord, Outcome, Status
from runmanager.core.run import Run
from runmanager.core.wording import listed
from runmanager.devices import ranks, torch_devices
from runmanager.errors import RunManagerError
from runmanager.executors import serialize
from runmanager.executors.lanes import fresh_process
from runmanager.user_code import is_users_file

LONGEST_S = 300.0  # the time limit of an execution with its start and data
_MOST_BYTES = 1 << 22  # the maximum size of a tensor that is read as a whole
_MOST_OBJECTS = 10**5  # the maximum number of objects in a variable; of more, only the number is compared
_ENDLESS = (
    "no epoch ends after a few batches: write `for epoch in manager.epochs(n):` and `for batch in "
    "manager.batches():`, or check it with less data"
)

# "start" and "end" of an epoch, or "step" before a batch is used; the epoch and the step
Point = tuple[str, int, int]


class Trace:
    """What the processes of one execution have written, all ranks together."""

    def __init__(self, lines_of_ranks: Sequence[Sequence[dict[str, Any]]]) -> None:
        # a point and a name, with a space for what must not differ -> the digest on each rank
        self.digests: dict[tuple[Point, str], list[str]] = {}
        self.error = ""
        for line in chain.from_iterable(lines_of_ranks):
            self.error = line.get("error", self.error)
            for name, digest in line.get("digests", {}).items():
                self.digests.setdefault((tuple(line["point"]), name), []).append(digest)
        self.points: list[Point] = [*dict.fromkeys(point for point, _ in self.digests)]

    def differing(self, other: "Trace") -> list[tuple[Point, str]]:
        """Return the keys of the digests that differ, in the order of the execution."""
        return [key for key, digest in self.digests.items() if other.digests.get(key, digest) != digest]


@dataclass(frozen=True)
class ResumeTask(CheckTask):
    """Checks that one run resumes, in fresh processes and a temporary folder."""

    done = "killed after and inside an epoch, they resume with the same state, inputs and metrics"

    def __call__(self, run: Run, report: Report) -> Outcome:
        """Execute the run undisturbed and killed; return what differs, else what does not repeat."""
        with self.temporary_folder() as folder:
            execute = partial(_execute, serialize.dump((self.task, run)), Path(folder), report)
            first = execute()
            if first.error:
                return Outcome(Status.FAILED, first.error)
            noise = first.differing(execute())
            last = first.points[-1][1]
            kills: list[Point | None] = [("start", 2, 0)] if last > 1 else []
            steps = [point for point in first.points if point[2] and point[1] == last]
            kills += [*steps[len(steps) // 2 :][:1], None]
            resumed = [execute(seed, point) for seed, point in enumerate(kills)][1:]
            if problem := _difference(first, resumed, noise):
                # two executions may be equal by chance, so a third one confirms the difference
                noise += first.differing(execute())
                problem = _difference(first, resumed, noise)
        return Outcome(Status.FAILED if problem else Status.COMPLETED, problem or _note(noise))


def _execute(sent: bytes, folder: Path, report: Report, seed: int = 0, kill_at: Point | None = None) -> Trace:
    """Execute the run in a fresh process; unless `seed` is 0, continue what is in the folder."""
    # one path on all ranks, as programs keep paths of files
    runs = ranks.from_main(lambda: folder) / "runs"
    if seed == 0 and ranks.is_main():
        shutil.rmtree(runs, ignore_errors=True)
    path, environment = folder / "trace.jsonl", {**os.environ, **ranks.environment_of_new_group()}
    path.write_text("", encoding="utf-8")
    process = fresh_process(execute_observed, sent, environment, path, runs, seed, kill_at)
    try:
        process.join(LONGEST_S)
        code = process.exitcode
    finally:
        process.kill()
        process.join()
    if code is None:
        lines = [{"error": _ENDLESS}]
    elif code and not kill_at:
        lines = [{"error": f"its process died with exit code {code}"}]
    else:
        lines = [*map(json.loads, path.read_text(encoding="utf-8").splitlines())]
    report(BatchProgress(1, 0))
    return Trace(ranks.gather(lines))


def _difference(first: Trace, resumed: Sequence[Trace], noise: Sequence[tuple[Point, str]]) -> str:
    """Return a sentence about the first difference of resumed executions and its causes, or ""."""
    noisy = {name for _, name in noise}
    for trace in resumed:
        if trace.error or not trace.digests:
            return f"killed and started again, it fails: {trace.error or _ENDLESS}"
        keys = [key for key in first.differing(trace) if key[1] not in noisy]
        # the state may be restored later than at the beginning, with the first batch
        if compared := [(point, name) for point, name in keys if " " in name and point[0] != "start"]:
            begin = next((point for point in trace.points if point[0] == "step"), trace.points[0])
            fact = f"killed and resumed {_from(begin)}, it differs {_from_first(compared)}"
            names = [name for point, name in keys if point == begin and " " not in name]
            # if a variable differs, so does what it has
            causes = [name for name in names if name.rpartition(".")[0] not in names]
            if not causes:
                return f"{fact}; the cause was not found, as gradients and files are not compared"
            step = "name in checkpoint= what has state_dict(), and keep numbers in a dict of checkpoint="
            return f"{fact}; not restored: {listed(causes)}; {step}"
    return ""


def _note(noise: Sequence[tuple[Point, str]]) -> str:
    """Return a sentence about what does not repeat by itself, or ""."""
    compared, variables = ([key for key in noise if (" " in key[1]) is rule] for rule in (True, False))
    if not compared:
        return ""
    why = "torch.use_deterministic_algorithms(True) lets most operations repeat"
    if variables:
        why = f"other values too, {_from_first(variables)}"
    return f"not repeatable by itself {_from_first(compared)}; {why}"


def _from_first(keys: Sequence[tuple[Point, str]]) -> str:
    point = keys[0][0]
    return f"{_from(point)} in {listed([name for other, name in keys if other == point])}"


def _from(point: Point) -> str:
    kind, epoch, step = point
    return f"from step {step} of epoch {epoch} on" if step else f"at the {kind} of epoch {epoch}"


def execute_observed(
    sent: bytes, environment: Mapping[str, str], trace: Path, folder: Path, seed: int, kill_at: Point | None
) -> None:
    """Execute the run from `serialize.dump` in this fresh process; write its digests into the trace."""
    output = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ.clear()
    os.environ.update(environment)
    serialize.send_to_children_by_value()
    # a process that is started again draws other states, unlike one that is forked again
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the users' state
    observer = ObservedEpoch.observer = Observer(trace, kill_at)
    problem = ""
    try:
        task, run = serialize.load_dumped(sent)
        outcome = shortened(task, folder, observer)(run, lambda _: None)
        opened = observer.manager._current
        if outcome.status.is_exception or outcome.status is Status.KILLED:
            problem = outcome.error
        elif not opened.records:
            problem = _ENDLESS
        elif not (opened.state and opened.state.is_saved):
            problem = (
                "it saves no checkpoint, so a killed run starts over: write manager.epochs(n, checkpoint={...})"
            )
    except Exception as error:  # noqa: BLE001 - ranks raise what train has raised
        problem = failure_of(error)[1]
    if problem:
        observer.write({"error": problem})


class ObservedEpoch(ShortEpoch):
    """An epoch of at most six steps, whose points are observed, with a checkpoint after each batch."""

    observer: ClassVar["Observer"]  # a process executes one run
    num_epochs, num_steps = 2, 6
    most_steps, commit_every = None, 1

    def __init__(self, number: int, *args: Any) -> None:
        super().__init__(number, *args)
        self.observer.point("start", number, 0, {})

    def batches(self) -> Iterator[Any]:
        """Yield the first batches of the loader."""
        for batch in super().batches():
            self.observer.point("step", self.number, self.step, {"the inputs": batch})
            yield batch


@dataclass
class Observer(ShortRun):
    """Writes digests at the points of a run into a file, or kills the process at a point."""

    trace: Path
    kill_at: Point | None

    epoch_type = ObservedEpoch

    def epoch_ended(self, record: EpochRecord, network: Any) -> str | None:
        """Write the state and the metrics after the epoch; return a reason to stop after the last epoch."""
        times = ("epoch duration", "run duration")
        values = {f"metric {name}": value for name, value in record.metrics.items() if name not in times}
        self.point("end", record.epoch, 0, values)
        return super().epoch_ended(record, network)

    def point(self, kind: str, epoch: int, step: int, compared: dict[str, Any]) -> None:
        """Write the digests of a point; kill the process if this is the point to do so."""
        if self.kill_at == (kind, epoch, step):
            with suppress(RunManagerError):  # the others may be dead
                ranks.gather(None)  # no rank fails because another one has died before this point
            os.kill(os.getpid(), 9)  # SIGKILL; on Windows, the end of the process with this exit code
        opened = self.manager._current
        parts: Mapping[str, Any] = {}
        # a loop that saves its own state may do without random states
        if isinstance(opened.state, ResumeState):
            parts = opened.state.parts
            compared["the random states"] = torch_devices.random_states(opened.device)
            compared |= {f"state of {name}": checkpoint.state_of(name, part) for name, part in parts.items()}
        # what has a state is compared by it, not again in what holds it
        with_state: dict[int, tuple[str, set[str]]] = {
            id(part): ("", set()) for part in parts.values() if hasattr(part, "state_dict")
        }
        contents: list[tuple[str, Any]] = []
        for name, value in _variables().items():
            if type(value).__module__.startswith("runmanager."):
                continue
            with suppress(Exception):  # the object's own methods raise whatever they like
                attributes = getattr(value, "__dict__", {}) if is_of_user(type(value)) else {}
                # a loader saves its own state
                if hasattr(value, "state_dict") and not hasattr(value, "dataset"):
                    state = value.state_dict()
                    contents.append((name, state))
                    if kind == "end" and id(value) not in with_state:
                        compared[f"state of {name}"] = state
                elif not attributes:
                    contents.append((name, value))
                contents += [(f"{name}.{key}", item) for key, item in attributes.items()]
        reached = Reached(texts=with_state)
        reached.is_exact = True
        reached.most_bytes, reached.most_objects = _MOST_BYTES, _MOST_OBJECTS
        digests = {name: short_hash(reached.text(value)) for name, value in [*compared.items(), *contents]}
        self.write({"point": (kind, epoch, step), "digests": digests})

    def write(self, content: Mapping[str, Any]) -> None:
        """Append a line to the trace; a line that is written survives the end of the process."""
        with self.trace.open("a", encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")


def _variables() -> dict[str, Any]:
    """Return the variables of the user's frames and of their files."""
    frames = [
        frame
        for frame, _ in walk_stack(None)
        if is_users_file(frame.f_code.co_filename) or frame.f_code.co_filename.startswith("<")
    ]
    variables = ChainMap(*[frame.f_locals for frame in frames], *[frame.f_globals for frame in frames])
    return {name: value for name, value in variables.items() if not name.startswith("_")}
