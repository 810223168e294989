"""Ctrl-C and SIGTERM at random moments of a grid."""

import signal
import time

import pytest

from tests.chaos.harness import MOST_LEFT_S, Witness, result, seconds_until_gone, seeded, show
from tests.chaos.work import EXPERIMENT, axes, wait_for
from tests.nightly import of_night

PARAMS = axes(lrs=[0.01, 0.02], num_epochs=4, padding=450_000)
NUM_SIGNALS = {signal.SIGINT: of_night(30, by_day=8), signal.SIGTERM: of_night(20, by_day=12)}
PATIENCE_S = 30  # on a busy machine; how long it took is printed


@pytest.mark.slow(minutes=1)
@pytest.mark.parametrize(
    ("number", "exit_code", "how"),
    [
        (signal.SIGINT, 130, "lanes"),
        pytest.param(signal.SIGTERM, 143, "inline", marks=pytest.mark.nightly),
        pytest.param(signal.SIGINT, 130, "inline", marks=pytest.mark.nightly),
        pytest.param(signal.SIGTERM, 143, "lanes", marks=pytest.mark.nightly),
    ],
)
def test_a_grid_that_is_stopped_keeps_what_it_has_and_goes_on_later(zygote, tmp_path, how, number, exit_code):
    stop_at_random_moments(zygote, tmp_path, how, number, exit_code)


@pytest.mark.nightly
@pytest.mark.slow(minutes=2)
def test_a_grid_on_ray_that_is_stopped_keeps_what_it_has_and_goes_on_later(ray_address, zygote, tmp_path):
    stop_at_random_moments(
        zygote, tmp_path, ray_address, signal.SIGINT, 130, most=of_night(6, by_day=3)
    )  # each takes 10 s


def stop_at_random_moments(zygote, tmp_path, how, number, exit_code, most=30):
    draw = seeded(number)
    before = time.monotonic()
    assert zygote.run(tmp_path / "reference", PARAMS, how) == 0
    seconds = time.monotonic() - before
    reference = result(tmp_path / "reference")

    problems: list[str] = []
    sent = stopped = finished = 0
    slowest = 0.0
    while sent < min(NUM_SIGNALS[number], most):
        root = tmp_path / f"{finished}"
        witness, code, latest = Witness(root / EXPERIMENT), exit_code, seconds
        while code in (exit_code, 130, -number):
            ready = root.with_suffix(f".{sent}.{finished}")
            pid = zygote.start(root, PARAMS, how, ready=str(ready))
            wait_for(str(ready))
            code, is_sent, took = zygote.wait(pid, draw.uniform(0, latest), number)
            latest *= 1.2  # so that it comes to its end on a machine that has become slow
            ready.unlink()
            sent += is_sent
            stopped += is_sent and code == exit_code
            slowest = max(slowest, took)
            output = root.with_suffix(".txt").read_text()
            problems += [f"{code}: {output}"] if is_torn(output, code, exit_code) else []
            left = seconds_until_gone(pid)
            problems += [f"{root}: a process is left: {left:.1f} s"] if left > MOST_LEFT_S else []
            problems += witness.problems()
        problems += [f"{root}: exit code {code}"] if code else []
        if code == 0 and result(root) != reference:
            problems.append(f"{root} differs from the reference")
        finished += 1

    show(
        f"{how}: {sent} signals, {stopped} stopped, {finished} experiments, at most {slowest:.2f} s",
        *(problem[:5000] for problem in problems),
    )
    assert problems == []
    assert slowest < PATIENCE_S
    assert stopped > 0.5 * sent  # the others came when all was done


def is_torn(output, code, exit_code):
    """Whether a grid that was under way ended as Python does; before it has begun and after its end it may."""
    said, error, _ = output.partition("Traceback")
    is_under_way = bool(said.strip()) and "━━ " not in said
    return is_under_way and (bool(error) or code not in (0, exit_code))
