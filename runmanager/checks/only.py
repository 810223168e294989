"""Selected runs of a grid, executed in this process for a debugger."""

import operator
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from runmanager.core.experiment import Experiment
from runmanager.core.run import Run
from runmanager.core.wording import listed
from runmanager.errors import InvalidArgumentError, Problems


def numbers_of(only: Any, problems: Problems) -> list[int]:
    """Return the numbers of the selected runs; append errors to `problems`."""
    numbers: dict[int, None] = {}
    with suppress(TypeError):
        numbers = dict.fromkeys(map(operator.index, only if hasattr(only, "__iter__") else [only]))
    if not numbers:
        rule = "only must be the number of a run, from the column `run`, or a list of numbers"
        problems.append(f"{rule}, got {only!r:.60}: write only=7")
    return [*numbers]


def choose(
    numbers: Sequence[int], grid: Sequence[Run], missing: Mapping[str, str], experiment: Experiment
) -> Sequence[int]:
    """Return the indexes of the runs with these numbers."""
    problems = Problems()
    folders = {folder.number: folder for folder in experiment.plan(grid, missing, is_written=False)}
    for number in numbers:
        folder = folders.get(number)
        if folder is None:
            problem = f"this grid has no such run; its runs are {listed(sorted(folders))}"
        elif folder.unavailable:
            problem = folder.unavailable
        else:
            continue
        problems.append(f"only={number}: {problem}")
    problems.raise_if_any(InvalidArgumentError)
    indexes = [*folders]
    return [indexes.index(number) for number in numbers]
