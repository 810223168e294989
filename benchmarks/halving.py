"""Successive halving against the full grid: 27 runs of 9 epochs of Fashion-MNIST, 10 repeats.

Target: at least 3 times fewer epochs, and in at least 9 of 10 repeats a winner whose test accuracy is within
0.5 points of that of the full grid's. The winner is the completed run with the best accuracy on images that
are neither trained nor tested on. Every repeat has other images, first weights and orders. Its full grid is
trained once and the rule applied to those numbers; one repeat is pruned by run_grid too, which has to stop
the same runs and give the same numbers.

The asynchronous rule is applied to the same numbers as 4 lanes meet them whose epochs take unequally long, in
100 random orders of the runs. How long 4 lanes are idle by either rule is measured in `uneven`.
"""

import statistics
import tempfile
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from benchmarks import uneven
from runmanager import Run, SuccessiveHalving, run_grid
from runmanager.datasets import fashion_mnist
from runmanager.training.loaders import ImageTensors, TensorLoader

if TYPE_CHECKING:
    import pandas as pd

    from runmanager import GridOutcome, RunManager

REPEATS, IMAGES, EPOCHS = 10, 3000, 9
ORDERS = 100
GRID = {"lr": [0.0003, 0.001, 0.003], "batch_size": [32, 64, 128], "width": [16, 64, 256]}
RULE = SuccessiveHalving("choice_accuracy", factor=3)  # what the winner is chosen by


def main() -> None:
    """Print what pruning saves and what it costs, repeat by repeat and in all."""
    with tempfile.TemporaryDirectory() as root:
        rows = grid(root, "full", range(REPEATS), None).results
        pruned = grid(root, "pruned", range(1), RULE).results
    print(f"{IMAGES} images, 27 runs of {EPOCHS} epochs, {RULE}")
    show([repeat(own) for _, own in rows.groupby("seed")])
    show_asynchronous(rows)
    kept = rows.loc[replay(rows[rows["seed"] == 0])]
    is_equal = without_times(kept) == without_times(pruned)
    print(f"repeat 0 by run_grid(prune=...): {len(pruned)} epochs, the same rows: {is_equal}")
    uneven.main()


def grid(root: str, name: str, seeds: range, prune: SuccessiveHalving | None) -> "GridOutcome":
    """Train the grid once for each seed."""
    return run_grid(
        {"seed": seeds, **GRID}, train, experiment=name, root=root, jobs=2, prune=prune, tensorboard=False,
        display=False,
    )  # fmt: skip


