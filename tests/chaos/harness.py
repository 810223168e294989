"""Processes to kill, and a witness who remembers what they had committed."""

import csv
import hashlib
import json
import os
import signal
import time
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from runmanager import load_results, load_runs, load_steps
from tests.border import reading
from tests.chaos.work import EXPERIMENT
from tests.warm import Warm

PROGRAM = Path(__file__).with_name("program.py")
PATIENCE_S = 60.0
MOST_LEFT_S = 45  # that what lanes are forked from outlives a dead parent: on a busy machine it imports torch
COLD_EVERY = 4
"""Every fourth start of a grid in lanes imports torch, as users' do; others are killed in what follows."""


def show(*figures: object) -> None:
    """Print what was measured, and what was wrong; pytest -s shows it."""
    print(*figures, sep="\n")  # noqa: T201


class Zygote(Warm):
    """Starts experiments in processes that have torch already."""

    def __init__(self, *, uses_all_cores: bool = False) -> None:
        super().__init__("optuna", "tests.chaos.work", "tests.border.disk", uses_all_cores=uses_all_cores)
        self._num_starts = 0

    def start(self, root: Path, params: dict[str, list[Any]], how: str = "inline", **job: Any) -> int:
        """Start or continue the experiment under `root` in a new process; return its number."""
        root.mkdir(exist_ok=True)
        output = job.pop("output", root.with_suffix(".txt"))
        self._num_starts += 1
        order = json.dumps({**job, "root": str(root), "how": how, "params": params})
        return self.begin(PROGRAM, order, output=output, forks_lanes=self._num_starts % COLD_EVERY > 0)

    def stop(
        self, pid: int, seconds: float = 60, number: int = signal.SIGKILL, *, is_of_group: bool = False
    ) -> tuple[int, bool]:
        """Wait for a process, for some seconds, then send it a signal, or its whole process group.

        Returns:
            Its exit code or -signal, and whether the signal was sent.
        """
        is_late = not has_ended(pid, seconds)
        if is_late:
            # as a terminal does; but the process may not have made its group yet
            (os.killpg if is_of_group and os.getpgid(pid) == pid else os.kill)(pid, number)
        if not has_ended(pid, PATIENCE_S):
            os.kill(pid, signal.SIGKILL)
        return self.wait(pid), is_late

    def run(self, root: Path, params: dict[str, list[Any]], how: str = "inline", **job: Any) -> int:
        return self.stop(self.start(root, params, how, **job))[0]


def has_ended(pid: int, seconds: float) -> bool:
    """Wait for some seconds until a process has ended; return whether."""
    until = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.001)
    return not is_alive(pid)


