import signal
import threading
import time

import pytest

from runmanager import load_runs, run_grid
from runmanager.executors.signals import TIME_IS_OVER, Stop


def train(run, manager):
    with manager.run(run):
        for _ in manager.epochs(4, checkpoint={"state": {}}):
            manager.track_loss(run.lr, 1)
            time.sleep(0.1)


def execute(root, lrs=(0.1, 0.2, 0.3), **options):
    options = {"executor": "inline", "tensorboard": False, **options}
    return run_grid({"lr": list(lrs)}, train, experiment="e", root=root, **options)


@pytest.mark.slow
def test_in_lanes_it_is_noticed_while_nothing_happens(tmp_path):
    def hang(run, manager):
        with manager.run(run):
            time.sleep(100)

    began = time.monotonic()
    outcome = run_grid(
        {"lr": [0.1]}, hang, experiment="e", root=tmp_path, max_seconds=5, tensorboard=False, display=False
    )

    assert outcome.exit_code == TIME_IS_OVER
    assert time.monotonic() - began < 60
    assert load_runs(tmp_path)["status"][0] in ("interrupted", "pending")


@pytest.mark.slow
def test_in_a_thread_it_is_noticed_at_the_next_event(tmp_path):
    codes = []
    thread = threading.Thread(target=lambda: codes.append(execute(tmp_path, max_seconds=0.5).exit_code))
    thread.start()
    thread.join(60)

    assert codes == [TIME_IS_OVER]


def test_ctrl_c_before_that_is_ctrl_c():
    with Stop.on_signals() as stop:
        stop.end_after(time.monotonic(), 60)
        with pytest.raises(KeyboardInterrupt), stop.at_once():
            signal.raise_signal(signal.SIGINT)

    assert (stop.exit_code, stop.why) == (130, "")
