"""Processes to kill, and a witness who remembers what they had committed."""

import csv
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch

from runmanager import load_results, load_runs, load_steps
from runmanager.core import checkpoint, files
from runmanager.core.experiment import read_runs
from runmanager.tables.roots import is_experiment
from tests.chaos.work import EXPERIMENT

HOME = Path(__file__).parents[2]
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


MOST_LEFT_S = 45  # that what lanes are forked from outlives a dead parent: on a busy machine it imports torch
COLD_EVERY = 4
"""Every fourth start of a grid in lanes imports torch, as users' do; others are killed in what follows."""
_PATIENCE_S = 60


def seeded(seed: int) -> random.Random:
    """Return what draws the same numbers every time."""
    return random.Random(seed)  # noqa: S311


def show(*figures: object) -> None:
    """Print what was measured, and what was wrong; pytest -s shows it."""
    print(*figures, sep="\n")  # noqa: T201


class Zygote:
    """Starts processes that have torch already, by a process of its own that forks them."""

    def __init__(self, *, uses_all_cores: bool = False) -> None:
        self._num_starts = 0
        command = [sys.executable, "-m", "tests.chaos.zygote"]
        environment = os.environ if uses_all_cores else {**os.environ, **THREADS}
        self._process = subprocess.Popen(
            command, cwd=HOME, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._read()

    def start(self, root: Path, params: dict[str, list[Any]], how: str = "inline", **job: Any) -> int:
        """Start or continue the experiment under `root` in a new process; return its number."""
        root.mkdir(exist_ok=True)
        output = job.pop("output", root.with_suffix(".txt"))
        self._num_starts += 1
        is_warm = self._num_starts % COLD_EVERY > 0 and not job.get("mutant")  # which is in this process alone
        job |= {"root": str(root), "how": how, "params": params, "output": str(output), "is_warm": is_warm}
        return int(self._ask(job=job))

    def wait(
        self, pid: int, seconds: float = 60, number: int = signal.SIGKILL, *, is_of_group: bool = False
    ) -> tuple[int, bool, float]:
        """Wait for a process, for some seconds, then send it a signal, or its whole process group.

        Returns:
            Its exit code or -signal, whether the signal was sent, and how long it took to end after it.
        """
        code, is_sent, took = self._ask(pid=pid, seconds=seconds, number=number, is_of_group=is_of_group)
        return code, is_sent, took

    def run(self, root: Path, params: dict[str, list[Any]], how: str = "inline", **job: Any) -> int:
        """Start or continue the experiment under `root`; return the exit code or -signal."""
        return self.wait(self.start(root, params, how, **job))[0]

    def kill_until_done(
        self,
        root: Path,
        params: dict[str, list[Any]],
        how: str,
        seed: int,
        *,
        most_epochs: int,
        within_s: float,
    ) -> int:
        """Start an experiment again and again, and kill it after some epochs each time, until it is done.

        Args:
            root: Where it is.
            params: Its axes.
            how: How it is executed.
            seed: Of the moments of the kills.
            most_epochs: The kill comes after fewer further epochs than that.
            within_s: And this many seconds after the last of them, at most.

        Returns:
            How often it was hit.
        """
        draw, kills, code = seeded(seed), 0, -9
        while code == -9:
            pid = self.start(root, params, how)
            aim = num_epochs(root) + draw.randrange(1, most_epochs)
            while num_epochs(root) < aim and is_alive(pid):
                time.sleep(0.002)
            code, is_killed, _ = self.wait(pid, draw.uniform(0, within_s), is_of_group=True)
            kills += int(is_killed and code == -9)
        assert code == 0
        return kills

    def _ask(self, **order: Any) -> Any:
        assert self._process.stdin
        self._process.stdin.write(f"{json.dumps(order)}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout
        return json.loads(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # the end of its input may not reach it: a process that a test has forked and left holds the pipe too
        self._ask(end=True)
        self._process.kill()
        with self._process:
            """Wait for it, and close its pipes."""


def members(session: int) -> dict[int, int]:
    """Return the living processes of a session, and what each was started from: number -> group."""
    found: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            state, _parent, group, its_session = path.read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session and state != "Z":
                found[int(path.parent.name)] = int(group)
    return found


def journals(root: Path) -> Iterator[list[dict[str, object]]]:
    """Read the whole lines of each journal under a root."""
    for path in root.glob(f"{EXPERIMENT}/*/attempt-*[0-9].jsonl"):
        *lines, _torn = path.read_bytes().split(b"\n")
        yield [json.loads(line) for line in lines]


def num_epochs(root: Path) -> int:
    """Count the epochs that were committed under a root."""
    return sum(line["type"] == "epoch" for lines in journals(root) for line in lines)


def lanes_of(root: Path, session: int) -> list[int]:
    """Return the processes of a session that train: begun in a journal, not ended, alive."""
    begun = {int(str(lines[0]["pid"])) for lines in journals(root) if lines and lines[-1]["type"] != "end"}
    return sorted(begun & members(session).keys() - {session})


def parent_of(pid: int) -> int | None:
    """Return the process that another was forked from, or None if it has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def is_alive(pid: int) -> bool:
    """Return whether a process has not ended, waited for or not."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def seconds_until_gone(session: int) -> float:
    """Wait until no process of a session lives, for a minute at most."""
    before = time.monotonic()
    while members(session) and time.monotonic() - before < _PATIENCE_S:
        time.sleep(0.01)
    return time.monotonic() - before


@dataclass
class Result:
    """What a finished experiment left, without what differs between any two executions.

    Attributes:
        rows: Run, epoch and everything else but durations.
        weights: Run -> name -> hash of what is kept of the network.
        steps: Run, epoch, step and what was logged there.
        ends: Of each run: its status, its number of epochs, why it stopped early, its best values.
    """

    rows: list[tuple[Any, ...]]
    weights: dict[int | None, dict[str, str]]
    steps: list[tuple[Any, ...]]
    ends: list[tuple[Any, ...]]


def result(root: Path) -> Result:
    """Read what a finished experiment left, bit by bit."""
    experiment = root / EXPERIMENT
    table = load_results(experiment)
    by_chance = ["epoch duration", "run duration", "wait_for", "jobs"]
    rows = table.drop(columns=by_chance, errors="ignore").itertuples(index=False)
    weights = {
        files.run_number(path.parent.name): {name: _hash(value) for name, value in _load(path).items()}
        for path in sorted(experiment.glob(f"*/{files.WEIGHTS}"))
    }
    runs = load_runs(experiment)
    names = [str(name) for name in runs]
    bests = [name for name in names if name.startswith(("best ", "kept ")) and "duration" not in name]
    ends = runs[[name for name in ("run", "status", "epochs", "stopped early", *bests) if name in names]]
    steps = [tuple(map(str, row)) for row in load_steps(experiment).itertuples(index=False)]
    return Result(
        [tuple(row) for row in rows], weights, steps, [tuple(row) for row in ends.itertuples(index=False)]
    )


def _read(path: Path) -> Any:
    """Read a checkpoint, or raise what is wrong with it."""
    assert zipfile.ZipFile(path).testzip() is None
    return torch.load(path, weights_only=True)


def _load(path: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(path, weights_only=True)
    return state


def _hash(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.numpy().tobytes()).hexdigest()


@dataclass
class Witness:
    """Remembers all that was committed in an experiment, and says what is wrong with it later.

    Attributes:
        experiment: Its folder.
        committed: (run's folder, epoch) -> metrics, of every complete line ever seen.
        num_checkpoints: How many checkpoints were loaded.
        statuses: How its runs may stand.
    """

    experiment: Path
    committed: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)
    num_checkpoints: int = 0
    statuses: tuple[str, ...] = ("pending", "interrupted", "completed")
    _lines: dict[Path, list[bytes]] = field(default_factory=dict)

    def problems(self) -> list[str]:
        """Look at an experiment of which no process is alive; return what must not be."""
        if not self.experiment.exists():
            return []
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            found = [*self._journals(), *self._tables(), *self._checkpoints(), *self._status()]
        return [*found, *(f"warning: {warning.message}" for warning in warned)]

    def _journals(self) -> list[str]:
        found: list[str] = []
        for path in sorted(self.experiment.glob("*/attempt-*[0-9].jsonl")):
            *lines, _torn = path.read_bytes().split(b"\n")
            before = self._lines.get(path, [])
            if lines[: len(before)] != before:
                found.append(f"{path} lost lines")
            self._lines[path] = lines
            for line in lines:
                try:
                    content = json.loads(line)
                except ValueError:
                    found.append(f"{path} holds {line!r:.60}")
                    continue
                if content["type"] == "epoch":
                    self.committed.setdefault((path.parent.name, content["epoch"]), content["metrics"])
        return [*found, *(f"{path} is gone" for path in self._lines if not path.exists())]

    def _tables(self) -> list[str]:
        found: list[str] = []
        numbers = {folder: files.run_number(folder) for folder, _ in self.committed}
        rows = load_results(self.experiment).to_dict(orient="records") if self.committed else []
        there = {(row["run"], row["epoch"]): row for row in rows}
        if len(there) < len(rows):
            found.append(f"{len(rows) - len(there)} rows twice")
        for (folder, epoch), metrics in self.committed.items():
            row = there.get((numbers[folder], epoch))
            if row is None:
                found.append(f"epoch {epoch} of {folder} is lost")
            elif metrics != {name: row[name] for name in metrics}:
                found.append(f"epoch {epoch} of {folder} has changed")
        return found + self._exports()

    def _exports(self) -> list[str]:
        found: list[str] = []
        table = self.experiment / files.RESULTS_CSV
        if table.exists():
            text = table.read_text()
            if not text.endswith("\n") or len({len(row) for row in csv.reader(text.splitlines())}) != 1:
                found.append(f"{table} is not whole")
        for path in (self.experiment / name for name in (files.RESULTS_JSON, files.GRID, files.HOLDER)):
            try:
                if path.exists():
                    json.loads(path.read_bytes())
            except ValueError:
                found.append(f"{path} is not whole")
        return found

    def _checkpoints(self) -> list[str]:
        found: list[str] = []
        status = self._statuses()
        for run in read_runs(self.experiment, found):
            readers = {
                files.CHECKPOINT: _read,
                files.PREVIOUS_CHECKPOINT: _read,
                files.WEIGHTS: _load,
            }
            for path, read in ((run.path / name, read) for name, read in readers.items()):
                try:
                    read(path)
                    self.num_checkpoints += read is not _load
                except FileNotFoundError:
                    continue
                except Exception as error:  # noqa: BLE001 - whatever a damaged file raises
                    found.append(f"{path} cannot be loaded ({str(error)[:60]})")
            epochs = [epoch for folder, epoch in self.committed if folder == run.path.name]
            if epochs and status.get(run.number) != "completed":
                newest = checkpoint.load_checkpoint(run.path, run.id, [])
                if newest is None:
                    found.append(f"{run.path} has {len(epochs)} epochs and no checkpoint")
                elif newest["record"]["epoch"] < max(epochs):
                    found.append(
                        f"{run.path} goes on after {newest['record']['epoch']}, {max(epochs)} is committed"
                    )
        return found

    def _status(self) -> list[str]:
        return [f"run {run} is {word}" for run, word in self._statuses().items() if word not in self.statuses]

    def _statuses(self) -> dict[int, str]:
        if not is_experiment(self.experiment):
            return {}
        table = load_runs(self.experiment)
        return dict(zip(table["run"], table["status"], strict=True))
