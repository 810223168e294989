"""What searches are compared with: the trials that runs keep, and Optuna alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from runmanager.core import files


def trials(experiment: Path) -> list[dict[str, Any]]:
    """Return the trials that the runs of an experiment keep, by number, with the params of their run."""
    found: dict[int, dict[str, Any]] = {}
    for path in sorted(experiment.glob(f"*/{files.RUN}")):
        content = json.loads(path.read_text())
        for trial in content.get("trials", ()):
            entry = {**trial, "params": content["params"], "runs": []}
            found.setdefault(trial["number"], entry)["runs"].append(content["id"])
    return [found[number] for number in sorted(found)]


def seed_of(number: int, seed: int = 0) -> int:
    """Return the seed of the sampler that suggests the trial of a number."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def suggested(make: Any, objective: Any, n: int, *, seed: int = 0, directions: Any = ("minimize",)) -> Any:
    """Let Optuna alone search, with a new sampler for each trial; return its trials."""
    study = optuna.create_study(directions=directions)
    for number in range(n):
        study.sampler = make(seed=seed_of(number, seed))
        study.optimize(objective, n_trials=1)
    return study.trials
