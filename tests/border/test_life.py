"""An experiment lives through everything that can happen to it, beside a model of what must be left."""

import contextlib
import json
import shutil
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runmanager import RunsWarning, load_results, load_runs, run_grid
from tests.border import reading
from tests.border.experiments import QUIET
from tests.nightly import of_night

NUM_EPOCHS = 3
EXP = Path("runs/exp")
EVENTS = st.lists(st.sampled_from(["go", "go", "go", "go", "error", "stop", "kill"]), max_size=9)


class Part:
    """A network of one number: what it is after an epoch follows from what it was."""

    def __init__(self, seed: int) -> None:
        self.number = seed

    def step(self) -> float:
        self.number = (self.number * 31 + 7) % 1009
        return float(self.number)

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"]


def losses(seed: int) -> list[float]:
    part = Part(seed)
    return [part.step() for _ in range(NUM_EPOCHS)]


def train(run: Any, manager: Any) -> None:
    """Train a run; what happens in each epoch is written in a file, so that neither code nor values change."""
    part = Part(run.seed)
    with manager.run(run):
        for epoch in manager.epochs(NUM_EPOCHS, checkpoint={"part": part}):
            event, *others = json.loads(Path("events").read_text()) or ["go"]
            Path("events").write_text(json.dumps(others))
            with Path("begun").open("a") as file:
                file.write(f"{run.seed} {epoch} {event}\n")
            manager.track_loss(part.step(), 1)
            if event == "error":
                raise ValueError
            if event == "kill":
                shutil.copytree("runs", "left")  # what a process leaves that is no more
            if event in ("stop", "kill"):
                raise KeyboardInterrupt


@dataclass
class Attempt:
    """What a journal must hold."""

    after: int
    epochs: list[int] = field(default_factory=list)
    end: str = "interrupted"
    is_killed: bool = False

    @property
    def counts(self) -> bool:
        return bool(self.epochs) or self.end in ("completed", "failed")


@dataclass
class Model:
    """What must be left of a run: its attempts, and the epochs of its checkpoints, 0 if damaged."""

    attempts: list[Attempt] = field(default_factory=list)
    newest: int | None = None
    before: int | None = None

    @property
    def standing(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.counts] or self.attempts[-1:]

    @property
    def rows(self) -> list[int]:
        rows: list[int] = []
        for attempt in self.standing:
            if attempt.epochs:
                rows = [epoch for epoch in rows if epoch <= attempt.after] + attempt.epochs
        return rows

    @property
    def status(self) -> str:
        return self.standing[-1].end if self.attempts else "pending"

    def execute(self, events: list[str]) -> tuple[list[tuple[int, str]], bool]:
        """Execute an attempt; return what happened in which epochs, and whether something must be said."""
        rows, saved = self.rows, self.newest or self.before or None
        is_said = self.newest == 0
        self.newest = self.newest or None  # what is damaged is put aside
        if saved is None or rows[: saved - 1] != list(range(1, saved)):
            is_said, saved = is_said or saved is not None, 0
            self.newest = self.before = None
        healed = [] if saved <= len(rows) else [saved]
        attempt = Attempt(saved - len(healed), healed)
        self.attempts.append(attempt)
        happened: list[tuple[int, str]] = []
        for epoch in range(saved + 1, NUM_EPOCHS + 1):
            event = events.pop(0) if events else "go"
            happened.append((epoch, event))
            if event != "go":
                attempt.end = "failed" if event == "error" else "interrupted"
                attempt.is_killed = event == "kill"
                return happened, is_said
            attempt.epochs.append(epoch)
            self.before = self.before if self.newest is None else self.newest
            self.newest = epoch
        attempt.end = "completed"
        self.newest = self.before = None
        return happened, is_said


