# ruff: noqa: RUF009 - _option() makes a field
"""The arguments of a grid: each option with its default, check and flag; the check of runs and design."""

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from runmanager.core.contracts import Executor, Listener
from runmanager.core.experiment import Design, check_experiment
from runmanager.core.goal import Goal, check_x_axis, parse_goal
from runmanager.core.grid import RunBuilder, mapping_of
from runmanager.core.run import Run, id_of
from runmanager.core.task import arguments_of
from runmanager.core.values import RESERVED, identity
from runmanager.core.wording import did_you_mean
from runmanager.devices import ranks
from runmanager.errors import GridError, Problems
from runmanager.executors import EXECUTORS
from runmanager.executors.inline import InlineExecutor
from runmanager.search.decide import Decide, repeat_by_repeat, single_axis, with_repeats
from runmanager.search.halving import SuccessiveHalving
from runmanager.search.optuna_pruner import is_optuna_pruner
from runmanager.search.optuna_search import OptunaSearch
from runmanager.search.space import SearchSpace
from runmanager.tables.notes import check_note
from runmanager.tensorboard.event_options import TensorBoard, check_tensorboard

if TYPE_CHECKING:
    from optuna.pruners import BasePruner


Check = Callable[[Problems, str, Any], object]
"""Checks an option's value: it gets the value and the option's name, and appends errors."""

_MOST_RUNS = 10_000  # maximum number of runs of a mapping, to detect a grid that is too large by accident

EXECUTION, AGAIN = "execution", "when it is started again"
"""The headings of --help."""


@dataclass(frozen=True)
class Flag:
    """The command-line flag of an option.

    Attributes:
        name: The name of the flag, such as ``--jobs``.
        help: A description in one line.
        default: The default that --help shows; None for a flag without a value.
        heading: The heading in --help under which the flag is listed.
        settings: Further arguments of argparse's ``add_argument``.
    """

    name: str
    help: str
    default: object
    heading: str
    settings: Mapping[str, Any]


def _option(
    default: Any,
    check: Check | None = None,
    *,
    flag: str = "",
    name: str = "",
    says: object = None,
    heading: str = EXECUTION,
    **settings: Any,
) -> Any:
    """Return a field of `GridOptions`."""
    how = settings or {"action": "store_const", "const": True}
    of_help = (default if says is None else says) if settings and settings.get("nargs") is None else None
    command_flag = Flag(name, flag, of_help, heading, how) if flag else None
    return field(default=default, metadata={"check": check, "flag": command_flag})


def _must_be(rule: str, is_valid: Callable[[Any], bool]) -> Check:
    def check(problems: Problems, name: str, value: Any) -> None:
        if not is_valid(value):
            problems.append(f"{name} must be {rule}, got {value!r:.60}")

    return check


def _check_listeners(problems: Problems, name: str, value: Any) -> None:
    if not (isinstance(value, list | tuple) and all(isinstance(each, Listener) for each in value)):
        problems.append(f"{name} must be a list of objects of a subclass of Listener, got {value!r:.60}")
        return
    for each in value:
        if each.where not in ("parent", "worker"):
            rule = f"{type(each).__name__}.where must be 'parent' or 'worker'"
            problems.append(f"{rule}, got {each.where!r:.60}")


_SECONDS: Mapping[str, Any] = {"type": float, "metavar": "S"}


def _jobs(word: str) -> int | str:
    return int(word) if word.lstrip("-").isdecimal() else word


