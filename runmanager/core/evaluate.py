"""Evaluations: means and metrics over the batches of a loader, without effects on training."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import nan
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import nn

from runmanager.core.contracts import Counts
from runmanager.core.failure import explain_evaluation
from runmanager.core.loaders import Measure, undisturbed
from runmanager.core.metrics import (
    EpochSums,
    How,
    are_classes,
    check_column,
    claim_column,
    column_of,
    single,
)
from runmanager.devices import ranks
from runmanager.devices.torch_devices import send
from runmanager.errors import InvalidArgumentError

Loss = Callable[[Any, Any], torch.Tensor]
BatchStep = Callable[[nn.Module, Any], Any]
"""The function of `step=`: network, batch -> (loss, outputs, targets)."""

Computed = tuple[Any, Any, Any]
"""Loss, outputs and targets. Outputs and targets are None if the step returned only the loss."""


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
    """The means over the samples of a loader."""

    metrics: Mapping[str, float]

    def __new__(cls, loss: float, accuracy: float, metrics: Mapping[str, float] | None = None) -> Self:
        """Create an evaluation; `metrics` is optional."""
        evaluation = super().__new__(cls, loss, accuracy)
        evaluation.metrics = metrics or {}
        return evaluation


class OpenEvaluation:
    """An evaluation in progress; no method except `read` waits for the device."""

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
        self.sums: EpochSums = EpochSums(
            measure, loader, lambda column: check_column(f"{name}_{column}", params)
        )
        self._name, self._loader, self._device = name, loader, device
        self._on_batch, self._params = on_batch, params
        self._computed: dict[str, float] = {}  # values of the metrics in `metrics=`, by name

    @contextmanager
    def undisturbing(self, network: nn.Module | None) -> Iterator[None]:
        """Evaluate a network in the block, without gradients, and leave the training undisturbed."""
        try:
            with undisturbed(network, self._loader, self._device), torch.no_grad():
                if network is not None:
                    network.eval()
                yield
        except Exception as error:
            explain_evaluation(error, self._name)
            raise

    def batches(self) -> Iterator[Any]:
        """Yield the loader's batches on the device."""
        for batch in self._loader:
            sent = send(batch, self._device)
            self._on_batch()
            self.sums.begin_batch(sent)
            yield sent

    def add_loss(self, loss: torch.Tensor | float, batch: Any) -> None:
        """Add the mean loss of a batch, see `EpochSums.add_loss`."""
        self.sums.add_loss(loss, batch)

    def track(self, values: Mapping[str, torch.Tensor | float], how: How = "mean") -> None:
        """Add values of the current batch, see `RunManager.track`."""
        for name, value in values.items():
            self.sums.track(name, value, how)

    def column(self, name: str) -> str:
        """Return the column of a metric."""
        column = f"{self._name}_{column_of(name)}"
        check_column(column, self._params)
        return column

    def apply(
        self,
        network: nn.Module,
        loss: Loss,
        step: BatchStep | None = None,
        metrics: Any = None,
        counts: Counts | None = None,
    ) -> None:
        """Apply a network to all batches; the caller reads the result with `read`."""
        metrics = self._ready(metrics)
        for batch in self.batches():
            if step:
                value, outputs, targets = of_step(step(network, batch))
            else:
                inputs, targets = pair_of(batch, "evaluate()")
                outputs = network(inputs)
                value = self._loss(loss, outputs, targets)
            if metrics and outputs is None:
                raise InvalidArgumentError(
                    "step= must return (loss, outputs, targets) for metrics=, got the loss alone"
                )
            self.sums.add_loss(value, counted_part(batch, targets, self.sums.measure))
            if has_classes(outputs, targets, step):
                self.sums.add_correct(outputs, targets)
                if counts:
                    counts.add(outputs, targets)
            for metric in metrics.values():
                metric.update(outputs, targets)
        for name, metric in metrics.items() if self.sums.is_tracked else ():
            computed = metric.compute()
            parts = computed.items() if isinstance(computed, Mapping) else [("", computed)]
            for key, part in parts:
                column = f"{name}_{key}" if key else name
                claim_column(self.sums.sources, column_of(column), f"metrics={{{name!r}: ...}}")
                self._computed[column] = _number(column, part)
        if counts:
            counts.add_ranks()

    def _loss(self, loss: Loss, outputs: Any, targets: Any) -> torch.Tensor:
        """Compute the loss of a batch; an exception gets a note with the shapes."""
        try:
            return loss(outputs, targets)
        except Exception as error:
            shapes = [tuple(getattr(value, "shape", ())) for value in (outputs, targets)]
            cause = f": is loss= for outputs and labels of these shapes? {shapes}"
            explain_evaluation(error, self._name, cause)
            raise

    def _ready(self, metrics: Any) -> dict[str, Metric]:
        """Send metrics to the device and reset them."""
        if metrics is None:
            return {}
        for name, metric in metrics.items():
            self.column(name)
            if callable(move := getattr(metric, "to", None)):
                move(self._device)
            metric.reset()
        return dict(metrics.items())

    def num_items(self) -> int:
        """Return the number of evaluated samples; 0 if it is unknown, or a sample has several labels."""
        if ranks.num_ranks() == 1:
            num_labels = self.sums.accuracy.weight
            with suppress(Exception):  # __len__ of a user's data set may raise any exception
                return num_labels if num_labels <= len(self._loader.dataset) else 0  # type: ignore[attr-defined]
        return 0

    def read(self) -> tuple[Evaluation, dict[str, float]]:
        """Read the sums over all ranks; return the evaluation, and column -> value."""
        means = self.sums.means()
        values = {self.column(name): value for name, value in {**means, **self._computed}.items()}
        return Evaluation(means.get("loss", nan), means.get("accuracy", nan), self._computed), values


