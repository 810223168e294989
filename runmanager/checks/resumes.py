"""The check that runs resume: executions that are killed are compared with undisturbed ones."""

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.checks.check import CheckTask
from runmanager.core.outcome import BatchProgress, Outcome, Status
from runmanager.core.run import Run
from runmanager.core.wording import listed
from runmanager.devices import ranks
from runmanager.executors import Report, serialize
from runmanager.executors.lanes import fresh_process

if TYPE_CHECKING:
    from runmanager.checks.observed_run import Functions, Point

Key = tuple["Point", str, str]
"""A point, "compared" or "variables", and a name."""

LONGEST_EPOCHS_S = 60.0
"""The time limit (s) of the epochs of an execution."""

# a loop without epochs() is interrupted when it is left
_ENDED = (Status.COMPLETED, Status.DIVERGED, Status.INTERRUPTED)
_LONGEST_S = 300.0  # the time limit of an execution with its start and data (s)
_MOST_NAMED = 4
_COMMIT_EVERY = 3  # number of batches between two checkpoints inside an epoch
_KILLED_STEP = 5  # the step whose process is killed, two steps after a checkpoint


@dataclass
class Trace:
    """What the processes of one execution have written.

    Attributes:
        digests: Key -> a list with the digest of each rank; of variables, with what to do if they were not
            restored.
        facts: How the execution ended; "status" is missing if its process was killed.
    """

    digests: "dict[Key, Any]" = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def points(self) -> "list[Point]":
        """The points in the order of the execution."""
        return [*dict.fromkeys(point for point, _, _ in self.digests)]

    def differing(self, other: "Trace") -> "list[Key]":
        """Return the keys of the digests that differ, in the order of the execution."""
        return [key for key, digest in self.digests.items() if other.digests.get(key, digest) != digest]


@dataclass(frozen=True)
class ResumeTask(CheckTask):
    """Checks that one run resumes, in fresh processes and a temporary folder.

    The outcome is "completed" or "failed"; in both cases its error is a sentence, or "". Under torchrun, each
    rank executes its part of the run in a fresh process, and all ranks have the same outcome.
    """

    functions: "Functions | None" = None  # what saves and loads the state, None for checkpoint=

    done = "killed after and inside an epoch, they resume with the same state, inputs and metrics"
    num_executions = 5

    def __call__(self, run: Run, report: Report) -> Outcome:
        """Execute the run twice undisturbed, and once with kills; compare the executions."""
        sent = serialize.dump((self.task, run))
        with self.temporary_folder() as folder:
            problem, note = compare_executions(partial(self._execute, sent, Path(folder), report))
        return Outcome(Status.FAILED if problem else Status.COMPLETED, problem or note)

    def _execute(
        self,
        sent: bytes,
        folder: Path,
        report: Report,
        seed: int = 0,
        kill_at: "Point | None" = None,
        every: int = _COMMIT_EVERY,
    ) -> Trace:
        """Execute the run in a fresh process; unless `seed` is 0, continue what is in the folder."""
        from runmanager.checks import observed_run

        path = folder / f"{seed}.jsonl"
        experiments = ranks.from_main(lambda: folder) / "runs"  # one path, as programs keep paths of files
        if seed == 0 and ranks.is_main():
            shutil.rmtree(experiments, ignore_errors=True)
        observer = observed_run.Observer(
            experiments / self.task.experiment.path.name, path, seed, kill_at, every, LONGEST_EPOCHS_S,
            multiprocessing.get_start_method(), {**os.environ, **ranks.environment_of_new_group()},
            self.functions,
        )  # fmt: skip
        observer.experiment.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        process = fresh_process(observed_run.execute_observed, sent, serialize.dump(observer))
        try:
            process.join(_LONGEST_S)
        finally:
            is_late = process.is_alive()
            process.kill()
            process.join()
        trace = _read(path)
        if is_late:
            trace.facts["is_late"] = True
        report(BatchProgress(1, 0))
        return _of_all_ranks(ranks.gather(trace))


def _read(path: Path) -> Trace:
    trace = Trace()
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            content = json.loads(line)
        except ValueError:  # the end of the process cut the line
            continue
        if "point" not in content:
            trace.facts |= content
            continue
        point = tuple(content["point"])
        for group in ("compared", "variables"):
            trace.digests |= {(point, group, name): digest for name, digest in content[group].items()}
    output = path.with_suffix(".txt")
    if not trace.facts and output.exists():
        lines = output.read_text(encoding="utf-8", errors="replace").split("\n")
        trace.facts["error"] = next(filter(None, map(str.strip, reversed(lines))), "")
    return trace


def _of_all_ranks(traces: Sequence[Trace]) -> Trace:
    """Return a trace with the digests of all ranks, and with the facts of a rank that failed."""
    ends = ("error", "is_late")
    first = next((trace for trace in traces if any(map(trace.facts.get, ends))), traces[0])
    first.digests = {
        key: [trace.digests[key] for trace in traces]
        for key in first.digests
        if all(key in trace.digests for trace in traces)
    }
    return first


