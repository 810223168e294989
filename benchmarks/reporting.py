"""What a report costs: how long it is written, how long a browser takes to open it, and how large it is.

Targets: opened within 2 s at 1,000 runs, at most 5 MB at 20,000 runs.
"""

import random
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from unittest import mock

from benchmarks.measuring import seconds, spread
from runmanager import write_report
from runmanager.outcome import EpochRecord, Outcome, Status
from runmanager.storage.folders import Experiment
from runmanager.storage.journal import Journal

NUMBERS = (12, 300, 1_000, 20_000)  # of runs
EPOCHS, TIMES = 5, 3
MOST_OPENED = 1_000  # runs of a page that is opened several times
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main() -> None:
    """Print the seconds and the size for grids of several sizes."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    with tempfile.TemporaryDirectory() as root:
        for number in NUMBERS:
            experiment = write_runs(Path(root) / str(number), number)
            page = Path(root) / f"{number}.html"
            times = TIMES if number <= MOST_OPENED else 1
            written = seconds(lambda: write_report(experiment, page), times)  # noqa: B023 - called here
            size = page.stat().st_size / 1e6
            print(f"{number:>6,} runs  written in {spread(written)}; {size:.2f} MB" + target(number, size))
            if browser:
                opened = [open_in(browser, page, root) for _ in range(times)]
                empty = Path(root) / "empty.html"
                empty.write_text("<!doctype html><title>nothing</title>")
                start = [open_in(browser, empty, root) for _ in range(times)]
                print(f"             opened in {spread(opened)}; the browser alone {spread(start)}")


def target(number: int, size: float) -> str:
    """Say whether the largest page is as small as it is to be."""
    return "" if number < max(NUMBERS) else f", target 5 MB: {'met' if size <= 5 else 'missed'}"  # noqa: PLR2004


def open_in(browser: str, page: Path, folder: str) -> float:
    """Return the seconds until a browser has loaded a page, executed its script and written its content."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
    before = time.perf_counter()
    subprocess.run([*command, "--dump-dom", page.as_uri()], check=True, capture_output=True)  # noqa: S603
    return time.perf_counter() - before


def write_runs(experiment: Path, number: int) -> Path:
    """Write an experiment of runs with five hyperparameters, some of which failed."""
    rng = random.Random(1)
    grid = [
        {
            "lr": [0.1, 0.03, 0.01, 0.003][index % 4],
            "width": [16, 32, 64, 128, 256][index // 4 % 5],
            "optimizer": ["adam", "sgd", "rmsprop"][index // 20 % 3],
            "dropout": round(index // 300 / 100, 2),
            "seed": index // 60 % 5,
        }
        for index in range(number)
    ]
    with mock.patch("os.fsync"):
        for position, folder in enumerate(Experiment(experiment).plan(grid, {})):
            folder.path.mkdir()
            has_failed = position % 50 == 7  # noqa: PLR2004 - one of fifty
            journal = Journal(folder.path, 1, {"after": 0, "device": "cpu", "parameters": 1000})
            for epoch in range(1, 1 if has_failed else EPOCHS + 1):
                accuracy = 0.9 - 0.2 / epoch + rng.gauss(0, 0.01)
                metrics = {"loss": 1 - accuracy, "accuracy": accuracy, "test_loss": 1.1 - accuracy}
                metrics |= {"test_accuracy": accuracy, "epoch duration": 2.0, "run duration": 2.0 * epoch}
                journal.epoch(EpochRecord(epoch, metrics))
            status = Status.FAILED if has_failed else Status.COMPLETED
            journal.end(Outcome(status, "ValueError: no" if has_failed else "", 0 if has_failed else EPOCHS))
            journal.close()
    return experiment
