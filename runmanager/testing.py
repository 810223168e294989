"""Assertions on training functions, for pytest."""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from typing import TYPE_CHECKING, Any

from runmanager.answers.evidence import ERROR
from runmanager.core.outcome import Status
from runmanager.core.run import Run
from runmanager.core.task import arguments_of
from runmanager.errors import GridError
from runmanager.front.options import GridOptions
from runmanager.front.run_grid import DEFAULTS, Train, check_settings, open_grid, run_grid
from runmanager.search.decide import Decide

if TYPE_CHECKING:
    from runmanager.answers.verdict import Verdict
    from runmanager.front.manager import RunManager

_AXIS, _NEW, _BASELINE = "variant", "new", "baseline"
_SEED = "seed"
_INLINE: dict[str, Any] = {"executor": "inline", "tensorboard": False, "display": False}


def assert_not_worse(
    new: Train,
    baseline: Train,
    goal: str,
    margin: float,
    *,
    params: Mapping[Any, Sequence[Any]] | None = None,
    error: float = ERROR,
    max_repeats: int = 20,
    max_seconds: float | None = None,
    root: str | PathLike[str] | None = None,
    **options: Any,
) -> "Verdict":
    """Execute two training functions with more and more seeds, until a verdict decides between them.

    The assertion holds if the new function is better, if both are equal within the margin, or if they are
    identical. It fails if the new function is worse, if nothing is decided when the budget is spent, or if a
    run fails.

    Args:
        new: The new training function, ``new(run, manager)``; ``run.seed`` is 0, 1, 2, ....
        baseline: The training function to compare with.
        goal: "max:f1", "min:wer", or a name that implies the direction, such as "test_accuracy".
        margin: The maximum difference that counts as equal, in units of the metric.
        params: Further axes, such as ``{"device": ["cuda"], "lr": [0.1]}``; by default the device is the CPU.
            With several settings, the means over the settings are compared.
        error: The maximum probability that the verdict is wrong.
        max_repeats: The maximum number of seeds.
        max_seconds: Limit on the total time of the runs (s), after which no seed is added.
        root: The folder of the runs; a repeated test continues in this folder. By default, the runs are removed
            after the test.
        **options: Further arguments of `run_grid`, such as ``jobs=2``; by default, runs are executed in this
            process, without TensorBoard.

    Returns:
        The verdict.

    Raises:
        AssertionError: The new function is worse, or the verdict is undecided; the message has the verdict and
            its table. Or a run failed; the message names it.
        GridError: An argument is not valid.

    Example::

        def test_the_new_schedule_is_as_good():
            assert_not_worse(train_with_warm_up, train, "max:test_accuracy", margin=0.005)
    """
    __tracebackhide__ = True  # pytest leaves this frame out of tracebacks

    params = {"device": ["cpu"]} if params is None else params
    if _AXIS in params:
        raise GridError(f"{_AXIS!r} is the axis of new and baseline: give that of params= another name")

    def train(run: Run, manager: "RunManager") -> None:
        chosen = new if run.variant == _NEW else baseline
        chosen(run, manager, **arguments_of(chosen, run))

    usual = dict(_INLINE)
    if {"jobs", "executor"} & options.keys():
        del usual["executor"]
    with tempfile.TemporaryDirectory(prefix="runmanager-", ignore_cleanup_errors=True) as folder:
        outcome = run_grid(
            {_AXIS: [_BASELINE, _NEW], **params},
            train,
            experiment="not_worse",
            root=folder if root is None else root,
            repeats=_SEED,
            goal=goal,
            decide=Decide(_AXIS, margin, error, max_repeats, max_seconds),
            **usual | options,
        )
    from runmanager.answers.verdict import verdict

    runs = outcome.runs
    failed = runs[runs["status"] != Status.COMPLETED]
    errors = [f"{row.variant}, seed {row.seed}: {row.status} · {row.error}" for row in failed.itertuples()]
    if errors:
        raise AssertionError("\n".join(errors))
    result = verdict(runs, _AXIS, margin=margin, error=error)
    if not result.decided or (result.outcome == "better" and result.better != _NEW):
        raise AssertionError("\n".join([str(result), "", *result.drawn().lines(), "", result.assumptions]))
    return result


def assert_resumes(train: Train, params: Mapping[Any, Sequence[Any]] | None = None, **options: Any) -> None:
    """Execute runs undisturbed and killed, and compare them, as ``run_grid(check="resume")`` does.

    The assertion fails if a killed run resumes with another state, other inputs or other metrics; if the
    undisturbed run does not repeat, so that nothing can be compared; or if a run cannot be checked.

    Args:
        train: The training function, ``train(run, manager)``.
        params: The axes of the grid; by default, the device is the CPU.
        **options: Further arguments of `run_grid`, such as ``data=``.

    Raises:
        AssertionError: A run does not resume; the message names what was not restored.
        GridError: An argument is not valid.

    Example::

        def test_a_killed_run_resumes():
            assert_resumes(train, {"lr": [0.1], "seed": [1], "device": ["cpu"]})
    """
    __tracebackhide__ = True

    grid = {"device": ["cpu"]} if params is None else params
    with tempfile.TemporaryDirectory(prefix="runmanager-", ignore_cleanup_errors=True) as folder:
        usual = DEFAULTS | _INLINE | {"experiment": "resumes", "root": folder, "check": "resume"}
        settings = GridOptions(**usual | options)
        with ExitStack() as closing:
            loop, *_ = open_grid(grid, train, settings, closing)
            try:
                notes = check_settings(loop, is_of_resuming=True)
            except GridError as error:
                raise AssertionError(str(error)) from None
    unrepeatable = [note for note in notes if "not repeatable" in note]
    if unrepeatable:
        raise AssertionError("\n".join(unrepeatable))
