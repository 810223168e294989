"""Results to be exported."""

from contextlib import suppress

from runmanager import RunManager
from runmanager.storage.folders import Experiment


def study(root, losses=((0.5, 0.25),)):
    """Leave behind completed runs, one that failed in its first epoch and one that was not begun."""
    manager = RunManager("study", root, tensorboard=False, display=False)
    for number, values in enumerate(losses):
        with manager.run({"lr": 0.1, "size": (number, 3), "device": "cpu"}):
            for epoch in manager.epochs(len(values)):
                manager.track_loss(values[epoch - 1], 10)
    with suppress(ValueError), manager.run({"lr": 10, "size": None, "device": "cpu"}):
        raise ValueError("too large")
    done = [run.params for run in Experiment(root / "study").runs.values()]
    Experiment(root / "study").plan([*done, {"lr": 1, "size": 1, "device": "cuda"}], {})
