"""Kills and Ctrl-C at random moments: nothing that was committed is lost, and the results are the same."""

import json
import os
import shutil
import signal
import time
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from runmanager import load_runs, verdict
from tests.chaos.conftest import ray_cluster
from tests.chaos.harness import (
    Witness,
    is_alive,
    lanes_of,
    members,
    num_lines,
    outlived,
    parent_of,
    result,
    seeded,
    show,
)
from tests.chaos.work import EXPERIMENT, LOADERS, axes, inside_axes, stopping_axes
from tests.nightly import IS_NIGHT, of_night

KILL, INT, TERM = signal.SIGKILL, signal.SIGINT, signal.SIGTERM
CPU: dict[str, list[Any]] = {"device": ["cpu"]}
# 450,000 parameters: checkpoints of 5.4 MB, whose sum depends on the number of threads
PLAIN = axes(lrs=[0.01, 0.02], num_epochs=4, padding=450_000)
MANY = axes(lrs=[0.01, 0.02, 0.03, 0.04], num_epochs=4, padding=450_000)


@dataclass
class Case:
    """A grid, and how it is stopped.

    Attributes:
        params: Its axes.
        by_day: How often it is stopped, at least; 0 if only at night.
        by_night: And then.
        within: It is stopped after fewer further lines than that in its journals, and up to so many seconds.
        hows: How it is executed, one start after the other of a grid in another way.
        signals: What stops it.
        kind: Of the lines.
        same: The ways in which each execution has the same results; of a search on lanes that depends on times.
    """

    params: dict[str, list[Any]]
    by_day: int
    by_night: int
    within: tuple[int, float]
    hows: tuple[str, ...] = ("inline", "bare", "lanes")
    signals: tuple[int, ...] = (KILL,)
    kind: str = "epoch"
    same: tuple[str, ...] = ("inline", "bare", "lanes")


INSIDE: dict[str, Any] = {"within": (9, 0.05), "kind": "inside"}
ALONE: dict[str, Any] = {"hows": ("inline", "lanes", "inline"), "same": ("inline",)}
CASES = {
    "any grid": Case(PLAIN, 6, 200, (3, 0.3)),
    "inside epochs": Case(inside_axes([0.01, 0.02], 3), 3, 15, **INSIDE),
    "inside epochs by time": Case(inside_axes([0.01, 0.02], "0.03s"), 0, 15, **INSIDE),
    **{f"inside epochs of {name}": Case(inside_axes([0.01], 3, name), 0, 5, **INSIDE) for name in LOADERS},
    "stops early": Case(stopping_axes([0.02, 0.05, 0.1], 60, 4), 0, 30, (12, 0.1)),
    "decides": Case({"rival": ["a", "bb", "ccc"], **CPU}, 2, 50, (25, 0.02), ("inline", "lanes", "inline")),
    "is a search": Case({"searched": [16]}, 2, 30, (12, 0.03), **ALONE),
    "prunes": Case({"climber": [5, 3, 11, 1, 8, 2, 10, 0, 9, 4, 7, 6], **CPU}, 2, 12, (12, 0.05), **ALONE,
                   signals=(KILL, KILL, INT)),
    "Ctrl-C in lanes": Case(PLAIN, 3, 30, (4, 0.5), ("lanes",), (INT,)),
    "Ctrl-C": Case(PLAIN, 0, 30, (4, 0.5), ("inline",), (INT,)),
    "terminated in lanes": Case(PLAIN, 0, 20, (4, 0.5), ("lanes",), (TERM,)),
    "terminated": Case(PLAIN, 0, 20, (4, 0.5), ("inline",), (TERM,)),
    "Ctrl-C on Ray": Case(PLAIN, 0, 6, (4, 3.0), ("ray",), (INT,), same=("ray",)),
}  # fmt: skip
CODES: dict[int, tuple[int, ...]] = {KILL: (-9,), INT: (130, -2), TERM: (143, -15)}


class Stopper:
    """Stops grids of one kind, one after the other, each until it is done, and counts."""

    def __init__(self, zygote, case, seed, address=""):
        self._zygote, self._case, self._draw, self._address = zygote, case, seeded(seed), address
        self.hits: Counter[str] = Counter()

    def grid(self, root, how):
        """Stop a grid until it is done; return what is wrong."""
        case = self._case
        statuses = ("pending", "interrupted", "completed", "pruned")
        witness = Witness(root / EXPERIMENT, statuses, is_exact=case.kind == "epoch")
        problems: list[str] = []
        code, codes = -9, CODES[KILL]
        while code in codes and not problems:
            before, number = num_lines(root, case.kind), self._draw.choice(case.signals)
            aim, within = before + self._draw.randrange(case.within[0]), self._draw.uniform(0, case.within[1])
            way = f"{how} {self._address}".strip()
            pid = self._zygote.start(root, case.params, way, tensorboard="climber" not in case.params)
            while num_lines(root, case.kind) < aim and is_alive(pid):
                time.sleep(0.002)
            code, is_sent = self._zygote.stop(pid, within, number, is_of_group=number != TERM)
            codes = CODES[number]
            self.hits[f"{how} {number}"] += is_sent and code in codes
            self.hits["in training"] += is_sent and num_lines(root, case.kind) > before
            said, error, _ = root.with_suffix(".txt").read_text().partition("Traceback")
            if number != KILL and said.strip() and "━━ " not in said and (error or code not in (0, codes[0])):
                problems.append(f"it is torn: {code} {said} {error}")  # between its first line and its last
            problems += [*outlived(pid), *witness.problems()]
        return [*problems, *([f"exit code {code}"] if code else [])]


