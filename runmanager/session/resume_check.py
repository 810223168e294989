"""The check that runs resume: executions that are killed are compared with undisturbed ones."""

import json
import multiprocessing
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.devices import ranks
from runmanager.executors import Report, serialize
from runmanager.executors.lanes import fresh_process
from runmanager.executors.process_start import without_main
from runmanager.outcome import BatchProgress, Outcome, Status
from runmanager.run import Run
from runmanager.session.check import temporary_folder
from runmanager.session.task import RunTask
from runmanager.wording import listed

if TYPE_CHECKING:
    from runmanager.session.observed_run import Functions, Point

NUM_EXECUTIONS = 5
"""The maximum number of executions of a setting without a problem."""

DONE = "killed after and inside an epoch, they resume with the same state, inputs and metrics"
"""What a check without a problem has found."""

# a loop without epochs() is interrupted when it is left
_ENDED = (Status.COMPLETED, Status.DIVERGED, Status.INTERRUPTED)
LONGEST_EPOCHS_S = 60.0
"""The time limit (s) of the epochs of an execution."""

_LONGEST_S = 300.0  # the time limit of an execution with its start and data (s)
_MOST_NAMED = 4
_COMMIT_EVERY = 3  # number of batches between two checkpoints inside an epoch
_KILLED_STEP = 5  # the step whose process is killed, two steps after a checkpoint
_BY_FUNCTIONS = "write it in save= and read it in load="
_BY_TRAINER = "let the trainer's checkpoint keep it, as by state_dict() and load_state_dict() of a callback"
_ROOT = re.compile(r"\w+|checkpoint\['.*?'\]")


@dataclass(frozen=True)
class ResumeTask:
    """Checks that one run resumes, in fresh processes and a temporary folder.

    The outcome is "completed" or "failed"; in both cases its error is a sentence, or "". Under torchrun, each
    rank executes its part of the run in a fresh process, and all ranks have the same outcome.
    """

    task: RunTask  # the grid's task
    functions: "Functions | None"  # what saves and loads the state, None for checkpoint=
    folder: str  # parent of the temporary folders on this machine

    def __call__(self, run: Run, report: Report) -> Outcome:
        """Execute the run twice undisturbed, and once with kills; compare the executions."""
        with temporary_folder(self.folder if Path(self.folder).is_dir() else None) as folder:
            sent, name = serialize.dump((self.task, run)), self.task.experiment.path.name
            experiment = Path(ranks.broadcast(folder))  # of rank 0
            executions = _Executions(sent, Path(folder), experiment, name, self.functions, report)
            first = executions.execute("first")
            problem = _of_all_ranks(_problem_of(first))
            if problem:
                return Outcome(Status.FAILED, problem)
            rule = _BY_FUNCTIONS if self.functions else _BY_TRAINER if first.is_trainers else ""
            comparison = ResumeComparison(first, rule)
            problem = _of_all_ranks(comparison.add(executions.execute("again")))
            # an epoch of few batches has a checkpoint before its kill too
            every = 1 if first.num_steps.get(1, 0) <= _COMMIT_EVERY else _COMMIT_EVERY
            for seed, point in enumerate([*ranks.broadcast(_kills(first)), None]):
                resumed = Trace() if problem else executions.execute("killed", seed, point, every)
                if seed and not problem and _of_all_ranks(comparison.problem_of(resumed)):
                    # two executions may be equal by chance, so a third one confirms the difference
                    problem = comparison.add(executions.execute("third")) or comparison.problem_of(resumed)
                    problem = _of_all_ranks(problem)
            note = _of_all_ranks(comparison.note)
        return Outcome(Status.FAILED if problem else Status.COMPLETED, problem or note)