@dataclass(frozen=True, kw_only=True)
class GridOptions:
    """The options of `run_grid`; its docstring documents them.

    The signature of `run_grid` repeats the names and defaults for editors; a test compares them.
    """

    experiment: str
    root: str | PathLike[str] = "runs"
    plan_only: bool = _option(False, flag="show which runs would be executed, and stop", name="--plan")
    jobs: int | str = _option(1, flag="runs at a time, or auto", type=_jobs, metavar="N")
    runs_per_device: int = _option(1, flag="runs that share an accelerator", type=int, metavar="N")
    executor: str | Executor | None = _option(
        None, flag="worker processes, this process, or a Ray cluster", says="lanes", choices=EXECUTORS
    )
    timeout: float | None = _option(
        None, flag="seconds without a batch, after which a run counts as hung", says="none", **_SECONDS
    )
    retries: int = _option(
        0,
        lambda problems, name, value: problems.check_count(name, value, 0),
        flag="further attempts of a run that was killed or hung",
        type=int,
        metavar="N",
    )
    max_seconds: float | None = _option(
        None,
        Problems.check_seconds,
        flag="seconds after which the grid stops, with exit code 75",
        says="none",
        **_SECONDS,
    )
    on_error: str = _option(
        "continue",
        lambda problems, name, value: problems.check_choice(name, value, ("continue", "stop")),
        flag="what the grid does when a run fails",
        choices=["continue", "stop"],
    )
    check: bool | str = _option(
        False,
        _must_be("True, False or 'resume'", lambda value: isinstance(value, bool) or value == "resume"),
        flag="try two steps of each setting; resume: whether it resumes",
        nargs="?",
        const=True,
        choices=["resume"],
    )
    only: int | Sequence[int] | None = _option(
        None,
        flag="execute only these runs, in this process, for a debugger",
        type=int,
        nargs="+",
        metavar="RUN",
    )
    tensorboard: bool | TensorBoard = _option(True, check_tensorboard)
    display: bool | None = None
    report: bool | str | PathLike[str] = _option(
        False,
        _must_be("True, False or a file to write", lambda value: isinstance(value, bool | str | os.PathLike)),
    )
    listeners: Sequence[Listener] = _option((), _check_listeners)
    prune: "SuccessiveHalving | BasePruner | None" = _option(
        None,
        _must_be(
            "SuccessiveHalving(metric=...), a pruner of Optuna, or None to stop no run",
            lambda value: isinstance(value, SuccessiveHalving | None) or is_optuna_pruner(value),
        ),
    )
    decide: Decide | None = _option(
        None,
        _must_be("Decide(...), or None to add no repeats", lambda value: isinstance(value, Decide | None)),
    )
    search: OptunaSearch | None = _option(
        None,
        _must_be(
            "OptunaSearch(n=...), or None to execute all runs",
            lambda value: isinstance(value, OptunaSearch | None),
        ),
    )
    goal: str | Sequence[str] | None = None
    repeats: str | Sequence[str] | None = None
    note: str | None = None
    data: Any = None
    retry_failed: bool = _option(False, flag="execute runs again that ended by a fault", heading=AGAIN)
    changed: str | None = _option(
        None,
        lambda problems, name, value: problems.check_choice(name, value, ("rerun", "keep")),
        flag="what to do with runs of other code, data or versions",
        says="rerun below ten minutes",
        heading=AGAIN,
        choices=["rerun", "keep"],
    )

    @classmethod
    def flags(cls) -> Iterator[tuple[str, Flag]]:
        """Yield the name and flag of each option with a flag, in the order of --help."""
        for option in fields(cls):
            if flag := option.metadata.get("flag"):
                yield option.name, replace(flag, name=flag.name or f"--{option.name.replace('_', '-')}")

    def check_values(self, problems: Problems) -> None:
        """Append errors about values, and about options that exclude each other."""
        for option in fields(self):
            value, check = getattr(self, option.name), option.metadata.get("check")
            if check and value is not option.default:
                check(problems, option.name, value)
        num_local = os.environ.get("LOCAL_WORLD_SIZE", "")
        if self.check == "resume" and num_local not in ("", os.environ.get("WORLD_SIZE")):
            problems.append(
                "check='resume' takes ranks of one machine: start the check with torchrun --nnodes=1"
            )
        if isinstance(self.decide, Decide) and self.prune:
            problems.append("prune= stops runs early, and decide= compares whole runs: leave one out")
        if isinstance(self.search, OptunaSearch) and self.decide:
            problems.append("search= chooses runs, and decide= repeats all of them: leave one out")

    def make_executor(self, problems: Problems) -> Executor:
        """Return the executor, by default lanes; append errors to `problems`."""
        executor = "lanes" if self.executor is None else self.executor
        if self.only is not None:
            return InlineExecutor()
        if ranks.num_ranks() > 1 and not (executor == "inline" or isinstance(executor, InlineExecutor)):
            problems.append(
                "RANK and WORLD_SIZE are set, as by torchrun, where each rank executes the runs itself: write "
                "executor='inline', or unset them"
            )
        if isinstance(executor, Executor):
            if (self.jobs, self.runs_per_device, self.timeout) != (1, 1, None):
                problems.append(
                    "jobs, runs_per_device and timeout belong to the executor object: "
                    f"give them to {type(executor).__name__}()"
                )
            return executor
        how: dict[str, Any] = {
            "jobs": self.jobs, "runs_per_device": self.runs_per_device, "timeout": self.timeout,
        }  # fmt: skip
        with problems.collecting():
            if executor == "inline":
                return InlineExecutor(**how)
            if executor == "lanes":
                from runmanager.executors.lanes import LanesExecutor

                return LanesExecutor(**how)
            if executor == "ray":
                from runmanager.executors.ray import RayExecutor

                return RayExecutor(**how)
            problems.check_choice("executor", executor, EXECUTORS)
        return InlineExecutor()


def check_runs(params: Any, train: Any, options: GridOptions, problems: Problems) -> list[Run]:
    """Return the runs of a grid, with `decide` sorted by repeat; for a search, one sample run per device."""
    options.check_values(problems)
    with problems.collecting():
        check_experiment(options.root, options.experiment)
    runs: list[Run] = []
    with problems.collecting():
        runs += _runs(params, options, problems)
    _check_call(train, runs, problems)
    ids: set[str] = set()
    for run in runs:
        if identity(run._asdict()) != id_of(run):
            rule = "was changed after the run was built: write run._replace(name=value)"
            problems.append(f"a value of {run!r} {rule}")
            break
        if id_of(run) in ids:
            rule = "is in this grid twice: give every value of an axis, and every run, once"
            step = "as runs_a + [run for run in runs_b if run not in runs_a]"
            problems.append(f"{run!r} {rule}, {step}")
            break
        ids.add(id_of(run))
    problems.raise_if_any()
    return runs


