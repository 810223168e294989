"""How long it takes until something happens, each in a process of its own.

Target: at most 0.1 s for ``import runmanager``, 0.3 s for ``--help`` and for a grid that is refused; the first
epoch of the tutorial's grid begins at most 0.5 s after what importing torch takes.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measuring import seconds, spread

TIMES, PAIRS = 9, 7
GRID = "experiments/fashion_grid.py"
BARE = {
    "import torch": "import torch",
    # torch.optim imports torch._dynamo, sympy and pandas when it is first used
    "torch, first Adam": "import torch; torch.optim.Adam([torch.zeros(1, requires_grad=True)])",
}
LIGHT = {
    "python alone": (["-c", "pass"], ""),
    "import runmanager": (["-c", "import runmanager"], "0.1 s"),
    "runmanager --help": (["-c", "from runmanager.cli.app import app; app(['--help'])"], "0.3 s"),
    "runmanager best --help": (["-c", "from runmanager.cli.app import app; app(['best', '--help'])"], "0.3 s"),
    "fashion_grid.py --help": ([GRID, "--help"], "0.3 s"),
    "a refused grid": ([GRID, "--lr", "0"], "0.3 s"),
}


def main() -> None:
    """Print how long each takes, start of Python included."""
    for name, (arguments, target) in LIGHT.items():
        taken = seconds(lambda arguments=arguments: start(arguments), TIMES)  # type: ignore[misc]
        print(f"{name:<24}{spread(taken)}" + (f"; target {target}" if target else ""))
    bare: dict[str, list[float]] = {name: [] for name in BARE}
    begun: dict[str, list[float]] = {"lanes": [], "inline": []}
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as root:
        for pair in range(PAIRS):
            for name, program in BARE.items():
                bare[name] += seconds(lambda program=program: start(["-c", program]), 1)  # type: ignore[misc]
            for executor, found in begun.items():
                found.append(first_epoch(executor, Path(root) / f"{pair}-{executor}"))
    for name, found in bare.items():
        print(f"{name:<24}{spread(found)}")
    for executor, found in begun.items():
        print(f"{f'first epoch, {executor}':<24}{spread(found)}; target import torch + 0.5 s")
        for floor in bare.values():
            print(f"{'':<24}{spread([a - b for a, b in zip(found, floor, strict=True)])} later than {name}")


def start(arguments: list[str]) -> None:
    """Execute Python to its end."""
    subprocess.run([sys.executable, *arguments], capture_output=True, check=False)  # noqa: S603 - our own


def first_epoch(executor: str, root: Path) -> float:
    """Return the seconds until the first epoch of the tutorial's grid begins, images and lane included."""
    run = "--device cpu --batch-size 1000 --num-workers 0 --train-size 1000"
    before = time.time()
    start([GRID, "--root", str(root), "--executor", executor, *run.split()])
    (journal,) = root.rglob("*.jsonl")
    epoch = json.loads(journal.read_text(encoding="utf-8").splitlines()[1])
    return float(epoch["t_wall"] - epoch["metrics"]["epoch duration"] - before)
