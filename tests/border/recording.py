"""Whole screens, each in a file under recorded/; `python -m tests.border.recording` records them again."""

import contextlib
import math
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.border.experiments import execute
from tests.border.screens import command, terminal

FOLDER = Path(__file__).with_name("recorded")
WIDTHS = (80, 120)
# the last run does not fail as those of lr=0.4 do, which would stop the grid
GRID = {"lr": [0.1, 0.2, 0.4, 0.3], "width": [8, 9], "seed": [1, 2, 3], "device": ["cpu"]}
SMALL = {"lr": [0.1, 0.2], "width": [8, 9]}
COMMANDS = ("list runs/grid -n 20", "best runs/grid", "compare width runs/grid", "decide lr runs/grid")


def noisy(run: Any) -> dict[str, float]:
    """Let lr=0.4 fail, and lr=0.3 with width=9 diverge; the first number of lr=0.3 width=8 is the best."""
    time.sleep(0.01)  # no duration is wider than its heading
    if run.lr == 0.4:
        raise ValueError(f"width {run.width} is too much")
    loss = math.nan if (run.lr, run.width) == (0.3, 9) else run.lr
    accuracy = 0.5 + run.lr + 0.001 * getattr(run, "seed", 1) * run.width
    return {"loss": loss, "val_accuracy": accuracy, "val_loss": run.lr}


def screens(width: int) -> dict[str, str]:
    """Draw all screens of a width: name -> its lines; what goes to standard error stands below them."""
    drawn, runs = {}, Path("runs")
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        with terminal(width) as screen:
            execute(runs, GRID, noisy, "grid", repeats="seed", display=True)
        drawn["grid"] = written(screen.lines)
        execute(runs, SMALL, noisy, "plan")
        with terminal(width) as screen:
            execute(runs, {**SMALL, "lr": [0.1, 0.2, 0.3]}, noisy, "plan", plan_only=True, display=True)
        drawn["plan"] = written(screen.lines)
        for words in COMMANDS:
            with terminal(width) as screen:
                answer = command(*words.split())
            drawn[words.split()[0]] = written([*screen.lines, *answer.err.splitlines()])
    return drawn


def written(lines: list[str]) -> str:
    """Return the lines without their durations, and without where the time of a grid went."""
    text = re.sub(r"(?ms)^time  .*?(?=^next )", "", "\n".join(lines))
    return re.sub(r" +[\d.]+ s\b", lambda match: "# s".rjust(len(match[0])), text) + "\n"


def file_of(name: str, width: int) -> Path:
    """Return the file of a screen."""
    return FOLDER / f"{name}-{width}.txt"


if __name__ == "__main__":
    for width in WIDTHS:
        for name, text in screens(width).items():
            file_of(name, width).write_text(text, encoding="utf-8")
