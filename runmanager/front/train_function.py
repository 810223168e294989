"""The type of a training function, and the manager that it gets."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from runmanager.core.run import Run

if TYPE_CHECKING:
    from runmanager.core.experiment import Experiment
    from runmanager.core.grid_context import GridContext
    from runmanager.front.manager import RunManager

Train = Callable[[Run, "RunManager"], object]


def manager_of(experiment: "Experiment", context: "GridContext") -> "RunManager":
    """Return the manager of a run of a grid; it is imported here, because the import loads torch."""
    from runmanager.front.manager import RunManager

    return RunManager.of_grid(experiment, context)
