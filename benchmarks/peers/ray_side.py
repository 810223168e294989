"""Ray Tune over the grid, two trials at a time with a core each."""

import json
import os
from pathlib import Path
from typing import Any

import ray
from ray import tune

from benchmarks.peers import common


def main() -> None:
    """Fit the trials of the grid."""
    root, tuned = common.asked()
    home = Path.cwd()
    ray.init(address="local", num_cpus=2, include_dashboard=False if tuned else None)

    def trial(config: dict[str, Any]) -> None:
        os.chdir(home)  # a trial begins in a folder of its own
        loss, accuracy = common.train_epoch(config["batch_size"], config["num_workers"], tuned=tuned)
        tune.report({"loss": loss, "accuracy": accuracy})

    space = {
        "batch_size": tune.grid_search([1000, 10000, 20000]),
        "num_workers": tune.grid_search([0, 1]),
    }
    settings = tune.TuneConfig(reuse_actors=True) if tuned else tune.TuneConfig()
    results = tune.Tuner(
        trial, param_space=space, tune_config=settings, run_config=tune.RunConfig(storage_path=root)
    ).fit()
    points = {(r.config["batch_size"], r.config["num_workers"]): r.metrics["accuracy"] for r in results}
    print(json.dumps([points[point] for point in common.GRID]))
    ray.shutdown()


if __name__ == "__main__":
    main()
