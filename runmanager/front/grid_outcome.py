"""The end of a grid: the outcomes of its runs, its tables, and its panel."""

import html
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.core.contracts import Listener
from runmanager.core.experiment import Design
from runmanager.core.files import for_people
from runmanager.core.loop import COMPLETED, SOME_FAILED, Loop
from runmanager.core.outcome import Outcome, Status
from runmanager.core.run import Run
from runmanager.core.state import RunResult
from runmanager.core.wording import printable
from runmanager.errors import StorageError
from runmanager.tables import results_files
from runmanager.tables.run_numbers import missing_goal

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
        folder: The experiment's folder.

    Example:
        >>> from runmanager import run_grid
        >>> train = lambda run, manager: manager.begin_run(run)
        >>> outcome = run_grid({"lr": [0.1]}, train, experiment="example", executor="inline", display=False)
        >>> outcome.exit_code, outcome.runs["status"].tolist()
        (0, ['completed'])
    """

    outcomes: Sequence[tuple[Run, Outcome]]
    exit_code: int
    folder: Path
    # the states and the design at the end; tables and panel are computed from them when they are read
    _name: str = ""
    _states: Sequence[RunResult] = ()
    _design: Design = field(default_factory=Design)
    _end: Mapping[str, Any] | None = None  # what the conclusion needs; None without a conclusion

    @cached_property
    def results(self) -> "pd.DataFrame":
        """One row per epoch of these runs, as from `load_results`."""
        from runmanager.tables import columns

        table = columns.epochs_table(columns.by_column(self._states))
        return columns.with_design(table, self._name, self._design)

    @cached_property
    def runs(self) -> "pd.DataFrame":
        """One row per run, as from `load_runs`."""
        from runmanager.tables.columns import runs_table

        return runs_table(self._name, self._states, self._design)

    @cached_property
    def panel(self) -> Any:
        """The panel shown at the end, which a notebook draws; None if the grid was only planned."""
        if self._end is None:
            return None
        from runmanager.answers.conclusion import conclude
        from runmanager.answers.time_spent import RunTime, time_spent
        from runmanager.screen.panel import Panel
        from runmanager.tables.columns import runs_table

        end = dict(self._end)
        lanes, seconds, starting = end.pop("lanes"), end.pop("seconds"), end.pop("starting")
        times = [RunTime.since(*run) for run in end.pop("times")]
        others = end.pop("others")
        states = sorted([*others, *self._states], key=lambda state: state.folder.number)
        return Panel(
            conclude(
                runs_table(self._name, self._states, self._design), self.folder,
                time=time_spent(seconds, lanes, starting, times) if times else None,
                all_runs=runs_table(self._name, states, self._design) if others else None,
                **end,
            )
        )  # fmt: skip

    def __repr__(self) -> str:
        counts = counted_statuses(self.outcomes) or "no runs"
        return f"<GridOutcome of {printable(str(self.folder))}: {counts}; exit code {self.exit_code}>"

    def _repr_html_(self) -> str:
        return self.panel._repr_html_() if self.panel else f"<pre>{html.escape(repr(self))}</pre>"


def counted_statuses(outcomes: Sequence[tuple[Run, Outcome]]) -> str:
    """Return the number of runs of each status, as "2 completed, 1 failed"."""
    counts = Counter(str(outcome.status) for _, outcome in outcomes)
    return ", ".join(f"{number:,} {status}" for status, number in counts.items())


def outcome_of(loop: Loop, exit_code: int, **facts: Any) -> GridOutcome:
    """Return the outcome of an executed grid; `facts` are arguments of `conclude`, none for no conclusion."""
    experiment = loop.task.experiment
    asked_for = loop.without_left_out(loop.search) if loop.search else [*loop.runs.values()]
    states = [loop.states[planned.folder.id] for planned in asked_for]
    left_out = loop.runs.keys() - {state.folder.id for state in states}
    if loop.is_over and left_out:
        with suppress(StorageError):  # runs that could not be dropped stay pending
            experiment.forget(left_out)
    statuses = {state.status for state in states} - ({Status.PENDING} if loop.is_over else set())
    nothing_ran = loop.is_over and statuses == {Status.UNAVAILABLE}
    if exit_code == COMPLETED and (nothing_ran or any(status.exit_code for status in statuses)):
        exit_code = SOME_FAILED
    end: dict[str, Any] | None = None
    if facts:
        # changed runs without an epoch since the change: tables have their earlier epochs
        changed = [planned for id_, planned in loop.runs.items() if not loop.states[id_].epochs]
        end = facts | {
            "is_over": loop.is_over,
            "is_broken_off": exit_code not in (COMPLETED, SOME_FAILED),
            "more": loop.num_more,
            "num_changed": sum(bool(planned.folder.since and planned.before.epochs) for planned in changed),
            "lanes": loop.num_lanes,
            "seconds": time.monotonic() - loop.began,
            "starting": (loop.first_began or loop.began) - loop.began,
            "times": [
                (loop.runs[id_].before, loop.states[id_], seconds)
                for id_, seconds in loop.seconds.items()
                if loop.first_began is not None
            ],
            "others": loop.others,
        }
    return GridOutcome(
        [(planned.run, state.outcome) for planned, state in zip(asked_for, states, strict=True)],
        exit_code, for_people(experiment.path), experiment.path.name, states, experiment.design, end,
    )  # fmt: skip


@dataclass(eq=False)
class Tables(Listener):
    """Writes the tables of an experiment when a run has ended, in at most a twentieth of the elapsed time.

    The listener also ends the event files of dead processes, and warns if the first completed run lacks the
    metric of a goal.
    """

    loop: Loop
    _next: float = 0.0
    _is_first: bool = True

    def run_ended(self, outcome: Outcome) -> None:
        """Write the tables, unless writing is slow and the tables were written recently."""
        folder = self.loop.runs[self.slot.id].folder
        if not outcome.is_committed:
            from runmanager.tensorboard.run_log import end_abandoned

            end_abandoned(folder, outcome)
        goals = self.loop.design.all_goals
        if goals and self._is_first and outcome.status is Status.COMPLETED:
            self._is_first = False
            if sentence := missing_goal(goals, folder):
                self.loop.say(f"! {sentence}")
        before = time.monotonic()
        if before >= self._next:
            results_files.write_results(self.loop.of_tables(), self.loop.task.experiment.path)
            self._next = time.monotonic() + 20 * (time.monotonic() - before)
