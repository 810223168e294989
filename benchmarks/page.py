"""The page of a report: contrasts, color distances, errors in the console, open times and sizes.

Targets: lines 3:1, text 4.5:1; neighbouring colors 10 apart in CIEDE2000 for every kind of color blindness; no
error in the console; 1,000 runs open within 2 s; at most 5 MB of 20,000 runs. Needs playwright and Chromium.
"""

import random
import re
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.browser import CHROMIUM, browser
from benchmarks.colors import SIGHTS, contrast, least_distance
from runmanager import IntRange, LogUniform, RunBuilder, write_report
from runmanager.core.experiment import Experiment
from runmanager.core.journal import Journal
from runmanager.core.outcome import EpochRecord, Outcome, Status
from runmanager.report import render

NUMBERS = (12, 300, 1_000, 20_000)
EPOCHS = 10
OPENINGS = 5
_STYLE = Path(render.__file__).parent / "assets" / "page.css"


def main() -> None:
    """Print the colors, and what pages of several sizes cost."""
    for name, colors in themes().items():
        print_colors(name, colors)
    if not CHROMIUM:
        print("no times: there is no Chromium")
        return
    with browser() as chromium, tempfile.TemporaryDirectory(dir=Path.cwd()) as root:
        for number, is_sampled in [*((number, False) for number in NUMBERS), (1_000, True)]:
            kind = "sample" if is_sampled else "grid"
            path = Path(root) / f"{kind}-{number}"
            write_runs(path, number, is_sampled=is_sampled)
            before = time.perf_counter()
            page = write_report(path, Path(root) / "report.html")
            written = time.perf_counter() - before
            opened, errors = open_times(chromium, page.resolve().as_uri())
            size = page.stat().st_size / 1e6
            print(
                f"{number:>6,} runs of a {kind:<6}  {size:.2f} MB, written in {written:.1f} s, "
                f"opened in {min(opened):.2f} s (least of {len(opened)}, most {max(opened):.2f}), "
                f"{len(errors)} errors in the console"
            )
            for error in errors[:5]:
                print(f"             {error}")


def themes() -> dict[str, dict[str, str]]:
    """Return the colors of the page by the name of their variable, for light and dark."""
    style = _STYLE.read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    light, dark, *_ = (dict(re.findall(r"--(\w+): (#\w+);", block)) for block in blocks)
    long = {"#fff": "#ffffff", "#000": "#000000"}
    return {
        name: {key: str(long.get(color, color)) for key, color in colors.items()}
        for name, colors in (("light", light), ("dark", {**light, **dark}))
    }


def print_colors(name: str, colors: dict[str, str]) -> None:
    """Print the least contrasts of a theme, and how far its most similar colors are apart."""
    behind = [colors["card"], colors["paper"]]
    texts = {
        each: min(contrast(colors[each], back) for back in behind) for each in ("ink", "soft", "accent", "bad")
    }
    print(f"{name}: text {', '.join(f'{each} {ratio:.1f}' for each, ratio in texts.items())}")
    for kind, title in (("c", "categories"), ("o", "ramp")):
        palette = [colors[f"{kind}{index}"] for index in range(6)]
        least = min(contrast(color, back) for color in palette for back in behind)
        distances = [least_distance(palette, sight, neighbours=kind == "o") for sight in ("", *SIGHTS)]
        named = zip(("all", *SIGHTS), distances, strict=True)
        apart = ", ".join(f"{sight} {number:.1f}" for sight, number in named)
        print(f"{name}: {title}: lines at least {least:.1f}:1; nearest two apart by {apart}")


def write_runs(path: Path, number: int, *, is_sampled: bool = False) -> None:
    """Write an experiment of random runs, of a grid or drawn from ranges; one of fifty fails."""
    draw = random.Random(0)
    seeds = 5
    grid: list[dict[str, Any]] = [
        {"lr": lr / 1000, "width": width, "optimizer": optimizer, "seed": seed}
        for lr in range(1, 1 + number)
        for width in (16, 64)
        for optimizer in ("adam", "sgd")
        for seed in range(seeds)
    ][:number]
    if is_sampled:
        space = {
            "lr": LogUniform(1e-5, 1e-1),
            "width": IntRange(16, 4096, log=True),
            "optimizer": ["adam", "sgd"],
        }
        grid = [run._asdict() for run in RunBuilder.sample(space, number, seed=0)]
    with mock.patch("os.fsync"):
        for folder in Experiment(path).plan(grid, {}):
            is_failed = draw.random() < 1 / 50
            folder.path.mkdir()
            start = {"after": 0, "device": "cpu", "command": "grid.py", "versions": {"torch": "2.15.0"}}
            journal = Journal(folder.path, 1, start)
            for epoch in range(1, 1 + (3 if is_failed else EPOCHS)):
                loss = 2 / epoch + draw.random() / 10
                metrics = {
                    "loss": loss,
                    "accuracy": 1 / (1 + loss),
                    "epoch duration": 1.0,
                    "run duration": 1.0 * epoch,
                }
                journal.epoch(
                    EpochRecord(epoch, {**metrics, "test_loss": loss, "test_accuracy": 1 / (1.1 + loss)})
                )
            status = Status.FAILED if is_failed else Status.COMPLETED
            journal.end(Outcome(status, "ValueError: no" if is_failed else "", 3 if is_failed else EPOCHS))


def open_times(chromium: Any, address: str) -> tuple[list[float], list[str]]:
    """Return how long it takes until the page is drawn, a few times, and what the console says."""
    times: list[float] = []
    errors: list[str] = []
    for _ in range(OPENINGS):
        page = chromium.new_page(viewport={"width": 1440, "height": 900})
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        before = time.perf_counter()
        page.goto(address)
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        times.append(time.perf_counter() - before)
        page.close()
    return times, errors
