"""A search of Fashion-MNIST's hyperparameters against plain Optuna: 5 repeats of 30 trials.

Target: the same best accuracy within noise, with the same sampler and budget. Every repeat has other images,
first weights and a seed of the sampler. Both train the same loop, ours with the manager's hooks. Trials are
compared by their accuracy on images that are not trained on; the best one is tested on others.
"""

import math
import statistics
import tempfile
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import optuna
import torch
from torch import nn
from torch.nn import functional

from runmanager import IntRange, LogUniform, OptunaSearch, RunBuilder, Uniform, load_runs, run_grid
from runmanager.core.loaders import ImageTensors, TensorLoader
from runmanager.datasets import fashion_mnist

if TYPE_CHECKING:
    from runmanager import Run, RunManager

REPEATS, TRIALS, IMAGES, EPOCHS, LANES = 5, 30, 1500, 3, 4
AXES: dict[str, Any] = {
    "lr": LogUniform(1e-4, 1e-1),
    "width": IntRange(8, 256, log=True),
    "dropout": Uniform(0, 0.5),
    "batch_size": [16, 32, 64, 128],
}
WITHIN_95 = 2.776  # Student's t, 4 degrees of freedom


class Best(NamedTuple):
    """The best trial of a search."""

    choice: float
    test: float


def main() -> None:
    """Print the best accuracies of all sides and repeats, and their differences."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        compare()
    finally:
        torch.set_num_threads(threads)


def compare() -> None:
    """Search with all sides."""
    print(f"{IMAGES} images, {EPOCHS} epochs, {TRIALS} trials: best accuracy of choice, and its test accuracy")
    sides: dict[str, list[Best]] = {"Optuna": [], "one lane": [], f"{LANES} lanes": []}
    for seed in range(REPEATS):
        sides["Optuna"].append(plain(seed))
        sides["one lane"].append(searched(seed, 1))
        sides[f"{LANES} lanes"].append(searched(seed, LANES))
        row = "; ".join(f"{name} {own[-1].choice:.4f}, {own[-1].test:.4f}" for name, own in sides.items())
        print(f"repeat {seed}: {row}")
    by_optuna = sides.pop("Optuna")
    for name, own in sides.items():
        print(f"{name}, beyond Optuna")
        for what in ("choice", "test"):
            pairs = zip(own, by_optuna, strict=True)
            show(what, [100 * (getattr(one, what) - getattr(other, what)) for one, other in pairs])


def show(what: str, points: Sequence[float]) -> None:
    """Print the mean difference with its interval, by which a paired t-test at 5 % decides."""
    mean, half = statistics.mean(points), WITHIN_95 * statistics.stdev(points) / math.sqrt(len(points))
    verdict = "within noise" if abs(mean) <= half or not any(points) else "different"
    print(f"  {what}: {mean:+.2f} points (95 % {mean - half:+.2f} to {mean + half:+.2f}, paired t): {verdict}")


def plain(seed: int) -> Best:
    """Let Optuna alone search."""
    tested: list[float] = []

    def objective(trial: optuna.Trial) -> float:
        values: dict[str, Any] = {
            "lr": trial.suggest_float("lr", 1e-4, 1e-1, log=True),
            "width": trial.suggest_int("width", 8, 256, log=True),
            "dropout": trial.suggest_float("dropout", 0, 0.5),
            "batch_size": trial.suggest_categorical("batch_size", AXES["batch_size"]),
        }
        (run,) = RunBuilder.get_runs({name: [value] for name, value in (values | {"seed": seed}).items()})
        network, optimizer, loader = parts(run)
        _, choice, test = data(seed)
        for _ in range(EPOCHS):
            for inputs, labels in loader:
                step(network, optimizer, inputs, labels)
        tested.append(accuracy(network, test))
        return accuracy(network, choice)

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, TRIALS)
    return Best(study.best_value, tested[study.best_trial.number])


def searched(seed: int, lanes: int) -> Best:
    """Search with run_grid."""
    how: dict[str, Any] = {"jobs": lanes} if lanes > 1 else {"executor": "inline"}
    with tempfile.TemporaryDirectory() as root:
        run_grid(
            {**AXES, "seed": [seed]}, train, experiment="fashion", root=root, goal="max:choice_accuracy",
            search=OptunaSearch(TRIALS, seed=seed), tensorboard=False, display=False, **how,
        )  # fmt: skip
        runs = load_runs(root).sort_values("run")
    choice, test = list(runs["choice_accuracy"]), list(runs["test_accuracy"])
    return Best(max(choice), test[choice.index(max(choice))])


def train(run: "Run", manager: "RunManager") -> None:
    """Train as `plain` does, with the manager's hooks."""
    torch.set_num_threads(1)
    network, optimizer, loader = parts(run)
    _, choice, test = data(run.seed)
    with manager.run(run, network, loader):
        for epoch in manager.epochs(EPOCHS):
            for inputs, labels in manager.batches():
                manager.track_loss(step(network, optimizer, inputs, labels), inputs)
            if epoch == EPOCHS:
                manager.evaluate(choice, "choice")
                manager.evaluate(test)


def parts(run: Any) -> tuple[nn.Module, torch.optim.Optimizer, TensorLoader]:
    """Make what a run trains."""
    torch.manual_seed(run.seed)
    network = nn.Sequential(
        nn.Flatten(), nn.Linear(784, run.width), nn.ReLU(), nn.Dropout(run.dropout), nn.Linear(run.width, 10)
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=run.lr, fused=True)
    return network, optimizer, TensorLoader(data(run.seed)[0], run.batch_size, seed=run.seed)


def step(
    network: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Take one step; return the loss."""
    loss = functional.cross_entropy(network(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def accuracy(network: nn.Module, loader: TensorLoader) -> float:
    """Return how many images are recognised."""
    network.eval()
    with torch.no_grad():
        correct = sum(int((network(inputs).argmax(1) == labels).sum()) for inputs, labels in loader)
    network.train()
    return correct / sum(len(labels) for _, labels in loader)


@cache
def data(seed: int) -> tuple[ImageTensors, TensorLoader, TensorLoader]:
    """Choose the images of a repeat: to train, to choose by, and to test."""
    every, tests = fashion_mnist(), fashion_mnist(train=False)
    drawn = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))[: 3 * IMAGES]
    images, choice = ImageTensors(*every[drawn[:IMAGES]]), ImageTensors(*every[drawn[IMAGES:]])
    to_choose, to_test = (TensorLoader(some, 1000, shuffle=False) for some in (choice, tests))
    return images, to_choose, to_test


if __name__ == "__main__":
    main()
