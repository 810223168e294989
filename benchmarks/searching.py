"""A search against plain Optuna: the best of 100 trials on ten functions, and the cost of a resume.

Targets: the best value is as good as that of `study.optimize` with the same sampler: the mean of the paired
differences, as a share of the range between random search and the optimum, has a 95 % interval inside ±5 %. A
search of 1,000 trials is continued in under 3 s. TPE needs no kill: it asks the same, killed or not. CMA-ES and
NSGA-II are begun again in the middle too.
"""

import itertools
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna

from benchmarks.measuring import spread
from runmanager import GridOutcome, OptunaSearch, Run, RunManager, Uniform, run_grid

DIMENSIONS, TRIALS, KILLED = 4, 100, 60
GOAL = "min:value"
IN_MEMORY = Path("/dev/shm")  # noqa: S108 - values do not depend on the disk
Point = Sequence[float]
SAMPLERS: dict[str, tuple[Any, tuple[Sequence[int], ...], int]] = {
    "TPE": (optuna.samplers.TPESampler, ([TRIALS],), 80),
    "CMA-ES": (optuna.samplers.CmaEsSampler, ([TRIALS], [KILLED, TRIALS]), 20),
    "NSGA-II": (optuna.samplers.NSGAIISampler, ([TRIALS], [KILLED, TRIALS]), 160),
}
"""Name -> the class, how many trials each start of a search asks for, and the repeats that its spread needs."""


def _ackley(x: Point) -> float:
    mean = sum(v * v for v in x) / len(x)
    waves = sum(math.cos(2 * math.pi * v) for v in x) / len(x)
    return 20 + math.e - 20 * math.exp(-0.2 * math.sqrt(mean)) - math.exp(waves)


def _levy(x: Point) -> float:
    w = [1 + (v - 1) / 4 for v in x]
    middle = sum((v - 1) ** 2 * (1 + 10 * math.sin(math.pi * v + 1) ** 2) for v in w[:-1])
    last = (w[-1] - 1) ** 2 * (1 + math.sin(2 * math.pi * w[-1]) ** 2)
    return math.sin(math.pi * w[0]) ** 2 + middle + last


def _griewank(x: Point) -> float:
    waves = math.prod(math.cos(v / math.sqrt(i)) for i, v in enumerate(x, 1))
    return 1 + sum(v * v for v in x) / 4000 - waves


FUNCTIONS: dict[str, tuple[float, Callable[[Point], float]]] = {
    "sphere": (5.12, lambda x: sum(v * v for v in x)),
    "ellipsoid": (5.12, lambda x: sum(10 ** (6 * i / (len(x) - 1)) * v * v for i, v in enumerate(x))),
    "rosenbrock": (
        2.048,
        lambda x: sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in itertools.pairwise(x)),
    ),
    "rastrigin": (5.12, lambda x: sum(10 + v * v - 10 * math.cos(2 * math.pi * v) for v in x)),
    "ackley": (32.768, _ackley),
    "griewank": (600, _griewank),
    "schwefel": (500, lambda x: sum(418.9829 - v * math.sin(math.sqrt(abs(v))) for v in x)),
    "levy": (10, _levy),
    "styblinski-tang": (5, lambda x: sum(v**4 - 16 * v * v + 5 * v for v in x) / 2),
    "zakharov": (
        10,
        lambda x: (
            sum(v * v for v in x)
            + sum(i * v / 2 for i, v in enumerate(x, 1)) ** 2
            + sum(i * v / 2 for i, v in enumerate(x, 1)) ** 4
        ),
    ),
}
"""Name -> the largest coordinate, and the function, whose least value is wanted."""


OPTIMA = {"styblinski-tang": -39.16617 * DIMENSIONS}  # of the others, it is 0