@dataclass
class Trace:
    """What one execution has written: digests at its points, in order, and its end."""

    points: "dict[Point, dict[str, Any]]" = field(default_factory=dict)
    is_saved: bool = False
    is_trainers: bool = False  # whether a trainer saves and loads
    device: str = "cpu"
    is_late: bool = False
    status: str = ""  # "" if the process was killed
    error: str = ""

    @classmethod
    def read(cls, path: Path) -> "Trace":
        """Read the trace of an ended process."""
        trace = cls()
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            try:
                content = json.loads(line)
            except ValueError:  # the end of the process cut the line
                continue
            if "point" in content:
                trace.points[tuple(content["point"])] = content
            else:
                for name, value in content.items():
                    setattr(trace, name, value)
        if not trace.status and not trace.points:
            output = path.with_suffix(".txt")
            lines = output.read_text(encoding="utf-8", errors="replace").split("\n") if output.exists() else []
            trace.error = next(filter(None, map(str.strip, reversed(lines))), "")
        return trace

    @property
    def num_steps(self) -> dict[int, int]:
        """Epoch -> number of its steps."""
        return {epoch: step for kind, epoch, step in self.points if kind not in ("begin", "end")}


@dataclass
class _Executions:
    """Starts a fresh process for each execution of a run."""

    sent: bytes
    folder: Path  # for the traces
    experiments: Path  # for the temporary experiments, the same of all ranks
    name: str  # of the experiment
    functions: "Functions | None"
    report: Report

    def execute(
        self, folder: str, seed: int = 0, kill_at: "Point | None" = None, commit_every: int = _COMMIT_EVERY
    ) -> Trace:
        """Execute the run in a fresh process, which continues what it finds in the folder."""
        from runmanager.session import observed_run

        trace = self.folder / f"{folder}-{seed}.jsonl"
        experiments = self.experiments / "runs"  # one path, as programs keep the paths of their files
        if seed == 0 and ranks.is_main():
            shutil.rmtree(experiments, ignore_errors=True)
        order = observed_run.Order(
            experiments / self.name, trace, seed, kill_at, commit_every, LONGEST_EPOCHS_S,
            multiprocessing.get_start_method(), {**os.environ, **ranks.environment_of_new_group()},
            self.functions,
        )  # fmt: skip
        order.experiment.mkdir(parents=True, exist_ok=True)
        process = fresh_process(observed_run.execute_observed, self.sent, serialize.dump(order))
        with without_main():
            process.start()
        try:
            process.join(_LONGEST_S)
        finally:
            is_late = process.is_alive()
            process.kill()
            process.join()
        result = Trace.read(trace)
        result.is_late |= is_late
        self.report(BatchProgress(1, 0))
        return result


def _of_all_ranks(problem: str) -> str:
    """Return the sentence of this process, or the sentences of all ranks with their numbers if they differ."""
    problems = ranks.gather(problem)
    if len({*problems}) == 1:
        return problem
    return "; ".join(f"rank {rank}: {of_rank}" for rank, of_rank in enumerate(problems) if of_rank)


def _problem_of(trace: Trace) -> str:
    """Return the reason why a run cannot be checked, "" if it can."""
    if trace.is_late:
        rule = "its epochs did not end in time, so it cannot be stopped after a few steps"
        return f"{rule}: take the batches from manager.batches(), or check it with less data"
    if trace.status not in _ENDED:
        return trace.error or "its process died"
    if not trace.points:
        return "it has no epoch, so there is nothing to resume: write `for epoch in manager.epochs(n):`"
    if not any(kind == "end" for kind, _, _ in trace.points):
        rule = "its loop calls next() for more batches than the check gives"
        return f"{rule}, so that it cannot be shortened: write `for batch in manager.batches():`"
    if not trace.is_saved:
        return (
            "it saves no checkpoint, so a killed run starts over: "
            "write manager.epochs(n, checkpoint={'network': network, 'optimizer': optimizer})"
        )
    return ""


