# ruff: noqa: RUF009 - _option() makes a field
"""The options of a grid, each with its default, its check and its command-line flag."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.core.contracts import Executor, Listener
from runmanager.core.outcome import argument
from runmanager.devices import ranks
from runmanager.errors import Problems
from runmanager.executors import EXECUTORS, executor_type
from runmanager.executors.inline import InlineExecutor
from runmanager.search.decide import Decide
from runmanager.search.halving import SuccessiveHalving
from runmanager.search.optuna_pruner import is_optuna_pruner
from runmanager.search.optuna_search import OptunaSearch
from runmanager.tensorboard.event_options import TensorBoard, check_tensorboard

if TYPE_CHECKING:
    from optuna.pruners import BasePruner

    from runmanager.core.contracts import Boards

Check = Callable[[Problems, str, Any], object]
"""Checks an option's value: it gets the value and the option's name, and appends errors."""

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


def _check_listeners(problems: Problems, _: str, value: Any) -> None:
    rule = "listeners must be a list of objects of a subclass of Listener"
    if not (isinstance(value, list | tuple) and all(isinstance(listener, Listener) for listener in value)):
        problems.append(f"{rule}, got {value!r:.60}: write listeners=[...]")
        return
    for listener in value:
        if listener.where not in ("parent", "worker"):
            name = type(listener).__name__
            problems.append(f"{name}.where must be 'parent' or 'worker', got {listener.where!r:.60}")


def _check_check(problems: Problems, _: str, value: Any) -> None:
    if not (isinstance(value, bool) or value == "resume"):
        problems.append(f"check must be True, False or 'resume', got {value!r:.60}")
    if value == "resume" and os.environ.get("LOCAL_WORLD_SIZE", "") not in ("", os.environ.get("WORLD_SIZE")):
        problems.append("check='resume' takes ranks of one machine: start the check with torchrun --nnodes=1")


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
        _check_check,
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
    changed: str = _option(
        "rerun",
        lambda problems, name, value: problems.check_choice(name, value, ("rerun", "keep")),
        flag="what to do with runs of other code, data or versions",
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
        if isinstance(self.decide, Decide) and self.prune:
            problems.append("prune= stops runs early, and decide= compares whole runs: leave one out")
        if isinstance(self.search, OptunaSearch) and self.decide:
            problems.append("search= chooses runs, and decide= repeats all of them: leave one out")

    @property
    def path(self) -> Path:
        """The absolute path of the experiment's folder, as `train` may change the working directory."""
        return (Path(self.root) / self.experiment).absolute()

    @property
    def is_alone(self) -> bool:
        """Whether selected runs are executed for a debugger."""
        return self.only is not None

    @property
    def is_shown(self) -> bool:
        """Whether this process shows output; a requested plan is always shown."""
        return ranks.is_main() and (self.plan_only or self.display is not False)

    def boards(self) -> "Boards | None":
        """Return the classes of TensorBoard's objects, None without TensorBoard, which is slow to import."""
        if not self.tensorboard:
            return None
        from runmanager.core.contracts import Boards
        from runmanager.tensorboard.pictures import Confusion
        from runmanager.tensorboard.run_log import RunLog

        every = self.tensorboard.histogram_every if isinstance(self.tensorboard, TensorBoard) else 1
        return Boards(partial(RunLog, histogram_every=every), Confusion)

    def make_executor(self, problems: Problems) -> Executor:
        """Return the executor, by default lanes; append errors to `problems`."""
        executor = "lanes" if self.executor is None else self.executor
        if self.is_alone:
            if not (self.executor in (None, "inline") or isinstance(executor, InlineExecutor)):
                given = f"{type(executor).__name__}()" if isinstance(executor, Executor) else repr(executor)
                rule = f"only= executes a run in this process, got executor={given}"
                inline = argument("executor='inline'", "--executor inline")
                problems.append(f"{rule}: leave it out, or write {inline}")
            return InlineExecutor()
        chosen: Executor = InlineExecutor()
        if isinstance(executor, Executor):
            chosen = executor
            if (self.jobs, self.runs_per_device, self.timeout) != (1, 1, None):
                problems.append(
                    "jobs, runs_per_device and timeout belong to the executor object: "
                    f"give them to {type(executor).__name__}()"
                )
        elif executor in EXECUTORS:
            with problems.collecting():
                chosen = executor_type(executor)(
                    jobs=self.jobs, runs_per_device=self.runs_per_device, timeout=self.timeout
                )
        else:
            problems.check_choice("executor", executor, EXECUTORS)
        if ranks.num_ranks() > 1 and not isinstance(chosen, InlineExecutor):
            problems.append(
                "RANK and WORLD_SIZE are set, as by torchrun, where each rank executes the runs itself: write "
                "executor='inline', or unset them"
            )
        return chosen