def main() -> None:
    """Print how good the values are, how long a resume takes, and what a run costs."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    names = sys.argv[1:] or [*SAMPLERS, "costs"]
    for name in names:
        if name in SAMPLERS:
            values(name)
        else:
            thousand()
            beside_a_grid()


def values(name: str) -> None:
    """Compare the best values of a sampler in a search and in plain Optuna."""
    sampler, all_starts, num_repeats = SAMPLERS[name]
    shares: dict[int, list[float]] = {number: [] for number in range(len(all_starts))}
    print(
        f"{name}: {len(FUNCTIONS)} functions of {DIMENSIONS} dimensions, {num_repeats} repeats, {TRIALS} trials"
    )
    for function_name, (bound, function) in FUNCTIONS.items():
        best = OPTIMA.get(function_name, 0.0)
        by_chance = [plain(optuna.samplers.RandomSampler, bound, function, seed) for seed in range(num_repeats)]
        size = statistics.mean(by_chance) - best
        by_optuna = [plain(sampler, bound, function, seed) for seed in range(num_repeats)]
        line = f"  {function_name:16} Optuna {statistics.mean(by_optuna):10.4g}"
        for number, starts in enumerate(all_starts):
            ours = [searched(sampler, bound, function, seed, starts) for seed in range(num_repeats)]
            each = [(one - other) / size for one, other in zip(ours, by_optuna, strict=True)]
            shares[number] += each
            line += f"   {len(starts)} start{'s'[: len(starts) > 1]} {statistics.mean(ours):10.4g}"
            line += f" ({statistics.mean(each):+7.2%})"
        print(line, flush=True)
    for number, starts in enumerate(all_starts):
        mean = statistics.mean(shares[number])
        margin = 1.96 * statistics.stdev(shares[number]) / math.sqrt(len(shares[number]))
        print(
            f"  begun {len(starts)}x: {mean:+.2%}, 95 % interval {mean - margin:+.2%} to {mean + margin:+.2%}"
        )


def plain(sampler: Any, bound: float, function: Callable[[Point], float], seed: int) -> float:
    """Let Optuna alone search; return the best value."""
    study = optuna.create_study(sampler=sampler(seed=seed))
    names = [f"x{i}" for i in range(DIMENSIONS)]
    study.optimize(lambda trial: function([trial.suggest_float(name, -bound, bound) for name in names]), TRIALS)
    return float(study.best_value)


def searched(
    sampler: Any, bound: float, function: Callable[[Point], float], seed: int, starts: Sequence[int]
) -> float:
    """Search, with the search begun again for each of the starts; return the best value."""

    def track(run: Run, manager: RunManager) -> None:
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track(value=function(run))

    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        for n in starts:
            outcome = _search(folder, OptunaSearch(n, seed=seed, sampler=sampler), bound, track)
    return float(outcome.runs["value"].min())


def thousand(num_trials: int = 1000) -> None:
    """Measure how long it takes to begin a search of 1,000 trials again, and to execute one more."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        _search(folder, OptunaSearch(num_trials, sampler=optuna.samplers.RandomSampler), 1.0, train)
        before = time.perf_counter()
        _search(folder, OptunaSearch(num_trials + 1), 1.0, train)
        print(f"{num_trials:,} trials continued, by TPE: {time.perf_counter() - before:.2f} s; target 3")


def beside_a_grid(num_runs: int = 100, rounds: int = 5) -> None:
    """Compare what a run of one epoch costs in a grid and in a search, with folder, journal and TensorBoard."""
    taken: dict[str, list[float]] = {"grid": [], "search": []}
    axes = {f"x{i}": [float(i)] for i in range(1, DIMENSIONS)}
    grid = {"x0": [number / num_runs for number in range(num_runs)], **axes}
    ranges = {"x0": Uniform(0, 1), **axes}
    sampler = optuna.samplers.RandomSampler
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as root:
        for number in range(rounds + 1):
            for name, seconds in taken.items():
                options: dict[str, Any] = {"experiment": f"{name}-{number}", "root": root, "goal": GOAL}
                if name == "search":
                    options["search"] = OptunaSearch(num_runs, sampler=sampler)
                before = time.perf_counter()
                run_grid(grid if name == "grid" else ranges, train, executor="inline", display=False, **options)
                seconds.append((time.perf_counter() - before) / num_runs)
    for name, seconds in taken.items():
        print(f"a run of a {name} of {num_runs}: {spread(seconds[1:], 'ms', 1000)}")


def train(run: Run, manager: RunManager) -> None:
    """Track a value, and train nothing."""
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track(value=run.x0)


def _search(
    root: str, search: OptunaSearch, bound: float, train: Callable[[Run, RunManager], object]
) -> GridOutcome:
    axes = {f"x{i}": Uniform(-bound, bound) for i in range(DIMENSIONS)}
    options: dict[str, Any] = {"executor": "inline", "tensorboard": False, "display": False, "changed": "keep"}
    return run_grid(axes, train, search=search, experiment="searched", root=root, goal=GOAL, **options)


if __name__ == "__main__":
    main()
