"""A search in run_grid: whether its arguments can be used, and the plan of the runs that it brings forth."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from runmanager.devices import ranks
from runmanager.errors import GridError, Problems
from runmanager.executors import Executor
from runmanager.grid import Run
from runmanager.launch import arguments
from runmanager.launch.plan import Plan, make_plan
from runmanager.launch.pruning import check_prune
from runmanager.search.halving import SuccessiveHalving
from runmanager.search.optuna_search import OptunaSearch
from runmanager.search.search import Search
from runmanager.search.searching import Searching
from runmanager.search.space import SearchSpace
from runmanager.storage import naming, paths
from runmanager.storage.design import Design
from runmanager.storage.fingerprint import Fingerprint
from runmanager.storage.folders import Experiment
from runmanager.storage.identity import identity

_USUAL = {
    "jobs": 1, "runs_per_device": 1, "retries": 0, "tensorboard": True, "changed": "rerun",
    "executor": None, "timeout": None, "prune": None, "data": None,
}  # fmt: skip
"""What the options of a loop of one's own are by default."""


def check_search(search: object, prune: object, decide: object, max_runs: int, problems: Problems) -> None:
    """Collect what is wrong with `search` and what it cannot be combined with."""
    if search is None:
        return
    if not isinstance(search, OptunaSearch):
        problems.append(f"search must be OptunaSearch(n=...), or None to execute all runs, got {search!r:.60}")
        return
    if decide:
        problems.append("search= chooses runs, and decide= repeats all of them: leave one out")
    if isinstance(prune, SuccessiveHalving) and not prune.asynchronous:
        rule = "search= decides after every run, and prune= compares all of them at once"
        problems.append(f"{rule}: write SuccessiveHalving(asynchronous=True)")
    if search.n > max_runs:
        rule = f"search= may suggest {search.n:,} runs, the limit is {max_runs:,}"
        problems.append(f"{rule}: allow it with max_runs={search.n}")


def check_own_loop(
    params: Any,
    search: object,
    train: Any,
    experiment: str,
    root: str | PathLike[str],
    options: Mapping[str, Any],
    problems: Problems,
) -> tuple[list[Run], Executor | None]:
    """Collect what is wrong with a loop of one's own; return some runs as it may ask for, and the executor.

    Without `train`, it has no use for the options.
    """
    if isinstance(search, OptunaSearch):
        check_search(search, options["prune"], None, search.n, problems)
    else:
        problems.append(f"search must be OptunaSearch(n=...), got {search!r:.60}")
    if ranks.num_ranks() > 1:  # each of them would ask and tell
        problems.append("RANK and WORLD_SIZE are set, as by torchrun: AskTell is for one process; unset them")
    if train is None:
        usual = _USUAL.items()
        for name in [
            name
            for name, value in usual
            if options[name] is not value and (value is None or options[name] != value)
        ]:
            problems.append(f"{name}= is for runs that AskTell executes: give it train= too")
        with problems.collecting():
            paths.check_experiment(experiment)
        with problems.collecting():
            paths.check_root(root)
        return samples(params, problems), None
    how = [options[name] for name in ("executor", "jobs", "runs_per_device", "timeout")]
    executor = arguments.make_executor(how[0], how[1], how[2], how[3], problems)
    problems.check_count("retries", options["retries"], 0)
    check_prune(options["prune"], problems)
    problems.check_choice("changed", options["changed"], ("rerun", "keep"))
    runs: list[Run] = []
    with problems.collecting():
        runs = arguments.check_runs(params, train, experiment, root, 1, Problems(), expand=samples)
    return runs, executor


def samples(params: Any, problems: Problems) -> list[Run]:
    """Return a run with each device as a search may suggest it; problems are collected."""
    runs: list[Run] = []
    if isinstance(params, Sequence):
        rule = "search= chooses runs itself"
        problems.append(
            f"{rule}: give run_grid its axes in the place of runs, as {{'lr': LogUniform(1e-5, 1e-1)}}"
        )
        return runs
    with problems.collecting():
        runs += SearchSpace(params).samples()
    return runs


def make_search(search: OptunaSearch, params: Any, design: Design, experiment: Path) -> Searching:
    """Begin a search.

    Raises:
        GridError: It has no goal, or cannot search these axes.
        MissingExtraError: What it needs is not installed.
    """
    problems = Problems()
    space = SearchSpace(params)
    ranges = [axis.name for axis in space.axes if axis.range]
    repeats = design.repeating(name for name in space.varying if name not in ranges)
    for name in set(repeats).intersection(ranges):
        problems.append(f"repeats={name!r}, but {name!r} is a range: list its values, as {name!r}: [0, 1, 2]")
    if not design.all_goals:
        problems.append("search= has nothing to compare runs by: give run_grid(goal='max:<metric>')")
    problems.raise_if_any(GridError)
    return search.search(params, design.all_goals, experiment, repeats)


def runs_of(search: Search, runs: Sequence[Run], experiment: Path) -> list[Run]:
    """Return the runs of a grid; if a search brings them forth, those that the experiment has by now."""
    return search.runs(Experiment(experiment)) if isinstance(search, Searching) else list(runs)


def to_try(search: Search, plan: Plan, missing: Callable[[str], str]) -> list[Run]:
    """Return the runs that a check tries: those to execute, and some for a search that has no list of them."""
    runs = search.to_try() if isinstance(search, Searching) else []
    absent = arguments.missing_devices(runs, missing, "skip")
    likely = [run for run in runs if identity(run._asdict()) not in absent]
    return [*(planned.run for planned in plan.due), *likely]


def plans_new(
    search: Search,
    experiment: Experiment,
    design: Design,
    now: Fingerprint,
    missing: Callable[[str], str],
    policy: Mapping[str, Any],
) -> Callable[[Sequence[Run]], Plan] | None:
    """Return what gives folders to the runs that a search brings forth, and plans them; None if it does not.

    Args:
        search: The search.
        experiment: Where the runs live.
        design: What decides in it.
        now: The code, data and versions.
        missing: Says why a device cannot be used, "" if it can.
        policy: What `make_plan` needs of `run_grid`'s options.
    """
    if not search.axes:
        return None
    names = naming.telling_first(search.axes, design.repeating(search.axes))

    def plan(runs: Sequence[Run]) -> Plan:
        reasons = arguments.missing_devices(runs, missing, "skip")
        folders = [experiment.add(run._asdict(), names, reasons) for run in runs]
        return make_plan(runs, folders, now, chosen=range(len(runs)), **policy)

    return plan
