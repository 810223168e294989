"""RunManager: the hooks of a training loop; they check the order of calls and delegate."""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import nn
from torch.nn import functional

from runmanager.core import checkpoints, metrics
from runmanager.core.batch_size import Measure
from runmanager.core.batch_step import BatchStep, Loss
from runmanager.core.correct import num_correct
from runmanager.core.design import Design
from runmanager.core.epoch_options import EpochOptions
from runmanager.core.evaluation import Evaluation, Metric
from runmanager.core.folders import Experiment, RunFolders
from runmanager.core.goal import parse_goal
from runmanager.core.hooks import Hooks
from runmanager.core.outcome import Outcome, Status
from runmanager.core.state import read_run
from runmanager.devices import ranks
from runmanager.errors import InvalidArgumentError, LifecycleError, Problems
from runmanager.tensorboard import run_logs
from runmanager.tensorboard.options import TensorBoard, check_tensorboard, x_axis_of

if TYPE_CHECKING:
    import pandas as pd
    from torch.utils.tensorboard import SummaryWriter

    from runmanager.core.open_run import OpenRun
    from runmanager.front.loop_output import LoopOutput


T = TypeVar("T")


def _of_hooks(name: str, doc: str) -> Any:
    """Return a property for an attribute of the hooks; user code may set the property."""
    return property(
        lambda manager: getattr(hooks_of(manager), name),
        lambda manager, value: setattr(hooks_of(manager), name, value),
        doc=doc,
    )


class _settable(Generic[T]):  # noqa: N801 - used like property
    """A property that a subclass or user code may set: a plain attribute of the same name takes precedence."""

    def __init__(self, get: Callable[[Any], T]) -> None:
        self._get = get
        self.__doc__ = get.__doc__

    def __get__(self, manager: Any, _: Any = None) -> T:
        return self if manager is None else self._get(manager)  # type: ignore[return-value]

    if TYPE_CHECKING:  # at run time there is no __set__, so that plain attributes take precedence

        def __set__(self, manager: Any, value: Any) -> None: ...


def _output(*, show: bool) -> "LoopOutput":
    from runmanager.front.loop_output import LoopOutput

    return LoopOutput(show=show)


