"""The options of a grid, and the check of all its arguments."""

import inspect
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.core.contracts import Executor, Listener
from runmanager.core.experiment import Design, Experiment, check_experiment
from runmanager.core.files import for_people
from runmanager.core.goal import Goal, check_x_axis, parse_goal
from runmanager.core.grid import RunBuilder, mapping_of
from runmanager.core.run import Run, id_of
from runmanager.core.task import arguments_of
from runmanager.core.values import RESERVED, identity
from runmanager.core.wording import did_you_mean
from runmanager.devices import ranks
from runmanager.errors import Problems, StorageError, is_count
from runmanager.executors import EXECUTORS
from runmanager.executors.inline import InlineExecutor
from runmanager.search.decide import Decide, repeat_by_repeat, single_axis, with_repeats
from runmanager.search.halving import SuccessiveHalving
from runmanager.search.optuna_pruner import is_optuna_pruner
from runmanager.search.optuna_search import OptunaSearch
from runmanager.search.space import SearchSpace
from runmanager.tables.notes import check_note
from runmanager.tensorboard.event_options import TensorBoard

if TYPE_CHECKING:
    from optuna.pruners import BasePruner


_MOST_RUNS = 10_000  # maximum number of runs of a mapping, to detect a grid that is too large by accident


@dataclass(frozen=True, kw_only=True)
class GridOptions:
    """The options of `run_grid`; its signature has their defaults, and its docstring documents them."""

    experiment: str
    root: str | PathLike[str]
    executor: str | Executor | None
    jobs: int | str
    runs_per_device: int
    timeout: float | None
    retries: int
    max_seconds: float | None
    on_error: str
    tensorboard: bool | TensorBoard
    display: bool | None
    retry_failed: bool
    changed: str | None
    data: Any
    plan_only: bool
    check: bool | str
    prune: "SuccessiveHalving | BasePruner | None"
    decide: Decide | None
    search: OptunaSearch | None
    goal: str | Sequence[str] | None
    repeats: str | Sequence[str] | None
    note: str | None
    only: int | Sequence[int] | None
    report: bool | str | PathLike[str]
    listeners: Sequence[Listener]

    def check_values(self, problems: Problems) -> None:
        """Append errors about values, and about options that exclude each other."""
        problems.check_seconds("max_seconds", self.max_seconds)
        with problems.collecting():
            check_experiment(self.root, self.experiment)
        are_listeners = isinstance(self.listeners, list | tuple) and all(
            isinstance(each, Listener) and each.where in ("parent", "worker") for each in self.listeners
        )
        rules: Mapping[str, tuple[bool, str]] = {
            "retries": (is_count(self.retries), "a whole number, 0 or more"),
            "tensorboard": (
                isinstance(self.tensorboard, bool | TensorBoard),
                "True, False or TensorBoard(histogram_every=5)",
            ),
            "on_error": (self.on_error in ("continue", "stop"), "'continue' or 'stop'"),
            "check": (self.check in (True, False, "resume"), "True, False or 'resume'"),
            "changed": (self.changed in (None, "rerun", "keep"), "'rerun', 'keep' or None"),
            "report": (
                isinstance(self.report, bool | str | PathLike), "True, False or a file to write"
            ),
            "listeners": (
                are_listeners,
                "a list of objects of a subclass of Listener, whose where is 'parent' or 'worker'",
            ),
            "prune": (
                isinstance(self.prune, SuccessiveHalving | None) or is_optuna_pruner(self.prune),
                "SuccessiveHalving(metric=...), a pruner of Optuna, or None to stop no run",
            ),
            "decide": (isinstance(self.decide, Decide | None), "Decide(...), or None to add no repeats"),
            "search": (
                isinstance(self.search, OptunaSearch | None), "OptunaSearch(n=...), or None to execute all runs"
            ),
        }  # fmt: skip
        for name, (is_valid, rule) in rules.items():
            if not is_valid:
                problems.append(f"{name} must be {rule}, got {getattr(self, name)!r:.60}")
        if isinstance(self.decide, Decide) and self.prune:
            problems.append("prune= stops runs early, and decide= compares whole runs: leave one out")
        if isinstance(self.search, OptunaSearch) and self.decide:
            problems.append("search= chooses runs, and decide= repeats all of them: leave one out")

    def make_executor(self, problems: Problems) -> Executor:
        """Return the executor, by default lanes; append errors to `problems`."""
        executor = self.executor or "lanes"
        if self.only is not None:
            return InlineExecutor()
        if ranks.num_ranks() > 1 and not (executor == "inline" or isinstance(executor, InlineExecutor)):
            problems.append(
                "RANK and WORLD_SIZE are set, as by torchrun, where each rank executes the runs itself: write "
                "executor='inline', or unset them"
            )
        kind: type[Executor] = InlineExecutor
        if isinstance(executor, Executor):
            if (self.jobs, self.runs_per_device, self.timeout) != (1, 1, None):
                problems.append(
                    "jobs, runs_per_device and timeout belong to the executor object: "
                    f"give them to {type(executor).__name__}()"
                )
            return executor
        with problems.collecting():
            if executor == "ray":
                from runmanager.executors.ray import RayExecutor

                kind = RayExecutor
            elif executor != "inline":
                from runmanager.executors.lanes import LanesExecutor

                problems.check_choice("executor", executor, EXECUTORS)
                kind = LanesExecutor
            return kind(jobs=self.jobs, runs_per_device=self.runs_per_device, timeout=self.timeout)
        return InlineExecutor()  # type: ignore[unreachable]  # the block collects a problem