def _kills(trace: Trace) -> "list[Point]":
    """Return the points at which executions are killed: after the first epoch, and inside the last one."""
    last = max(epoch for _, epoch, _ in trace.points)
    steps = [point for point in trace.points if point[0] in ("step", "tracked") and point[1] == last]
    inside = steps[:_KILLED_STEP][-1:]
    return [("begin", 2, 0), *inside] if last > 1 else inside


class ResumeComparison:
    """Compares resumed executions with an undisturbed one, in all that repeats in further undisturbed ones."""

    def __init__(self, first: Trace, rule: str = "") -> None:
        self._first = first
        self._rule = rule  # what to do in a loop without checkpoint=
        self._unrepeatable: tuple[Point, list[str], Trace] | None = None  # the first difference by itself
        self._noisy: set[str] = set()

    def add(self, again: Trace) -> str:
        """Add a further undisturbed execution; return the reason why nothing can be compared, or ""."""
        if self._first.num_steps != again.num_steps:
            numbers = " and ".join(str(trace.num_steps.get(1, 0)) for trace in (self._first, again))
            return (
                f"two executions have different numbers of batches ({numbers} in epoch 1), "
                "so that a resumed run cannot be compared: draw this number from a seeded generator"
            )
        for point, names in _differences(self._first, again):
            self._unrepeatable = self._unrepeatable or (point, names, again)
            self._noisy |= {*names}
        self._noisy |= {
            path for point in self._first.points for path in _differing_paths(self._first, again, point)
        }
        return ""

    @property
    def note(self) -> str:
        """A sentence about what does not repeat by itself and about what was not seen, or ""."""
        notes = []
        if self._unrepeatable:
            point, names, again = self._unrepeatable
            where = f"{self._first.device} {_from(point)}"
            notes.append(f"not repeatable by itself on {where}: {listed(names, _MOST_NAMED)}")
            here = self._first.points[point]
            paths = _differing_paths(self._first, again, point)
            if causes := [
                _named(path, here) for path in paths if not here["leaves"].get(path, ("", "", ""))[2]
            ]:
                notes.append(f"other values too: {listed(causes, _MOST_NAMED)}")
            elif self._first.device != "cpu":
                notes.append("torch.use_deterministic_algorithms(True) lets most operations repeat")
        if hidden := self._hidden():
            notes.append(f"not checked: {hidden}")
        return "; ".join(notes)

    def problem_of(self, resumed: Trace) -> str:
        """Return a sentence about the first difference of a resumed execution and its causes, or ""."""
        if not resumed.points or resumed.status not in ("", *_ENDED):
            return f"killed and started again, it fails: {resumed.error or 'its process died'}"
        begin, *_ = resumed.points
        position = next((point for point in resumed.points if point[0] == "step"), begin)
        _, epoch, step = position
        when = f"after step {step - 1} of epoch {epoch}" if step > 1 else f"after epoch {epoch - 1}"
        for point, names in _differences(self._first, resumed):
            if point[0] == "begin":  # the state may be restored later, with the first batch
                continue
            if differing := [name for name in names if name not in self._noisy]:
                fact = (
                    f"killed and resumed {when}, it differs {_from(point)} in {listed(differing, _MOST_NAMED)}"
                )
                return f"{fact}; {self._causes(resumed, [position, begin])}"
        return ""

    def _causes(self, resumed: Trace, points: "Sequence[Point]") -> str:
        """Return a sentence that names what was not restored."""
        gradients: list[str] = []
        for point in points:
            here = self._first.points[point]
            paths = [path for path in _differing_paths(self._first, resumed, point) if path not in self._noisy]
            gradients += [path for path in paths if path.endswith(".grad")]
            paths = [path for path in paths if path not in gradients]
            if self._rule and paths:
                # functions save variables, a trainer's checkpoint has attributes
                names = [*dict.fromkeys(map(_root, paths))] if self._rule == _BY_FUNCTIONS else paths
                which = listed([_named(name, here) for name in names], _MOST_NAMED)
                return f"not restored: {which}: {self._rule}"
            causes = _advice(paths, here)
            causes = causes or [
                f"{_named(name, here)}, whose worker processes keep state: write persistent_workers=False"
                for name in here["workers"]
            ]
            causes = causes or [
                f"{_named(name, here)}, an iterator that begins again: loop over manager.batches(), or "
                "count the items that were used"
                for name in here["iterators"]
            ]
            if causes:
                return f"not restored: {'; '.join(causes[:_MOST_NAMED])}"
        for path in gradients[:1]:
            network = _named(_root(path), self._first.points[points[0]])
            return f"not restored: the gradients of {network}: make the optimizer's step before the epoch ends"
        return f"the cause was not found; not checked: {self._hidden() or 'the state of libraries'}"

    def _hidden(self) -> str:
        points = self._first.points.values()
        hidden = {path: f"{path} ({kind})" for here in points for path, kind in here["hidden"].items()}
        return listed(hidden.values(), _MOST_NAMED) if hidden else ""


