"""The runs that a loop of one's own has started: executed like those of a grid, while the loop waits."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from runmanager.executors import Executor, LanesExecutor
from runmanager.executors.signals import INTERRUPTED, Stop
from runmanager.run import Run
from runmanager.search.asking import Asking, SearchResult
from runmanager.session import announce, arguments
from runmanager.session.display import Display
from runmanager.session.execute import Execution
from runmanager.session.grid_options import GridOptions
from runmanager.session.plan import Action
from runmanager.session.session import Session
from runmanager.session.task import Train
from runmanager.storage.fingerprint import Fingerprint
from runmanager.storage.folders import Experiment
from runmanager.storage.run_state import RunResult


class StartedRuns:
    """Executes what a loop has started.

    Lanes stay warm from one run to the next, until `end`. A signal that comes while the loop waits ends them;
    one that comes in the loop's own code does what it does in any program.
    """

    def __init__(
        self,
        search: Asking,
        train: Train,
        executor: Executor,
        options: GridOptions,
        manager_of: Callable[[Any], Any],
        make_display: Callable[[GridOptions], Display],
    ) -> None:
        self._search, self._train, self._executor, self._options = search, train, executor, options
        self._manager_of, self._make_display = manager_of, make_display
        self._fingerprint: Fingerprint = {}
        self._session: Session
        self._execution: Execution | None = None
        self._steps: Generator[tuple[Run, RunResult | None]]
        self._has_begun = False  # whether anything was executed
        self._has_ended = False  # whether it has ended by itself
        self._ended: list[tuple[Run, RunResult]] = []  # that the loop has not seen
        self._closing = ExitStack()
        self._num_lanes = 1
        self.notes: Sequence[str] = ()
        """To say before the first run."""

    def prepare(self) -> None:
        """Let the executor begin what takes long, and read the data.

        Raises:
            GridError: `train` cannot be sent to where runs are executed.
        """
        self._executor.prepare(self._train, self._options.path)
        self._fingerprint = arguments.take_fingerprint(self._train, self._options.data)

    def changed(self) -> set[str]:
        """Return the runs that are to be executed again, as code, data or versions have changed."""
        with ExitStack() as closing:
            session = self._open(closing, Experiment(self._options.path), Display(), missing={})
            plan = session.plan(is_written=False)
        return {planned.folder.id for planned in plan.runs if planned.action is Action.START_OVER}

    @property
    def num_lanes(self) -> int:
        """How many runs are executed at the same time, at most."""
        self._begun()
        return self._num_lanes

    def start(self, run: Run) -> None:
        """Let a run begin if a lane is free, or say in `wait` why it cannot be executed.

        Raises:
            KeyboardInterrupt: As for `wait`, and all that comes with it.
        """
        self._begun()
        self._search.start(run)
        if arguments.missing_devices([run], self._executor.missing, "skip"):
            (planned,) = self._session.plan_new([run]).runs
            self._ended.append((run, planned.before))
        elif self._executor.tells_begun and self._num_executed <= self._num_lanes:
            while (step := self._step()) != (run, None):
                if step[1]:
                    self._ended.append((step[0], step[1]))
                    if step[0] == run:
                        break

    def wait(self) -> SearchResult | None:
        """Execute runs until one has ended; None if there is none.

        Raises:
            KeyboardInterrupt: Ctrl-C; what was being executed is asked for again.
            SystemExit: SIGTERM or SIGHUP, with the exit code of that.
            StorageError: Something could not be committed.
        """
        self._search.settle()
        if not self._search.num_due:
            return None
        while not self._ended:
            run, result = self._step()
            if result:
                self._ended.append((run, result))
        return self._search.take(*self._ended.pop(0))

    def _step(self) -> tuple[Run, RunResult | None]:
        """Execute runs until one has ended, or has begun."""
        execution = self._begun()
        self._has_begun = True
        try:
            with self._session.stop:
                return next(self._steps)
        except StopIteration:
            self._has_ended = True
            error, code = execution.error, self._session.stop.exit_code
            self.end()
            if error:
                raise error from None
            raise (KeyboardInterrupt if code in (0, INTERRUPTED) else SystemExit(code)) from None
        except BaseException:
            self._has_ended = True
            self.end()
            raise

    def say(self, line: str) -> bool:
        """Say something among what is shown of the runs; return whether anything is shown."""
        if self._execution is None or not self._has_begun:
            return False
        self._session.display.say(line)
        return True

    def end(self) -> None:
        """End the lanes: what is being executed is stopped, and asked for again. Write the tables."""
        execution, self._execution = self._execution, None
        if execution is None:
            return
        self._executor.tells_begun = False
        session = self._session
        with self._closing, session.stop:
            execution.is_over = not self._num_executed
            self._stop_lanes()
            self._search.take_back({result.folder.id for _, result in self._ended})
            if self._has_begun:
                code = session.stop.exit_code or (execution.exit_code if execution.is_over else INTERRUPTED)
                session.conclude(execution, code)
        self._has_begun = False

    @property
    def _num_executed(self) -> int:
        """How many runs were started and have not ended."""
        return self._search.num_due - len(self._ended)

    def _begun(self) -> Execution:
        if self._execution is None:
            with ExitStack() as closing:
                self._execution = self._begin(closing)
                self._closing = closing.pop_all()
        return self._execution

    def _begin(self, closing: ExitStack) -> Execution:
        """Plan the runs that are there, as `run_grid` does."""
        search = self._search
        self._has_begun = self._has_ended = False
        experiment = search.experiment
        missing = arguments.missing_devices(
            [*search.examples(), *search.runs(experiment)], self._executor.missing, "skip"
        )
        display = self._make_display(self._options)
        self._session = session = self._open(closing, experiment, display, missing=missing)
        execution = session.ask(self.notes)
        self._executor.tells_begun = isinstance(self._executor, LanesExecutor)
        self._steps = execution.steps()
        available = [planned.run for planned in execution.plan.runs if not planned.folder.unavailable]
        self._num_lanes = self._executor.num_lanes([*available, *search.examples()])
        return execution

    def _open(
        self, closing: ExitStack, experiment: Experiment, display: Display, *, missing: Mapping[str, str]
    ) -> Session:
        runs = self._search.runs(experiment)
        num_runs = len(runs) + self._search.num_more()
        display.show_start(announce.starting_line(self._options.experiment, num_runs))
        closing.callback(display.clear)
        return Session(
            self._train, self._manager_of, self._options, experiment, self._executor, self._search,
            experiment.design, self._fingerprint, Stop(), display, runs, missing, closing=closing,
        )  # fmt: skip

    def _stop_lanes(self) -> None:
        """End what is being executed as Ctrl-C does, or let lanes end that have nothing to do."""
        if self._has_begun and self._num_executed and not self._has_ended:
            with suppress(StopIteration):
                self._steps.throw(KeyboardInterrupt)
        self._steps.close()