def train(run: Run, manager: "RunManager") -> None:
    """Train a network of two layers; it is chosen by other images, and tested once."""
    torch.manual_seed(run.seed)
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, run.width), nn.ReLU(), nn.Linear(run.width, 10))
    images, choice, test = data(run.seed)
    loader = TensorLoader(images, run.batch_size, seed=run.seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=run.lr, fused=True)
    # at a constant rate, accuracy jumps by a point from epoch to epoch, and the winner is who jumped last
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    parts = {"network": network, "optimizer": optimizer, "scheduler": scheduler}
    with manager.run(run, network, loader):
        for epoch in manager.epochs(EPOCHS, checkpoint=parts):
            for inputs, labels in manager.batches():
                loss = functional.cross_entropy(network(inputs), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                manager.track_loss(loss, inputs)
            scheduler.step()
            manager.evaluate(choice, "choice")
            if epoch == EPOCHS:
                manager.evaluate(test)


@cache
def data(seed: int) -> tuple[ImageTensors, TensorLoader, TensorLoader]:
    """Return the images of a repeat, those to choose by, and those to test on."""
    every, test = fashion_mnist("data"), fashion_mnist("data", train=False)
    drawn = torch.randperm(50_000, generator=torch.Generator().manual_seed(seed))[:IMAGES]
    images, labels = every[drawn]
    choice = ImageTensors(*every[50_000:])
    to_choose, to_test = (TensorLoader(some, 2000, shuffle=False) for some in (choice, test))
    return ImageTensors(images, labels), to_choose, to_test


def replay(rows: "pd.DataFrame") -> "pd.Index[int]":
    """Return the index of the rows that remain of a full grid when the rule is applied to it."""
    standing, last = list(rows["run"].unique()), dict.fromkeys(rows["run"], EPOCHS)
    for rung in RULE.rungs():
        if rung >= EPOCHS:
            break
        at_rung = rows[rows["epoch"] == rung].set_index("run")[RULE.goal.metric]
        best = {standing[place] for place in RULE.best([at_rung[run] for run in standing])}
        last |= {run: rung for run in standing if run not in best}
        standing = [run for run in standing if run in best]
    return rows.index[rows["epoch"] <= rows["run"].map(last)]


def show_asynchronous(rows: "pd.DataFrame") -> None:
    """Print what the asynchronous rule leaves of each repeat, over many orders of its runs."""
    close, epochs, differences = 0, 0, []
    for number, (seed, own) in enumerate(rows.groupby("seed")):
        curves = {run: list(curve[RULE.goal.metric]) for run, curve in own.groupby("run")}
        full, within = winner(own), 0
        for order in range(ORDERS):
            times = uneven.Uneven(list(curves.values()), seed=1000 * number + order)
            last = dict(zip(curves, uneven.asynchronous(times, RULE), strict=True))
            left = own[own["epoch"] <= own["run"].map(last)]
            difference = 100 * (winner(left) - full)
            within += abs(difference) <= 0.5  # noqa: PLR2004 - the target
            differences.append(difference)
            epochs += len(left)
        close += within
        print(f"repeat {seed}, asynchronous: winner within 0.5 points in {within} of {ORDERS} orders")
    total = len(differences)
    print(f"asynchronous: {27 * EPOCHS * total / epochs:.2f}x fewer epochs; winner within 0.5 points in "
          f"{close / total:.1%} of {total}; difference {statistics.mean(differences):+.2f} points "
          f"(s.d. {statistics.stdev(differences):.2f})")  # fmt: skip


def without_times(rows: "pd.DataFrame") -> str:
    """Write down all that has to be equal."""
    return str(rows.drop(columns=["epoch duration", "run duration"]).to_csv(index=False))


def repeat(rows: "pd.DataFrame") -> tuple[int, float, float]:
    """Return how many epochs are left of a full grid, and how good its winner is and the one that is left."""
    left = rows.loc[replay(rows)]
    return len(left), winner(rows), winner(left)


def winner(rows: "pd.DataFrame") -> float:
    """Return the test accuracy of the completed run that is chosen."""
    ended = rows[rows["epoch"] == EPOCHS]
    best = ended.sort_values("choice_accuracy", ascending=False, kind="stable")
    return float(best["test_accuracy"].iloc[0])


def show(repeats: list[tuple[int, float, float]]) -> None:
    """Print the repeats, and whether the targets are met."""
    for number, (epochs, full, pruned) in enumerate(repeats):
        difference = f"{full:.4f} -> {pruned:.4f} ({100 * (pruned - full):+.2f} points)"
        print(f"repeat {number}: {27 * EPOCHS} -> {epochs} epochs, accuracy of the winner {difference}")
    saved = 27 * EPOCHS * len(repeats) / sum(epochs for epochs, _, _ in repeats)
    differences = [100 * (pruned - full) for _, full, pruned in repeats]
    close = sum(abs(difference) <= 0.5 for difference in differences)  # noqa: PLR2004 - the target
    print(f"{saved:.2f}x fewer epochs (target 3x)")
    print(
        f"winner within 0.5 points in {close} of {len(repeats)} repeats (target 9); difference "
        f"{statistics.mean(differences):+.2f} points (s.d. {statistics.stdev(differences):.2f})"
    )
