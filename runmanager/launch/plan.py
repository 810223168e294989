"""What a grid will do with its runs, found out before anything is started."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runmanager.errors import DeviceError, GridError
from runmanager.grid import Run, RunBuilder, device_of
from runmanager.hyperparameters import counted, identity
from runmanager.outcome import Status
from runmanager.storage import paths
from runmanager.storage.fingerprint import Fingerprint, changes
from runmanager.storage.folders import RunFolder
from runmanager.storage.run_state import RunResult, read_run

ANEW = (
    "they are executed anew, their old attempts are kept; "
    "resume_anyway=True (--resume-anyway) keeps and continues them"
)
KEPT = "they are kept and continued, and marked as mixed"


@dataclass(frozen=True)
class Plan:
    """What a grid does with its runs.

    Attributes:
        runs: The runs of the grid.
        places: Where each of them lives.
        before: What was there of each of them.
        todo: The runs to execute.
        anew: id() of those that begin anew, because what they depend on has changed.
        failed: How many ended by a fault before and stay so.
        interrupted: How many were interrupted and go on after their last committed epoch, if they can.
        changed: What changed since runs were begun -> how many.
        policy: What is done about that.
        pruned: How many were stopped at a rung before, and are not to be continued now.
    """

    runs: Sequence[Run]
    places: Sequence[RunFolder]
    before: Sequence[RunResult]
    todo: Sequence[Run]
    anew: frozenset[int]
    failed: int
    interrupted: int
    changed: Mapping[str, int]
    policy: str
    pruned: int = 0

    @property
    def place_of(self) -> dict[int, RunFolder]:
        """id() of each run -> where it lives; made when asked for, as each rank has other id()s."""
        return {id(run): place for run, place in zip(self.runs, self.places, strict=True)}

    @property
    def costs(self) -> list[tuple[Mapping[str, Any], float]]:
        """Hyperparameters and duration (s) of the runs that were completed before."""
        return [
            (run.folder.params, run.epochs[-1].metrics["run duration"])
            for run in self.before
            if run.status is Status.COMPLETED and run.epochs
        ]

    @property
    def done(self) -> int:
        """How many runs are completed and stay so."""
        missing = sum(bool(place.unavailable) for place in self.places)
        return len(self.runs) - len(self.todo) - self.failed - self.pruned - missing


def make_plan(
    runs: Sequence[Run],
    places: Sequence[RunFolder],
    now: Fingerprint,
    *,
    retry_failed: bool,
    resume_anyway: bool,
) -> Plan:
    """Decide which runs are executed.

    Args:
        runs: Those of the grid.
        places: Where each of them lives.
        now: The code, data and versions of today.
        retry_failed: Execute runs again that ended by a fault.
        resume_anyway: Keep and continue runs that were begun with other code, data or versions.
    """
    before = [read_run(place) for place in places]
    todo: list[Run] = []
    anew: set[int] = set()
    interrupted = failed = 0
    changed: Counter[str] = Counter()
    for run, place, found in zip(runs, places, before, strict=True):
        if place.unavailable:
            continue
        differences = changes(found.start.get("fingerprint", {}), now)
        if differences:
            changed[", ".join(differences)] += 1
        is_failed = found.status.is_fault and not retry_failed
        if (differences and not resume_anyway) or not (found.status is Status.COMPLETED or is_failed):
            todo.append(run)
            anew |= {id(run)} if differences and not resume_anyway else set()
            interrupted += bool(found.epochs) and not differences
        else:
            failed += is_failed
    policy = KEPT if resume_anyway else ANEW
    return Plan(runs, places, before, todo, frozenset(anew), failed, interrupted, changed, policy)


def check(
    params: Mapping[Any, Any] | Sequence[Run],
    train: Any,
    experiment: str,
    max_runs: int,
    problems: Sequence[str],
) -> list[Run]:
    """Return the runs of a grid if it can be executed.

    Args:
        params: Axes or runs.
        train: Must be a function.
        experiment: Must be the name of a folder.
        max_runs: The most runs that are wanted.
        problems: What is wrong with the other arguments.

    Raises:
        GridError: Something is wrong; with all problems.
    """
    found = list(problems)
    if not callable(train):
        found.append(f"train must be a function of (run, manager), got {train!r}")
    runs: list[Run] = []
    for checked in (lambda: paths.check_experiment(experiment), lambda: runs.extend(_runs(params, max_runs))):
        try:
            checked()
        except GridError as error:
            found += error.problems
    if found:
        raise GridError(found)
    return runs


def missing_devices(runs: Iterable[Run], missing: Callable[[str], str], missing_device: str) -> dict[str, str]:
    """Return identity -> why it cannot be executed, of the runs whose device is not there.

    Args:
        runs: Those of the grid.
        missing: Device -> why it cannot be used, "" if it can.
        missing_device: "error" raises instead.

    Raises:
        DeviceError: A device is not there and `missing_device` is "error".
    """
    reasons: dict[str, str] = {}
    found: dict[str, str] = {}
    for run in runs:
        device = device_of(run)
        if device not in reasons:
            reasons[device] = missing(device)
        if reasons[device]:
            found[identity(run._asdict())] = reasons[device]
    if found and missing_device == "error":
        text = "; ".join(dict.fromkeys(found.values()))
        raise DeviceError(f"{text}: asked for by {counted(len(found), 'run')}; nothing was started")
    return found


def _runs(params: Mapping[Any, Any] | Sequence[Any], max_runs: int) -> list[Run]:
    if isinstance(params, Mapping):
        return RunBuilder.get_runs(params, max_runs=max_runs)
    runs = list(params)
    if not runs or not all(isinstance(run, Run) for run in runs):
        raise GridError(
            [f"a grid is a mapping of axes, or runs from RunBuilder.get_runs(), got {params!r:.60}"]
        )
    if len(runs) > max_runs:
        raise GridError([f"these are {len(runs):,} runs, the limit is {max_runs:,}: allow it with max_runs="])
    counts = Counter(identity(run._asdict()) for run in runs)
    twice = [run for run in runs if counts[identity(run._asdict())] > 1]
    if twice:
        rule = "stands in this grid twice: give every run once"
        raise GridError([f"{twice[0]!r} {rule}, as runs_a + [run for run in runs_b if run not in runs_a]"])
    return runs
