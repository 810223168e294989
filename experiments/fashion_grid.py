"""The tutorial's grid on Fashion-MNIST: which batch size, how many workers, cuda or cpu?

    python experiments/fashion_grid.py

One epoch of 60,000 images for each of lr x batch_size x num_workers x device, then the 10,000 test images.
Expected: an accuracy of about 0.6 at batch size 1000 and below 0.35 at 20000, whose three steps are too few.
Runs whose device is not there are listed as unavailable. Started again, the command executes what is missing.
"""

import argparse
import math
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from runmanager import GridError, GridOutcome, Run, RunBuilder, RunManagerError, StorageError, run_grid

if TYPE_CHECKING:
    from torch import nn

    from runmanager import ImageTensors, RunManager

GRID: OrderedDict[str, list[Any]] = OrderedDict(
    lr=[0.01],
    batch_size=[1000, 10000, 20000],
    num_workers=[0, 1],
    device=["cuda", "cpu"],
)


def make_network() -> "nn.Module":
    """Build the tutorial's network, 32,998 parameters: images (N, 1, 28, 28) in, scores (N, 10) out.

    Pooling before ReLU gives the same bits from a quarter of the values.
    """
    from torch import nn

    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 6, 5), pool1=nn.MaxPool2d(2), relu1=nn.ReLU(),  # (N, 6, 12, 12)
            conv2=nn.Conv2d(6, 12, 5), pool2=nn.MaxPool2d(2), relu2=nn.ReLU(),  # (N, 12, 4, 4)
            flatten=nn.Flatten(),
            fc1=nn.Linear(192, 120), relu3=nn.ReLU(),
            fc2=nn.Linear(120, 60), relu4=nn.ReLU(),
            out=nn.Linear(60, 10),
        )
    )  # fmt: skip


@cache
def load_images(data_dir: str, size: int | None = None, *, train: bool = True) -> "ImageTensors":
    """Load the first images of the training set or the test set, once per process."""
    from runmanager import fashion_mnist

    return fashion_mnist(data_dir, size=size, train=train)


def train(run: Run, manager: "RunManager", data_dir: str = "data") -> None:
    """Train one run of the grid: README's plain loop, and what makes it fast."""
    import torch

    from runmanager import TensorLoader, fit

    seed = getattr(run, "seed", 0)
    torch.manual_seed(seed)  # the same first weights and order in every run, so that runs can be compared
    network = make_network()
    train_set = load_images(data_dir, getattr(run, "train_size", 60_000))
    loader = TensorLoader(train_set, run.batch_size, device=run.device, seed=seed, num_workers=run.num_workers)
    fit(
        run, network, loader, manager,
        optimizer=partial(torch.optim.Adam, lr=run.lr, fused=True),
        epochs=getattr(run, "num_epochs", 1),
        test_loader=TensorLoader(load_images(data_dir, train=False), 1000, device=run.device, shuffle=False),
        precision=getattr(run, "precision", "fp32"),
        memory_format=torch.channels_last,
        # the same step in pieces that the caches of a cpu hold
        micro_batch=1000 if run.device == "cpu" else None,
    )  # fmt: skip


def main() -> int:
    """Execute the grid and show what came of it; return the exit code."""
    parser, arguments = parse()
    try:
        grid = grid_of(arguments)
        outcome = run_grid(
            grid,
            partial(train, data_dir=arguments.data_dir),
            experiment=arguments.experiment,
            root=arguments.root,
            data=partial(load_images, arguments.data_dir),
            **executor_of(arguments),
            retries=arguments.retries,
            on_error=arguments.on_error,
            plan_only=arguments.plan,
            retry_failed=arguments.retry_failed,
            changed=arguments.changed,
            repeats="seed" if "seed" in grid else None,
            note=arguments.note,
            only=arguments.only,
        )
    except StorageError as error:
        parser.exit(74, f"{parser.prog}: {error}\n")
    except RunManagerError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "Forced stop. Start the same command again to go on.\n")
    if not arguments.plan:
        summarise(outcome, arguments.root)
    return outcome.exit_code


def summarise(outcome: GridOutcome, root: str) -> None:
    """Print the table, the comparison of devices, what has no result and why, and where to look further."""
    from runmanager import compare, show

    if len(outcome.results):
        print(show(outcome.results))
    if outcome.runs["device"].nunique() > 1:
        pairs = compare(outcome.runs, "device", "epoch duration")
        if len(pairs):
            print(show(pairs))
    causes = Counter((ended.status, ended.error) for _, ended in outcome.outcomes if ended.error)
    for (status, error), count in causes.items():
        print(f"{count} x {status}: {error}")
    print(f"table        {outcome.folder / 'results.csv'}, results.json")
    print(f"in Python    from runmanager import load_results; load_results({root!r})")
    print(f"TensorBoard  runmanager tensorboard {root} --experiment {outcome.folder.name}")


