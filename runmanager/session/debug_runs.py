"""Selected runs of a grid, executed in this process for a debugger."""

import operator
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from runmanager.core import files
from runmanager.core.design import Design
from runmanager.core.folder_names import varying
from runmanager.core.folders import Experiment
from runmanager.core.listener import Listener
from runmanager.core.outcome import Status
from runmanager.core.run import device_of
from runmanager.core.state import read_run
from runmanager.core.wording import listed
from runmanager.errors import InvalidArgumentError, Problems
from runmanager.executors.signals import Stop
from runmanager.session.dispatch import Dispatcher
from runmanager.session.display import Display
from runmanager.session.plan import Plan
from runmanager.session.task import RunTask
from runmanager.user_frames import user_frames


def numbers_of(only: Any, problems: Problems) -> list[int]:
    """Return the numbers of the selected runs, empty if all runs are selected; append errors to `problems`."""
    if only is None:
        return []
    items = [only] if isinstance(only, bool | str) or not hasattr(only, "__iter__") else list(only)
    try:
        numbers = [operator.index(number) for number in items if not isinstance(number, bool)]
    except TypeError:
        numbers = []
    if not numbers or len(numbers) < len(items):
        rule = "only must be the number of a run, from the column `run`, or a list of numbers"
        problems.append(f"{rule}, got {only!r:.60}: write only=7")
    return list(dict.fromkeys(numbers))


def choose(
    numbers: Sequence[int],
    grid: Sequence[Mapping[str, Any]],
    missing: Mapping[str, str],
    experiment: Experiment,
) -> Sequence[int]:
    """Return the indexes of the runs with these numbers; without numbers, the indexes of all runs."""
    if not numbers:
        return range(len(grid))
    problems = Problems()
    folders = {folder.number: folder for folder in experiment.assign(grid, missing)}
    for number in numbers:
        folder = folders.get(number)
        if folder is None:
            runs = listed(sorted(folders))
            problems.append(f"only={number}: this grid has no such run; its runs are {runs}")
        elif folder.unavailable:
            problems.append(f"only={number}: {folder.unavailable}; execute it on a machine that has it")
        elif (result := read_run(folder)).status is Status.COMPLETED and not result.error:
            rule = f"run {number} is completed, and its results are kept"
            problems.append(f"only={number}: {rule}; to execute it again, give the grid another experiment=")
    problems.raise_if_any(InvalidArgumentError)
    indexes = [*folders]
    return [indexes.index(number) for number in numbers]


def begin(plan: Plan, experiment: Experiment, design: Design, display: Display, *, num_runs: int) -> None:
    """Print the selected runs."""
    names = varying([run.params for run in experiment.runs.values()])
    display.begin_grid(design, names, [])
    display.begin_batch([planned.folder for planned in plan.runs])
    for sentence in plan.changes:
        display.say(sentence)
    numbers = ", ".join(str(planned.folder.number) for planned in plan.runs)
    rest = f"; the others of {num_runs:,} stay as they are" if num_runs > len(plan.runs) else ""
    what = "alone, in this process" if plan.due else "is completed by the present code: nothing is executed"
    display.say(f"{files.for_people(experiment.path)}: run {numbers} {what}{rest}")


def execute_here(plan: Plan, task: RunTask, display: Display, listeners: Sequence[Listener]) -> None:
    """Execute the runs of a plan in this process."""
    __tracebackhide__ = True  # IPython and pytest leave this frame out of tracebacks
    from runmanager.devices.settings import process_state, set_back

    dispatcher = Dispatcher([display, *listeners], Stop(), display.say)
    for planned in plan.due:
        run, before = planned.run, process_state()
        dispatcher.run_started(run, 0, device_of(run))
        try:
            outcome = task(run, partial(dispatcher.run_progressed, run))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the user is to see it
            dispatcher.run_ended(run, read_run(planned.folder).outcome, listeners=listeners)
            raise error.with_traceback(user_frames(error.__traceback__))  # noqa: B904 - no other error
        finally:
            set_back(before)
        dispatcher.run_ended(run, outcome)
