"""An experiment lives through everything that can happen to it, beside a model of what must be left."""

import json
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runmanager import RunBuilder, RunManager, load_results, load_runs
from runmanager.core import lock
from runmanager.core.experiment import Experiment
from runmanager.errors import ExperimentLockedError, RunsWarning
from tests.damaging import NO_PROCESS, as_if_killed, journals
from tests.nightly import of_night

NUM_EPOCHS = 3


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


@dataclass
class Attempt:
    """What a journal must hold."""

    after: int
    epochs: list[int] = field(default_factory=list)
    end: str | None = None
    lives: bool = True

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
        *earlier, last = self.attempts or [Attempt(0)]
        standing = [attempt for attempt in earlier if attempt.counts]
        is_running = last.lives and last.end is None
        return [*standing, last] if last.counts or is_running or not standing else standing

    @property
    def rows(self) -> list[int]:
        rows: list[int] = []
        for attempt in self.standing:
            if attempt.epochs:
                rows = [epoch for epoch in rows if epoch <= attempt.after] + attempt.epochs
        return rows

    @property
    def status(self) -> str:
        if not self.attempts:
            return "pending"
        last = self.standing[-1]
        return last.end or ("running" if last.lives else "interrupted")

    def begin(self) -> tuple[int, bool]:
        """Begin an attempt; return the epoch after which it goes on, and whether something must be said."""
        rows = self.rows
        saved = self.newest or self.before or None
        is_said = self.newest == 0
        self.newest = self.newest or None  # what is damaged is put aside
        if saved is None or rows[: saved - 1] != list(range(1, saved)):
            self.newest = self.before = None
            self.attempts.append(Attempt(0))
            return 0, is_said or saved is not None
        healed = [] if saved <= len(rows) else [saved]
        self.attempts.append(Attempt(saved - len(healed), healed))
        return saved, is_said

    def commit(self, epoch: int) -> None:
        self.attempts[-1].epochs.append(epoch)
        self.before = self.before if self.newest is None else self.newest
        self.newest = epoch


