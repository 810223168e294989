"""The interface of a grid's display; without one, a session shows nothing."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from runmanager.core.design import Design
from runmanager.core.folders import RunFolder
from runmanager.core.listener import Listener
from runmanager.core.state import RunResult
from runmanager.executors.signals import Stop
from runmanager.search.search import Search
from runmanager.session.plan import Plan

if TYPE_CHECKING:
    from runmanager.answers.foresight import Foresight


class GridListener(Listener):
    """A listener within this package, which also receives events of the grid."""

    def grid_began(self, say: Callable[[str], None]) -> None:
        """Called before the first run; `say` prints a line."""


class Display(GridListener):
    """A display that shows nothing.

    Subclasses receive all events in the grid's thread. A `with` block over a display is one batch of runs.

    Attributes:
        is_shown: Whether anything is shown.
    """

    is_shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the batch, or stop it."""

    def show_start(self, line: str) -> None:
        """Show a temporary line until other lines follow."""

    def show_progress(self, line: str) -> None:
        """Replace the temporary line, if the display can replace lines."""

    def clear(self, then: str = "") -> None:
        """Clear temporary lines for other output; then show a line."""

    @contextmanager
    def cleared(self, *, when: bool, then: str = "") -> Iterator[None]:
        """Show no temporary lines during the block; then show a line."""
        if when:
            self.clear()
        yield
        if when:
            self.clear(then)

    def say(self, line: str) -> None:
        """Show a permanent line."""

    def begin_grid(self, design: Design, varying: Sequence[str], results: Iterable[RunResult]) -> None:
        """Called when the grid is planned."""

    def begin_batch(
        self,
        folders: Sequence[RunFolder],
        *,
        lanes: int = 1,
        past: Sequence[tuple[Mapping[str, Any], float]] = (),
        more: int = 0,
    ) -> None:
        """Called when runs are due.

        Args:
            folders: The due runs.
            lanes: The maximum number of concurrent runs.
            past: Hyperparameters and duration (s) of the completed runs.
            more: The number of runs that a search may still add.
        """

    def add_runs(self, folders: Sequence[RunFolder], more: int) -> None:
        """Called when further runs are due; a search may still add `more`."""

    def stopping(self, stop: Stop) -> None:
        """Called when a signal stops the grid; several signals cause several calls."""

    def show_plan(self, plan: Plan, search: Search, lanes: int, foresight: "Foresight | None" = None) -> None:
        """Show the plan: runs to execute, their devices, and completed runs; and what its repeats decide."""

    def conclude(self, conclusion: Any) -> Any:
        """Show the conclusion of the grid; return an object that a notebook can draw."""
