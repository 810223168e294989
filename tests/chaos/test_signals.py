"""Ctrl-C and SIGTERM at random moments of a grid."""

import os
import signal
import time

import pytest

from tests.chaos.harness import Witness, result, seeded, show
from tests.chaos.work import EXPERIMENT, axes, wait_for

PARAMS = axes(lrs=[0.01, 0.02], num_epochs=4, padding=450_000)
NUM_SIGNALS = 20  # of each kind
PATIENCE_S = 10


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_grid_that_is_stopped_keeps_what_it_has_and_goes_on_later(zygote, tmp_path, number, exit_code):
    draw = seeded(number)
    before = time.monotonic()
    assert zygote.run(tmp_path / "reference", PARAMS) == 0
    seconds = time.monotonic() - before
    reference = result(tmp_path / "reference")

    problems: list[str] = []
    sent = stopped = finished = 0
    slowest = 0.0
    while sent < NUM_SIGNALS:
        root = tmp_path / f"{finished}"
        witness, code = Witness(root / EXPERIMENT), exit_code
        while code == exit_code:
            ready = root.with_suffix(f".{sent}.{finished}")
            pid = zygote.start(root, PARAMS, ready=str(ready))
            wait_for(str(ready))
            code, is_sent, took = zygote.wait(pid, draw.uniform(0, seconds), number)
            ready.unlink()
            sent += is_sent
            stopped += is_sent and code == exit_code
            slowest = max(slowest, took)
            output = root.with_suffix(".txt").read_text()
            problems += [output] if "Traceback" in output else []
            problems += [f"{root}: a process is left"] if is_alive(pid) else []
            problems += witness.problems()
        problems += [f"{root}: exit code {code}"] if code else []
        if code == 0 and result(root) != reference:
            problems.append(f"{root} differs from the reference")
        finished += 1

    show(f"{sent} signals, {stopped} stopped, {finished} experiments, at most {slowest:.2f} s", *problems)
    assert problems == []
    assert slowest < PATIENCE_S
    assert stopped > 0.5 * sent  # the others came when all was done