def check_runs(params: Any, train: Any, options: GridOptions, problems: Problems) -> list[Run]:
    """Return the runs of a grid, with `decide` sorted by repeat; for a search, one sample run per device."""
    options.check_values(problems)
    decide, repeats = options.decide, options.repeats
    runs: list[Run] = []
    with problems.collecting():
        grid = mapping_of(params)
        if isinstance(decide, Decide) and not options.search:
            grid = with_repeats(grid, repeats, decide, problems)
        if options.search:
            runs = SearchSpace(params).samples()
        elif grid is not None:
            runs = RunBuilder.get_runs(grid, max_runs=_MOST_RUNS)
        elif (
            isinstance(params, Iterable)
            and (rows := list(params))
            and all(isinstance(row, Run) for row in rows)
        ):
            runs = rows
        else:
            problems.append(
                f"a grid is a mapping of axes, or runs from RunBuilder.get_runs(), got {params!r:.60}: write "
                "{'lr': [0.1, 0.01]}, or RunBuilder.get_runs(a) + RunBuilder.get_runs(b) for several mappings"
            )
        if isinstance(decide, Decide) and not problems:
            runs = repeat_by_repeat(runs, single_axis(repeats), decide, problems)
    _check_call(train, runs, problems)
    ids: set[str] = set()
    for run in runs:
        if identity(run._asdict()) != id_of(run):
            rule = "has a value that was changed after the run was built: write run._replace(name=value)"
        elif id_of(run) in ids:
            rule = (
                "is in this grid twice: give every value of an axis, and every run, once, as runs_a + "
                "[run for run in runs_b if run not in runs_a]"
            )
        else:
            ids.add(id_of(run))
            continue
        problems.append(f"{run!r} {rule}")
        break
    return runs


def _check_call(train: Any, runs: Iterable[Run], problems: Problems) -> None:
    """Append an error if a training function cannot be called with these runs."""
    signature: Any = ""
    try:
        signature = inspect.signature(train)
        if [*signature.parameters][:1] == ["manager"]:
            problems.append("train is called as train(run, manager): exchange its first two parameters")
        for run in {run._fields: run for run in runs}.values():
            signature.bind(None, None, **arguments_of(train, run))
    except TypeError as error:
        problems.append(
            "train is called as train(run, manager), with values of axes by name, got "
            f"{getattr(train, '__name__', train)}{signature}: {error}; write def train(run, manager), with a "
            "default for each further parameter"
        )
    except ValueError:  # a builtin has no signature
        return


def open_experiment(
    options: GridOptions, runs: Iterable[Run], problems: Problems
) -> tuple[Experiment, Design, list[str]]:
    """Raise all problems of a grid; return its experiment and design, and sentences on what has changed."""
    names = list(dict.fromkeys(name for run in runs for name in run._fields))
    goals: list[Goal] = []
    repeats = note = x_axis = None
    if options.goal is not None:
        with problems.collecting():
            is_list = isinstance(options.goal, list | tuple) and options.goal
            goals = [parse_goal(goal) for goal in (options.goal if is_list else [options.goal])]
    metrics = {goal.metric for goal in goals}
    if len(metrics) < len(goals):
        problems.append(f"goal={options.goal!r} names a metric twice: write it once")
    for metric in metrics & (RESERVED - {"loss", "accuracy"} | {*names}):
        problems.append(
            f"goal={options.goal!r}, but {metric!r} is a hyperparameter or a column: name a tracked metric"
        )
    if options.repeats is not None:
        repeats = _repeats(options.repeats, names, problems)
    with problems.collecting():
        note = None if options.note is None else check_note(options.note)
        if isinstance(options.tensorboard, TensorBoard) and options.tensorboard.x_axis is not None:
            x_axis = check_x_axis(options.tensorboard.x_axis, names)
    problems.raise_if_any()
    of_options = Design(
        goal=goals[0] if goals else None, repeats=repeats, note=note, x_axis=x_axis,
        decide=options.decide.rule if options.decide else None,
        goals=None if not goals else () if len(goals) == 1 else tuple(goals),
    )  # fmt: skip
    path = (Path(options.root) / options.experiment).absolute()  # `train` may call chdir()
    if ranks.is_main() and not options.plan_only:
        try:
            tempfile.TemporaryFile(dir=next(filter(Path.exists, (path, *path.parents)))).close()
        except OSError as error:
            raise StorageError(
                f"{for_people(path)} cannot be written ({error.strerror}): give another root"
            ) from error
    experiment = Experiment(path)
    design, notes = experiment.design.updated(of_options)
    return experiment, design, notes


def _repeats(repeats: Any, names: Sequence[str], problems: Problems) -> tuple[str, ...]:
    """Return the names of the repeat axes from the option `repeats`, a sequence or a single name."""
    axes = [repeats] if isinstance(repeats, str) else repeats
    if not isinstance(axes, list | tuple) or not all(isinstance(name, str) for name in axes):
        problems.append(f"repeats must be the names of axes, as repeats=('seed',), got {repeats!r}")
        return ()
    for name in axes:
        if names and name not in names:
            problems.append(
                f"repeats={repeats!r}, but the grid has no axis {name!r}; {did_you_mean(name, names, 'it has')}"
            )
    return tuple(dict.fromkeys(axes))