def _number(column: str, value: Any) -> float:
    with suppress(InvalidArgumentError):
        return float(single(column, value))
    raise InvalidArgumentError(
        f"{column} is a {type(value).__name__}, not a number: give its values names, as "
        "torchmetrics.ClasswiseWrapper(metric) does, or let it compute the mean"
    )


def pair_of(batch: Any, call: str) -> tuple[Any, Any]:
    """Unpack a batch of (inputs, labels); `call` names the caller for messages."""
    # unpacking a mapping would yield its keys
    pair: Any = () if isinstance(batch, Mapping | torch.Tensor) else batch
    try:
        inputs, labels = pair
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"{call} takes batches of (inputs, labels), got a {type(batch).__name__}: write "
            "step=lambda network, batch: (loss, outputs, targets)"
        ) from None
    return inputs, labels


def of_step(result: Any) -> Computed:
    """Unpack the result of a step: (loss, outputs, targets), or only the loss."""
    if isinstance(result, tuple) and len(result) == 3:  # noqa: PLR2004 - see above
        return result
    if isinstance(result, tuple | list | Mapping):
        raise InvalidArgumentError(
            f"step= must return (loss, outputs, targets) or the loss, got a {type(result).__name__}"
        )
    return result, None, None


def has_classes(outputs: Any, targets: Any, step: BatchStep | None) -> bool:
    """Whether targets are classes, so that predictions can be right or wrong; a step may have other targets."""
    are_tensors = isinstance(outputs, torch.Tensor) and isinstance(targets, torch.Tensor)
    may_be = are_tensors and outputs.ndim > 1 and not targets.is_floating_point()
    return may_be and (step is None or are_classes(outputs, targets))


def counted_part(batch: Any, targets: Any, measure: Measure | None) -> Any:
    """Return the part of a batch whose samples are counted: the targets, or for a user's function the batch."""
    has_size = measure is None and isinstance(targets, torch.Tensor) and targets.ndim > 0
    return targets if has_size else batch
