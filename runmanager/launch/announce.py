"""What a grid says before its first run and after its last one."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runmanager.board.launch import hint
from runmanager.console import join
from runmanager.errors import InvalidArgumentError
from runmanager.hyperparameters import counted
from runmanager.launch.plan import Action, Plan
from runmanager.launch.plan_table import estimate, plan_table, summary
from runmanager.live.progress import GridProgress
from runmanager.outcome import RETRY_FAILED, Outcome, Status
from runmanager.search.base import Search
from runmanager.storage import paths

if TYPE_CHECKING:
    import pandas as pd

Say = Callable[[str], None]


def show_plan(experiment_name: str, plan: Plan, lanes: int, *, show: bool) -> None:
    """Show what would be executed where, and what is done already."""
    progress = GridProgress(experiment_name, [], plan.varying, show=show)
    seconds = estimate(plan, plan.costs)
    names = [name for name in plan.varying if name != "device"]
    if plan.changes:
        progress.say(plan.changes)
    progress.show_plan(plan_table(plan, seconds, names), summary(plan, seconds, max(lanes, 1)))


def announce(say: Say, experiment: Path, plan: Plan, search: Search) -> None:
    """Say how many runs changed, how many there are and are executed, and why the others are not."""
    missing = Counter(planned.folder.unavailable for planned in plan.runs if planned.folder.unavailable)
    statuses = Counter(
        (planned.action, planned.before.status) for planned in plan.runs if not planned.folder.unavailable
    )
    num_failed = sum(statuses[Action.LEAVE, status] for status in Status if status.is_fault)
    numbers = {
        "of them begun before": sum(statuses[Action.CONTINUE, status] for status in Status),
        "done before": statuses[Action.LEAVE, Status.COMPLETED],
        "failed before": num_failed,
        "pruned before": len(plan.behind) + statuses[Action.WAIT, Status.PRUNED],
        "unavailable": missing.total(),
    }
    counts = [counted(len(plan.runs), "run"), f"{len(plan.due):,} to execute"]
    counts += [f"{number:,} {words}" for words, number in numbers.items() if number]
    if plan.changes:
        say(plan.changes)
    say(f"{experiment}: {', '.join(counts)}")
    if introduction := search.introduction():
        say(introduction)
    for reason, count in missing.items():
        runs = f"{counted(count, 'run')} unavailable"
        say(f"! {reason}: {runs}; run the same command on a machine that has it")
    if num_failed:
        say(f"! {counted(num_failed, 'run')} ended by a fault before; {RETRY_FAILED}")


def point_to_tensorboard(say: Say, experiment: Path) -> None:
    """Say how to look at the runs."""
    for line in hint(experiment):
        say(line)


def check_goal(say: Say, runs: "pd.DataFrame") -> None:
    """Say so if no run has the metric of the goal."""
    from runmanager.results.decisive import goal_of

    try:
        goal_of(runs)
    except InvalidArgumentError as error:
        say(f"! {error}")


def conclude(
    say: Say,
    experiment: Path,
    outcomes: Sequence[Outcome],
    search: Search,
    *,
    is_over: bool,
    is_broken_off: bool,
) -> None:
    """Say how the runs of a grid ended, what is kept, and what to do next.

    Runs that the search did not hand out are not missing if it `is_over`. The grid `is_broken_off` if a signal
    or the storage ended it.
    """
    counts = Counter(outcome.status for outcome in outcomes)
    statuses = join(f"{status} {counts[status]}" for status in Status if counts[status])
    say(f"{statuses} — {experiment / paths.RESULTS_CSV}")
    if conclusion := search.conclusion(outcomes):
        say(conclusion)
    due = {status for status in Status if status.is_due} - ({Status.PENDING} if is_over else set())
    stopped = [outcome for outcome in outcomes if outcome.status in due]
    if stopped:
        say(f"kept: {counts[Status.COMPLETED]} completed{_continued(stopped)}")
    if stopped or is_broken_off:
        say("next: start the same command again")
    elif counts[Status.PRUNED]:
        say("pruned runs keep their checkpoints: the same grid without prune= continues them")


def _continued(stopped: Iterable[Outcome]) -> str:
    epochs = [str(outcome.epochs) for outcome in stopped if outcome.epochs]
    if not epochs:
        return ""
    is_one = len(epochs) == 1
    runs = "1 run that continues after epoch" if is_one else f"{len(epochs)} runs that continue after epochs"
    return f", {runs} {', '.join(epochs)}"
