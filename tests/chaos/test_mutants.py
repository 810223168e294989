"""Tests of the chaos tests: each finds the mistake that it is there for."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from runmanager.core import files, lock
from tests.chaos.harness import Witness, show
from tests.chaos.test_faults import PARAMS, Faults, begun  # noqa: F401 - a fixture
from tests.chaos.test_kills import Killer
from tests.chaos.work import EXPERIMENT

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize(
    ("mutant", "call", "kind", "expected"),
    [
        ("journal_before_checkpoint", "write", "kill", "no checkpoint"),
        ("no_repair_of_the_tail", "write", "ENOSPC", "holds b'"),
        ("short_writes_ignored", "write", "short", "cannot be loaded"),
        ("tables_in_place", "write", "kill", "not whole"),
    ],
)
def test_a_mistake_is_found_by_failing_calls(zygote, tmp_path, mutant, call, kind, expected):
    faults = Faults(zygote, tmp_path, mutant=mutant)

    problems = faults.inject(call, kind)

    assert any(expected in problem for problem in problems), problems


def test_checkpoints_written_under_their_final_name_are_found_by_kills(zygote, tmp_path):
    killer = Killer(zygote, tmp_path, seed=21, mutant="checkpoint_under_its_final_name")

    problems: list[str] = []
    while not problems and killer.kills < 200:
        problems += killer.experiment()

    show(f"found by kill {killer.kills}")
    assert "cannot be loaded" in "".join(problems)


def test_a_dead_run_that_is_called_running_is_found(begun, monkeypatch):  # noqa: F811
    honest = Witness(begun / EXPERIMENT).problems()
    monkeypatch.setattr(lock, "lives", lambda _process: True)

    problems = Witness(begun / EXPERIMENT).problems()

    assert honest == []
    assert problems == ["run 1 is running"]


@pytest.mark.parametrize(("mutant", "is_executed"), [("", False), ("code_in_checkpoints", True)])
def test_code_in_a_checkpoint_is_executed_by_the_mutant_alone(begun, zygote, tmp_path, mutant, is_executed):  # noqa: F811
    (path,) = begun.rglob(files.CHECKPOINT)
    torch.save({"v": 1, "states": Bomb(tmp_path / "exploded")}, path)

    zygote.run(begun, PARAMS, mutant=mutant)

    assert (tmp_path / "exploded").exists() == is_executed