def parse() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Read the command line; the axes stay text until `grid_of` checks them, all at once."""
    parser = argparse.ArgumentParser(
        description="Train the tutorial's grid on Fashion-MNIST; log it to TensorBoard and one table.",
        epilog="An axis takes several values: --lr 0.01 0.001. Started again, it does what is missing.",
    )
    axes = parser.add_argument_group("axes of the grid")
    further = parser.add_argument_group("further axes, columns of the table once they are given")
    for name, (flag, _, default, text) in AXES.items():
        shown = " ".join(map(str, GRID.get(name, [default])))
        group = axes if name in GRID else further
        group.add_argument(flag, dest=name, nargs="+", metavar="X", help=f"{text} (default: {shown})")
    where = parser.add_argument_group("where")
    where.add_argument("--experiment", default="fashion_grid", help="name (default: %(default)s)")
    where.add_argument("--root", default="runs", help="of all experiments (default: %(default)s)")
    where.add_argument("--data-dir", default="data", help="holds FashionMNIST/raw (default: %(default)s)")
    where.add_argument("--note", metavar="TEXT", help="why, in one line; kept with the experiment")
    how = parser.add_argument_group("how")
    how.add_argument("--jobs", type=jobs, default=1, metavar="N", help="runs at a time, or auto (default: 1)")
    how.add_argument(
        "--runs-per-device", type=int, default=1, metavar="N", help="runs that share a GPU (default: 1)"
    )
    how.add_argument(
        "--executor",
        choices=["lanes", "inline", "ray"],
        help="(default: lanes, processes)",
    )
    how.add_argument(
        "--ray-address",
        metavar="X",
        help="of a Ray cluster (default: one is started)",
    )
    how.add_argument("--timeout", type=float, metavar="S", help="seconds without a batch: the run is hung")
    how.add_argument("--retries", type=int, default=0, metavar="N", help="of runs that were killed or hung")
    how.add_argument(
        "--on-error", choices=["continue", "stop"], default="continue", help="default: the other runs go on"
    )
    how.add_argument("--plan", action="store_true", help="show what would be executed, and stop")
    how.add_argument(
        "--only", type=int, nargs="+", metavar="RUN", help="these runs alone, in this process: for a debugger"
    )
    again = parser.add_argument_group("started again")
    again.add_argument("--retry-failed", action="store_true", help="execute runs that ended by a fault again")
    changed = again.add_mutually_exclusive_group()
    changed.add_argument(
        "--changed",
        choices=["rerun", "keep"],
        default="rerun",
        help="runs that were begun with other code, data or versions: execute again, or keep and continue",
    )
    changed.add_argument(
        "--resume-anyway", action="store_const", dest="changed", const="keep", help="the same as --changed keep"
    )
    return parser, parser.parse_args()


def executor_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return where runs are executed, as `run_grid` takes it."""
    how = {name: getattr(arguments, name) for name in ("jobs", "runs_per_device", "timeout")}
    if arguments.ray_address is None:
        return {"executor": arguments.executor, **how}
    from runmanager import RayExecutor

    return {"executor": RayExecutor(address=arguments.ray_address, **how)}


def jobs(text: str) -> int | str:
    """Read how many runs are executed at a time."""
    return int(text) if text.lstrip("-").isdecimal() else text


def grid_of(arguments: argparse.Namespace) -> OrderedDict[str, list[Any]]:
    """Put the axes of the command line in the place of the grid's own; raise all problems at once."""
    grid, problems = GRID.copy(), list[str]()
    for name, (flag, read, _, _) in AXES.items():
        values = []
        for text in getattr(arguments, name) or []:
            try:
                values.append(read(text))
            except ValueError as error:
                problems.append(f"{flag} {error}, got {text!r}")
        grid |= {name: values} if values else {}
    try:
        RunBuilder.num_runs(grid)
    except GridError as error:
        problems += error.problems
    if problems:
        raise GridError(problems)
    return grid


def whole(least: int, most: float = math.inf) -> Callable[[str], int]:
    """Make a reader of whole numbers in a range."""

    def read(text: str) -> int:
        value = int(text) if text.lstrip("-").isdecimal() else least - 1
        if not least <= value <= most:
            bound = f"{least} or more" if most == math.inf else f"{least} to {most}"
            raise ValueError(f"takes whole numbers, {bound}")
        return value

    return read


def positive(text: str) -> float:
    """Read a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError("takes numbers above 0")
    return value


def one_of(*known: str) -> Callable[[str], str]:
    """Make a reader of some words."""

    def read(text: str) -> str:
        if text not in known:
            raise ValueError(f"takes one of {', '.join(known)}")
        return text

    return read


AXES: dict[str, tuple[str, Callable[[str], Any], Any, str]] = {
    "lr": ("--lr", positive, None, "learning rates of Adam"),
    "batch_size": ("--batch-size", whole(1), None, "images in a step"),
    "num_workers": ("--num-workers", whole(0), None, "processes that fetch the images"),
    "device": ("--device", str, None, "where a run is executed: cpu, cuda, cuda:1, mps"),
    "num_epochs": ("--epochs", whole(1), 1, "passes over the images"),
    "train_size": ("--train-size", whole(1, 60_000), 60_000, "train on the first so many images"),
    "precision": ("--precision", one_of("fp32", "bf16", "fp16"), "fp32", "fp32, bf16 or fp16"),
    "seed": ("--seed", whole(0, 2**63 - 1), 0, "what first weights and the order follow from"),
}
"""Hyperparameter -> flag, reader, default if it is not in GRID, help."""


if __name__ == "__main__":
    sys.exit(main())
