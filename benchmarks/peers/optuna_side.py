"""A plain loop in an Optuna study over the grid, kept in a file, with two scalars for TensorBoard."""

import json
from pathlib import Path
from typing import Any

import optuna
from torch.utils.tensorboard import SummaryWriter

from benchmarks.peers.common import GRID, asked, train_epoch


def main() -> None:
    """Optimize over each point of the grid."""
    root, tuned = asked()
    found: dict[tuple[int, int], float] = {}

    def objective(trial: Any) -> float:
        batch_size = trial.suggest_categorical("batch_size", [1000, 10000, 20000])
        num_workers = trial.suggest_categorical("num_workers", [0, 1])
        loss, accuracy = train_epoch(batch_size, num_workers, tuned=tuned)
        with SummaryWriter(str(Path(root) / f"{batch_size}-{num_workers}")) as writer:
            writer.add_scalar("loss", loss, 1)
            writer.add_scalar("accuracy", accuracy, 1)
        trial.set_user_attr("accuracy", accuracy)
        found[batch_size, num_workers] = accuracy
        return loss

    sampler = optuna.samplers.GridSampler({"batch_size": [1000, 10000, 20000], "num_workers": [0, 1]})
    optuna.create_study(storage=f"sqlite:///{root}/study.db", sampler=sampler).optimize(objective)
    print(json.dumps([found[point] for point in GRID]))


if __name__ == "__main__":
    main()