class RunManager:
    """Log runs: hooks for a training loop, one row per epoch, one event file per run.

    All files are written under ``root/experiment``. Training gives the same numbers with and without a manager.

    Under torchrun every rank has a manager and calls the same methods. Rank 0 writes the metrics of all ranks,
    and all ranks get the same rows. The device `cuda` is then the GPU with the local rank's number.

    Args:
        experiment: The name of the folder of these runs under `root`; None for a name with date and time. New
            runs are added to an existing experiment. With an `Experiment`, the root of the experiment is used.
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

    run_params: Any = _of_hooks("run_params", "The current run.")
    run_count: int = _of_hooks("run_count", "The number of runs that this manager has begun.")
    run_data: list[OrderedDict[str, Any]] = _of_hooks("rows", "One row per finished epoch of its runs.")
    outcome: Outcome | None = _of_hooks(
        "outcome", "The outcome of the last run, None before the first run and while a run is open."
    )

    def __init__(
        self,
        experiment: str | Experiment | None = None,
        root: str | PathLike[str] = "runs",
        *,
        tensorboard: bool | TensorBoard = True,
        display: bool | None = None,
        batch_size: Measure | None = None,
        goal: str | None = None,
        _hooks: Any = None,
    ) -> None:
        problems = Problems()
        problems.check_batch_size(batch_size)
        check_tensorboard(problems, "tensorboard", tensorboard)
        problems.raise_if_any(InvalidArgumentError)
        design = Design(None if goal is None else parse_goal(goal), x_axis=x_axis_of(tensorboard))
        self._hooks: Hooks = _hooks or Hooks(
            RunFolders(experiment, root),
            measure=batch_size,
            design=design,
            boards=run_logs(tensorboard),
            output=_output(show=display is not False),
        )
        self._writers: weakref.WeakKeyDictionary[OpenRun, SummaryWriter] = weakref.WeakKeyDictionary()

    def begin_run(self, run: Any, network: nn.Module | None = None, loader: Any = None) -> None:
        """Begin a run: move the network to the run's device, warm the device, open files, start the clock.

        Args:
            run: A namedtuple or mapping of hyperparameters; without `device`, the run is executed on the
                network's device.
            network: The network; it is moved to the device, unless its parameters are on several devices.
            loader: The loader for `batches`.

        Raises:
            LifecycleError: Another run is open, or this manager belongs to another run.
            DeviceError: The run's device is missing.
            GridError: A hyperparameter has the name of a column.
            StorageError: The run's folder could not be written.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> manager.begin_run({"lr": 0.1, "device": "cpu"})
            >>> for epoch in range(2):
            ...     manager.begin_epoch()
            ...     manager.track_loss(0.5, 8)
            ...     manager.end_epoch()
            ...     if manager.should_stop:  # as its loss diverged
            ...         break
            >>> manager.end_run()
            >>> manager.results["loss"].tolist()
            [0.5, 0.5]
        """
        self._hooks.begin_run(run, network, loader, self.end_run)

    def end_run(self) -> None:
        """End the run: commit its outcome, close its files, write the tables, show the results.

        Raises:
            LifecycleError: No run is open; or an epoch is open: then the run ends as interrupted, without this
                epoch.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> manager.begin_run({"lr": 0.1})
            >>> manager.end_run()
            >>> manager.outcome.status
            <Status.COMPLETED: 'completed'>
        """
        self._hooks.end_run()

    def begin_epoch(self) -> None:
        """Begin an epoch: zero the sums, start the clock.

        Raises:
            LifecycleError: No run is open, or the last epoch has not ended.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> manager.begin_run({"lr": 0.1})
            >>> manager.begin_epoch()
            >>> manager.epoch_count
            1
            >>> manager.end_epoch()
            >>> manager.end_run()
        """
        self._hooks.begin_epoch()

    def end_epoch(self) -> None:
        """End the epoch: stop the clock, read the sums, commit and log the row.

        Raises:
            LifecycleError: No epoch is open.
            InvalidArgumentError: Losses were tracked without batches, and the batch sizes are unknown.
            StorageError: The row could not be committed.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> manager.begin_run({"lr": 0.1})
            >>> manager.begin_epoch()
            >>> manager.track_loss(0.5, 8)
            >>> manager.end_epoch()
            >>> manager.run_data[0]["loss"]
            0.5
            >>> manager.end_run()
        """
        self._hooks.end_epoch()

    def track_loss(self, loss: torch.Tensor | float, batch: Any = None) -> None:
        """Add a batch's loss to the epoch's mean, without waiting for the device.

        Args:
            loss: The mean loss over the batch.
            batch: The batch, or its number of samples. Without `batch`, the number comes from
                `track_num_correct` or from the loader.

        Raises:
            LifecycleError: No epoch is open.
            InvalidArgumentError: The loss is not a single value, or the batch has no tensor to count.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}):
            ...     for epoch in manager.epochs(1):
            ...         manager.track_loss(torch.tensor(0.5), torch.ones(30, 4))  # 30 samples
            ...         manager.track_loss(1.0, 10)  # 10 samples
            >>> manager.results["loss"].tolist()
            [0.625]
        """
        self._hooks.tracking("track_loss()").add_loss(loss, batch)

    def track_num_correct(self, preds: torch.Tensor, labels: torch.Tensor) -> None:
        """Count the samples whose label has the largest score, without waiting for the device.

        If a subclass overrides `get_num_correct` or `_get_num_correct`, its method returns the number of
        correct samples out of ``len(labels)``.

        Args:
            preds: Scores ``(N, C)`` or ``(N, C, ...)``.
            labels: Class numbers ``(N,)`` or ``(N, ...)``.

        Raises:
            LifecycleError: No epoch is open.
            InvalidArgumentError: The shapes of `preds` and `labels` do not match.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}):
            ...     for epoch in manager.epochs(1):
            ...         scores = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.6, 0.4]])  # (4, 2)
            ...         manager.track_num_correct(scores, torch.tensor([0, 1, 0, 1]))
            >>> manager.results["accuracy"].tolist()
            [0.75]
        """
        sums = self._hooks.tracking("track_num_correct()").sums
        for name in ("_get_num_correct", "get_num_correct"):
            if getattr(type(self), name) is not getattr(RunManager, name):
                sums.add_count(getattr(self, name)(preds, labels), len(labels), len(labels))
                return
        sums.add_correct(preds, labels)

    def track(
        self,
        values: Mapping[str, torch.Tensor | float] | None = None,
        /,
        *,
        how: metrics.How = "mean",
        **named: torch.Tensor | float,
    ) -> None:
        """Add values of the current batch to further columns, without waiting for the device.

        The current batch is the last batch from `batches`, `track_loss(loss, batch)` or `track_num_correct`;
        without a batch, all calls have the same weight.

        Args:
            values: Metrics by name, for names that are not identifiers: ``track({"val/f1": f1})`` becomes the
                column `val_f1`.
            how: How the column aggregates the values: "mean" (each value is a mean over its batch), "sum",
                "last", "min" or "max".
            **named: Metrics as keyword arguments, as in ``track(f1=f1)``.

        Raises:
            LifecycleError: No epoch is open.
            InvalidArgumentError: A value is not a single number, a name is taken, or `how` differs from an
                earlier call.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}):
            ...     for epoch in manager.epochs(1):
            ...         for f1 in (0.25, 0.75):
            ...             manager.track(f1=f1)
            ...             manager.track({"norm/largest": 2 * f1}, how="max")
            >>> manager.results[["f1", "norm_largest"]].values.tolist()
            [[0.5, 1.5]]
        """
        self._hooks.tracking("track()").track({**(values or {}), **named}, how)

    def log(self, values: Mapping[str, Any] | None = None, /, *, every: int = 1, **named: Any) -> None:
        """Log values of the current step, for curves within an epoch, without waiting for the device.

        TensorBoard shows the values under ``steps/``, over the step of the run; `load_steps` loads them. A step
        is a batch of `batches`, else a batch of `track_loss`; a second value for a name in the same batch
        begins another step. Values stay on their device, and are read and written in blocks: when 4,096 values
        are waiting, when the first value has waited for 10 seconds, and at the end of the epoch. If an epoch is
        executed again, its values are replaced. Under torchrun, the values of rank 0 are logged.

        A figure of matplotlib, or an image, is written only to TensorBoard, under ``images/``: the first image
        of each name in each epoch, whatever `every` is. An image is an array or tensor ``(H, W)``, ``(C, H,
        W)`` or ``(H, W, C)`` with one or three channels, of uint8, bool, or floats from 0 to 1; reading it
        waits for the device.

        Args:
            values: Name -> value, for names that are not identifiers: ``log({"train/loss": loss})`` becomes the
                column `train_loss`.
            every: The interval of logged values in steps: ``every=50`` logs the values of the steps 50, 100,
                ... of the run, as Lightning's `log_every_n_steps` does. Other values are not read.
            **named: Values as keyword arguments, as in ``log(step_loss=loss, every=50)``.

        Raises:
            LifecycleError: No epoch is open, or an evaluation is open.
            InvalidArgumentError: A value is neither a number nor an image, a name is taken, or `every` is not a
                positive integer.
            StorageError: A block could not be written.

        Example:
            >>> from runmanager import load_steps
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}):
            ...     for epoch in manager.epochs(1):
            ...         for loss in (0.9, 0.8):
            ...             manager.track_loss(loss, 8)
            ...             manager.log(step_loss=loss)
            >>> load_steps("runs/example")["step_loss"].tolist()
            [0.9, 0.8]
        """
        self._hooks.logging().log({**(values or {}), **named}, every)

    def summary(
        self, values: Mapping[str, torch.Tensor | float] | None = None, /, **named: torch.Tensor | float
    ) -> None:
        """Add results of the whole run; each result becomes a column of `load_runs`, with one value per run.

        The results are committed at the end of the run. After the loop over `epochs`, the metrics of `evaluate`
        and `evaluating` are results of the whole run too.

        Args:
            values: Name -> value, for names that are not identifiers.
            **named: Results as keyword arguments, as in ``summary(final_f1=0.9)``.

        Raises:
            LifecycleError: No run is open.
            InvalidArgumentError: A value is not a single number, or a name is taken.

        Example:
            >>> from runmanager import load_runs
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}):
            ...     manager.summary(num_parameters=9)
            >>> load_runs("runs/example")["num_parameters"].tolist()
            [9.0]
        """
        self._hooks.open_run("summary()").add_summary({**(values or {}), **named})

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
            InvalidArgumentError: `name` leads out of the folder, or `content` is a link or of another type.
            StorageError: The artifact could not be written.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}):
            ...     path = manager.artifact("3 of 4 are right", "notes.txt")
            >>> path.name, path.read_text()
            ('notes.txt', '3 of 4 are right')
        """
        from runmanager.core import artifacts

        return artifacts.keep(
            self._hooks.open_run("artifact()").folder.path, content, name, is_writer=ranks.is_main()
        )

    def load_weights(self, network: nn.Module | None = None) -> None:
        """Load the weights that ``epochs(keep=...)`` has saved so far, for example for a final test.

        Args:
            network: The network that gets the weights; by default the run's network.

        Raises:
            LifecycleError: No run is open, or the run has no network.
            CheckpointError: The run has saved no weights, or the weights do not fit the network.

        Example:
            >>> network, loader = nn.Linear(4, 3), [(torch.ones(8, 4), torch.arange(8) % 3)]
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}, network):
            ...     for epoch in manager.epochs(3, keep="best:loss"):
            ...         manager.track_loss(abs(epoch - 2), 1)
            ...     manager.load_weights()  # those of epoch 2
            ...     final = manager.evaluate(loader, "final")  # the column final_loss
        """
        opened = self._hooks.open_run("load_weights()")
        network = network or opened.network
        if network is None:
            raise LifecycleError("load_weights() without a network: write manager.run(run, network, loader)")
        ranks.broadcast(None)  # wait until rank 0 has written the weights
        checkpoints.load_weights(opened.folder.path, network)

    def get_num_correct(self, preds: torch.Tensor, labels: torch.Tensor) -> int:
        """Count the samples whose label has the largest score; waits for the device.

        Args:
            preds: Scores ``(N, C)`` or ``(N, C, ...)``.
            labels: Class numbers ``(N,)`` or ``(N, ...)``.

        Returns:
            The number of these samples. A subclass may override this method.

        Example:
            >>> class TopTwo(RunManager):
            ...     def get_num_correct(self, preds, labels):
            ...         return (preds.topk(2).indices == labels[:, None]).sum().item()
            >>> preds, labels = torch.tensor([[0.1, 0.3, 0.6]]), torch.tensor([1])
            >>> RunManager().get_num_correct(preds, labels), TopTwo().get_num_correct(preds, labels)
            (0, 1)
        """
        return int(num_correct(preds, labels).item())

    _get_num_correct = get_num_correct

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

    @contextmanager
    def run(self, run: Any, network: nn.Module | None = None, loader: Any = None) -> Iterator["RunManager"]:
        """Begin a run, as `begin_run` does, and end it with the block, also after an exception.

        The run is recorded as completed, diverged (a loss was NaN or infinite), pruned, or interrupted (Ctrl-C,
        or a disk failure). After another exception, or sys.exit(), the run is recorded as failed or out of
        memory; the traceback is in error.log. After optuna.TrialPruned, the run is recorded as pruned; the
        current epoch counts if all its batches were trained. All these exceptions are raised again.

        Args:
            run: The hyperparameters, as in `begin_run`.
            network: The network; it is moved to the run's device, as in `begin_run`.
            loader: The loader for `batches`.

        Yields:
            This manager.

        Raises:
            LifecycleError: Another run is open, this manager belongs to another run, or an epoch is still open.
            DeviceError: The run's device is missing.
            GridError: A hyperparameter has the name of a column.
            StorageError: The run's folder could not be written.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1, "device": "cpu"}):
            ...     for epoch in manager.epochs(2):
            ...         manager.track_loss(float("nan"), 8)
            >>> manager.outcome.status, manager.outcome.epochs
            (<Status.DIVERGED: 'diverged'>, 1)
        """
        with self._hooks.run(run, lambda: self.begin_run(run, network, loader), self.end_run):
            yield self

    def epochs(
        self,
        n: int,
        *,
        checkpoint: Mapping[str, Any] | None = None,
        keep: str | None = None,
        patience: int | None = None,
        min_delta: float = 0.0,
        max_seconds: float | None = None,
        checkpoint_every: int | str | None = None,
    ) -> Iterator[int]:
        """Yield the numbers of `n` epochs; begin and end each epoch.

        The loop ends before the n-th epoch if the loss is not finite, or because of `patience` or
        `max_seconds`; the column `stopped early` of `load_runs` has the reason. An epoch that the loop leaves
        with ``break`` counts. With a checkpoint, an interrupted run resumes after its last committed epoch and
        gives the same numbers as a run without interruption: random states and the loader's generators are
        saved too.

        Args:
            n: The number of epochs, including the epochs of earlier attempts.
            checkpoint: The parts to save, by name: a network, an optimizer, a scheduler, or another object with
                state_dict() and load_state_dict(); a torch.Generator; or a dict or a list of JSON values, such
                as ``{"best": 0.5, "bad_epochs": 0}`` for early stopping. A dict or list is restored in place:
                the same object gets the saved values. With None, no checkpoint is saved.
            keep: The epoch whose weights are saved in the run's folder as weights.pt: "last", or
                "best:<metric>" for a metric with a known direction, such as a loss. For other metrics,
                "min:<metric>" or "max:<metric>". Without a goal, this metric also ranks the runs. Weights of an
                earlier attempt that completed, or whose code has changed since, are renamed to
                attempt-1.weights.pt.
            patience: The number of epochs without an improvement after which the loop ends. The metric of
                `keep` is compared, else the metric of the goal. Only committed epochs count, so a resumed run
                ends after the same epoch.
            min_delta: The smallest improvement that counts for `patience`.
            max_seconds: Begin no epoch after this run duration (s), including earlier attempts.
            checkpoint_every: The interval of checkpoints inside epochs: a number of batches, such as 500, or a
                duration, such as "30s", "10min" or "2h". A run that was killed inside an epoch then resumes at
                its next batch of `batches`, with the same numbers as a run that was not killed. The loader must
                have state_dict() and load_state_dict(), as `TensorLoader` and torchdata's StatefulDataLoader.
                With other loaders, the epoch starts over, and a warning says so. A batch counts as done only if
                you track a value of this batch.

        Returns:
            The numbers of the remaining epochs, from 1 for a new run.

        Raises:
            LifecycleError: No run is open, or an epoch has begun already.
            InvalidArgumentError: `patience`, `min_delta`, `max_seconds` or `checkpoint_every` is invalid, or
                `patience` has no metric to watch.
            CheckpointError: A part has no state, or has values that are not JSON, here or at the end of an
                epoch; or the saved checkpoint does not fit the parts.
            StorageError: The epoch, or its checkpoint, could not be written.

        Example:
            >>> network, state = nn.Linear(4, 3), {"best": 9.0}
            >>> parts = {"network": network, "state": state}
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}, network):
            ...     for epoch in manager.epochs(9, checkpoint=parts, keep="best:loss", patience=2):
            ...         manager.track_loss(abs(epoch - 2), 1)
            >>> manager.results["epoch"].tolist()  # epoch 2 was the best
            [1, 2, 3, 4]
        """
        options = EpochOptions(checkpoint, keep, patience, min_delta, max_seconds, checkpoint_every)
        return self._hooks.epochs(n, options, self.begin_epoch, self.end_epoch)

    def batches(self) -> Iterator[Any]:
        """Iterate over the loader's batches on the run's device.

        If the run resumes inside the epoch, only the remaining batches are yielded; see `resume_batch`.

        Returns:
            An iterator over the loader's batches, with tensors on the device.

        Raises:
            LifecycleError: No epoch is open, or the run has no loader.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"device": "cpu"}, None, [(torch.ones(8, 4), torch.zeros(8))] * 3):
            ...     for epoch in manager.epochs(1):
            ...         for inputs, labels in manager.batches():
            ...             manager.track_loss(inputs.mean(), inputs)
            >>> manager.results["loss"].tolist()
            [1.0]
        """
        epoch = self._hooks.open_epoch("batches()")
        if self.loader is None:
            raise LifecycleError("batches() without a loader: write manager.run(run, network, loader)")
        return epoch.batches()

    def evaluate(
        self,
        loader: Iterable[Any],
        name: str = "test",
        *,
        loss: Loss = functional.cross_entropy,
        step: BatchStep | None = None,
        metrics: Mapping[str, Metric] | None = None,
    ) -> Evaluation:
        """Compute loss and accuracy in eval mode without gradients: the columns `test_loss`, `test_accuracy`.

        An evaluation does not count towards the epoch's duration and does not change training: modes and random
        states are restored. For an evaluation before the first epoch, TensorBoard shows the values at step 0,
        and the table has no row. When the run is completed, TensorBoard shows the confusion matrix of the last
        evaluation. Under torchrun all ranks call `evaluate`, each with its part of the samples.

        Args:
            loader: Yields (inputs, labels); with `step`, batches of any form.
            name: The prefix of the columns.
            loss: Called with the network's output and the labels, returns the mean over the batch.
            step: Called with the network and a batch on its device, returns (loss, outputs, targets), or only
                the loss. Use `step` for batches that are a mapping, or have other parts than (inputs, labels).
            metrics: Metrics by name, with update(outputs, targets), compute() and reset(), as in torchmetrics.
                A metric becomes the column `test_<name>`; a metric that computes several values becomes one
                column `test_<name>_<key>` per value. Metrics are first moved to the device and reset.

        Returns:
            The means over the samples, as `.loss` and `.accuracy`, and the values of the metrics by name, as
            `.metrics`.

        Raises:
            LifecycleError: No run is open, the run has no network, or the epoch has ended already.
            InvalidArgumentError: A column's name is taken, a batch is not (inputs, labels), or a metric is not
                a number.

        Example:
            >>> network, loader = nn.Linear(4, 3), [(torch.ones(8, 4), torch.arange(8) % 3)]
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}, network):
            ...     for epoch in manager.epochs(1):
            ...         means = manager.evaluate(loader, "validation")
            >>> manager.results["validation_loss"].item() == means.loss, 0 <= means.accuracy <= 1
            (True, True)
        """
        opened = self._hooks.open_run("evaluate()")
        if opened.network is None:
            raise LifecycleError("evaluate() without a network: write manager.run(run, network, loader)")
        self._hooks.open_for_evaluation("evaluate()")
        return opened.evaluate(loader, name, loss, step, metrics)

    @contextmanager
    def evaluating(self, loader: Iterable[Any], name: str = "validation") -> Iterator[Iterator[Any]]:
        """Evaluate in your own loop: the block gets the loader's batches on the device.

        In the block, the network is in eval mode, no gradients are computed, and the epoch's clock is paused.
        The values of `track_loss`, `track_num_correct` and `track` in the block become the columns
        `validation_loss`, `validation_accuracy`, ... Modes and random states are restored, as in `evaluate`.

        Args:
            loader: Yields batches of any form.
            name: The prefix of the columns.

        Yields:
            An iterator over the loader's batches, with tensors on the device.

        Raises:
            LifecycleError: No run is open, the epoch has ended already, or another evaluation is open.
            InvalidArgumentError: A column's name is taken.

        Example:
            >>> network, loader = nn.Linear(4, 1), [{"x": torch.ones(8, 4), "y": torch.ones(8)}]
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}, network):
            ...     for epoch in manager.epochs(1):
            ...         with manager.evaluating(loader) as batches:
            ...             for batch in batches:
            ...                 error = network(batch["x"])[:, 0] - batch["y"]
            ...                 manager.track(mae=error.abs().mean())
            >>> [name for name in manager.results if name.startswith("validation")]
            ['validation_mae']
        """
        opened = self._hooks.open_for_evaluation("evaluating()")
        with opened.evaluating(loader, name) as evaluation:
            yield evaluation.batches()

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
        if self._hooks.folders.name is None:
            raise LifecycleError("remaining() of an experiment without a name: write RunManager('name')")
        experiment = self._hooks.folders.experiment
        if ranks.is_main():
            from runmanager.core.lock import check_free

            check_free(experiment.path)
        for run in runs:
            is_completed = False
            if ranks.is_main():
                folder = experiment.find(run)
                is_completed = folder is not None and read_run(folder).status is Status.COMPLETED
            if not ranks.broadcast(is_completed):
                yield run

    @property
    def results(self) -> "pd.DataFrame":
        """The table of `load_results` for this experiment so far, one row per finished epoch."""
        experiment = self._hooks.folders.opened
        if experiment is None or not (ranks.is_main() or experiment.path.exists()):
            from runmanager.front import loop_output

            return loop_output.table_of(self.run_data)
        from runmanager.tables.loading import load_results

        return load_results(experiment.path)

    @property
    def folder(self) -> Path | None:
        """The folder of the current or the last run, to which you may add files; None before the first run."""
        return self._hooks.current.folder.path if self._hooks.current else None

    @property
    def should_stop(self) -> bool:
        """Whether the run should stop after the last finished epoch; for loops that do not use `epochs`.

        True after an epoch whose loss was not finite, or if `patience` or `max_seconds` of `epochs`, or the
        grid's pruner, stops the run. A loop over `epochs` ends by itself; another loop checks this property and
        leaves with ``break``. False while no run is open.
        """
        return self._hooks.should_stop

    @_settable
    def tb(self) -> "SummaryWriter | None":
        """A SummaryWriter for the run's event file; None before the first run."""
        opened = self._hooks.current
        if opened is None:
            return None
        if opened not in self._writers:
            from runmanager.tensorboard.run_log import writer_of

            self._writers[opened] = writer_of(opened.board, opened.folder.path)
        return self._writers[opened]

    @_settable
    def network(self) -> nn.Module | None:
        """The network of the current or the last run."""
        return self._hooks.current.network if self._hooks.current else None

    @_settable
    def loader(self) -> Any:
        """The loader of the current or the last run."""
        return self._hooks.current.loader if self._hooks.current else None

    @_settable
    def epoch_count(self) -> int:
        """The number of the current epoch, 0 between runs."""
        return self._hooks.current.number if self._hooks.current else 0

    @property
    def resume_epoch(self) -> int:
        """The last committed epoch, after which a loop that saves its own state resumes; 0 for a new run.

        If the property is read before the first epoch, the run resumes at the following epoch. Save your state
        before `end_epoch`, so that each committed epoch has its state. If your last state is older, set
        `resume_epoch` to the epoch of that state; without any state, set `resume_epoch` to 0. Within
        ``epochs(checkpoint=...)``, the property is the restored epoch.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}):
            ...     for epoch in range(manager.resume_epoch + 1, 4):  # from 1: the run is new
            ...         manager.begin_epoch()
            ...         manager.track_loss(0.5, 8)
            ...         manager.end_epoch()
            >>> manager.results["epoch"].tolist()
            [1, 2, 3]
        """
        return self._hooks.resume_epoch

    @resume_epoch.setter
    def resume_epoch(self, epoch: int) -> None:
        self._hooks.resume_epoch = epoch

    @property
    def resume_batch(self) -> int:
        """The last batch that an earlier attempt saved in this epoch, after which `batches` resumes.

        0 without such a batch.

        Start a counter of `batches` at this number.

        Raises:
            LifecycleError: No epoch is open.

        Example:
            >>> manager = RunManager("example", display=False)
            >>> with manager.run({"lr": 0.1}, None, [torch.ones(8, 4)] * 3):
            ...     for epoch in manager.epochs(1):
            ...         for number, batch in enumerate(manager.batches(), manager.resume_batch):
            ...             print(number)
            0
            1
            2
        """
        return self._hooks.open_epoch("resume_batch").resume_batch

    @_settable
    def epoch_loss(self) -> float:
        """The sum of the losses of the epoch's samples so far; waits for the device."""
        return self._hooks.current.total("loss") if self._hooks.current else 0

    @_settable
    def epoch_num_correct(self) -> int:
        """The number of correct predictions in the epoch so far; waits for the device."""
        return int(self._hooks.current.total("accuracy")) if self._hooks.current else 0

    @_settable
    def epoch_start_time(self) -> float | None:
        """The start of the epoch, as a timestamp of `time.time()` (s), None between epochs."""
        return (
            self._hooks.current.epoch.start_time if self._hooks.current and self._hooks.current.epoch else None
        )

    @_settable
    def run_start_time(self) -> float | None:
        """The start of the current or the last run, as a timestamp of `time.time()` (s), None before a run."""
        return self._hooks.current.start_time if self._hooks.current else None


def hooks_of(manager: RunManager) -> Hooks:
    """Return the hooks behind a manager, for `fit` and the adapters of trainers."""
    return manager._hooks  # noqa: SLF001 - the same module
