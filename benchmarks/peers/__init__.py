"""The tutorial's CPU grid as a whole command: ``python -m benchmarks peers [--rounds N] [name ...]``.

Six runs: batch sizes 1000, 10000 and 20000 with 0 and 1 workers, one epoch of the real 60,000 images each, the
same network, Adam with a learning rate of 0.01. Default is what the peer does by itself, over torchvision's
data set; tuned has the images in one tensor, fetched by the batch, fused Adam, and nothing shown or saved that
can be left out. Only the tutorial and we write images, the graph and histograms. Target: at least 5x less time
than the tutorial, 1.8x less than the best tuned peer.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.measuring import spread

SIDES = {
    "ours": (("",), "runmanager"),
    "tutorial": (("default",), "torchvision"),
    "lightning": (("default", "tuned"), "lightning"),
    "skorch": (("default", "tuned"), "skorch"),
    "optuna": (("default", "tuned"), "optuna"),
    "ray": (("default", "tuned"), "ray.tune"),
}
"""Name -> its forms, and what has to be installed."""


def main(names: Sequence[str] = (), rounds: int = 1) -> None:
    """Execute each side in a process of its own, in turn, and print a table."""
    if unknown := [name for name in names if name not in SIDES]:
        raise SystemExit(f"no peer {', '.join(unknown)}; there are: {', '.join(SIDES)}")
    sides: dict[tuple[str, str], list[float]] = {("ours", ""): []}
    for name in names or SIDES:
        forms, needed = SIDES[name]
        if is_installed(needed):
            sides |= {(name, form): [] for form in forms}
        else:
            print(f"{name} needs {needed}: pip install -e '.[peers]'")
    for number in range(1, rounds + 1):
        print(f"{f'round {number}':<20}{'wall s':>8}{'MB written':>12}  accuracy of each run")
        for (name, form), taken in sides.items():
            seconds, accuracies, size = execute(name, form)
            taken.append(seconds)
            shown = " ".join(f"{value:.3f}" for value in accuracies)
            print(f"{name:<10}{form:<10}{seconds:>8.1f}{size / 1e6:>12.2f}  {shown}", flush=True)
    own = sides.pop(("ours", ""))
    print(f"ours                {spread(own)}")
    for (name, form), taken in sides.items():
        ratios = [other / us for other, us in zip(taken, own, strict=True)]
        print(f"{name:<10}{form:<10}{spread(ratios, 'x')} ours")


def is_installed(module: str) -> bool:
    """Whether a module can be imported."""
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


def execute(name: str, form: str) -> tuple[float, list[float], int]:
    """Return the seconds of the whole command, the accuracy of each run, and the bytes that it has written."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        command = [sys.executable, "-m", f"benchmarks.peers.{name}_side", folder, form]
        if name == "ours":
            command = [sys.executable, "experiments/fashion_grid.py", "--device", "cpu", "--root", folder]
        before = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own
        seconds = time.perf_counter() - before
        if done.returncode:
            raise SystemExit(f"{name} {form} failed:\n{done.stderr[-3000:]}")
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        if name == "ours":
            rows = json.loads((Path(folder) / "fashion_grid" / "results.json").read_text(encoding="utf-8"))
            return seconds, [row["accuracy"] for row in rows], size
        return seconds, json.loads(done.stdout.splitlines()[-1]), size