def _differences(one: Trace, other: Trace) -> "Iterator[tuple[Point, list[str]]]":
    """Yield the points of both executions where something differs, with the names of what differs."""
    for point in [point for point in one.points if point in other.points]:
        here, there = one.points[point]["compared"], other.points[point]["compared"]
        if names := [name for name in {**here, **there} if here.get(name) != there.get(name)]:
            yield point, names


def _differing_paths(one: Trace, other: Trace, point: "Point") -> list[str]:
    """Return the paths whose values differ, of the variables that both executions have.

    A variable that one execution lacks is assigned before it is read.
    """
    if point not in other.points:
        return []
    here, there = one.points[point], other.points[point]
    leaves = {**there["leaves"], **here["leaves"]}
    shared = [path for path in leaves if {_root(path)} <= here["lines"].keys() & there["lines"].keys()]
    return [path for path in shared if here["leaves"].get(path) != there["leaves"].get(path)]


def _advice(paths: Sequence[str], here: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each object that was not restored, with the place for it; possible parts first."""
    parts: dict[str, str] = {}
    others: dict[tuple[str, str], list[str]] = {}  # root and rule -> paths
    for path in [path for path in paths if "." not in path or path.rpartition(".")[2] not in paths]:
        _, kind, part = here["leaves"].get(path, ("", "", ""))
        owner = next((name for name in here["stateful"] if _is_in(path, name)), "")
        if owner:
            parts[owner] = f"{_named(owner, here)}: write checkpoint={{..., {owner!r}: {owner}}}"
            continue
        rule = "keep it in a dict, or an object with state_dict(), of checkpoint="
        if part:
            rule = f"return it in the state_dict() of checkpoint[{part!r}]"
        elif kind in ("Generator", "RandomState", "Random"):
            rule = (
                "give checkpoint= an object whose state_dict() has its state, or draw from the global generator"
            )
        others.setdefault((_root(path), rule), []).append(path.partition("[")[0])
    sentences = [
        f"{_named(paths[0], here, listed(dict.fromkeys(paths), _MOST_NAMED))}: {rule}"
        for (_, rule), paths in others.items()
    ]
    return [*parts.values(), *sentences]


def _is_in(path: str, owner: str) -> bool:
    return path == owner or path.startswith((f"{owner}.", f"{owner}["))


def _named(path: str, here: Mapping[str, Any], words: str = "") -> str:
    line = here["lines"].get(_root(path)) or here["lines"].get(f".{path.partition('.')[2].partition('.')[0]}")
    return f"{words or path} ({line})" if line else words or path


def _root(path: str) -> str:
    match = _ROOT.match(path)
    return match[0] if match else path


def _from(point: "Point") -> str:
    kind, epoch, step = point
    return (
        f"at the {kind} of epoch {epoch}"
        if kind in ("begin", "end")
        else f"from step {step} of epoch {epoch} on"
    )