def _runs(params: Any, options: GridOptions, problems: Problems) -> list[Run]:
    """Build the runs from axes, or take those of a list."""
    decide, repeats, grid = options.decide, options.repeats, mapping_of(params)
    if options.search:
        if isinstance(params, Sequence):
            rule = "search= chooses runs itself"
            step = "give run_grid axes instead of runs, as {'lr': LogUniform(1e-5, 1e-1)}"
            raise GridError([f"{rule}: {step}"])
        return SearchSpace(params).samples()
    if isinstance(decide, Decide):
        grid = with_repeats(grid, repeats, decide, problems)
    if grid is not None:
        runs = RunBuilder.get_runs(grid, max_runs=_MOST_RUNS)
    else:
        runs = list(params) if isinstance(params, Iterable) else []
        if not runs or not all(isinstance(run, Run) for run in runs):
            rule = f"a grid is a mapping of axes, or runs from RunBuilder.get_runs(), got {params!r:.60}"
            step = "write {'lr': [0.1, 0.01]}, or RunBuilder.get_runs(a) + RunBuilder.get_runs(b)"
            raise GridError([f"{rule}: {step} for several mappings"])
    if isinstance(decide, Decide) and not problems:
        runs = repeat_by_repeat(runs, single_axis(repeats), decide, problems)
    return runs


def _check_call(train: Any, runs: Iterable[Run], problems: Problems) -> None:
    """Append an error if a training function cannot be called with these runs."""
    if not callable(train):
        problems.check_function("train", train, "(run, manager)")
        return
    try:
        signature = inspect.signature(train)
    except (TypeError, ValueError):  # a builtin has no signature
        return
    if list(signature.parameters)[:2] == ["manager", "run"]:
        problems.append("train gets (run, manager), in this order, but takes (manager, run): exchange them")
    try:
        for run in {run._fields: run for run in runs}.values():
            signature.bind(None, None, **arguments_of(train, run))
    except TypeError as error:
        rule = "train must take (run, manager), and axes of the grid by name"
        got = f"({', '.join(signature.parameters)})"
        problems.append(f"{rule}, got {got}: {error}; write def train(run, manager)")


def check_design(options: GridOptions, runs: Iterable[Run]) -> Design:
    """Return the design of a grid from its options."""
    problems = Problems()
    names = list(dict.fromkeys(name for run in runs for name in run._fields))
    goals: tuple[Goal, ...] | None = None
    repeats = note = x_axis = None
    if options.goal is not None:
        with problems.collecting():
            is_list = isinstance(options.goal, list | tuple) and options.goal
            goals = tuple(map(parse_goal, options.goal if is_list else [options.goal]))
    metrics = [goal.metric for goal in goals or ()]
    if len({*metrics}) < len(metrics):
        problems.append(f"goal={options.goal!r} names a metric twice: write it once")
    for metric in metrics:
        if metric in names or metric in RESERVED - {"loss", "accuracy"}:
            subject = "a hyperparameter of this grid" if metric in names else "no metric"
            problems.append(f"goal={options.goal!r}, but {metric!r} is {subject}: name a tracked metric")
    if options.repeats is not None:
        repeats = _repeats(options.repeats, names, problems)
    if options.note is not None:
        with problems.collecting():
            note = check_note(options.note)
    if isinstance(options.tensorboard, TensorBoard) and options.tensorboard.x_axis is not None:
        with problems.collecting():
            x_axis = check_x_axis(options.tensorboard.x_axis, names)
    problems.raise_if_any()
    return Design(
        goal=goals[0] if goals else None, repeats=repeats, note=note, x_axis=x_axis,
        decide=options.decide.rule if options.decide else None,
        goals=() if goals and len(goals) == 1 else goals,
    )  # fmt: skip


def _repeats(repeats: Any, names: Sequence[str], problems: Problems) -> tuple[str, ...]:
    """Return the names of the repeat axes from the option `repeats`, a sequence or a single name."""
    axes = [repeats] if isinstance(repeats, str) else repeats
    if not isinstance(axes, list | tuple) or not all(isinstance(name, str) for name in axes):
        problems.append(f"repeats must be the names of axes, as repeats=('seed',), got {repeats!r}")
        return ()
    for name in axes:
        if name not in names:
            hint = did_you_mean(name, names, "it has")
            problems.append(f"repeats={repeats!r}, but the grid has no axis {name!r}; {hint}")
    return tuple(dict.fromkeys(axes))
