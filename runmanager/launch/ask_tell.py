"""A search in the user's own loop: ask for a run, execute it in the loop or in a warm lane, tell its value."""

import atexit
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from runmanager.devices import ranks
from runmanager.errors import InvalidArgumentError, LifecycleError, Problems, RunsWarning
from runmanager.executors import Executor
from runmanager.launch.train_function import Train, manager_of
from runmanager.listener import Listener
from runmanager.nested import Grid
from runmanager.run import Run
from runmanager.screen.live import make_display
from runmanager.search.asking import Asking, SearchResult
from runmanager.search.halving import SuccessiveHalving
from runmanager.search.optuna_sampler import space_for
from runmanager.search.optuna_search import OptunaSearch
from runmanager.search.space import SearchSpace
from runmanager.session import arguments
from runmanager.session.grid_options import GridOptions
from runmanager.session.started_runs import StartedRuns
from runmanager.storage import durable, paths
from runmanager.storage.folders import Experiment
from runmanager.storage.lock import hold
from runmanager.storage.run_state import read_run
from runmanager.user_frames import user_level

if TYPE_CHECKING:
    from optuna.pruners import BasePruner


_OF_STARTED_RUNS = (
    "executor", "jobs", "runs_per_device", "timeout", "retries", "tensorboard", "prune", "changed", "data",
    "listeners",
)  # fmt: skip
"""The options that need the argument `train`."""

_opened: "dict[Path, AskTell]" = {}
"""The instances that `open` has opened, by experiment folder; `open` closes an earlier instance."""


