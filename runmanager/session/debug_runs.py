"""Selected runs of a grid, executed in this process for a debugger."""

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from runmanager.errors import InvalidArgumentError, Problems
from runmanager.executors.signals import Stop
from runmanager.flags import argument
from runmanager.listener import Listener
from runmanager.outcome import Status
from runmanager.run import device_of
from runmanager.session.dispatch import Dispatcher
from runmanager.session.display import Display
from runmanager.session.plan import Plan
from runmanager.session.task import RunTask
from runmanager.storage import paths
from runmanager.storage.design import Design
from runmanager.storage.folder_names import varying
from runmanager.storage.folders import Experiment, RunFolder
from runmanager.storage.run_state import read_run
from runmanager.user_frames import user_frames

_COPY = "-only"
_LONGEST = 50  # maximum number of characters in a copy's name that come from the name of the original
_MOST_RANGES = 5


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
    """Return the indexes of the runs with these numbers; without numbers, the indexes of all runs.

    `missing` maps the identity of a run to the reason why the run cannot be executed here.

    Raises:
        InvalidArgumentError: A run does not exist, cannot be executed here, or is completed; the message lists
            all problems.
    """
    if not numbers:
        return range(len(grid))
    problems = Problems()
    folders = experiment.assign(grid, missing)
    indexes = {folder.number: index for index, folder in enumerate(folders)}
    others = {folder.number for folder in experiment.runs.values()}
    for number in numbers:
        if number in indexes:
            problems += _problems_of(folders[indexes[number]], folders)
        elif number in others:
            rule = "is in this experiment, but not in this grid, whose runs are"
            problems.append(f"only={number}: run {number} {rule} {_ranges(indexes)}; give the grid its values")
        else:
            runs = f"the runs of this grid are {_ranges(indexes)}" if indexes else "there are none yet"
            problems.append(f"only={number}: there is no such run; {runs}")
    problems.raise_if_any(InvalidArgumentError)
    return [indexes[number] for number in numbers]


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
    display.say(f"{paths.for_people(experiment.path)}: run {numbers} {what}{rest}")


def execute_here(plan: Plan, task: RunTask, display: Display, listeners: Sequence[Listener]) -> None:
    """Execute the runs of a plan in this process.

    Changes that a debugger makes to process settings are not reported.

    Raises:
        Exception: The exception of `train`, with only the user's frames.
    """
    __tracebackhide__ = True  # IPython and pytest leave this frame out of tracebacks
    from runmanager.devices.process_state import process_state, set_back

    dispatcher = Dispatcher([display, *listeners], Stop(), display.say)
    for planned in plan.due:
        run, before = planned.run, process_state()
        dispatcher.run_started(run, 0, device_of(run))
        try:
            outcome = task(run, partial(dispatcher.run_progressed, run))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the user is to see it
            dispatcher.run_stopped(planned.folder.id, read_run(planned.folder).outcome, listeners)
            raise error.with_traceback(user_frames(error.__traceback__))  # noqa: B904 - no other error
        finally:
            set_back(before)
        dispatcher.run_ended(run, outcome)


def _problems_of(folder: RunFolder, grid: Sequence[RunFolder]) -> Iterator[str]:
    number = folder.number
    if folder.unavailable:
        yield f"only={number}: {folder.unavailable}; run {number} can be executed on a machine that has it"
    elif (result := read_run(folder)).status is Status.COMPLETED and not result.error:
        copy, number_there = _free_copy(folder, grid)
        there = argument(
            f"experiment={copy!r}, only={number_there}", f"--experiment {copy} --only {number_there}"
        )
        yield (
            f"only={number}: run {number} is completed, and its results are kept; "
            f"to execute it again, do so in a copy: {there}"
        )


def _free_copy(folder: RunFolder, grid: Sequence[RunFolder]) -> tuple[str, int]:
    """Return the name of a copy of the experiment in which the run is not completed, and the run's number."""
    path = folder.path.parent
    name = path.name.partition(_COPY)[0][:_LONGEST]
    for attempt in itertools.count(1):
        copy = path.with_name(f"{name}{_COPY}{attempt if attempt > 1 else ''}")
        runs = Experiment(copy).assign([run.params for run in grid], {})
        run = runs[[entry.id for entry in grid].index(folder.id)]
        if read_run(run).status is not Status.COMPLETED:
            return copy.name, run.number
    raise AssertionError


def _ranges(numbers: Iterable[int]) -> str:
    """Return numbers as text in which consecutive numbers form ranges.

    >>> _ranges([3, 1, 2, 7])
    '1 to 3, 7'
    """
    groups = itertools.groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in groups]
    texts = [f"{group[0]} to {group[-1]}" if len(group) > 1 else str(group[0]) for group in runs]
    return ", ".join(texts if len(texts) <= _MOST_RANGES else [*texts[:_MOST_RANGES], "..."])
