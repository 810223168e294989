"""RunManager: the manager of runs with what a loop of a user sees: tables, TensorBoard, lines on a screen."""

import random
from collections.abc import Iterable, Iterator
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runmanager.core.loaders import Measure
from runmanager.core.manager import Manager, settable
from runmanager.core.outcome import Status
from runmanager.devices import ranks
from runmanager.errors import InvalidArgumentError, LifecycleError, Problems

if TYPE_CHECKING:
    import pandas as pd
    from torch.utils.tensorboard import SummaryWriter

    from runmanager.checks.unsaved import Unsaved
    from runmanager.tensorboard.event_options import TensorBoard


class RunManager(Manager):
    """Log runs: hooks for a training loop, one row per epoch, one event file per run.

    All files are written under ``root/experiment``. Training gives the same numbers with and without a manager.

    Under torchrun every rank has a manager and calls the same methods. Rank 0 writes the metrics of all ranks,
    and all ranks get the same rows. The device `cuda` is then the GPU with the local rank's number.

    Args:
        experiment: The name of the folder of these runs under `root`; None for a name with date and time. New
            runs are added to an existing experiment.
        root: The folder of all experiments.
        tensorboard: Whether event files are written, or a `TensorBoard`, as in `run_grid`.
        display: False shows nothing. Otherwise the table is shown at the end of each run. A terminal also shows
            a line after each epoch; a notebook updates the table after each epoch.
        batch_size: A function that takes a batch and returns its number of samples. The function is needed if
            the parts of a batch have different lengths.
        goal: The metric that decides, as in `run_grid`; it is stored with the experiment.

    Raises:
        GridError: `experiment` cannot be the name of a folder, `batch_size` is not a function, or `goal` is not
            a goal.

    Example:
        >>> network, loader = nn.Linear(4, 3), [(torch.ones(8, 4), torch.arange(8) % 3)] * 5
        >>> optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        >>> manager = RunManager("example", display=False)
        >>> with manager.run({"lr": 0.1}, network, loader):
        ...     for epoch in manager.epochs(2):
        ...         for inputs, labels in manager.batches():
        ...             preds = network(inputs)
        ...             loss = functional.cross_entropy(preds, labels)
        ...             optimizer.zero_grad()
        ...             loss.backward()
        ...             optimizer.step()
        ...             manager.track_loss(loss, labels)
        ...             manager.track_num_correct(preds, labels)
        ...         assert manager.epoch_count == epoch
        ...         assert manager.epoch_loss > 0 <= manager.epoch_num_correct
        ...         assert manager.run_start_time <= manager.epoch_start_time  # (s)
        ...         assert not manager.should_stop  # before the end of the epoch
        ...         manager.tb.add_scalar("further/scale", network.weight.abs().mean(), epoch)
        >>> manager.results["epoch"].tolist()
        [1, 2]
        >>> manager.folder.name, manager.network is network, manager.loader is loader
        ('001-lr=0.1', True, True)
        >>> manager.run_params, manager.run_count, len(manager.run_data)
        ({'lr': 0.1}, 1, 2)
        >>> manager.outcome.status.value
        'completed'
    """

    def __init__(
        self,
        experiment: str | None = None,
        root: str | PathLike[str] = "runs",
        *,
        tensorboard: "bool | TensorBoard" = True,
        display: bool | None = None,
        batch_size: Measure | None = None,
        goal: str | None = None,
    ) -> None:
        drawn = random.getstate()
        from runmanager.core import files
        from runmanager.core.experiment import Design, Experiment, check_experiment
        from runmanager.core.goal import parse_goal
        from runmanager.core.grid_context import GridContext
        from runmanager.front.loop_output import LoopOutput
        from runmanager.tensorboard.event_options import TensorBoard

        random.setstate(drawn)  # Rich has drawn a number, if this imported it
        files.open_closed_streams()
        problems = Problems()
        problems.check_batch_size(batch_size)
        if not isinstance(tensorboard, bool | TensorBoard):
            rule = "tensorboard must be True, False or TensorBoard(histogram_every=5)"  # type: ignore[unreachable]
            problems.append(f"{rule}, got {tensorboard!r:.60}")
        problems.raise_if_any(InvalidArgumentError)
        design = Design(None if goal is None else parse_goal(goal), x_axis=getattr(tensorboard, "x_axis", None))
        boards = None
        if tensorboard:
            from runmanager.tensorboard.run_log import boards_of

            boards = boards_of(tensorboard)
        output = LoopOutput(self, design.goal, show=display is not False)
        context = GridContext(goal=design.goal, listeners=[output], boards=boards, measure=batch_size)
        check_experiment(root, experiment, is_unnamed=experiment is None)
        super().__init__(
            # absolute, as the loop may change the working directory
            Experiment(Path(root).absolute() / (experiment or ""), is_unnamed=experiment is None),
            context,
            design,
        )

    def artifact(self, content: Any, name: str | None = None) -> Path:
        """Keep a file, a folder, a figure, a model or a text with the run, in its folder under ``artifacts/``.

        An artifact replaces an earlier one of the same name. `runmanager show` lists artifacts,
        ``load_run(...).artifacts`` has their paths, and `runmanager rm` removes them with the run. Under
        torchrun, rank 0 writes.

        Args:
            content: The path of a file or folder, which is copied; an object that saves itself by
                `savefig(path)` or `save(path)`, such as a figure of matplotlib, an image of PIL or a scripted
                network; or a text. Figures and images are saved as PNG unless `name` has another suffix. If
                `name` is given, a str that is not an existing path is a text.
            name: The artifact's name, such as "plots/roc.png"; by default the name of the file or folder.

        Returns:
            The path of the artifact.

        Raises:
            LifecycleError: No run is open.
            InvalidArgumentError: `name` leads out of the folder, or `content` is of another type.
            StorageError: The artifact could not be written.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}):
            ...     path = manager.artifact("3 of 4 are right", "notes.txt")
            >>> path.name, path.read_text()
            ('notes.txt', '3 of 4 are right')
        """
        from runmanager.front import artifacts

        folder = self._open_run("artifact()").folder.path
        return artifacts.keep(folder, content, name, is_writer=ranks.is_main())

    def save(self, fileName: str | PathLike[str]) -> None:  # noqa: N803 - the tutorial's name
        """Write the rows of this manager's runs to ``fileName.csv`` and ``fileName.json``.

        The formats are the formats of the tutorial: in the CSV, the index is the first, unnamed column; the
        JSON is a list of objects.

        Args:
            fileName: The path of both files, without their suffixes.

        Raises:
            StorageError: A file could not be written; its previous version is kept.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}):
            ...     for epoch in manager.epochs(1):
            ...         manager.track_loss(0.5, 8)
            >>> manager.save("results")
            >>> Path("results.csv").read_text().splitlines()[0]
            ',run,epoch,loss,accuracy,epoch duration,run duration,lr'
        """
        if ranks.is_main():
            from runmanager.front import loop_output

            loop_output.save(self.run_data, Path(fileName))

    def remaining(self, runs: Iterable[Any]) -> Iterator[Any]:
        """Skip the runs that this experiment has completed.

        Args:
            runs: Namedtuples or mappings of hyperparameters.

        Yields:
            The runs that are not completed, in order.

        Raises:
            LifecycleError: The experiment has no name, so its folder is always new.
            ExperimentLockedError: `run_grid` is running this experiment in another process or thread.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}):
            ...     pass
            >>> list(manager.remaining([{"lr": 0.1}, {"lr": 0.01}]))
            [{'lr': 0.01}]
        """
        from runmanager.core.lock import check_free
        from runmanager.core.run import id_of, identified
        from runmanager.core.state import read_run

        experiment = self._experiment
        if experiment.is_unnamed:
            raise LifecycleError("remaining() of an experiment without a name: write RunManager('name')")
        if ranks.is_main():
            check_free(experiment.path)

        def is_completed(run: Any) -> bool:
            folder = experiment.runs.get(id_of(identified(run)))
            return folder is not None and read_run(folder).status is Status.COMPLETED

        for run in runs:
            if not ranks.from_main(partial(is_completed, run)):
                yield run

    @property
    def results(self) -> "pd.DataFrame":
        """The table of `load_results` for this experiment so far, one row per finished epoch."""
        experiment = self._experiment
        if experiment.is_unnamed or not experiment.path.exists():
            from runmanager.front import loop_output

            return loop_output.table_of(self.run_data)
        from runmanager.tables.loading import load_results

        return load_results(experiment.path)

    @settable
    def tb(self) -> "SummaryWriter | None":
        """A SummaryWriter for the run's event file; None before the first run."""
        run = self._current
        if run is None:
            return None
        if run.writer is None:
            from runmanager.tensorboard.summary_writer import writer_of

            run.writer = writer_of(run.board, run.folder.path)
        writer: SummaryWriter = run.writer
        return writer

    @staticmethod
    def _watch(loader: Any, saved: Iterable[Any]) -> "Unsaved":
        from runmanager.checks.unsaved import Unsaved

        return Unsaved(loader, saved)
