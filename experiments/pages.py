"""Make the pages to click of the documentation: a search and a decision on Fashion-MNIST, and their index.

    python experiments/pages.py                      # build/pages/fashion/index.html
    sphinx-build -D html_extra_path="$PWD/build/pages" -c docs . build/site

Runs train on the first 8,000 images. Started again, it executes what is missing.
"""

import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import fashion_grid
from runmanager import Decide, IntRange, LogUniform, OptunaSearch, Run, run_grid, write_report

if TYPE_CHECKING:
    from runmanager import RunManager

HOME = Path(__file__).parents[1]
SEARCH = """Which learning rate and batch size suit two epochs?

- **Searched** by TPE, with one run per setting: the best score may be luck.
- Scores are of the *test* images, as in the tutorial. A choice for later use needs images of its own.
"""
DECISION = """Which of three learning rates is best at batch size 200?

Seeds are added until the lead is decided. A verdict is wrong in at most **5 of 100** such experiments.
Scores are of the *test* images, as in the tutorial.
"""


def main(folder: Path) -> None:
    """Execute both grids in a folder, and copy their pages and the index of these into its `pages`."""
    root = folder / "fashion"
    grid = partial(run_grid, train=train, root=root, goal="max:test_accuracy", jobs=2)
    fixed = {"num_workers": [0], "device": ["cpu"]}
    ranges = {"lr": LogUniform(3e-4, 3e-2), "batch_size": IntRange(64, 1024, log=True), **fixed}
    rates = {"lr": [0.001, 0.003, 0.01], "batch_size": [200], **fixed}
    searched = grid(ranges, experiment="searched", search=OptunaSearch(n=12), note=SEARCH)
    decide = Decide(max_repeats=10)
    if (
        searched.exit_code
        or grid(rates, experiment="decided", decide=decide, repeats="seed", note=DECISION).exit_code
    ):
        sys.exit("not all runs are completed: there are no pages")

    for page in (write_report(root), *root.glob("*/report.html")):
        target = folder / "pages" / page.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, target)


def train(run: Run, manager: "RunManager") -> None:
    """Train the tutorial's network for two epochs, with the seed of the run, if it has one."""
    seed, data_dir = getattr(run, "seed", 0), str(HOME / "data")
    fashion_grid.train(run, manager, num_epochs=2, train_size=8_000, seed=seed, data_dir=data_dir)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build"))
