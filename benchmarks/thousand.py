"""An experiment of 1,000 trials of a search: the search itself, its tables, its page, TensorBoard.

Target: the page is written and opened in at most 2 s each. Nothing is trained: a trial tracks three epochs.
TensorBoard is started on the experiment, and asked until it lists all runs, and all of them in HParams.
"""

import json
import tempfile
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna

from benchmarks.browser import browser
from benchmarks.page import open_times
from runmanager import (
    IntRange,
    LogUniform,
    OptunaSearch,
    Uniform,
    best,
    load_results,
    load_runs,
    run_grid,
    write_report,
)
from runmanager.tensorboard.server import page_of
from runmanager.tensorboard.server import start as start_server

if TYPE_CHECKING:
    from runmanager import Run, RunManager

TRIALS, EPOCHS = 1000, 3
AXES: dict[str, Any] = {
    "lr": LogUniform(1e-5, 1e-1),
    "width": IntRange(16, 512, log=True),
    "dropout": Uniform(0, 0.5),
    "activation": ["relu", "tanh", "gelu"],
}
STATUSES = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]


def main() -> None:
    """Print how long each takes."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory() as root:
        measure(Path(root))


def measure(root: Path) -> None:
    """Make the experiment in a folder, and print how long it takes and what is done with it."""
    path = root / "searched"
    timed(f"{TRIALS:,} trials of {EPOCHS} epochs, one lane", lambda: start(root, TRIALS))
    timed("the same start again", lambda: start(root, TRIALS))
    timed("a start that adds one trial", lambda: start(root, TRIALS + 1))
    timed("load_runs", lambda: load_runs(path))
    timed("load_results", lambda: load_results(path))
    timed("best, of the loaded runs", partial(best, load_runs(path), "max:score"))
    page = root / "report.html"
    timed("write_report", lambda: write_report(path, page))
    with browser() as chromium:
        opened, errors = open_times(chromium, page.resolve().as_uri())
    print(f"the page opened in {min(opened):.2f} s; its console says {errors}")
    timed("TensorBoard", lambda: listed(path, TRIALS + 1))


def timed(name: str, function: Callable[[], object]) -> None:
    """Print how long a call takes."""
    before = time.perf_counter()
    result = function()
    print(f"{name}: {time.perf_counter() - before:.2f} s{result if isinstance(result, str) else ''}")


def start(root: Path, n: int) -> None:
    """Start the search."""
    outcome = run_grid(
        AXES, train, experiment="searched", root=root, search=OptunaSearch(n), goal="max:score",
        executor="inline", display=False,
    )  # fmt: skip
    assert outcome.exit_code == 0


def train(run: "Run", manager: "RunManager") -> None:
    """Track a curve, and train nothing."""
    bonus = {"relu": 0.0, "tanh": -0.03, "gelu": 0.02}[run.activation]
    top = 0.9 - abs(run.dropout - 0.2) / 4 - (run.lr - 0.01) ** 2 * 50 + bonus + run.width / 10_000
    with manager.run(run):
        for epoch in manager.epochs(EPOCHS):
            manager.track(score=top * (1 - 0.5**epoch), val_loss=1 - top * (1 - 0.5**epoch))


def listed(logdir: Path, num_runs: int) -> str:
    """Start TensorBoard, and wait until it has all runs; return when it had what."""
    before, moments = time.perf_counter(), {}
    address = start_server(page_of(logdir))
    moments["answers"] = time.perf_counter() - before
    while len(_asked(address, "runs")) < num_runs:
        time.sleep(0.05)
    moments[f"{num_runs:,} runs"] = time.perf_counter() - before
    body = {"experimentName": "", "allowedStatuses": STATUSES, "colParams": [], "startIndex": 0}
    while True:
        asked = time.perf_counter()
        groups = _asked(address, "plugin/hparams/session_groups", body | {"sliceSize": 2 * num_runs})
        if len(groups.get("sessionGroups", [])) == num_runs:
            break
    now = time.perf_counter()
    moments["all in HParams"] = now - before
    moments["of which its answer"] = now - asked
    return ": " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in moments.items())


def _asked(address: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Return what TensorBoard answers to a question of its page."""
    content = json.dumps(body).encode() if body else None
    request = urllib.request.Request(  # noqa: S310 - of this machine
        f"{address}data/{path}", content, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310
        return json.load(answer)


if __name__ == "__main__":
    main()
