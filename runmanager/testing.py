"""Assertions on trainings, for pytest and the like."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from runmanager.grid import Run
from runmanager.launch.run_grid import run_grid
from runmanager.outcome import Status
from runmanager.results.evidence import ERROR
from runmanager.search.decide import Decide

if TYPE_CHECKING:
    from runmanager.results.verdict import Verdict
    from runmanager.training.manager import RunManager

Train = Callable[[Run, "RunManager"], object]

_AXIS, _NEW, _BASELINE = "variant", "new", "baseline"


def assert_not_worse(
    new: Train,
    baseline: Train,
    metric: str,
    margin: float,
    *,
    params: Mapping[Any, Sequence[Any]] | None = None,
    error: float = ERROR,
    max_repeats: int = 20,
    max_seconds: float | None = None,
    root: str | PathLike[str] | None = None,
    **options: Any,
) -> "Verdict":
    """Train both with one seed after the other until it is decided whether the new one is as good.

    It is if it is decided to be better, if both are equal within the margin, or if they are identical. Anything
    else fails: that it is worse, that it is undecided when the budget is spent, or that a training fails.

    Args:
        new: Called as ``new(run, manager)`` as by `run_grid`; ``run.seed`` is 0, 1, 2, ....
        baseline: The same of what it is compared with.
        metric: "max:f1", "min:wer", or a name whose direction is known, as "test_accuracy".
        margin: The difference that does not matter, in units of the metric.
        params: Further axes, as ``{"device": ["cuda"], "lr": [0.1]}``; by default the device is the CPU. Of
            several settings, the means count.
        error: The probability that the verdict is wrong.
        max_repeats: The most seeds.
        max_seconds: No seed is added once the runs have taken that long together (s).
        root: Where the runs are kept, so that the same test goes on there. By default they are removed.
        **options: Further arguments of `run_grid`, as ``jobs=2``; by default runs are executed in this process,
            one after the other, without TensorBoard.

    Returns:
        The verdict.

    Raises:
        AssertionError: The new one is not shown to be as good; with the verdict and its table.
        GridError: An argument cannot be used.

    Example::

        def test_the_new_schedule_is_as_good():
            assert_not_worse(train_with_warm_up, train, "max:test_accuracy", margin=0.005)
    """
    __tracebackhide__ = True  # for pytest

    def train(run: Run, manager: "RunManager") -> None:
        (new if run.variant == _NEW else baseline)(run, manager)

    usual: dict[str, Any] = {"executor": "inline", "tensorboard": False, "display": False}
    if {"jobs", "executor"} & options.keys():
        del usual["executor"]
    decide = Decide(_AXIS, margin, error, max_repeats, max_seconds)
    with tempfile.TemporaryDirectory(prefix="runmanager-") as folder:
        outcome = run_grid(
            {_AXIS: [_BASELINE, _NEW], **({"device": ["cpu"]} if params is None else params)},
            train,
            experiment="not_worse",
            root=folder if root is None else root,
            repeats="seed",
            goal=metric,
            decide=decide,
            **usual | options,
        )
    from runmanager.results.verdict import verdict

    runs = outcome.runs
    result = verdict(runs, _AXIS, margin=margin, error=error)
    is_as_good = result.decided and (result.outcome != "better" or result.better == _NEW)
    failed = runs[runs["status"] != Status.COMPLETED]
    if not is_as_good or len(failed):
        errors = [f"{row.variant}, seed {row.seed}: {row.status} · {row.error}" for row in failed.itertuples()]
        raise AssertionError(
            "\n".join([str(result), *errors, "", *result.drawn().lines(), "", result.assumptions])
        )
    return result
