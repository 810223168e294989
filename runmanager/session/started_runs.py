"""The execution of the runs that AskTell.start() has queued."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from runmanager.executors import Executor
from runmanager.executors.lanes import LanesExecutor
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
from runmanager.storage.fingerprint_changes import Fingerprint
from runmanager.storage.folders import Experiment
from runmanager.storage.run_state import RunResult


class StartedRuns:
    """Executes the runs that a loop has started.

    Lanes stay warm between runs, until `end`. A signal during `wait` ends the lanes; a signal in the loop's
    code has its usual effect.
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
        self._has_begun = False  # whether any run was executed
        self._has_ended = False  # whether the execution has ended by itself
        self._ended: list[tuple[Run, RunResult]] = []  # ended runs that are not yet returned to the loop
        self._closing = ExitStack()
        self._num_lanes = 1
        self.notes: Sequence[str] = ()
        """Sentences to print before the first run."""

    def prepare(self) -> None:
        """Start slow preparations of the executor, and read the data.

        Raises:
            GridError: `train` cannot be sent to worker processes.
        """
        self._executor.prepare(self._train, self._options.path)
        self._fingerprint = arguments.take_fingerprint(self._train, self._options.data)

    def changed(self) -> set[str]:
        """Return the identities of runs to execute again because code, data or versions have changed."""
        with ExitStack() as closing:
            session = self._open(closing, Experiment(self._options.path), Display(), missing={})
            plan = session.plan(is_written=False)
        return {planned.folder.id for planned in plan.runs if planned.action is Action.START_OVER}

    @property
    def num_lanes(self) -> int:
        """The maximum number of concurrent runs."""
        self._begun()
        return self._num_lanes

    def start(self, run: Run) -> None:
        """Begin a run if a lane is free; if the run cannot be executed, `wait` returns the reason.

        Raises:
            KeyboardInterrupt: The same as for `wait`; the other exceptions of `wait` may be raised too.
        """
        self._begun()
        self._search.start(run)
        if arguments.missing_devices([run], self._executor.missing):
            (planned,) = self._session.plan_new([run]).runs
            self._ended.append((run, planned.before))
        elif self._executor.tells_begun and self._num_executed <= self._num_lanes:
            while (step := self._step()) != (run, None):
                if step[1]:
                    self._ended.append((step[0], step[1]))
                    if step[0] == run:
                        break

    def wait(self) -> SearchResult | None:
        """Execute runs until a run has ended, and return its result; None if there is no run.

        Raises:
            KeyboardInterrupt: Ctrl-C; `ask` returns the interrupted runs again.
            SystemExit: SIGTERM or SIGHUP, with the exit code of the signal.
            StorageError: An outcome could not be committed.
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
        """Execute runs until a run has begun or ended."""
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
        """Print a line in the display of the runs; return whether anything is shown."""
        if self._execution is None or not self._has_begun:
            return False
        self._session.display.say(line)
        return True

    def end(self) -> None:
        """End the lanes, and write the tables; later, `ask` returns the stopped runs again."""
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
        """The number of runs in progress."""
        return self._search.num_due - len(self._ended)

    def _begun(self) -> Execution:
        if self._execution is None:
            with ExitStack() as closing:
                self._execution = self._begin(closing)
                self._closing = closing.pop_all()
        return self._execution

    def _begin(self, closing: ExitStack) -> Execution:
        """Plan the existing runs, as `run_grid` does."""
        search = self._search
        self._has_begun = self._has_ended = False
        experiment = search.experiment
        missing = arguments.missing_devices(
            [*search.examples(), *search.runs(experiment)], self._executor.missing
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
        display.show_start(announce.starting_line(self._options.experiment, num_runs, is_limit=True))
        closing.callback(display.clear)
        return Session(
            self._train, self._manager_of, self._options, experiment, self._executor, self._search,
            experiment.design, self._fingerprint, Stop(), display, runs, missing, closing=closing,
        )  # fmt: skip

    def _stop_lanes(self) -> None:
        """Stop runs in progress as Ctrl-C does, or end idle lanes."""
        if self._has_begun and self._num_executed and not self._has_ended:
            with suppress(StopIteration):
                self._steps.throw(KeyboardInterrupt)
        self._steps.close()