class Life(RuleBasedStateMachine):
    """A grid, its starts one after the other, and all that happens to them."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.stack.enter_context(contextlib.chdir(self.stack.enter_context(tempfile.TemporaryDirectory())))
        self.clock, real = 0.0, time.time
        self.stack.enter_context(mock.patch("time.time", side_effect=lambda: real() + self.clock))
        self.models: dict[int, Model] = {1: Model(), 2: Model()}

    def teardown(self) -> None:
        self.stack.close()

    def folder(self, seed: int) -> Path:
        (found,) = EXP.glob(f"*-seed={seed}")
        return found

    @rule(events=EVENTS)
    def start(self, events: list[str]) -> None:
        """Start the grid: each event is what happens in the next epoch."""
        Path("events").write_text(json.dumps(events))
        Path("begun").write_text("")
        expected, is_said, last = [], False, ""
        for seed, model in self.models.items():
            if model.status != "completed" and last not in ("stop", "kill"):
                happened, is_more = model.execute(events)
                expected += [f"{seed} {epoch} {event}" for epoch, event in happened]
                is_said |= is_more
                last = happened[-1][1] if happened else ""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            grid = {"seed": list(self.models)}
            code = run_grid(grid, train, experiment="exp", retry_failed=True, **QUIET).exit_code

        assert Path("begun").read_text().splitlines() == expected
        failed = any(model.status == "failed" for model in self.models.values())
        assert code == (130 if last in ("stop", "kill") else int(failed))
        assert {warning.category for warning in said} == ({RunsWarning} if is_said else set())
        if last == "kill":
            shutil.rmtree("runs")
            Path("left").rename("runs")
            reading.as_killed(self.folder(int(expected[-1].split()[0])))
            held = json.loads((EXP / "holder.json").read_bytes())
            (EXP / "holder.json").write_text(json.dumps(held | {"pid": reading.NO_PROCESS}))

    @rule(data=st.data(), place=st.floats(0, 1, exclude_max=True))
    def lose_the_end_of_a_journal(self, data: st.DataObject, place: float) -> None:
        """Cut the last epoch of a run that was killed, wholly or in the middle."""
        lasts = {seed: model.attempts[-1] for seed, model in self.models.items() if model.attempts}
        found = [seed for seed, last in lasts.items() if last.epochs and last.is_killed]
        if found:
            seed = data.draw(st.sampled_from(found))
            path = reading.journals(self.folder(seed))[-1]
            content = path.read_bytes()
            content = content[: content.rindex(b"\n") + 1]  # without what an earlier cut left of a line
            line = len(content) - content.rindex(b"\n", 0, -1) - 1
            path.write_bytes(content[: len(content) - line + int(place * line)])
            lasts[seed].epochs.pop()

    @rule(data=st.data())
    def damage_a_checkpoint(self, data: st.DataObject) -> None:
        found = [seed for seed, model in self.models.items() if model.newest is not None]
        if found:
            seed = data.draw(st.sampled_from(found))
            path = self.folder(seed) / "checkpoint.pt"
            path.write_bytes(path.read_bytes()[: -data.draw(st.integers(1, 500))])
            self.models[seed].newest = 0

    @rule(hours=st.integers(-48, 48))
    def jump(self, hours: int) -> None:
        self.clock = hours * 3600.0

    @precondition(lambda self: len(self.models) < 5)
    @rule()
    def grow(self) -> None:
        self.models = {len(self.models) + 1: Model(), **self.models}

    @invariant()
    def every_epoch_is_one_row_and_the_status_is_right(self) -> None:
        if not EXP.is_dir():
            return
        rows, runs = load_results(EXP), load_runs(EXP)

        expected = [(seed, epoch) for seed, model in self.models.items() for epoch in model.rows]
        found = zip(rows.get("seed", []), rows["epoch"], rows["loss"], strict=True)
        assert sorted(found) == sorted((seed, epoch, losses(seed)[epoch - 1]) for seed, epoch in expected)
        stand = {seed: (model.status, len(model.attempts)) for seed, model in self.models.items()}
        for seed, status, attempts in zip(runs["seed"], runs["status"], runs["attempts"], strict=True):
            assert (status, attempts) == stand[seed]


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=10, stateful_step_count=15)


class LongLife(Life):
    """The same for longer."""


TestLongLife = pytest.mark.slow(LongLife.TestCase)
TestLongLife.settings = settings(max_examples=of_night(100, by_day=10), stateful_step_count=40)
