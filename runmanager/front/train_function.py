"""The type of a training function, and the manager that it gets."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from runmanager.core.run import Run

if TYPE_CHECKING:
    from runmanager.core.hooks import Hooks
    from runmanager.front.manager import RunManager

Train = Callable[[Run, "RunManager"], object]


def manager_of(hooks: "Hooks") -> "RunManager":
    """Return a manager for hooks; it is imported here, because the import loads torch."""
    from runmanager.front.manager import RunManager

    return RunManager(_hooks=hooks)
