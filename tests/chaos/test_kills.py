"""Kills at random moments, at each call of the system, and of one of several processes that start at once.

Nothing that was committed is lost, and the results are the same.
"""

import getpass
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runmanager import load_runs
from tests.border import disk
from tests.chaos.conftest import ray_cluster
from tests.chaos.harness import (
    Witness,
    Zygote,
    is_alive,
    lanes_of,
    members,
    num_lines,
    outlived,
    parent_of,
    result,
    show,
)
from tests.chaos.work import EXPERIMENT, axes, inside_axes
from tests.nightly import IS_NIGHT, of_night, of_night_but

KILL, INT, TERM = signal.SIGKILL, signal.SIGINT, signal.SIGTERM
CPU: dict[str, list[Any]] = {"device": ["cpu"]}
# 450,000 parameters: checkpoints of 5.4 MB, whose sum depends on the number of threads
PLAIN = axes(lrs=[0.01, 0.02], num_epochs=4, padding=450_000)
MANY = axes(lrs=[0.01, 0.02, 0.03, 0.04], num_epochs=4, padding=450_000)


@dataclass
class Case:
    """A grid, and how it is stopped."""

    params: dict[str, list[Any]]
    by_day: int  # how often it is stopped, at least; 0 if only at night
    by_night: int
    within: tuple[int, float]  # that is after fewer further lines in its journals, and up to so many seconds
    hows: tuple[str, ...] = ("inline", "bare", "lanes")  # to execute one grid after the other
    signals: tuple[int, ...] = (KILL,)
    kind: str = "epoch"  # of the lines
    same: tuple[str, ...] = ("inline", "bare", "lanes")  # a search on lanes depends on times


