"""Display: what a person sees of a grid. A facade hands one down; a session without one shows nothing."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from runmanager.executors.signals import Stop
from runmanager.listener import Listener
from runmanager.search.search import Search
from runmanager.session.plan import Plan
from runmanager.storage.design import Design
from runmanager.storage.folders import RunFolder
from runmanager.storage.run_state import RunResult


class GridListener(Listener):
    """A listener of the program's own that hears of the grid too."""

    def grid_began(self, say: Callable[[str], None]) -> None:
        """No run has begun yet; `say` shows the user a line."""


class Display(GridListener):
    """Shows nothing. A subclass shows what it hears in the thread of the grid; each block is a batch of runs.

    Attributes:
        is_shown: Whether anything is shown.
    """

    is_shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The batch has ended, or is being stopped."""

    def show_start(self, line: str) -> None:
        """Show that something has begun, until there is more to show."""

    def show_progress(self, line: str) -> None:
        """Show a line in place of that, where it can be replaced."""

    def clear(self, then: str = "") -> None:
        """Take away what can be replaced: something else is shown there; then show a line."""

    @contextmanager
    def cleared(self, *, when: bool, then: str = "") -> Iterator[None]:
        """Leave the room to others in the block: nothing there can be replaced; then show a line."""
        if when:
            self.clear()
        yield
        if when:
            self.clear(then)

    def say(self, line: str) -> None:
        """Show a line that stays."""

    def flush(self) -> None:
        """Show at once what waits."""

    def begin_grid(self, design: Design, varying: Sequence[str], results: Iterable[RunResult]) -> None:
        """The grid is planned.

        Args:
            design: What decides between runs.
            varying: The hyperparameters that tell the runs apart.
            results: What the journals of the experiment say; they are read as they are asked for.
        """

    def begin_batch(
        self,
        folders: Sequence[RunFolder],
        *,
        lanes: int = 1,
        past: Sequence[tuple[Mapping[str, Any], float]] = (),
        more: int = 0,
    ) -> None:
        """Some runs are due.

        Args:
            folders: Those runs.
            lanes: How many are executed at the same time, at most.
            past: Hyperparameters and duration (s) of the runs that were completed before.
            more: How many runs a search may still add.
        """

    def add_runs(self, folders: Sequence[RunFolder], more: int) -> None:
        """More runs are due, and a search may still add some."""

    def stopping(self, stop: Stop) -> None:
        """The grid is being stopped; may be called more than once."""

    def show_plan(self, plan: Plan, search: Search, lanes: int) -> None:
        """Show what would be executed where, and what is done already."""

    def conclude(self, conclusion: Any) -> Any:
        """Show what the results say, at the end; return what a notebook can draw."""
