"""Several processes that start the same experiment at the same moment."""

import getpass
import json
import re
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import Zygote
from tests.chaos.work import EXPERIMENT, axes
from tests.nightly import of_night

NUM_PROCESSES = 8
NUM_ROUNDS = of_night(10, by_day=2)


def outputs_of_losers(zygote: Zygote, pids: dict[int, Path]) -> dict[int, str]:
    """Wait until all processes but one have ended; return what they said."""
    ended: dict[int, str] = {}
    deadline = time.monotonic() + 30
    while len(ended) < len(pids) - 1 and time.monotonic() < deadline:
        for pid, output in pids.items():
            text = output.read_text() if output.exists() else ""
            if pid not in ended and "ExperimentLockedError" in text:
                ended[pid] = text
                assert zygote.wait(pid) == 2
        time.sleep(0.005)
    return ended


def race(zygote: Zygote, root: Path, params: dict[str, list[Any]], name: str) -> tuple[int, dict[int, str]]:
    """Let processes start at once; return the one that runs, and what each other said."""
    gate = root.with_name(f"{name}.gate")
    pids: dict[int, Path] = {}
    for number in range(NUM_PROCESSES):
        output = root.with_name(f"{name}.{number}.txt")
        pids[zygote.start(root, params, start=str(gate), output=str(output))] = output
    time.sleep(0.1)
    gate.touch()
    losers = outputs_of_losers(zygote, pids)
    assert len(losers) == NUM_PROCESSES - 1, [path.read_text() for path in pids.values()]
    (winner,) = pids.keys() - losers.keys()
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