class Life(RuleBasedStateMachine):
    """A grid, its managers one after the other, and all that happens to them."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.clock = 0.0
        self.seeds = [1, 2]
        self.models: dict[int, Model] = {seed: Model() for seed in self.seeds}
        self.manager: RunManager | None = None
        self.hold: AbstractContextManager[None] | None = None
        self.todo: Iterator[Any] = iter(())
        self.run: Any = None
        self.part = Part(0)
        self.epochs: Iterator[int] = iter(())
        real = time.time
        self.patch = mock.patch("time.time", side_effect=lambda: real() + self.clock)
        self.patch.start()

    def teardown(self) -> None:
        self.end_manager()
        self.patch.stop()
        shutil.rmtree(self.root)

    @property
    def path(self) -> Path:
        return self.root / "exp"

    def folder(self, seed: int) -> Path:
        (found,) = self.path.glob(f"*-seed={seed}")
        return found

    def end_manager(self) -> None:
        if self.manager and self.run:
            self.manager._end_interrupted()
            self.models[self.run.seed].attempts[-1].end = "interrupted"
        if self.hold:
            self.hold.__exit__(None, None, None)
        self.manager = self.hold = self.run = None

    @precondition(lambda self: not self.manager)
    @rule()
    def start(self) -> None:
        runs = RunBuilder.get_runs({"seed": self.seeds})
        self.path.mkdir(exist_ok=True)
        self.hold = lock.hold(self.path)
        self.hold.__enter__()
        Experiment(self.path).plan([run._asdict() for run in runs], {})
        self.manager = RunManager("exp", self.root, tensorboard=False, display=False)
        self.todo = self.manager.remaining(runs)

    @precondition(lambda self: self.manager and not self.run)
    @rule()
    def begin(self) -> None:
        assert self.manager
        self.run = next(self.todo, None)
        if self.run is None:
            assert {self.models[seed].status for seed in self.seeds} == {"completed"} or self.has_passed_over()
            self.end_manager()
            return
        model = self.models[self.run.seed]
        assert model.status != "completed"
        after, is_said = model.begin()
        self.part = Part(self.run.seed)
        self.manager.begin_run(self.run)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self.epochs = self.manager.epochs(NUM_EPOCHS, checkpoint={"part": self.part})
            number = next(self.epochs, None)
        assert number == (after + 1 if after < NUM_EPOCHS else None)
        assert [warning.category for warning in said] == [RunsWarning] * is_said
        if number is None:
            self.complete()

    def has_passed_over(self) -> bool:
        """Whether runs that were not completed were executed by this manager already."""
        return all(self.models[seed].attempts for seed in self.seeds)

    @precondition(lambda self: self.run)
    @rule()
    def finish_an_epoch(self) -> None:
        assert self.manager
        epoch = self.manager.epoch_count
        self.manager.track_loss(self.part.step(), 1)
        number = next(self.epochs, None)
        self.models[self.run.seed].commit(epoch)
        if number is None:
            self.complete()

    def complete(self) -> None:
        assert self.manager
        self.manager.end_run()
        model = self.models[self.run.seed]
        model.attempts[-1].end = "completed"
        model.newest = model.before = None
        self.run = None

    @precondition(lambda self: self.run)
    @rule()
    def fail(self) -> None:
        assert self.manager
        self.manager._end_failed(ValueError("no"), self.run)
        self.models[self.run.seed].attempts[-1].end = "failed"
        self.run = None

    @precondition(lambda self: self.manager)
    @rule()
    def interrupt(self) -> None:
        self.end_manager()

    @precondition(lambda self: self.manager)
    @rule()
    def kill(self) -> None:
        """Leave everything as it is, as of a process that is no more."""
        held = json.loads((self.path / "holder.json").read_bytes())
        if self.run:
            assert self.manager
            opened = self.manager._current
            assert opened
            assert opened.journal
            opened.journal.close()
            opened.epoch = None  # nothing is to be said about an epoch that was left
            as_if_killed(self.folder(self.run.seed))
            self.models[self.run.seed].attempts[-1].lives = False
            self.run = None
        self.end_manager()
        (self.path / "holder.json").write_text(json.dumps(held | {"pid": NO_PROCESS}))

    @precondition(lambda self: not self.manager)
    @rule(data=st.data(), place=st.floats(0, 1, exclude_max=True))
    def lose_the_end_of_a_journal(self, data: st.DataObject, place: float) -> None:
        """Cut the last epoch of a run that was killed, wholly or in the middle."""
        found = [
            seed
            for seed, model in self.models.items()
            if model.attempts and model.attempts[-1].epochs and not model.attempts[-1].lives
        ]
        if not found:
            return
        seed = data.draw(st.sampled_from(found))
        path = journals(self.folder(seed))[-1]
        content = path.read_bytes()
        content = content[: content.rindex(b"\n") + 1]  # without what an earlier cut left of a line
        line = len(content) - content.rindex(b"\n", 0, -1) - 1
        path.write_bytes(content[: len(content) - line + int(place * line)])
        self.models[seed].attempts[-1].epochs.pop()

    @precondition(lambda self: not self.manager)
    @rule(data=st.data())
    def damage_a_checkpoint(self, data: st.DataObject) -> None:
        found = [seed for seed, model in self.models.items() if model.newest is not None]
        if not found:
            return
        seed = data.draw(st.sampled_from(found))
        path = self.folder(seed) / "checkpoint.pt"
        path.write_bytes(path.read_bytes()[: -data.draw(st.integers(1, 500))])
        self.models[seed].newest = 0

    @precondition(lambda self: self.manager)
    @rule()
    def refuse_a_second_manager(self) -> None:
        before = sorted(self.path.rglob("*"))

        with pytest.raises(ExperimentLockedError), lock.hold(self.path):
            pytest.fail("it was taken")

        assert sorted(self.path.rglob("*")) == before

    @rule(hours=st.integers(-48, 48))
    def jump(self, hours: int) -> None:
        self.clock = hours * 3600.0

    @precondition(lambda self: not self.manager and len(self.seeds) < 5)
    @rule()
    def grow(self) -> None:
        self.seeds.insert(0, len(self.seeds) + 1)
        self.models[self.seeds[0]] = Model()

    @invariant()
    def every_epoch_is_one_row(self) -> None:
        if not self.path.is_dir():
            return
        table = load_results(self.path)

        rows = sorted(zip(table.get("seed", []), table["epoch"], table["loss"], strict=True))
        expected = [
            (seed, epoch, losses(seed)[epoch - 1])
            for seed, model in self.models.items()
            for epoch in model.rows
        ]
        assert rows == sorted(expected)

    @invariant()
    def the_status_is_right(self) -> None:
        if not self.path.is_dir():
            return
        table = load_runs(self.path)

        statuses = dict(zip(table["seed"], table["status"], strict=True))
        attempts = dict(zip(table["seed"], table["attempts"], strict=True))
        assert statuses == {seed: self.models[seed].status for seed in statuses}
        assert attempts == {seed: len(self.models[seed].attempts) for seed in statuses}


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=15, stateful_step_count=30)


class LongLife(Life):
    """The same for longer."""


TestLongLife = pytest.mark.slow(LongLife.TestCase)
TestLongLife.settings = settings(max_examples=of_night(100, by_day=30), stateful_step_count=50)
