"""A search against plain Optuna: the best of 50 and 100 trials on ten functions, and what a trial costs.

Target: the same best values, within noise, as Optuna's own `optimize` with the same sampler; at most 1 ms per
trial beyond Optuna's ask and tell in memory. One lane is to get the same suggestions, so that all values are
equal. The search is driven without training: what is measured is the sampler, and the record on disk. What its
folder and journal cost a run is measured beside it, in a grid too.
"""

import itertools
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from runmanager.search.record import Tell, Trial

from benchmarks.measuring import spread
from runmanager import OptunaSearch, Run, RunManager, Uniform, run_grid
from runmanager.goal import parse_goal
from runmanager.search.space import SearchSpace
from runmanager.search.trials import Trials
from runmanager.storage.folders import Experiment

DIMENSIONS, REPEATS, BUDGETS, LANES = 4, 20, (50, 100), 4
GOAL = parse_goal("min:value")
Point = Sequence[float]


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


def main() -> None:
    """Print the best values of both, and what a trial costs."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    values()
    costs()
    beside_a_grid()


def values() -> None:
    """Compare the best values after 50 and 100 trials: Optuna, one lane, and several."""
    print(f"best of {BUDGETS[0]} and {BUDGETS[1]} trials, median of {REPEATS} repeats, {DIMENSIONS} dimensions")
    print(f"{'':16} {'optuna':>19} {'one lane':>19} {f'{LANES} lanes':>19}   equal sequences")
    better = equal = 0
    for name, (bound, function) in FUNCTIONS.items():
        by_optuna = [plain(bound, function, seed) for seed in range(REPEATS)]
        alone = [searched(bound, function, seed, lanes=1) for seed in range(REPEATS)]
        shared = [searched(bound, function, seed, lanes=LANES) for seed in range(REPEATS)]
        columns = " ".join(f"{_bests(each):>19}" for each in (by_optuna, alone, shared))
        num_equal = sum(one == other for one, other in zip(by_optuna, alone, strict=True))
        equal += num_equal
        better += sum(min(one) <= min(other) for one, other in zip(shared, by_optuna, strict=True))
        print(f"{name:16} {columns}   {num_equal} of {REPEATS}")
    total = REPEATS * len(FUNCTIONS)
    print(f"one lane: {equal} of {total} sequences equal; {LANES} lanes as good or better in {better}")


def plain(bound: float, function: Callable[[Point], float], seed: int) -> list[float]:
    """Let Optuna alone search; return all values."""
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    names = [f"x{i}" for i in range(DIMENSIONS)]
    study.optimize(
        lambda trial: function([trial.suggest_float(name, -bound, bound) for name in names]), BUDGETS[-1]
    )
    return [trial.values[0] for trial in study.trials]


def searched(bound: float, function: Callable[[Point], float], seed: int, lanes: int) -> list[float]:
    """Search with a record on disk, with so many runs at a time that end in a random order."""
    draw, found = random.Random(seed), []
    with tempfile.TemporaryDirectory() as folder:
        trials = _trials(Path(folder), seed, bound)
        running: list[Trial] = []
        for _ in range(BUDGETS[-1] + lanes):
            if len(running) == lanes or trials.num_asked == BUDGETS[-1]:
                trial = running.pop(draw.randrange(len(running)))
                found.append(function(list(trial.point.values())))
                trials.tell(Tell(trial.number, "complete", found[-1:]))
            if trials.num_asked < BUDGETS[-1]:
                suggested = trials.ask()
                assert suggested
                running.append(suggested)
                trials.write()
            elif not running:
                break
        trials.close()
    return found


def costs(num_trials: int = 300) -> None:
    """Compare what a trial costs beyond the sampler, which draws at random here.

    The sides take turns, so that what else the machine does is in all of them.
    """
    names = [f"x{i}" for i in range(DIMENSIONS)]
    distributions = {name: optuna.distributions.FloatDistribution(-1, 1) for name in names}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        path, folders = Path(folder, "search"), Path(folder, "folders")
        path.mkdir()
        memory, sqlite = (
            optuna.create_study(storage=storage, sampler=optuna.samplers.RandomSampler(seed=0))
            for storage in (None, f"sqlite:///{folder}/study.db")
        )
        trials = _trials(path, 0, 1.0, optuna.samplers.RandomSampler(seed=0))
        experiment, space = Experiment(folders), _space(1.0)

        def search() -> None:
            trial = trials.ask()
            assert trial
            trials.write()
            trials.tell(Tell(trial.number, "complete", [1.0]))

        def make_folder() -> None:
            point = list(trials.all.values())[-1].point
            experiment.add(space.runs(point)[0]._asdict(), names, {})

        sides: dict[str, Callable[[], object]] = {
            "Optuna in memory": partial(_one, memory, distributions),
            "Optuna with SQLite": partial(_one, sqlite, distributions),
            "a search, with its record": search,
            "beside that, the folder of a run, as any grid makes it": make_folder,
        }
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for _ in range(num_trials):
            for name, side in sides.items():
                taken[name].append(_timed(side))
        trials.close()
    print(f"a trial, {num_trials} of each side in turn, whose record is on this disk")
    for name, times in taken.items():
        print(f"{name}: {_ms(times)}")
    ours, optunas = (taken[name] for name in ("a search, with its record", "Optuna in memory"))
    beyond = [1000 * (one[0] - other[0]) for one, other in zip(ours, optunas, strict=True)]
    mean = statistics.mean(beyond)
    print(f"a search beyond Optuna in memory: {spread(beyond, 'ms')}, mean {mean:.2f}; target 1")


def beside_a_grid(num_runs: int = 100, rounds: int = 5) -> None:
    """Compare what a run of one epoch costs in a grid and in a search, with folder, journal and TensorBoard."""
    taken: dict[str, list[float]] = {"grid": [], "search": []}
    axes = {f"x{i}": [float(i)] for i in range(1, DIMENSIONS)}
    grid = {"x0": [number / num_runs for number in range(num_runs)], **axes}
    ranges = {"x0": Uniform(0, 1), **axes}
    sampler = optuna.samplers.RandomSampler(seed=0)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as root:
        for number in range(rounds + 1):
            for name, seconds in taken.items():
                options: dict[str, Any] = {"experiment": f"{name}-{number}", "root": root, "goal": str(GOAL)}
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


def _one(study: optuna.Study, distributions: Any) -> None:
    study.tell(study.ask(distributions), 1.0)


def _timed(function: Callable[[], object]) -> tuple[float, float]:
    """Return how long a call took, and how much of that was computing; the rest waited for the disk."""
    before, computing = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - before, time.process_time() - computing


def _space(bound: float) -> SearchSpace:
    return SearchSpace({f"x{i}": Uniform(-bound, bound) for i in range(DIMENSIONS)})


def _trials(
    folder: Path, seed: int, bound: float, sampler: optuna.samplers.BaseSampler | None = None
) -> Trials:
    trials = Trials(_space(bound), [GOAL], sampler, seed, folder)
    trials.begin({})
    return trials


def _bests(sequences: Sequence[Sequence[float]]) -> str:
    medians = [statistics.median(min(values[:budget]) for values in sequences) for budget in BUDGETS]
    return " ".join(f"{value:9.4g}" for value in medians)


def _ms(seconds: Sequence[tuple[float, float]]) -> str:
    whole, computing = zip(*seconds, strict=True)
    busy = 1000 * statistics.median(computing)
    return f"{spread(whole, 'ms', 1000)}, mean {1000 * statistics.mean(whole):.2f}; {busy:.2f} ms computing"


if __name__ == "__main__":
    main()
