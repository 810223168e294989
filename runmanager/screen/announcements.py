"""The lines that a grid shows before its first run."""

from collections import Counter
from collections.abc import Iterator, Sequence

from runmanager.answers.sentences import statuses_in_words
from runmanager.answers.usual_goals import assumption
from runmanager.checks.kept_source import changed_lines, read_source
from runmanager.checks.unread_axes import unread_axes
from runmanager.core import files
from runmanager.core.loop import Action, Loop, Plan, PlannedRun
from runmanager.core.outcome import Status, advice, argument, retry_failed
from runmanager.core.provenance import loadable_files
from runmanager.core.wording import counted, listed
from runmanager.tables.cells import duration
from runmanager.tensorboard.server import hint

_MOST_CAUSES = 4  # maximum number of causes in a sentence
_MOST_LINES = 12  # maximum number of lines of changed code


def announce(loop: Loop, first: Plan) -> None:
    """Print the numbers of changed, executed and skipped runs, and what is assumed."""
    say, more, path = loop.say, loop.num_more, files.for_people(loop.task.experiment.path)
    repeats = loop.design.repeating(first.varying)
    if repeats and loop.design.repeats is None:
        say(assumption(repeats))
    axes = [name for name in first.varying if name not in ("device", *repeats)]
    if first.due and (sentence := unread_axes(loop.task.train, loop.source, axes)):
        say(f"! {sentence}")
    for sentence in changes_of(loop, first):
        say(sentence)
    left = [planned.start.status for planned in first.runs if not planned.action.is_due]
    num_begun = sum(planned.action is Action.CONTINUE for planned in first.due)
    begun = f" ({num_begun:,} begun before)" if num_begun else ""
    counts = f"{counted(len(first.runs) + more, 'run')}, {len(first.due) + more:,} to execute{begun}"
    say(f"{path}: {', '.join(filter(None, [counts, statuses_in_words(left)]))}")
    for part in (loop.search, loop.pruner):
        if part and (sentence := part.introduction()):
            say(sentence)
    if not (first.due or more):
        return  # the panel comes next, and says the same
    missing = Counter(planned.folder.unavailable for planned in first.runs if planned.folder.unavailable)
    for reason, count in missing.items():
        step = advice(Status.UNAVAILABLE, "", them=_them(count))
        say(f"! {counted(count, 'run')} unavailable, as {reason}\n    {step}")
    if num_failed := sum(status.is_fault for status in left):
        step = retry_failed(f"executes {_them(num_failed)} again")
        say(f"! {counted(num_failed, 'run')} ended by a fault before; {step}")
    for line in hint(path) if loop.task.context.boards and first.due else ():
        say(line)


def changes_of(loop: Loop, plan: Plan) -> Iterator[str]:
    """Return sentences about changed runs, and about changes that are not noticed."""
    keep = argument("changed='keep'", "--changed keep")
    if changed := [run for run in plan.runs if run.cause and run.start.status is not Status.CHANGED]:
        done, step = "executed again", f"{keep} keeps {_them(len(changed))}"
        if loop.task.context.keep_changed:
            done, step = "kept", "unfinished runs resume, marked as mixed"
        yield f"! {counted(len(changed), 'run')} changed and will be {done}: {_causes(changed)}; {step}"
    if asked := plan.asked:
        step = advice(Status.CHANGED, "", them=_them(len(asked)))
        seconds = duration(sum(planned.before.seconds for planned in asked))
        who = counted(len(asked), "run")
        yield f"! {who} changed and will wait, with results of {seconds}: {_causes(asked)}; {step}"
        lines = changed_lines(read_source(asked[0].before), loop.source)
        if len(lines) > _MOST_LINES:
            lines[_MOST_LINES:] = ["..."]
        yield from (f"    {line}" for line in lines)
    yield from _not_compared(loop, plan)


def _not_compared(loop: Loop, plan: Plan) -> Iterator[str]:
    """Return sentences about changes for which no run is executed again."""
    present, root = loop.task.context.fingerprint, loop.task.experiment.path.parent
    noticed, named, gone, now = set[str](), set[str](), set[str](), present.get("files", {})
    for planned in plan.runs:
        before = planned.start.start.get("fingerprint", {})
        noticed |= {name for name, text in before.get("files", {}).items() if text != now.get(name, text)}
        named |= planned.before.start.get("fingerprint", {}).get("named", {}).keys()
        if "data" in before and "data" not in present:
            gone.add("data= (not given now)")
        for path, digests in planned.start.loaded.items():
            if digests.split(" ")[1] and not loadable_files(root / path):
                gone.add(f"files of {path} (gone now)")
    if noticed:
        rerun = argument("changed='rerun'", "--changed rerun")
        what = f"{listed(sorted(noticed))} changed, which train does not reach by name"
        yield f"! {what}: runs are kept; {rerun} executes them again"
    if gone:
        yield f"! no longer compared: {listed(sorted(gone))}; runs are kept"
    if news := [f"{name} ({why})" for name, why in present.get("named", {}).items() if name not in named]:
        yield f"! changes in {listed(news)} are not noticed; name a version, as data='v1', and raise it"


def _them(number: int) -> str:
    return "it" if number == 1 else "them"


def _causes(runs: Sequence[PlannedRun]) -> str:
    """Return what has changed since the runs began."""
    return listed(dict.fromkeys(planned.cause for planned in runs), _MOST_CAUSES)  # as of many encoders
