"""The validation of a grid's arguments: its runs, training function and design, with all problems at once."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from runmanager.core import files
from runmanager.core.experiment import Design
from runmanager.core.goal import parse_goal
from runmanager.core.grid import RunBuilder, mapping_of
from runmanager.core.run import Run, id_of
from runmanager.core.task import arguments_of
from runmanager.core.values import RESERVED, identity
from runmanager.core.wording import did_you_mean
from runmanager.core.x_axis import check_x_axis
from runmanager.errors import GridError, InvalidArgumentError, Problems
from runmanager.front.options import GridOptions
from runmanager.search.decide import Decide, repeat_by_repeat, single_axis, with_repeats
from runmanager.search.space import SearchSpace
from runmanager.tables.notes import check_note
from runmanager.tensorboard.event_options import TensorBoard

_MOST_RUNS = 10_000  # maximum number of runs of a mapping, to detect a grid that is too large by accident


def check_runs(params: Any, train: Any, options: GridOptions, problems: Problems) -> list[Run]:
    """Return the runs of a grid, with `decide` sorted by repeat; for a search, one sample run per device."""
    decide, repeats = options.decide, options.repeats
    problems.check_function("train", train, "(run, manager)")
    with problems.collecting():
        files.check_experiment(options.root, options.experiment)
    runs: list[Run] = []
    with problems.collecting():
        grid = mapping_of(params)
        if isinstance(decide, Decide):
            grid = with_repeats(grid, repeats, decide, problems)
        if options.search and isinstance(params, Sequence):
            rule = "search= chooses runs itself"
            problems.append(f"{rule}: give run_grid axes instead of runs, as {{'lr': LogUniform(1e-5, 1e-1)}}")
        elif options.search:
            runs += SearchSpace(params).samples()
        elif grid is not None:
            runs += RunBuilder.get_runs(grid, max_runs=_MOST_RUNS)
        else:
            runs += params if isinstance(params, Iterable) else []
            if not runs or not all(isinstance(run, Run) for run in runs):
                runs = []
                rule = f"a grid is a mapping of axes, or runs from RunBuilder.get_runs(), got {params!r:.60}"
                step = "write {'lr': [0.1, 0.01]}, or RunBuilder.get_runs(a) + RunBuilder.get_runs(b)"
                raise GridError([f"{rule}: {step} for several mappings"])
    if isinstance(decide, Decide) and not problems:
        runs = repeat_by_repeat(runs, single_axis(repeats), decide, problems)
    if callable(train):
        _check_call(train, runs, problems)
    problems += _twice(runs)
    problems.raise_if_any()
    return runs


def _twice(runs: Sequence[Run]) -> list[str]:
    """Return a sentence about the first run that is in the grid twice, or was changed; empty without one."""
    ids: set[str] = set()
    for number, run in enumerate(runs):
        if identity(run._asdict()) != id_of(run):
            return [f"a value of {run!r} was changed after the run was built: write run._replace(name=value)"]
        ids.add(id_of(run))
        if len(ids) == number:
            rule = "is in this grid twice: give every value of an axis, and every run, once"
            return [f"{run!r} {rule}, as runs_a + [run for run in runs_b if run not in runs_a]"]
    return []


def _check_call(train: Callable[..., object], runs: Iterable[Run], problems: Problems) -> None:
    """Append an error if a training function cannot be called with these runs."""
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
    goal, decide = options.goal, options.decide
    problems = Problems()
    design = Design(rule=decide.rule if decide else None)
    names = list(dict.fromkeys(name for run in runs for name in run._fields))
    if goal is not None:
        with problems.collecting():
            written = goal if isinstance(goal, list | tuple) and goal else [goal]
            goals = tuple(map(parse_goal, written))
            if len({goal.metric for goal in goals}) < len(goals):
                raise InvalidArgumentError([f"goal={goal!r} names a metric twice: write it once"])
            design = replace(design, goal=goals[0], goals=goals if len(goals) > 1 else ())
    for metric in [goal.metric for goal in design.all_goals]:
        if metric in names or metric in RESERVED - {"loss", "accuracy"}:
            subject = "a hyperparameter of this grid" if metric in names else "no metric"
            problems.append(f"goal={goal!r}, but {metric!r} is {subject}: name a tracked metric")
    if options.repeats is not None:
        design = replace(design, repeats=_repeats(options.repeats, names, problems))
    if options.note is not None:
        with problems.collecting():
            design = replace(design, note=check_note(options.note))
    if isinstance(options.tensorboard, TensorBoard) and options.tensorboard.x_axis is not None:
        with problems.collecting():
            design = replace(design, x_axis=check_x_axis(options.tensorboard.x_axis, names))
    problems.raise_if_any()
    return design


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