def compare_executions(execute: Callable[..., Trace]) -> tuple[str, str]:
    """Return the first difference of a resumed execution, or "", and a sentence about what does not repeat."""
    first = execute()
    if problem := _problem_of(first):
        return problem, ""
    again = execute()
    if first.points != again.points:
        rule = "two executions have different numbers of batches, so that a resumed run cannot be compared"
        return f"{rule}: draw this number from a seeded generator", ""
    noisy = {name for _, _, name in first.differing(again)}
    last = first.points[-1][1]
    steps = [point for point in first.points if point[0] in ("step", "tracked") and point[1] == last]
    kills = [("begin", 2, 0)] if last > 1 else []
    kills += steps[:_KILLED_STEP][-1:]
    # an epoch of few batches has a checkpoint before its kill too
    every = _COMMIT_EVERY if len(steps) > _COMMIT_EVERY else 1
    resumed = [execute(seed, point, every) for seed, point in enumerate([*kills, None])][1:]
    if any(_difference(first, trace, noisy) for trace in resumed):
        # two executions may be equal by chance, so a third one confirms the difference
        noisy |= {name for _, _, name in first.differing(execute())}
    problems = [_difference(first, trace, noisy) for trace in resumed]
    return next(filter(None, problems), ""), _note(first, again)


def _problem_of(trace: Trace) -> str:
    """Return the reason why a run cannot be checked, "" if it can."""
    if trace.facts.get("is_late"):
        rule = "its epochs did not end in time, so it cannot be stopped after a few steps"
        return f"{rule}: take the batches from manager.batches(), or check it with less data"
    if trace.facts.get("status") not in _ENDED:
        return trace.facts.get("error") or "its process died"
    if not trace.digests:
        return "it has no epoch, so there is nothing to resume: write `for epoch in manager.epochs(n):`"
    if not any(kind == "end" for kind, _, _ in trace.points):
        rule = "its loop calls next() for more batches than the check gives"
        return f"{rule}, so that it cannot be shortened: write `for batch in manager.batches():`"
    if not trace.facts["is_saved"]:
        step = "write manager.epochs(n, checkpoint={'network': network, 'optimizer': optimizer})"
        return f"it saves no checkpoint, so a killed run starts over: {step}"
    return ""


def _note(first: Trace, again: Trace) -> str:
    """Return a sentence about what does not repeat by itself, or ""."""
    keys = first.differing(again)
    compared, variables = ([key for key in keys if key[1] == group] for group in ("compared", "variables"))
    if not compared:
        return ""
    device = first.facts["device"]
    note = f"not repeatable by itself on {device} {_from(compared[0][0])}: {_first_names(compared)}"
    if variables:
        return f"{note}; other values too: {_first_names(variables)}"
    advice = "; torch.use_deterministic_algorithms(True) lets most operations repeat"
    return note + (advice if device != "cpu" else "")


def _first_names(keys: "Sequence[Key]") -> str:
    return listed([name for point, _, name in keys if point == keys[0][0]], _MOST_NAMED)


def _difference(first: Trace, resumed: Trace, noisy: set[str]) -> str:
    """Return a sentence about the first difference of a resumed execution and its causes, or ""."""
    if not resumed.digests or resumed.facts.get("status", Status.COMPLETED) not in _ENDED:
        return f"killed and started again, it fails: {resumed.facts.get('error') or 'its process died'}"
    keys = [key for key in first.differing(resumed) if key[2] not in noisy]
    # the state may be restored later than at the beginning, with the first batch
    compared = [key for key in keys if key[1] == "compared" and key[0][0] != "begin"]
    if not compared:
        return ""
    position = next((point for point in resumed.points if point[0] == "step"), resumed.points[0])
    _, epoch, step = position
    when = f"after step {step - 1} of epoch {epoch}" if step > 1 else f"after epoch {epoch - 1}"
    fact = f"killed and resumed {when}, it differs {_from(compared[0][0])} in {_first_names(compared)}"
    causes: dict[str, list[str]] = {}
    for key in keys:
        *group, name = key
        root = name.partition(".")[0]
        if group == [position, "variables"] and (name == root or (*group, root) not in keys):
            causes.setdefault(first.digests[key][0][1], []).append(name)
    if not causes:
        rule = "gradients, files and what pickle cannot store are not compared"
        return f"{fact}; the cause was not found: {rule}"
    texts = [f"{listed(names, _MOST_NAMED)}: {rule}" for rule, names in causes.items()]
    return f"{fact}; not restored: {'; '.join(texts)}"


def _from(point: "Point") -> str:
    kind, epoch, step = point
    if kind in ("begin", "end"):
        return f"at the {kind} of epoch {epoch}"
    return f"from step {step} of epoch {epoch} on"
