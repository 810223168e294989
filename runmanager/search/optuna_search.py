"""The options of a search whose runs are suggested by an Optuna sampler."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runmanager.errors import InvalidArgumentError, Problems

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


@dataclass(frozen=True)
class OptunaSearch:
    """Let an Optuna sampler suggest the runs, for ``run_grid(search=..., goal="max:test_accuracy")``.

    Axes of the grid may be lists or ranges: `Uniform`, `LogUniform`, `IntRange`. Each lane executes one run at
    a time, and each suggestion uses all results so far. The suggestion is stored with its run before the run
    begins. The same call resumes the search: it executes the missing runs and, with a larger `n`, further runs.

    The sampler also learns from runs of the same axes that the experiment already has. A setting that is
    suggested twice is executed once. Axes named by ``run_grid(repeats=...)`` are not searched: each suggestion
    is executed with all values of these axes, and the sampler gets the mean.

    Args:
        n: The number of suggestions, including the suggestions of earlier launches.
        seed: The seed that makes the search reproducible; with None, each launch draws other suggestions.
        sampler: A sampler class of Optuna, or a function of `seed` that returns a sampler, such as ``lambda
            seed: TPESampler(seed=seed, multivariate=True)``: each suggestion gets a new sampler, seeded by
            `seed` and the number of the suggestion. None selects Optuna's default, TPE.
        max_seconds: Limit on the total time of the runs (s), after which no run is suggested. None sets no
            limit.

    Raises:
        InvalidArgumentError: An argument is invalid; the message lists all problems.

    Example:
        >>> from runmanager import LogUniform, run_grid
        >>> def train(run, manager):
        ...     with manager.run(run):
        ...         for epoch in manager.epochs(1):
        ...             manager.track_loss((run.lr - 0.01) ** 2, 1)
        >>> options = {"experiment": "searched", "goal": "min:loss", "executor": "inline", "display": False}
        >>> outcome = run_grid({"lr": LogUniform(1e-4, 1)}, train, search=OptunaSearch(n=3), **options)
        >>> len(outcome.runs), outcome.exit_code
        (3, 0)
    """

    n: int
    seed: int | None = 0
    sampler: "Callable[..., BaseSampler] | None" = None
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        problems = Problems()
        problems.check_count("n", self.n, 1)
        is_seed = isinstance(self.seed, int) and not isinstance(self.seed, bool) and 0 <= self.seed < 2**32
        if self.seed is not None and not is_seed:
            problems.append(f"seed must be a whole number from 0 to 4294967295, or None, got {self.seed!r}")
        sampler: object = self.sampler
        if not (sampler is None or callable(sampler)):
            rule = "sampler must be a class of Optuna's, a function of seed, or None for the default"
            name = type(sampler).__name__
            instead = f"lambda seed: {name}(seed=seed)" if name.endswith("Sampler") else "CmaEsSampler"
            problems.append(f"{rule}, got {sampler!r:.60}: write sampler={instead}")
        problems.check_seconds("max_seconds", self.max_seconds)
        problems.raise_if_any(InvalidArgumentError)
