"""The type of a training function, and the manager that it gets."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from runmanager.run import Run

if TYPE_CHECKING:
    from runmanager.launch.manager import RunManager
    from runmanager.training.hooks import Hooks

Train = Callable[[Run, "RunManager"], object]


def manager_of(hooks: "Hooks") -> "RunManager":
    """Return a manager for hooks; it is imported here, because the import loads torch."""
    from runmanager.launch.manager import RunManager

    return RunManager(_hooks=hooks)
