"""What tests train with, and wait for: one function meets faults that files announce, and never changes."""

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from runmanager import GridOutcome, load_results, run_grid

LRS = {"lr": [0.1, 0.2, 0.3]}


def announce(kind: str, lr: float, epoch: int) -> None:
    """Let the run of a learning rate meet a fault in an epoch, once."""
    Path(f"fault-{lr}-{epoch}").write_text(kind)


def meet(run: Any, epoch: int) -> None:
    """Note that an epoch is trained, and meet what is announced for it."""
    with Path("trained.txt").open("a") as file:
        file.write(f"{run.lr} {epoch}\n")
    path = Path(f"fault-{run.lr}-{epoch}")
    if not path.exists():
        return
    kind = path.read_text()
    path.unlink()
    raise {"stop": KeyboardInterrupt(), "exit": SystemExit(3)}.get(kind) or ValueError(f"no {kind}")


def trained() -> list[tuple[float, int]]:
    """Return the epochs trained since the last call."""
    path = Path("trained.txt")
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    path.unlink(missing_ok=True)
    return [(float(line.split()[0]), int(line.split()[1])) for line in lines]


def train(run: Any, manager: Any) -> None:
    """Train three epochs; a run resumes after its last one."""
    with manager.run(run):
        for epoch in manager.epochs(3, checkpoint={"state": {}}):
            manager.track_loss(run.lr / epoch, 1)
            meet(run, epoch)


def scaled(scale: float) -> Callable[[Any, Any], None]:
    """Make a training function of which another scale is another value."""

    def train_scaled(run: Any, manager: Any) -> None:
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track_loss(run.lr * scale, 1)

    return train_scaled


def wait_until(call: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait until a call returns something true; return that."""
    until = time.monotonic() + seconds
    while not (value := call()):
        assert time.monotonic() < until, f"not within {seconds} s"
        time.sleep(0.02)
    return value


def minimize(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """Make a step that lowers a loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def learn(network: Any, optimizer: Any, inputs: torch.Tensor, labels: torch.Tensor) -> tuple[Any, Any]:
    """Train a network with a batch; return its scores and the loss."""
    preds = network(inputs)
    loss = torch.nn.functional.cross_entropy(preds, labels)
    minimize(optimizer, loss)
    return preds, loss


class Dropping:
    """Gets Ctrl-C where Python drops what is raised."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def start(params: Any = LRS, function: Any = train, **options: Any) -> GridOutcome:
    """Execute a grid in `runs/exp`."""
    quiet: dict[str, Any] = {"tensorboard": False, "display": False, "executor": "inline", **options}
    return run_grid(params, function, **{"experiment": "exp", **quiet})


def statuses(outcome: GridOutcome) -> list[tuple[str, int]]:
    """Return status and epochs of each run."""
    return list(zip(outcome.runs["status"], outcome.runs["epochs"], strict=True))


def left(root: str | Path = "runs") -> tuple[str, dict[str, Any]]:
    """Return all that follows from the training of the first run: its rows as text, and its weights."""
    table = load_results(f"{root}/exp").query("run == 1").drop(columns=["epoch duration", "run duration"])
    paths = Path(root, "exp").glob("001*/weights.pt")
    kept = [torch.load(path, weights_only=True) for path in paths]
    return table.to_csv(), {name: value.tolist() for each in kept for name, value in each.items()}


def line_with(text: str) -> str:
    """Return file and line of the only line that has this text, but for those that look for it."""
    path = Path(sys._getframe(1).f_code.co_filename)
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    (number,) = [number for number, line in lines if text in line and "line_with(" not in line]
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path.name
    return f"{shown}:{number}"
