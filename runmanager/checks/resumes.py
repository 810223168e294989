"""The check that runs resume: executions that are killed are compared with undisturbed ones."""

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
        points: Point -> "compared" and "variables", each name -> digests on all ranks; "rules", variable ->
            what to do if it was not restored; "hidden", variables without a digest.
        facts: How the execution ended; "status" is missing if its process was killed.
    """

    points: "dict[Point, dict[str, Any]]" = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


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
            experiments = (
                Path(ranks.from_main(lambda: folder)) / "runs"
            )  # one path, as programs keep paths of files

            def execute(seed: int = 0, kill_at: "Point | None" = None, every: int = _COMMIT_EVERY) -> Trace:
                if seed == 0 and ranks.is_main():
                    shutil.rmtree(experiments, ignore_errors=True)
                path = Path(folder) / f"{seed}.jsonl"
                path.unlink(missing_ok=True)
                trace = self._execute(sent, experiments, path, seed, kill_at, every)
                report(BatchProgress(1, 0))
                return _of_all_ranks(ranks.gather(trace))

            problem, note = compare_executions(execute)
        return Outcome(Status.FAILED if problem else Status.COMPLETED, problem or note)

    def _execute(
        self, sent: bytes, experiments: Path, path: Path, seed: int, kill_at: "Point | None", every: int
    ) -> Trace:
        """Execute the run in a fresh process, which continues what it finds in the folder."""
        from runmanager.checks import observed_run

        order = observed_run.Order(
            experiments / self.task.experiment.path.name, path, seed, kill_at, every, LONGEST_EPOCHS_S,
            multiprocessing.get_start_method(), {**os.environ, **ranks.environment_of_new_group()},
            self.functions,
        )  # fmt: skip
        order.experiment.mkdir(parents=True, exist_ok=True)
        process = fresh_process(observed_run.execute_observed, sent, serialize.dump(order))
        try:
            process.join(_LONGEST_S)
        finally:
            is_late = process.is_alive()
            process.kill()
            process.join()
        trace = _read(path)
        trace.facts |= {"is_late": True} if is_late else {}
        return trace


def _read(path: Path) -> Trace:
    trace = Trace()
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            content = json.loads(line)
        except ValueError:  # the end of the process cut the line
            continue
        if "point" in content:
            trace.points[tuple(content.pop("point"))] = content
        else:
            trace.facts |= content
    output = path.with_suffix(".txt")
    if not trace.facts and output.exists():
        lines = output.read_text(encoding="utf-8", errors="replace").split("\n")
        trace.facts["error"] = next(filter(None, map(str.strip, reversed(lines))), "")
    return trace


def _of_all_ranks(traces: Sequence[Trace]) -> Trace:
    """Return one trace, in which each digest is a list with the digest of each rank."""
    ends = ("error", "is_late")
    first = next((trace for trace in traces if any(map(trace.facts.get, ends))), traces[0])
    for point in [*first.points]:
        if not all(point in trace.points for trace in traces):
            del first.points[point]
            continue
        for group in ("compared", "variables"):
            digests = [trace.points[point][group] for trace in traces]
            first.points[point][group] = {name: [each.get(name) for each in digests] for name in digests[0]}
    return first


def compare_executions(execute: Callable[..., Trace]) -> tuple[str, str]:
    """Return the first difference of a resumed execution, or "", and a sentence about what does not repeat."""
    first = execute()
    if problem := _problem_of(first):
        return problem, ""
    again = execute()
    if first.points.keys() != again.points.keys():
        rule = "two executions have different numbers of batches, so that a resumed run cannot be compared"
        return f"{rule}: draw this number from a seeded generator", ""
    noisy = _differing_anywhere(first, again)
    last = max(epoch for _, epoch, _ in first.points)
    steps = [point for point in first.points if point[0] in ("step", "tracked") and point[1] == last]
    kills = [("begin", 2, 0)] if last > 1 else []
    kills += steps[:_KILLED_STEP][-1:]
    # an epoch of few batches has a checkpoint before its kill too
    every = _COMMIT_EVERY if len(steps) > _COMMIT_EVERY else 1
    resumed = [execute(seed, point, every) for seed, point in enumerate([*kills, None])][1:]
    if any(_difference(first, trace, noisy) for trace in resumed):
        # two executions may be equal by chance, so a third one confirms the difference
        noisy |= _differing_anywhere(first, execute())
    problems = [_difference(first, trace, noisy) for trace in resumed]
    return next(filter(None, problems), ""), _note(first, again)


def _problem_of(trace: Trace) -> str:
    """Return the reason why a run cannot be checked, "" if it can."""
    if trace.facts.get("is_late"):
        rule = "its epochs did not end in time, so it cannot be stopped after a few steps"
        return f"{rule}: take the batches from manager.batches(), or check it with less data"
    if trace.facts.get("status") not in _ENDED:
        return trace.facts.get("error") or "its process died"
    if not trace.points:
        return "it has no epoch, so there is nothing to resume: write `for epoch in manager.epochs(n):`"
    if not any(kind == "end" for kind, _, _ in trace.points):
        rule = "its loop calls next() for more batches than the check gives"
        return f"{rule}, so that it cannot be shortened: write `for batch in manager.batches():`"
    if not trace.facts.get("is_saved"):
        step = "write manager.epochs(n, checkpoint={'network': network, 'optimizer': optimizer})"
        return f"it saves no checkpoint, so a killed run starts over: {step}"
    return ""


def _differing(one: Trace, other: Trace, point: "Point", group: str) -> list[str]:
    """Return the names that both executions have at a point with different digests."""
    if point not in other.points:
        return []
    here, there = one.points[point][group], other.points[point][group]
    return [name for name in here if name in there and here[name] != there[name]]


def _differing_anywhere(one: Trace, other: Trace) -> set[str]:
    groups = ("compared", "variables")
    return {name for point in one.points for group in groups for name in _differing(one, other, point, group)}


def _note(first: Trace, again: Trace) -> str:
    """Return a sentence about what does not repeat by itself, or ""."""
    for point in first.points:
        if names := _differing(first, again, point, "compared"):
            variables = (_differing(first, again, other, "variables") for other in first.points)
            causes = next(filter(None, variables), [])
            device = first.facts["device"]
            note = f"not repeatable by itself on {device} {_from(point)}: {listed(names, _MOST_NAMED)}"
            if causes:
                return f"{note}; other values too: {listed(causes, _MOST_NAMED)}"
            advice = "; torch.use_deterministic_algorithms(True) lets most operations repeat"
            return note + (advice if device != "cpu" else "")
    return ""


def _difference(first: Trace, resumed: Trace, noisy: set[str]) -> str:
    """Return a sentence about the first difference of a resumed execution and its causes, or ""."""
    if not resumed.points or resumed.facts.get("status", Status.COMPLETED) not in _ENDED:
        return f"killed and started again, it fails: {resumed.facts.get('error') or 'its process died'}"
    begin, *_ = resumed.points
    position = next((point for point in resumed.points if point[0] == "step"), begin)
    _, epoch, step = position
    when = f"after step {step - 1} of epoch {epoch}" if step > 1 else f"after epoch {epoch - 1}"
    for point in first.points:
        names = [name for name in _differing(first, resumed, point, "compared") if name not in noisy]
        if names and point[0] != "begin":  # the state may be restored later, with the first batch
            fact = f"killed and resumed {when}, it differs {_from(point)} in {listed(names, _MOST_NAMED)}"
            return f"{fact}; {_causes(first, resumed, (position, begin), noisy)}"
    return ""


def _causes(first: Trace, resumed: Trace, points: "Sequence[Point]", noisy: set[str]) -> str:
    """Return a sentence that names the variables that were not restored."""
    for point in points:
        names = {*_differing(first, resumed, point, "variables")} - noisy
        by_rule: dict[str, list[str]] = {}
        for name in [name for name in first.points.get(point, {"variables": ()})["variables"] if name in names]:
            root = name.partition(".")[0]
            if name == root or root not in names:
                by_rule.setdefault(first.points[point]["rules"][root], []).append(name)
        if by_rule:
            causes = [f"{listed(group, _MOST_NAMED)}: {rule}" for rule, group in by_rule.items()]
            return f"not restored: {'; '.join(causes)}"
    hidden = dict.fromkeys(name for point in first.points.values() for name in point["hidden"])
    return f"the cause was not found; gradients, files and these variables are not compared: {listed(hidden)}"


def _from(point: "Point") -> str:
    kind, epoch, step = point
    if kind in ("begin", "end"):
        return f"at the {kind} of epoch {epoch}"
    return f"from step {step} of epoch {epoch} on"
