"""Evaluations: means and metrics over the batches of a loader, without effects on training."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import nan
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import nn

from runmanager.core import loaders
from runmanager.core.batch_size import Measure
from runmanager.core.batch_step import (
    BatchStep,
    Loss,
    counted_part,
    has_classes,
    of_step,
    pair_of,
)
from runmanager.core.listeners import Counts
from runmanager.core.metrics import EpochSums, How, check_column, column_of, single
from runmanager.devices import ranks
from runmanager.devices.torch_devices import send, undisturbed_random
from runmanager.errors import InvalidArgumentError


class Metric(Protocol):
    """A metric that is updated with each batch, such as a metric of torchmetrics."""

    def update(self, outputs: Any, targets: Any, /) -> None:
        """Update the metric with a batch."""

    def compute(self) -> Any:
        """Return the value over all batches: a number, or a mapping of numbers."""

    def reset(self) -> None:
        """Reset the metric."""


class _Means(NamedTuple):
    loss: float
    accuracy: float


class Evaluation(_Means):
    """The means over the samples of a loader.

    Attributes:
        loss: The mean loss, NaN without batches.
        accuracy: The fraction of correct predictions; NaN if the targets are not classes.
        metrics: The values of the metrics in `metrics=`, by name.
    """

    metrics: Mapping[str, float]

    def __new__(cls, loss: float, accuracy: float, metrics: Mapping[str, float] | None = None) -> Self:
        """Create an evaluation; `metrics` is optional."""
        evaluation = super().__new__(cls, loss, accuracy)
        evaluation.metrics = metrics or {}
        return evaluation


class OpenEvaluation:
    """An evaluation in progress; no method except `read` waits for the device.

    Args:
        name: The prefix of the evaluation's columns.
        on_batch: Called at each batch.
        measure: The user's function that counts the samples of a batch, None by default.
        params: The run's hyperparameters; a column cannot have such a name.
    """

    result: Evaluation  # the means of an ended evaluation

    def __init__(
        self,
        name: str,
        loader: Iterable[Any],
        device: torch.device,
        on_batch: Callable[[], None] = lambda: None,
        measure: Measure | None = None,
        params: Container[str] = (),
    ) -> None:
        self.device = device
        self.num_batches = 0  # the number of batches so far
        self.sums = EpochSums(measure)
        self.computed: dict[str, float] = {}  # values of the metrics in `metrics=`, by name
        self._name, self._loader = name, loader
        self._on_batch = on_batch
        self._params = params
        self._columns: set[str] = set()  # columns whose names are valid
        self._num_labels = 0

    def batches(self) -> Iterator[Any]:
        """Yield the loader's batches on the device."""
        for batch in (send(batch, self.device) for batch in self._loader):
            self.num_batches += 1
            self._on_batch()
            self.sums.begin_batch(batch)
            yield batch

    def add_loss(self, loss: torch.Tensor | float, batch: Any) -> None:
        """Add the mean loss of a batch, see `EpochSums.add_loss`."""
        self.sums.add_loss(loss, batch, self._expected)

    def add_correct(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Count the correct predictions of a batch."""
        correct = self.sums.add_correct(outputs, targets)
        self._num_labels += 0 if correct is None else correct.numel()

    @property
    def num_items(self) -> int:
        """The number of evaluated samples; 0 if it is unknown, or a sample has several labels."""
        if ranks.num_ranks() == 1:
            with suppress(Exception):  # __len__ of a user's data set may raise any exception
                return self._num_labels if self._num_labels <= len(self._loader.dataset) else 0  # type: ignore[attr-defined]
        return 0

    def track(self, values: Mapping[str, torch.Tensor | float], how: How = "mean") -> None:
        """Add values of the current batch, see `RunManager.track`."""
        for name, value in values.items():
            self.column(name)
            self.sums.track(column_of(name), value, how, self._expected)

    def column(self, name: str) -> str:
        """Return the column of a metric."""
        column = f"{self._name}_{column_of(name)}"
        if column not in self._columns:
            check_column(column, self._params)
            self._columns.add(column)
        return column

    def read(self) -> tuple[Evaluation, dict[str, float]]:
        """Read the sums over all ranks; return the evaluation, and column -> value."""
        self.sums.settle(lambda number: loaders.size_of_batch(self._loader, number))
        means = self.sums.means()
        values = {self.column(name): value for name, value in {**means, **self.computed}.items()}
        return Evaluation(means.get("loss", nan), means.get("accuracy", nan), self.computed), values

    def _expected(self) -> int | None:
        return loaders.size_of_batch(self._loader, self.num_batches)


def evaluate(
    network: nn.Module,
    evaluation: OpenEvaluation,
    loss: Loss,
    step: BatchStep | None = None,
    metrics: Mapping[str, Metric] | None = None,
    counts: "Counts | None" = None,
) -> None:
    """Apply a network to the batches of an evaluation; the caller reads the result with `OpenEvaluation.read`.

    If targets are classes, `counts` counts the predictions per class. The other arguments are the arguments of
    `RunManager.evaluate`.
    """
    metrics = _ready(metrics, evaluation)
    sums = evaluation.sums
    for batch in evaluation.batches():
        if step:
            value, outputs, targets = of_step(step(network, batch))
        else:
            inputs, targets = pair_of(batch, "evaluate()")
            outputs = network(inputs)
            value = loss(outputs, targets)
        if metrics and outputs is None:
            raise InvalidArgumentError(
                "step= must return (loss, outputs, targets) for metrics=, got the loss alone"
            )
        evaluation.add_loss(value, counted_part(batch, targets, is_measured=sums.is_measured))
        if has_classes(outputs, targets, step):
            evaluation.add_correct(outputs, targets)
            if counts:
                counts.add(outputs, targets)
        for metric in metrics.values():
            metric.update(outputs, targets)
    for name, metric in metrics.items() if evaluation.num_batches else ():
        computed = metric.compute()
        parts = computed.items() if isinstance(computed, Mapping) else [("", computed)]
        evaluation.computed |= {f"{name}_{key}" if key else name: _number(name, part) for key, part in parts}
    if counts:
        counts.add_ranks()


@contextmanager
def undisturbed(network: nn.Module | None, loader: Iterable[Any], device: torch.device) -> Iterator[None]:
    """Set eval mode and disable gradients during the block; restore modes and random states afterwards."""
    with undisturbed_random(device), loaders.same_generators(loader), _eval_mode(network), torch.no_grad():
        yield


def _ready(metrics: Any, evaluation: OpenEvaluation) -> dict[str, Metric]:
    """Send metrics to the device and reset them."""
    if metrics is None:
        return {}
    for name, metric in metrics.items():
        evaluation.column(name)
        if lacks := [call for call in ("update", "compute", "reset") if not hasattr(metric, call)]:
            rule = "a metric has update(outputs, targets), compute() and reset(), as those of torchmetrics"
            raise InvalidArgumentError(f"{rule}; {name!r} lacks {' and '.join(lacks)}: {metric!r}")
        if callable(move := getattr(metric, "to", None)):
            move(evaluation.device)
        metric.reset()
    return dict(metrics.items())


def _number(column: str, value: Any) -> float:
    with suppress(InvalidArgumentError):
        return float(single(column, value))
    step = "give its values names, as torchmetrics.ClasswiseWrapper(metric) does, or let it compute the mean"
    raise InvalidArgumentError(f"{column} is a {type(value).__name__}, not a number: {step}")


@contextmanager
def _eval_mode(network: nn.Module | None) -> Iterator[None]:
    if network is None:
        yield
        return
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        # restore the mode of each module, as a part of a network may be in eval mode during training
        for module, training in modes:
            module.training = training
