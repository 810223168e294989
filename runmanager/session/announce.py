"""The lines that a grid prints before its first run."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from runmanager.core.outcome import Status, advice, retry_failed
from runmanager.core.wording import counted
from runmanager.search.search import Pruner, Search
from runmanager.session.plan import Action, Plan

Say = Callable[[str], None]


def announce(say: Say, experiment: Path, plan: Plan, search: Search, pruner: Pruner | None) -> None:
    """Print the numbers of changed, executed and skipped runs."""
    missing = Counter(planned.folder.unavailable for planned in plan.runs if planned.folder.unavailable)
    statuses = Counter(
        (planned.action, planned.before.status) for planned in plan.runs if not planned.folder.unavailable
    )
    num_failed = sum(statuses[Action.LEAVE, status] for status in Status if status.is_fault)
    num_begun = sum(statuses[Action.CONTINUE, status] for status in Status)
    numbers = {
        "done before": statuses[Action.LEAVE, Status.COMPLETED],
        "failed before": num_failed,
        "pruned before": sum(statuses[action, Status.PRUNED] for action in (Action.WAIT, Action.LEAVE)),
        "unavailable": missing.total(),
    }
    more = search.num_more()
    begun = f" ({num_begun:,} begun before)" if num_begun else ""
    counts = [counted(len(plan.runs) + more, "run"), f"{len(plan.due) + more:,} to execute{begun}"]
    counts += [f"{number:,} {words}" for words, number in numbers.items() if number]
    for sentence in plan.changes:
        say(sentence)
    say(f"{experiment}: {', '.join(counts)}")
    for introduction in filter(None, (search.introduction(), pruner.introduction() if pruner else "")):
        say(introduction)
    if not plan.due and not more:
        return
    for reason, count in missing.items():
        say(f"! {counted(count, 'run')} unavailable, as {reason}")
        say(f"    {advice(Status.UNAVAILABLE, '', them='it' if count == 1 else 'them')}")
    if num_failed:
        them = "it" if num_failed == 1 else "them"
        say(f"! {counted(num_failed, 'run')} ended by a fault before; {retry_failed(f'executes {them} again')}")
