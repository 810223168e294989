"""Evaluations while a run is open: their columns are in its epoch, their time is not."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from runmanager.board.confusion import Confusion
from runmanager.devices import torch_devices
from runmanager.errors import LifecycleError
from runmanager.training import failures
from runmanager.training.batch_step import BatchStep, Loss
from runmanager.training.evaluation import (
    Evaluation,
    Metric,
    OpenEvaluation,
    evaluate,
    undisturbed,
)

if TYPE_CHECKING:
    from runmanager.training.open_run import OpenRun


@contextmanager
def evaluating(
    run: "OpenRun", loader: Iterable[Any], name: str, results: list[Evaluation] | None = None
) -> Iterator[OpenEvaluation]:
    """Let everything that is tracked in the block go to the columns of an evaluation; add it to the results.

    Raises:
        LifecycleError: Another evaluation is open.
    """
    if run.evaluation is not None:
        raise LifecycleError(f"an evaluation within another one, of {name!r}: end the first one before")
    torch_devices.wait_for(run.device)
    before = perf_counter()
    run.evaluation = OpenEvaluation(name, loader, run.device, run.report_step, run.measure, run.folder.params)
    try:
        with failures.explained_evaluation(name), undisturbed(run.network, loader, run.device):
            yield run.evaluation
            result, values = run.evaluation.read()
    finally:
        run.evaluation = None
    torch_devices.wait_for(run.device)
    run.add_evaluation(values, perf_counter() - before)
    if results is not None:
        results.append(result)


def evaluate_run(
    run: "OpenRun",
    loader: Iterable[Any],
    name: str,
    loss: Loss,
    step: BatchStep | None,
    metrics: Mapping[str, Metric] | None,
) -> Evaluation:
    """Evaluate the run's network, see `RunManager.evaluate`."""
    assert run.network is not None
    confusion = Confusion() if run.has_board else None
    results: list[Evaluation] = []
    with evaluating(run, loader, name, results) as evaluation:
        evaluate(run.network, evaluation, loss, step, metrics, confusion)
    run.add_confusion(name, confusion, loader)
    return results[0]