class AskTell:
    """Ask an Optuna sampler for runs, one at a time, in your own loop.

    The search equals ``run_grid(search=...)``, and resumes in the same way: after a kill, the loop first gets
    the runs without a result, then the same suggestions as without a kill. The sampler gets the results of all
    ended runs of the experiment. The block holds the lock of the experiment.

    Execute a run yourself and `tell` its value. Or pass `train`, as in `run_grid`: then `start` begins a run,
    `wait` returns the result of the next run that ends, and `results` starts all runs and yields their results.
    Lanes stay warm until the block ends. The value of a started run is its metric of the goal, unless you
    `tell` another value before the next call. Runs begin, and their ends are recorded, only while the loop
    waits. Lanes continue their current runs while your code computes.

    Args:
        params: The axes, some of which may be ranges.
        search: The number of runs, and the sampler.
        experiment: The folder under `root`; a `RunManager` may share it.
        goal: The metric of the values for `tell`, as in `run_grid`, for example "min:loss"; or several metrics.
            If the loop is killed between the end of a run and `tell`, the run's own value of this metric
            counts.
        root: The folder of all experiments.
        train: Called as ``train(run, manager)`` for each started run. The arguments below work as in
            `run_grid`; all except `display` need `train`.
        executor: The executor of runs: "lanes", the default, "inline" or "ray", or an `Executor`.
        jobs: The maximum number of concurrent runs.
        runs_per_device: The number of runs that may share an accelerator.
        timeout: The seconds without a batch or an epoch after which a run counts as hung.
        retries: The maximum number of retries of a run whose process was killed or hung.
        tensorboard: Whether event files are written.
        prune: The pruner, which stops unpromising runs early.
        changed: With "rerun", the default, `ask` returns a run again if its code, data or versions have
            changed; with "keep", `ask` does not return such runs.
        data: The training data of `train`, so that changed data are detected.
        display: False shows nothing.
        listeners: Instances of your subclasses of `Listener`.

    Raises:
        GridError: The axes or an argument cannot be used; the message lists all problems.
        MissingExtraError: Optuna is not installed.

    Example:
        >>> from runmanager import Uniform
        >>> with AskTell({"x": Uniform(-1, 1)}, OptunaSearch(n=3), experiment="loop", goal="min:y") as search:
        ...     for run in search:
        ...         search.tell(run, run.x**2)
        >>> with AskTell({"x": Uniform(-1, 1)}, OptunaSearch(n=3), experiment="loop", goal="min:y") as search:
        ...     print(search.ask())
        None
    """

    def __init__(
        self,
        params: Grid,
        search: OptunaSearch,
        *,
        experiment: str,
        goal: str | Sequence[str],
        root: str | PathLike[str] = "runs",
        train: Train | None = None,
        executor: str | Executor | None = None,
        jobs: int | str = 1,
        runs_per_device: int = 1,
        timeout: float | None = None,
        retries: int = 0,
        tensorboard: bool = True,
        prune: "SuccessiveHalving | BasePruner | None" = None,
        changed: str = "rerun",
        data: Any = None,
        display: bool | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "params", "train")}
        self._options = options = GridOptions(**given)
        problems = Problems()
        executor = self._checked(params, train, problems)
        with problems.collecting():
            self._design = arguments.check_design(options, arguments.samples(params, Problems()))
        with problems.collecting():
            SearchSpace(params).check()
        Problems(dict.fromkeys(problems)).raise_if_any(InvalidArgumentError)
        goals = self._design.all_goals
        space = space_for(params, goals, search)
        self._path = options.path
        self._search = Asking(search, space, goals, self._path)
        self._started = (
            StartedRuns(self._search, train, executor, options, manager_of, make_display)
            if train and executor
            else None
        )
        self._closing = ExitStack()

    def _checked(self, params: Any, train: Train | None, problems: Problems) -> Executor | None:
        """Validate the arguments, and report all problems; return the executor, None without `train`."""
        options = self._options
        if ranks.num_ranks() > 1:  # every rank would ask and tell
            problems.append(
                "RANK and WORLD_SIZE are set, as by torchrun: AskTell is for one process; unset them"
            )
        if not isinstance(options.search, OptunaSearch):
            problems.append(f"search must be OptunaSearch(n=...), got {options.search!r:.60}")
        if train is not None:
            executor = options.make_executor(problems)
            options.check_values(problems)
            with problems.collecting():
                arguments.check_runs(params, train, options, Problems())
            return executor
        for name in options.changed_from_default(_OF_STARTED_RUNS):
            problems.append(f"{name}= is for runs that AskTell executes: give it train= too")
        with problems.collecting():
            paths.check_experiment(options.experiment)
        with problems.collecting():
            paths.check_root(options.root)
        arguments.samples(params, problems)
        return None

    def open(self) -> Self:
        """Begin the search without a block, as in the cells of a notebook; `close` ends it.

        An earlier search of the same experiment is closed, so that a cell can be executed again.

        Returns:
            This object.

        Raises:
            ExperimentLockedError: Another process or thread holds the experiment.
            GridError: `train` cannot be sent to the workers.
            LifecycleError: This object is open already.
            StorageError: The experiment's folder could not be written.

        Example:
            >>> from runmanager import Uniform
            >>> search = AskTell({"x": Uniform(0, 1)}, OptunaSearch(n=1), experiment="c", goal="max:y").open()
            >>> search.tell(search.ask(), 0.5)
            >>> search.close()
        """
        if (other := _opened.get(self._path)) and other is not self:
            other.close()
        self.__enter__()
        _opened[self._path] = self
        return self

    def close(self) -> None:
        """Stop the running runs, end the lanes, and release the lock of the experiment.

        In the next loop, `ask` returns the runs without a result again, and these runs resume.

        Example:
            >>> from runmanager import Uniform
            >>> search = AskTell({"x": Uniform(0, 1)}, OptunaSearch(n=1), experiment="d", goal="max:y").open()
            >>> search.close()
        """
        self._closing.close()

    def __enter__(self) -> Self:
        """Lock the experiment and read the results of earlier loops, as `open` does."""
        if self._search.is_open:
            raise LifecycleError("this AskTell is open: close() it first, or make another one")
        with ExitStack() as closing:
            if self._started:
                self._started.prepare()
            durable.make_folder(self._path)
            closing.enter_context(hold(self._path))
            experiment = Experiment(self._path)
            changes = experiment.decide(self._design)
            results = {folder.id: read_run(folder) for _, folder in self._search.space.runs_of(experiment)}
            changed = self._started.changed() if self._started else set()
            closing.callback(self._search.close)
            self._search.open(experiment, results, changed)
            if self._started:
                self._started.notes = [f"! {change}" for change in changes]
                closing.callback(self._started.end)
            at_exit = partial(self._close_in, os.getpid())
            atexit.register(at_exit)
            closing.callback(atexit.unregister, at_exit)
            closing.callback(_opened.pop, self._path, None)
            self._closing = closing.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """End the search, as `close` does."""
        self.close()

    def ask(self, params: "Mapping[str, Any] | Run | None" = None) -> Run | None:
        """Return the run to execute next.

        Its folder is written before `ask` returns. A setting with a result is not suggested again.

        Args:
            params: A setting of your choice, for example a first guess: one value for each axis with several
                values. This run does not count towards `n`; the sampler gets its result.

        Returns:
            The run. None after `n` suggestions, or if the sampler has no more settings. For a setting in
            `params`, None if the setting has a result already, or if `ask` has returned the setting before.

        Raises:
            LifecycleError: The block of ``with`` has not begun, or has ended.
            InvalidArgumentError: The setting does not fit the axes; or a started run did not track the goal,
                and has no value from `tell`.
            StorageError: The run's folder could not be written.

        Example:
            >>> from runmanager import Uniform
            >>> with AskTell({"x": Uniform(0, 1)}, OptunaSearch(n=1), experiment="a", goal="max:y") as search:
            ...     print(search.ask({"x": 0.5}))
            ...     print(search.ask())
            Run(x=0.5)
            Run(x=0.9732230505228905)
        """
        self._check_open()
        run = self._search.ask(params)
        for sentence in self._search.sentences():
            if not (self._started and self._started.say(sentence)):
                warnings.warn(sentence.removeprefix("! "), RunsWarning, stacklevel=user_level())
        return run

    def tell(self, run: Run, value: float | Sequence[float] | None) -> None:
        """Record the value of a run; the value counts until the run is executed again.

        Tables have the value if the run was never executed, as in a loop without a `RunManager`.

        Args:
            run: A run that `ask` has returned.
            value: The value of the goal, or a list for several goals; None or NaN if the run failed.

        Raises:
            LifecycleError: The block of ``with`` has not begun, or has ended.
            InvalidArgumentError: `ask` has not returned the run, or the run is running or has a value already;
                or `value` is not a number.
            StorageError: The value could not be written.

        Example:
            >>> from runmanager import Uniform
            >>> with AskTell({"x": Uniform(0, 1)}, OptunaSearch(n=9), experiment="b", goal="max:y") as search:
            ...     for run in search:
            ...         search.tell(run, run.x if run.x < 0.5 else None)
        """
        self._check_open()
        self._search.tell(run, value)

    def start(self, run: Run) -> None:
        """Queue a run for `train`; the run begins as soon as a lane is free and the loop waits.

        Args:
            run: A run that `ask` has returned.

        Raises:
            LifecycleError: There is no `train`; or the block has not begun, or has ended.
            InvalidArgumentError: `ask` has not returned the run, or the run is running or has a value already.

        Example:
            >>> def train(run, manager):
            ...     with manager.run(run):
            ...         for epoch in manager.epochs(1):
            ...             manager.track_loss(run.lr, 1)
            >>> from runmanager import Uniform
            >>> how = {"experiment": "e", "goal": "min:loss", "executor": "inline", "display": False}
            >>> with AskTell({"lr": Uniform(0, 1)}, OptunaSearch(n=9), train=train, **how) as search:
            ...     search.start(search.ask({"lr": 0.5}))
            ...     print(search.wait().value)
            0.5
        """
        self._executing("start").start(run)

    def wait(self) -> SearchResult | None:
        """Execute the started runs until one of them ends.

        Returns:
            The result of this run, None if no run is started.

        Raises:
            LifecycleError: There is no `train`; or the block has not begun, or has ended.
            KeyboardInterrupt: Ctrl-C was pressed; the next loop gets the running runs again.
            StorageError: The experiment's folder could not be written.

        Example:
            >>> from runmanager import Uniform
            >>> train = lambda run, manager: manager.begin_run(run)
            >>> how = {"experiment": "f", "goal": "min:loss", "display": False}
            >>> with AskTell({"lr": Uniform(0, 1)}, OptunaSearch(n=9), train=train, **how) as search:
            ...     print(search.wait())
            None
        """
        return self._executing("wait").wait()

    def results(self) -> Iterator[SearchResult]:
        """Ask for runs and execute them, one per lane at a time; yield the result of each run when it ends.

        Yields:
            The result of a run.

        Raises:
            LifecycleError: There is no `train`; or the block has not begun, or has ended.
            KeyboardInterrupt: Ctrl-C was pressed, as in `wait`.

        Example:
            >>> def train(run, manager):
            ...     with manager.run(run):
            ...         for epoch in manager.epochs(1):
            ...             manager.track_loss(run.lr, 1)
            >>> from runmanager import Uniform
            >>> how = {"experiment": "g", "goal": "min:loss", "executor": "inline", "display": False}
            >>> with AskTell({"lr": Uniform(0, 1)}, OptunaSearch(n=1), train=train, **how) as search:
            ...     print([result.value for result in search.results()])
            [0.5355993486273284]
        """
        started = self._executing("results")
        while True:
            while self._search.num_due < started.num_lanes and (run := self.ask()) is not None:
                started.start(run)
            result = self.wait()
            if result is None:
                return
            yield result

    def __iter__(self) -> Iterator[Run]:
        """Yield the runs of `ask` until it returns None."""
        while (run := self.ask()) is not None:
            yield run

    def _close_in(self, process: int) -> None:
        """Close the search when its process exits; a forked child does nothing."""
        if os.getpid() == process:
            self.close()

    def _check_open(self) -> None:
        if not self._search.is_open:
            step = "write `with AskTell(...) as search:`, or open() it in a notebook"
            raise LifecycleError(f"AskTell outside its block: {step}")

    def _executing(self, method: str) -> StartedRuns:
        self._check_open()
        if self._started is None:
            step = "AskTell(..., train=train), which takes (run, manager)"
            raise LifecycleError(f"{method}() executes runs: write {step}")
        return self._started
