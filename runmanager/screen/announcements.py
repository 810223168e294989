"""The lines that a grid shows before its first run."""

from collections import Counter
from collections.abc import Iterator, Sequence

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
    say = loop.say
    for sentence in [*_assumptions(loop, first), *changes_of(loop, first)]:
        say(sentence)
    missing = Counter(planned.folder.unavailable for planned in first.runs if planned.folder.unavailable)
    left = Counter(
        planned.start.status
        for planned in first.runs
        if not (planned.action.is_due or planned.folder.unavailable)
    )
    num_failed = sum(number for status, number in left.items() if status.is_fault)
    num_begun = sum(planned.action is Action.CONTINUE for planned in first.due)
    numbers = {
        "done before": left[Status.COMPLETED],
        "failed before": num_failed,
        "pruned before": left[Status.PRUNED],
        "changed": len(first.asked),
        "unavailable": missing.total(),
    }
    more, path = loop.num_more, files.for_people(loop.task.experiment.path)
    begun = f" ({num_begun:,} begun before)" if num_begun else ""
    counts = [counted(len(first.runs) + more, "run"), f"{len(first.due) + more:,} to execute{begun}"]
    counts += [f"{number:,} {words}" for words, number in numbers.items() if number]
    say(f"{path}: {', '.join(counts)}")
    of_search = loop.search.introduction() if loop.search else ""
    of_pruner = loop.pruner.introduction() if loop.pruner else ""
    for sentence in filter(None, (of_search, of_pruner)):
        say(sentence)
    if not first.due and not more:
        return
    for reason, count in missing.items():
        step = advice(Status.UNAVAILABLE, "", them="it" if count == 1 else "them")
        say(f"! {counted(count, 'run')} unavailable, as {reason}\n    {step}")
    if num_failed:
        step = retry_failed(f"executes {'it' if num_failed == 1 else 'them'} again")
        say(f"! {counted(num_failed, 'run')} ended by a fault before; {step}")
    for line in hint(path) if loop.task.context.boards and first.due else ():
        say(line)


def _assumptions(loop: Loop, first: Plan) -> Iterator[str]:
    repeats = loop.design.repeating(first.varying)
    if repeats and loop.design.repeats is None:
        yield assumption(repeats)
    if first.due:
        run = first.due[0].run
        # a run of expand() also has values of its configuration, which are not axes
        names = first.varying if hasattr(run, "config") else run._fields
        axes = [name for name in names if name not in ("device", *repeats)]
        if sentence := unread_axes(loop.task.train, loop.source, axes):
            yield f"! {sentence}"


def announce_alone(loop: Loop, plan: Plan) -> None:
    """Print the runs that are executed alone, for a debugger."""
    for sentence in changes_of(loop, plan):
        loop.say(sentence)
    numbers = ", ".join(str(planned.folder.number) for planned in plan.runs)
    num_runs = len(loop.grid)
    rest = f"; the others of {num_runs:,} stay as they are" if num_runs > len(plan.runs) else ""
    what = "alone, in this process" if plan.due else "is completed by the present code: nothing is executed"
    loop.say(f"{files.for_people(loop.task.experiment.path)}: run {numbers} {what}{rest}")


def changes_of(loop: Loop, plan: Plan) -> Iterator[str]:
    """Return sentences about changed runs, and about changes that are not noticed."""
    if changed := [run for run in plan.runs if run.cause and run.start.status is not Status.CHANGED]:
        verb, them = ("is", "it") if len(changed) == 1 else ("are", "them")
        keep = argument("changed='keep'", "--changed keep")
        done, meaning = "executed again", f"{keep} keeps {them}"
        if loop.task.context.keep_changed:
            done, meaning = "kept", "unfinished runs resume, marked as mixed"
        yield f"! {counted(len(changed), 'run')} changed and {verb} {done}: {_causes(changed)}; {meaning}"
    if asked := plan.asked:
        verb, them = ("waits", "it") if len(asked) == 1 else ("wait", "them")
        seconds = duration(sum(planned.before.seconds for planned in asked))
        step = advice(Status.CHANGED, "", them=them) + (
            "; the search goes on after that" if loop.search else ""
        )
        yield (
            f"! {counted(len(asked), 'run')} changed and {verb}, with results of {seconds}: "
            f"{_causes(asked)}; {step}"
        )
        lines = changed_lines(read_source(asked[0].before), loop.source)
        yield from (f"    {line}" for line in lines[:_MOST_LINES])
        if len(lines) > _MOST_LINES:
            yield "    ..."
    present, root = loop.task.context.fingerprint, loop.task.experiment.path.parent
    noticed, named = set[str](), set[str]()
    num_data = num_loaded = 0
    for planned in plan.runs:
        state, before = planned.start, planned.start.start.get("fingerprint", {})
        num_data += "data" in before and "data" not in present
        num_loaded += any(
            digest.split(" ")[1] and not loadable_files(root / path) for path, digest in state.loaded.items()
        )
        files_now = present.get("files", {})
        noticed |= {name for name, text in before.get("files", {}).items() if text != files_now.get(name, text)}
        named |= planned.before.start.get("fingerprint", {}).get("named", {}).keys()
    for number, fact in (
        (num_data, "been given data=, not given now"),
        (num_loaded, "loaded weights or artifacts of another run, gone now"),
    ):
        if number:
            yield f"! {counted(number, 'run')} had {fact}: a change of it is not noticed"
    if noticed:
        step = argument("changed='rerun'", "--changed rerun")
        what = f"{listed(sorted(noticed))} changed, which train does not reach by name"
        yield f"! {what}: runs are kept; {step} executes them again"
    if news := [f"{name} ({why})" for name, why in present.get("named", {}).items() if name not in named]:
        yield f"! not compared by content: {listed(news)}; data= compares it"


def _causes(runs: Sequence[PlannedRun]) -> str:
    """Return what has changed since the runs began."""
    counts = Counter(planned.cause for planned in runs)
    causes = [cause if len(counts) == 1 else f"{cause} ({count:,})" for cause, count in counts.items()]
    # there are many causes, for example if runs load the weights of many encoders
    if len(causes) > _MOST_CAUSES:
        causes[_MOST_CAUSES - 1 :] = [f"{len(causes) - _MOST_CAUSES + 1:,} other causes"]
    return "; ".join(causes)
