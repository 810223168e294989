"""The outcome of a grid: the outcomes of its runs, its tables, and its panel."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.answers.sentences import statuses_in_words
from runmanager.core.experiment import Design
from runmanager.core.files import for_people
from runmanager.core.outcome import Outcome
from runmanager.core.run import Run
from runmanager.core.state import RunResult
from runmanager.core.wording import printable

if TYPE_CHECKING:
    import pandas as pd


@dataclass(eq=False, repr=False)
class GridOutcome:
    """The outcome of a grid. A changed run counts from its first attempt since the change.

    Attributes:
        outcomes: Each run of the grid with its outcome, in the order of the grid.
        exit_code: 0 if all runs are done, or done but for unavailable ones, 1 if some runs failed or were not
            executed, or if all are unavailable, 74 after a storage failure, 129 after SIGHUP, 130 after Ctrl-C,
            143 after SIGTERM.

    Example:
        >>> from runmanager import run_grid
        >>> train = lambda run, manager: manager.begin_run(run)
        >>> outcome = run_grid({"lr": [0.1]}, train, experiment="example", executor="inline", display=False)
        >>> outcome.exit_code, outcome.runs["status"].tolist()
        (0, ['completed'])
        >>> outcome.folder.name
        'example'
    """

    outcomes: Sequence[tuple[Run, Outcome]]
    exit_code: int
    _path: Path
    # the states and the design at the end; tables and panel are computed from them when they are read
    _states: Sequence[RunResult]
    _design: Design
    _others: Sequence[RunResult]  # the states of the experiment's other runs
    _end: Mapping[str, Any] | None  # arguments of `conclude`; None without a conclusion

    @property
    def folder(self) -> Path:
        """The experiment's folder, relative if it is below the working directory."""
        return for_people(self._path)

    @cached_property
    def results(self) -> "pd.DataFrame":
        """One row per epoch of these runs, as from `load_results`."""
        from runmanager.tables.columns import results_table

        return results_table({self._path.name: self._states}, self._design)

    @cached_property
    def runs(self) -> "pd.DataFrame":
        """One row per run, as from `load_runs`."""
        from runmanager.tables.columns import runs_table

        return runs_table({self._path.name: self._states}, self._design)

    @cached_property
    def panel(self) -> Any:
        """The panel shown at the end, which a notebook draws; None if the grid was only planned."""
        if self._end is None:
            return None
        from runmanager.answers.conclusion import conclude
        from runmanager.screen.panel import Panel
        from runmanager.tables.columns import runs_table

        all_runs = self.runs
        if self._others:
            states = sorted([*self._others, *self._states], key=lambda state: state.folder.number)
            all_runs = runs_table({self._path.name: states}, self._design)
        return Panel(conclude(self.runs, all_runs, self.folder, **self._end))

    def __repr__(self) -> str:
        counts = statuses_in_words(outcome.status for _, outcome in self.outcomes) or "no runs"
        return f"<GridOutcome of {printable(str(self.folder))}: {counts}; exit code {self.exit_code}>"

    def _repr_html_(self) -> str:
        return self.panel._repr_html_() if self.panel else f"<pre>{html.escape(repr(self))}</pre>"
