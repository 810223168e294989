"""What a run costs that commits one epoch and nothing else: inline, through a warm lane, and with the peers.

Target: at most 5 ms per run inline and 10 ms through a lane, durable result each; 20x less than Ray Tune.
"""

import logging
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.measuring import spread
from runmanager import RunBuilder, run_grid

RUNS, PEER_RUNS = 1000, 24
LRS = [number / RUNS for number in range(RUNS)]


def main() -> None:
    """Print the milliseconds per run of each."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as root:
        for name, target in (("inline", 5), ("lanes", 10)):
            grid(f"{root}/warm", name, LRS[:2])
            taken = [grid(f"{root}/{number}", name, LRS) for number in range(3)]
            show(f"{name}, {RUNS:,} runs", taken, RUNS, f"; target {target} ms")
    peers: dict[str, Callable[[], float]] = {"Optuna, SQLite": optuna, "Ray Tune": ray_tune}
    for name, run in peers.items():
        with suppress(ImportError):
            show(f"{name}, {PEER_RUNS} runs", [run()], PEER_RUNS, "")


def show(name: str, taken: list[float], runs: int, target: str) -> None:
    """Print how long each run took at the median."""
    print(f"{name:<20}{spread(taken, 'ms per run', 1e3 / runs)}{target}")


def train(run: Any, manager: Any) -> None:
    """Commit one epoch."""
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(run.lr, 1)


def grid(root: str, executor: str, lrs: list[float]) -> float:
    """Return the seconds that a grid takes, all of it."""
    before = time.perf_counter()
    outcome = run_grid(
        RunBuilder.get_runs({"lr": lrs}), train, experiment=executor, root=root, executor=executor,
        tensorboard=False, display=False,
    )  # fmt: skip
    assert len(outcome.results) == len(lrs)
    return time.perf_counter() - before


def optuna() -> float:
    """Return the seconds that Optuna takes over as many trials in a file."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        sampler = optuna.samplers.GridSampler({"lr": LRS[:PEER_RUNS]})
        study = optuna.create_study(storage=f"sqlite:///{folder}/study.db", sampler=sampler)
        before = time.perf_counter()
        study.optimize(lambda trial: trial.suggest_float("lr", 0, 1), n_trials=PEER_RUNS)
        return time.perf_counter() - before


def ray_tune() -> float:
    """Return the seconds that Ray Tune takes over as many trials, once Ray is started."""
    import ray
    from ray import tune

    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        try:
            config = tune.RunConfig(storage_path=folder, verbose=0)
            tuner = tune.Tuner(
                lambda config: tune.report({"loss": config["lr"]}),
                param_space={"lr": tune.grid_search(LRS[:PEER_RUNS])},
                run_config=config,
            )
            before = time.perf_counter()
            tuner.fit()
            return time.perf_counter() - before
        finally:
            ray.shutdown()