def _stat(pid: int | str) -> list[str]:
    """Return state, parent, group and session of a process; nothing if there is none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    return []


def members(session: int) -> set[int]:
    """Return the living processes of a session."""
    found = {int(path.name): _stat(path.name) for path in Path("/proc").glob("[0-9]*")}
    return {pid for pid, fields in found.items() if fields and fields[3] == f"{session}" and fields[0] != "Z"}


def parent_of(pid: int) -> int | None:
    """Return the process that another was forked from, or None if it has ended."""
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def is_alive(pid: int) -> bool:
    """Return whether a process has not ended, waited for or not."""
    return _stat(pid)[:1] not in ([], ["Z"])


def outlived(session: int) -> list[str]:
    """Wait until no process of a session lives; say so if that takes too long."""
    before = time.monotonic()
    while members(session) and time.monotonic() - before < MOST_LEFT_S:
        time.sleep(0.01)
    return [f"processes live on: {members(session)}"] if members(session) else []


def journals(root: Path) -> Iterator[list[dict[str, object]]]:
    """Read the whole lines of each journal under a root."""
    for path in root.glob(f"{EXPERIMENT}/*/attempt-*[0-9].jsonl"):
        *lines, _torn = path.read_bytes().split(b"\n")
        yield [json.loads(line) for line in lines]


def num_lines(root: Path, kind: str = "epoch") -> int:
    """Count what was committed under a root: epochs, or states inside them."""
    return sum(line["type"] == kind for lines in journals(root) for line in lines)


def lanes_of(root: Path, session: int) -> list[int]:
    """Return the processes of a session that train: begun in a journal, not ended, alive."""
    begun = {int(str(lines[0]["pid"])) for lines in journals(root) if lines and lines[-1]["type"] != "end"}
    return sorted(begun & members(session) - {session})


def result(root: Path) -> dict[str, Any]:
    """Read what a finished experiment left, bit by bit, without what differs between any two executions.

    Returns:
        "rows" of epochs, "steps", how each run has "ended", and "weights": run -> name -> hash.
    """
    experiment = root / EXPERIMENT
    by_chance = ["epoch duration", "run duration", "wait_for", "jobs"]
    runs = load_runs(experiment)
    kept = [name for name in map(str, runs) if name.startswith(("best ", "kept ")) and "duration" not in name]
    tables = {
        "rows": load_results(experiment).drop(columns=by_chance, errors="ignore"),
        "steps": load_steps(experiment),
        "ended": runs[[*kept, "run", "status", "epochs"]],
    }
    weights = {
        path.parent.name[:3]: {name: _hash(value) for name, value in _load(path).items()}  # its number
        for path in sorted(experiment.glob("*/weights.pt"))
    }
    rows = {name: [tuple(map(repr, row)) for row in t.itertuples(index=False)] for name, t in tables.items()}
    return {**rows, "weights": weights}


def _load(path: Path) -> Any:
    """Read a checkpoint, or raise what is wrong with it."""
    assert zipfile.ZipFile(path).testzip() is None
    return torch.load(path, weights_only=True)


def _hash(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()


@dataclass
class Witness:
    """Remembers all that was committed in an experiment, and says what is wrong with it later."""

    experiment: Path
    statuses: tuple[str, ...] = ("pending", "interrupted", "completed")  # of its runs
    is_exact: bool = True  # whether each attempt goes on after all that was committed
    committed: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)  # by folder and epoch
    _lines: dict[Path, list[bytes]] = field(default_factory=dict)  # every complete line ever seen
    _ended: dict[int, tuple[str, int]] = field(default_factory=dict)

    def problems(self) -> list[str]:
        """Look at an experiment of which no process is alive; return what must not be."""
        if not self.experiment.exists():
            return []
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = [
                *self._journals(), *self._tables(), *self._exports(), *self._checkpoints(), *self._status(),
            ]  # fmt: skip
        return [*found, *(f"warning: {warning.message}" for warning in warned)]

    def _journals(self) -> Iterator[str]:
        for path in sorted(self.experiment.glob("*/attempt-*[0-9].jsonl")):
            *lines, _torn = path.read_bytes().split(b"\n")
            before = self._lines.get(path, [])
            if lines[: len(before)] != before:
                yield f"{path} lost lines"
            self._lines[path] = lines
            earlier = [epoch for folder, epoch in self.committed if folder == path.parent.name]
            if (
                self.is_exact
                and lines
                and not before
                and json.loads(lines[0])["after"] < max(earlier, default=0)
            ):
                yield f"{path} goes on before what was committed"
            for line in map(json.loads, lines):
                if line["type"] == "epoch":
                    self.committed.setdefault((path.parent.name, line["epoch"]), line["metrics"])
        yield from (f"{path} is gone" for path in self._lines if not path.exists())

    def _tables(self) -> Iterator[str]:
        rows = load_results(self.experiment).to_dict(orient="records") if self.committed else []
        there = {(row["run"], row["epoch"]): row for row in rows}
        if len(there) < len(rows):
            yield f"{len(rows) - len(there)} rows twice"
        for (folder, epoch), metrics in self.committed.items():
            row = there.get((int(folder.partition("-")[0]), epoch))
            if row is None:
                yield f"epoch {epoch} of {folder} is lost"
            elif metrics != {name: row[name] for name in metrics}:
                yield f"epoch {epoch} of {folder} has changed"

    def _exports(self) -> Iterator[str]:
        table = self.experiment / "results.csv"
        if table.exists():
            text = table.read_text()
            if not text.endswith("\n") or len({len(row) for row in csv.reader(text.splitlines())}) != 1:
                yield f"{table} is not whole"
        for path in filter(Path.exists, (self.experiment / f"{n}.json" for n in ("results", "grid", "holder"))):
            try:
                json.loads(path.read_bytes())
            except ValueError:
                yield f"{path} is not whole"

    def _checkpoints(self) -> Iterator[str]:
        for path in self.experiment.glob("*/*.pt"):
            try:
                _load(path)
            except Exception as error:  # noqa: BLE001 - whatever a damaged file raises
                yield f"{path} cannot be loaded ({str(error)[:60]})"
        for folder in {folder for folder, _ in self.committed}:
            path = self.experiment / folder
            is_done = b'"type":"end"' in reading.journals(path)[-1].read_bytes()
            if not is_done and not list(path.glob("checkpoint*.pt")):
                yield f"{path} has epochs and no checkpoint"

    def _status(self) -> Iterator[str]:
        if list(self.experiment.glob("*/run.json")):
            table = load_runs(self.experiment)
            for run, status, epochs in zip(table["run"], table["status"], table["epochs"], strict=True):
                if status not in self.statuses:
                    yield f"run {run} is {status}"
                if run in self._ended and self._ended[run] != (status, epochs):
                    yield f"run {run} was {self._ended[run]} and is {status, epochs}"
                if status in ("completed", "pruned"):
                    self._ended[run] = status, epochs