def check(root, name, expected, how):
    """Return what is wrong with a grid that is done."""
    problems = []
    if how in CASES[name].same and result(root) != expected:
        problems.append("it differs from the undisturbed grid")
    runs = load_runs(root / EXPERIMENT)
    if name == "decides":
        sentence = verdict(runs).sentence
        problems += [] if " is the best of 3 settings" in sentence else [sentence]
    if name == "is a search":
        trials = [json.loads(path.read_bytes())["trials"] for path in root.glob("*/*/run.json")]
        numbers = sorted(trial["number"] for of_run in trials for trial in of_run)
        problems += (
            [] if numbers == list(range(16)) and set(runs["status"]) == {"completed"} else [f"{numbers}"]
        )
    if name == "prunes":
        ends = set(zip(runs["status"], runs["epochs"], strict=True))
        best = runs["climber"].tolist().index(0)
        if not ends <= {("completed", 9), ("pruned", 1), ("pruned", 3)} or runs["status"][best] != "completed":
            problems.append(f"it stopped others: {ends}")
    return problems


@pytest.mark.slow(minutes=1)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.nightly] * (not case.by_day)) for n, case in CASES.items()]
)
def test_a_grid_that_is_stopped_anywhere_goes_on_as_if_nothing_had_happened(zygote, tmp_path, name):
    if "stateful" in name:
        pytest.importorskip("torchdata")
    case = CASES[name]
    with ray_cluster(2) if "ray" in case.hows else nullcontext() as cluster:
        stopper = Stopper(zygote, case, seed=len(name), address=cluster.address if cluster else "")
        assert zygote.run(tmp_path / "undisturbed", case.params, tensorboard=True) == 0
        expected = result(tmp_path / "undisturbed")
        grids, problems, least = 0, list[str](), of_night(case.by_night, by_day=case.by_day)
        while sum(stopper.hits.values()) - stopper.hits["in training"] < least and not problems:
            root, how = tmp_path / f"{grids}", case.hows[grids % len(case.hows)]
            problems = stopper.grid(root, how) or check(root, name, expected, how)
            grids += 1
            if not problems:
                shutil.rmtree(root)

    show(f"{name}: {dict(stopper.hits)}, {grids} grids, {len(expected.rows)} epochs", *problems)
    assert problems == []
    assert stopper.hits["in training"] >= least / 3
    if name == "stops early":
        assert all("not better" in " ".join(end) for end in expected.ends)


TARGETS = ["parent", "lane", "parent and lane", "fork server"]


class Marksman:
    """Kills what it aims at in one grid after the other, and counts the hits."""

    def __init__(self, zygote, seed):
        self._zygote, self._draw, self.hits = zygote, seeded(seed), Counter[str]()

    def kill(self, root, jobs, target):
        """Kill the target up to three times, start the grid again until it is done; return what is wrong."""
        witness = Witness(root / EXPERIMENT, ("pending", "interrupted", "completed", "killed"))
        problems: list[str] = []
        code, left = -9, self._draw.randint(1, 3)
        retries, starts = self._draw.choice([0, 3]), 0  # with none, the same command is started again
        while code and not problems and starts < 4:
            starts += 1
            pid = self._zygote.start(root, MANY, "lanes", jobs=jobs, retries=retries, tensorboard=True)
            while left and self._trains_on(root, pid):
                left -= self._is_hit(target, pid, lanes_of(root, pid))
            code = self._zygote.stop(pid)[0]
            problems += [*outlived(pid), *witness.problems()]
        return [*problems, *([f"exit code {code}"] if code else [])]

    def _trains_on(self, root, pid):
        """Wait until a grid has committed some more epochs; return whether it lives then."""
        aim = num_lines(root) + self._draw.randint(1, 8)
        while num_lines(root) < aim and is_alive(pid):
            time.sleep(0.002)
        return is_alive(pid)

    def _is_hit(self, target, parent, lanes):
        """Kill the target, a lane only while it trains; return whether all of it was there."""
        lane = self._draw.choice(lanes) if lanes else None
        numbers = {"parent": parent, "lane": lane, "fork server": parent_of(lane) if lane else None}
        aims = [numbers[name] for name in target.split(" and ")] if lane else []
        living = [number for number in aims if number and number in members(parent)]
        for number in living:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(number, KILL)
        self.hits[target] += bool(aims) and living == aims
        return bool(aims) and living == aims


@pytest.mark.slow(minutes=2)
def test_a_grid_whose_lanes_or_parent_are_killed_in_mid_training_equals_the_undisturbed_one(
    zygote_of_all_cores, tmp_path
):
    marksman, expected = Marksman(zygote_of_all_cores, 22), {}
    for jobs in (1, 2, 4) if IS_NIGHT else (1, 2):
        root = tmp_path / f"undisturbed-{jobs}"
        assert zygote_of_all_cores.run(root, MANY, "lanes", jobs=jobs, tensorboard=True) == 0
        expected[jobs] = result(root)

    problems, sets = list[str](), of_night(12, by_day=4)
    for number in range(sets):
        root, jobs, target = tmp_path / f"{number}", (2, 4)[number // 4 % 2], TARGETS[number % 4]
        found = marksman.kill(root, jobs, target)
        problems += found or [f"{target}: it differs"] * (result(root) != expected[jobs])

    show(f"{sets} sets, hits {dict(marksman.hits)}", *problems)
    assert problems == []
    assert sorted(marksman.hits) == sorted(TARGETS)
    assert min(marksman.hits.values()) > 0
    if os.cpu_count() in (2, 3):
        assert expected[1].weights != expected[2].weights, "the numbers do not depend on threads: no test"
