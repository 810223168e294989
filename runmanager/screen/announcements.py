"""The lines that a grid shows before its first run."""

from collections import Counter
from collections.abc import Sequence

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
    say, repeats = loop.say, loop.design.repeating(first.varying)
    if repeats and loop.design.repeats is None:
        say(assumption(repeats))
    if first.due:
        run = first.due[0].run
        # a run of expand() also has values of its configuration, which are not axes
        names = first.varying if hasattr(run, "config") else run._fields
        axes = [name for name in names if name not in ("device", *repeats)]
        if sentence := unread_axes(loop.task.train, loop.source, axes):
            say(f"! {sentence}")
    for sentence in changes_of(loop, first):
        say(sentence)
    missing = Counter(planned.folder.unavailable for planned in first.runs if planned.folder.unavailable)
    statuses = Counter(
        (planned.action, planned.start.status) for planned in first.runs if not planned.folder.unavailable
    )
    num_failed = sum(statuses[Action.LEAVE, status] for status in Status if status.is_fault)
    num_begun = sum(statuses[Action.CONTINUE, status] for status in Status)
    numbers = {
        "done before": statuses[Action.LEAVE, Status.COMPLETED],
        "failed before": num_failed,
        "pruned before": statuses[Action.WAIT, Status.PRUNED] + statuses[Action.LEAVE, Status.PRUNED],
        "changed": len(first.asked),
        "unavailable": missing.total(),
    }
    more = loop.num_more
    begun = f" ({num_begun:,} begun before)" if num_begun else ""
    counts = [counted(len(first.runs) + more, "run"), f"{len(first.due) + more:,} to execute{begun}"]
    counts += [f"{number:,} {words}" for words, number in numbers.items() if number]
    path = files.for_people(loop.task.experiment.path)
    say(f"{path}: {', '.join(counts)}")
    of_search = loop.search.introduction() if loop.search else ""
    of_pruner = loop.pruner.introduction() if loop.pruner else ""
    for sentence in filter(None, (of_search, of_pruner)):
        say(sentence)
    if not first.due and not more:
        return
    for reason, count in missing.items():
        say(f"! {counted(count, 'run')} unavailable, as {reason}")
        say(f"    {advice(Status.UNAVAILABLE, '', them='it' if count == 1 else 'them')}")
    if num_failed:
        step = retry_failed(f"executes {'it' if num_failed == 1 else 'them'} again")
        say(f"! {counted(num_failed, 'run')} ended by a fault before; {step}")
    for line in hint(path) if loop.task.context.boards and first.due else ():
        say(line)


def announce_alone(loop: Loop, plan: Plan) -> None:
    """Print the runs that are executed alone, for a debugger."""
    for sentence in changes_of(loop, plan):
        loop.say(sentence)
    numbers = ", ".join(str(planned.folder.number) for planned in plan.runs)
    num_runs = len(loop.grid)
    rest = f"; the others of {num_runs:,} stay as they are" if num_runs > len(plan.runs) else ""
    what = "alone, in this process" if plan.due else "is completed by the present code: nothing is executed"
    loop.say(f"{files.for_people(loop.task.experiment.path)}: run {numbers} {what}{rest}")


def changes_of(loop: Loop, plan: Plan) -> list[str]:
    """Return sentences about changed runs, and about runs whose changes are not noticed."""
    context, root = loop.task.context, loop.task.experiment.path.parent
    sentences = []
    noticed: set[str] = set()
    named: set[str] = set()
    if rest := [each for each in plan.runs if each.cause and each.start.status is not Status.CHANGED]:
        verb, them = ("is", "it") if len(rest) == 1 else ("are", "them")
        keep = argument("changed='keep'", "--changed keep")
        done, meaning = "executed again", f"{keep} keeps {them}"
        if context.keep_changed:
            done, meaning = "kept", "unfinished runs resume, marked as mixed"
        sentences.append(f"! {counted(len(rest), 'run')} changed and {verb} {done}: {_causes(rest)}; {meaning}")
    if plan.asked:
        verb, them = ("waits", "it") if len(plan.asked) == 1 else ("wait", "them")
        seconds = duration(sum(planned.before.seconds for planned in plan.asked))
        later = "; the search goes on after that" if loop.search else ""
        step = advice(Status.CHANGED, "", them=them) + later
        changed = f"{counted(len(plan.asked), 'run')} changed and {verb}, with results of {seconds}"
        sentences.append(f"! {changed}: {_causes(plan.asked)}; {step}")
        lines = changed_lines(read_source(plan.asked[0].before), loop.source)
        sentences += [f"    {line}" for line in lines[:_MOST_LINES]]
        sentences += ["    ..."] * (len(lines) > _MOST_LINES)
    states = [planned.start for planned in plan.runs]
    fingerprints = [state.start.get("fingerprint", {}) for state in states]
    had_data = sum("data" in before for before in fingerprints)
    numbers = {
        "been given data=, not given now": 0 if "data" in context.fingerprint else had_data,
        "loaded weights or artifacts of another run, gone now": sum(
            any(
                digest.split(" ")[1] and not loadable_files(root / path)
                for path, digest in state.loaded.items()
            )
            for state in states
        ),
    }
    for fact, number in numbers.items():
        if number:
            sentences.append(f"! {counted(number, 'run')} had {fact}: a change of it is not noticed")
    files_now, names = context.fingerprint.get("files", {}), context.fingerprint.get("named", {})
    for before in fingerprints:
        texts = before.get("files", {})
        noticed |= {name for name, text in texts.items() if text != files_now.get(name, text)}
    for planned in plan.runs:
        named |= planned.before.start.get("fingerprint", {}).get("named", {}).keys()
    if noticed:
        step = argument("changed='rerun'", "--changed rerun")
        what = f"{listed(sorted(noticed))} changed, which train does not reach by name"
        sentences.append(f"! {what}: runs are kept; {step} executes them again")
    if news := [f"{name} ({why})" for name, why in names.items() if name not in named]:
        sentences.append(f"! not compared by content: {listed(news)}; data= compares it")
    return sentences


def _causes(runs: Sequence[PlannedRun]) -> str:
    """Return what has changed since the runs began."""
    counts = Counter(planned.cause for planned in runs)
    causes = [cause if len(counts) == 1 else f"{cause} ({count:,})" for cause, count in counts.items()]
    # there are many causes, for example if runs load the weights of many encoders
    if len(causes) > _MOST_CAUSES:
        causes[_MOST_CAUSES - 1 :] = [f"{len(causes) - _MOST_CAUSES + 1:,} other causes"]
    return "; ".join(causes)
