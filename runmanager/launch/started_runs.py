"""The runs that a loop of one's own has started: executed like those of a grid, while the loop waits."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.board import hparams
from runmanager.executors import Executor, LanesExecutor
from runmanager.executors.signals import INTERRUPTED, Stop
from runmanager.grid import Run
from runmanager.launch import announce, arguments, searched
from runmanager.launch.execute import Execution
from runmanager.launch.grid_outcome import conclude_grid, export_tables
from runmanager.launch.plan import Action, Plan, make_plan
from runmanager.launch.pruning import leave_pruned, rules_of
from runmanager.launch.task import RunTask, Train
from runmanager.search.asking import Asking, SearchResult
from runmanager.search.halving import SuccessiveHalving
from runmanager.storage.fingerprint import Fingerprint, note_changes_by_runs
from runmanager.storage.folders import Experiment, RunFolder
from runmanager.storage.run_state import RunResult

if TYPE_CHECKING:
    from optuna.pruners import BasePruner


class StartedRuns:
    """Executes what a loop has started; options are `run_grid`'s.

    Lanes stay warm from one run to the next, until `end`. A signal that comes while the loop waits ends them;
    one that comes in the loop's own code does what it does in any program.
    """

    def __init__(
        self,
        search: Asking,
        train: Train,
        executor: Executor,
        experiment: Path,
        *,
        retries: int,
        tensorboard: bool,
        prune: "SuccessiveHalving | BasePruner | None",
        keep_changed: bool,
        data: Any,
        display: bool | None,
    ) -> None:
        self._search = search
        self._train = train
        self._executor = executor
        self._path = experiment
        self._retries = retries
        self._tensorboard = tensorboard
        self._prune = prune
        self._policy: dict[str, Any] = {
            "retry_failed": False, "keep_changed": keep_changed, "axes": search.axes
        }  # fmt: skip
        self._data = data
        self._show = display is not False
        self._fingerprint: Fingerprint = {}
        self._execution: Execution | None = None
        self._steps: Generator[tuple[Run, RunResult | None]]
        self._plan_new: Callable[[Sequence[Run]], Plan]
        self._has_begun = False  # whether anything was executed
        self._has_ended = False  # whether it has ended by itself
        self._ended: list[tuple[Run, RunResult]] = []  # that the loop has not seen
        self._stop = Stop()
        self._closing = ExitStack()
        self._began = 0.0
        self._num_lanes = 1
        self.notes: Sequence[str] = ()
        """To say before the first run."""

    def prepare(self) -> None:
        """Let the executor begin what takes long, and read the data.

        Raises:
            GridError: `train` cannot be sent to where runs are executed.
        """
        self._executor.prepare(self._train, self._path)
        self._fingerprint = arguments.take_fingerprint(self._train, self._data)

    def changed(self, experiment: Experiment) -> set[str]:
        """Return the runs that are to be executed again, as code, data or versions have changed."""
        runs = self._search.runs(experiment)
        grid = [run._asdict() for run in runs]
        plan = self._plan(runs, experiment.assign(grid, {}))
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
            (planned,) = self._plan_new([run]).runs
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
            with self._stop:
                return next(self._steps)
        except StopIteration:
            self._has_ended = True
            error, code = execution.error, self._stop.exit_code
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
        self._execution.progress.say(line)
        return True

    def end(self) -> None:
        """End the lanes: what is being executed is stopped, and asked for again. Write the tables."""
        execution, self._execution = self._execution, None
        if execution is None:
            return
        self._executor.tells_begun = False
        with self._closing, self._stop:
            execution.is_over = not self._num_executed
            self._stop_lanes()
            self._search.take_back({result.folder.id for _, result in self._ended})
            if self._has_begun:
                code = self._stop.exit_code or (execution.exit_code if execution.is_over else INTERRUPTED)
                if execution.error is None:
                    code = export_tables(self._path, execution.progress.say) or code
                conclude_grid(execution, code, self._path, self._began, has_events=self._tensorboard)
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
        search, path = self._search, self._path
        self._stop, self._began = Stop(), time.monotonic()
        self._has_begun = self._has_ended = False
        experiment = Experiment(path)
        design = experiment.design
        runs = search.runs(experiment)
        rule, pruner = rules_of(self._prune, design.goal)
        assert rule is None  # it would compare all runs of a grid at once
        missing = arguments.missing_devices([*search.examples(), *runs], self._executor.missing, "skip")
        num_runs = len(runs) + search.num_more()
        screen = closing.enter_context(announce.starting(path.name, num_runs, show=self._show))
        folders = experiment.plan([run._asdict() for run in runs], missing, design)
        plan = leave_pruned(self._plan(runs, folders), pruner, **self._policy)
        if self._executor.is_in_process:
            closing.callback(note_changes_by_runs, self._train, self._fingerprint)
        if self._tensorboard:
            hparams.decide(path)
        task = RunTask(
            self._train, experiment, self._tensorboard, 1, self._fingerprint, self._policy["keep_changed"], 1,
            rule=pruner.rule if pruner else "", goal=design.goal, x_axis=design.x_axis,
        )  # fmt: skip
        plan_new = searched.plans_new(
            search, experiment, design, self._fingerprint, self._executor.missing, self._policy
        )
        assert plan_new
        self._plan_new = plan_new
        execution = Execution(
            plan, search, self._executor, task, self._stop, retries=self._retries, on_error="continue",
            show=self._show, design=design, notes=self.notes, screen=screen, pruner=pruner, plan_new=plan_new,
        )  # fmt: skip
        execution.hands_over = True
        self._executor.tells_begun = isinstance(self._executor, LanesExecutor)
        self._steps = execution.steps()
        available = [run for run, folder in zip(runs, folders, strict=True) if not folder.unavailable]
        self._num_lanes = self._executor.num_lanes([*available, *search.examples()])
        return execution

    def _plan(self, runs: Sequence[Run], folders: Sequence[RunFolder]) -> Plan:
        return make_plan(runs, folders, self._fingerprint, chosen=range(len(runs)), **self._policy)

    def _stop_lanes(self) -> None:
        """End what is being executed as Ctrl-C does, or let lanes end that have nothing to do."""
        if self._has_begun and self._num_executed and not self._has_ended:
            with suppress(StopIteration):
                self._steps.throw(KeyboardInterrupt)
        self._steps.close()