INSIDE: dict[str, Any] = {"within": (9, 0.05), "kind": "inside"}
ALONE: dict[str, Any] = {"hows": ("inline", "lanes", "inline"), "same": ("inline",)}
CASES = {
    "any grid": Case(PLAIN, 6, 200, (3, 0.3)),
    "inside epochs": Case(inside_axes([0.01, 0.02], 3), 3, 15, **INSIDE),
    "inside epochs by time": Case(inside_axes([0.01, 0.02], "0.03s"), 0, 15, **INSIDE),
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


def stop_until_done(zygote, case, draw, hits, root, how, address):
    """Stop a grid again and again until it is done, and count; return what is wrong."""
    statuses = ("pending", "interrupted", "completed", "pruned")
    witness = Witness(root / EXPERIMENT, statuses, is_exact=case.kind == "epoch")
    problems: list[str] = []
    code, codes = -9, CODES[KILL]
    while code in codes and not problems:
        before, number = num_lines(root, case.kind), draw.choice(case.signals)
        aim, within = before + draw.randrange(case.within[0]), draw.uniform(0, case.within[1])
        way = f"{how} {address}".strip()
        pid = zygote.start(root, case.params, way, tensorboard="climber" not in case.params)
        while num_lines(root, case.kind) < aim and is_alive(pid):
            time.sleep(0.002)
        code, is_sent = zygote.stop(pid, within, number, is_of_group=number != TERM)
        codes = CODES[number]
        hits[f"{how} {number}"] += is_sent and code in codes
        hits["in training"] += is_sent and num_lines(root, case.kind) > before
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
    case = CASES[name]
    with ray_cluster(2) if "ray" in case.hows else nullcontext() as cluster:
        draw, hits = random.Random(len(name)), Counter[str]()  # noqa: S311 - the same each time
        address = cluster.address if cluster else ""
        assert zygote.run(tmp_path / "undisturbed", case.params, tensorboard=True) == 0
        expected = result(tmp_path / "undisturbed")
        grids, problems, least = 0, list[str](), of_night(case.by_night, by_day=case.by_day)
        while sum(hits.values()) - hits["in training"] < least and not problems:
            root, how = tmp_path / f"{grids}", case.hows[grids % len(case.hows)]
            found = stop_until_done(zygote, case, draw, hits, root, how, address)
            problems = found or check(root, name, expected, how)
            grids += 1
            if not problems:
                shutil.rmtree(root)

    show(f"{name}: {dict(hits)}, {grids} grids, {len(expected['rows'])} epochs", *problems)
    assert problems == []
    assert hits["in training"] >= least / 3


TARGETS = ["parent", "lane", "parent and lane", "fork server"]


class Marksman:
    """Kills what it aims at in one grid after the other, and counts the hits."""

    def __init__(self, zygote, seed):
        self._zygote, self.hits = zygote, Counter[str]()
        self._draw = random.Random(seed)  # noqa: S311 - the same each time

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
        assert expected[1]["weights"] != expected[2]["weights"], "the numbers do not depend on threads: no test"


# At calls of the system

SMALL = axes(lrs=[0.01], num_epochs=3, padding=4)
STRACE = shutil.which("strace") or ""
RENAMES, LINKS = "?rename,?renameat,?renameat2", "?link,?linkat"


@pytest.fixture
def begun(zygote, tmp_path):
    """Make an experiment whose second epoch is in the checkpoint but not in the journal."""
    root, note = tmp_path / "begun", str(tmp_path / "note")
    fault = {"call": "write", "at": 2, "code": disk.KILL, "among": "attempt-1.jsonl", "note": note}
    assert zygote.run(root, SMALL, fault=fault) == -9
    return root


def killed(zygote, root, call, at):
    """Start the experiment and kill it at a call of the package; return whether, and the code."""
    note = root.with_suffix(".note")
    code = zygote.run(root, SMALL, fault={"call": call, "at": at, "code": disk.KILL, "note": str(note)})
    return note.exists(), code


def traced(zygote, root, call, what, at):
    """Let a call of the system fail, which nothing can go round; return whether it did, and the code."""
    gate, log = root.with_suffix(".gate"), root.with_suffix(".log")
    pid = zygote.start(root, SMALL, start=str(gate), tensorboard=True)
    inject = ["-o", log, "-e", f"trace={call}", "-e", f"inject={call}:{what}:when={at}"]
    with subprocess.Popen([STRACE, "-f", "-p", f"{pid}", *inject], stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr
        attached = tracer.stderr.readline()
        gate.touch()
        code = zygote.stop(pid)[0]
    if "attached" not in attached:
        pytest.skip(f"strace does not work here: {attached}")
    text = log.read_text()
    return "INJECTED" in text or "killed by SIGKILL" in text, code


def problems_of(zygote, tmp_path, name, step, begun, start):
    """Let the first, second, ... of some calls fail, to the last; return what is wrong, and the hits."""
    if not (tmp_path / "reference").exists():
        assert zygote.run(tmp_path / "reference", SMALL) == 0
    expected, found, hits = result(tmp_path / "reference"), list[str](), 0
    for at in itertools.count(1, step):
        root = tmp_path / f"{name}-{at}"
        if begun:
            shutil.copytree(begun, root)
        witness = Witness(root / EXPERIMENT)
        found += witness.problems()
        is_hit, code = start(root, at)
        hits += is_hit
        found += [*witness.problems()]
        said = root.with_suffix(".txt").read_text()
        if (
            is_hit
            and code != -9
            and ("No space left" not in said or str(root) not in said or "Traceback" in said)
        ):
            found.append(f"{name} {at} ends with {code}, {said}")
        if (again := zygote.run(root, SMALL)) != 0 or result(root) != expected:
            found.append(f"{name} {at}: started again, it ends with {again} and other results")
        found += witness.problems()
        if not is_hit or found:
            return found, hits
        shutil.rmtree(root)
    raise AssertionError


@pytest.mark.slow(minutes=1)
@pytest.mark.parametrize("stage", of_night_but(["first start", "continuation"], ["continuation"]))
def test_at_whatever_call_it_is_killed_the_next_start_completes_the_run_exactly(
    zygote, tmp_path, request, stage
):
    root = request.getfixturevalue("begun") if stage == "continuation" else None
    hits: Counter[str] = Counter()
    for call in ("open", "write", "fsync", "replace", "link", "unlink"):
        step = of_night(1, by_day=5 if call in ("open", "write", "fsync") else 3)
        problems, hits[call] = problems_of(
            zygote, tmp_path, call, step, root, lambda root, at, call=call: killed(zygote, root, call, at)
        )
        assert problems == []

    show(dict(hits))
    assert min(hits.values()) > 0


@pytest.mark.slow
@pytest.mark.skipif(not STRACE, reason="strace is not installed")
@pytest.mark.parametrize("call", of_night_but(["write", "fsync", RENAMES, LINKS], [RENAMES]))
def test_whatever_system_call_fails_the_next_start_completes_the_run_exactly(zygote, tmp_path, call):
    step, hits = of_night(1, by_day=8), 0
    for what in ["signal=SIGKILL", *(["error=ENOSPC"] * (call != "write"))]:
        problems, num_hits = problems_of(
            zygote, tmp_path, what, step, None, lambda root, at, what=what: traced(zygote, root, call, what, at)
        )
        assert problems == []
        hits += num_hits

    show(f"{call}: {hits}")
    assert hits > 0


# Of the holder of an experiment

NUM_PROCESSES = 8
NUM_ROUNDS = of_night(10, by_day=2)


def race(zygote: Zygote, root: Path, params: dict[str, list[Any]], name: str) -> tuple[int, dict[int, str]]:
    """Let processes start at once; return the one that runs, and what each other said."""
    gate = root.with_name(f"{name}.gate")
    pids: dict[int, Path] = {}
    for number in range(NUM_PROCESSES):
        output = root.with_name(f"{name}.{number}.txt")
        pids[zygote.start(root, params, start=str(gate), output=str(output))] = output
    time.sleep(0.1)
    gate.touch()
    until = time.monotonic() + 30
    while sum(map(is_alive, pids)) > 1 and time.monotonic() < until:
        time.sleep(0.005)
    losers = {pid: output.read_text() for pid, output in pids.items() if not is_alive(pid)}
    (winner,) = pids.keys() - losers.keys()
    assert [zygote.wait(pid) for pid in losers] == [2] * (NUM_PROCESSES - 1), losers
    wait_for_run(root, winner)
    return winner, losers


def wait_for_run(root: Path, winner: int) -> None:
    """Wait until the winner has written its name and begun its run: it may be killed then."""
    deadline = time.monotonic() + 30
    holder = root / EXPERIMENT / "holder.json"
    while time.monotonic() < deadline:
        if json.loads(holder.read_text())["pid"] == winner and any(
            holder.parent.glob("*/attempt-*[0-9].jsonl")
        ):
            return
        time.sleep(0.005)
    raise AssertionError(f"{winner} has not begun")


@pytest.mark.slow
def test_one_of_eight_processes_runs_an_experiment_and_a_dead_one_is_succeeded(zygote, tmp_path):
    user, host = re.escape(getpass.getuser()), re.escape(socket.gethostname())
    told = re.compile(rf"ExperimentLockedError: .* by {user}@{host} \(process (?P<pid>\d+), active ")

    for number in range(NUM_ROUNDS):
        root = tmp_path / f"{number}"
        root.mkdir()
        release = root / "release"
        params = axes(lrs=[0.01], num_epochs=1, padding=4, wait_for=str(release))
        killed, first = race(zygote, root, params, f"{number}.first")
        code, is_killed = zygote.stop(killed, 0)
        winner, second = race(zygote, root, params, f"{number}.second")
        holder = json.loads((root / EXPERIMENT / "holder.json").read_text())
        release.touch()

        assert (code, is_killed) == (-9, True)
        assert holder["pid"] == winner
        assert zygote.wait(winner) == 0
        for pid, losers in ((killed, first), (winner, second)):
            for text in losers.values():
                named = told.match(text)
                assert named, text
                assert int(named["pid"]) in {pid, *losers}  # one that was faster, if not the fastest
        left = {path.name for path in (root / EXPERIMENT).iterdir() if path.suffix in (".json", ".csv")}
        assert left == {"grid.json", "results.csv", "results.json"}
