import signal
import threading
import time

import pytest

from runmanager import load_runs, run_grid
from runmanager.errors import GridError
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
def test_what_does_not_fit_is_left_and_the_same_command_goes_on(tmp_path, capfd):
    codes: list[int] = []
    statuses: list[list[str]] = []
    while not codes or codes[-1] == TIME_IS_OVER:
        outcome = execute(tmp_path, max_seconds=0.7)
        codes.append(outcome.exit_code)
        statuses.append(load_runs(tmp_path)["status"].tolist())
        assert len(codes) < 20

    assert statuses[0][-1] == "pending"
    assert len(codes) > 1
    assert codes[-1] == 0
    runs = load_runs(tmp_path)
    assert runs["status"].tolist() == ["completed"] * 3
    assert runs["epochs"].tolist() == [4, 4, 4]
    is_between_runs = statuses[0] == ["completed", "pending", "pending"]  # on a slow machine
    sentence = "max_seconds=0.7 are over. Stopping: 1 running run stops now"
    assert is_between_runs or sentence in capfd.readouterr().out


@pytest.mark.slow
def test_a_grid_that_ends_in_time_is_not_concerned(tmp_path):
    before = signal.getsignal(signal.SIGINT)

    assert execute(tmp_path, [0.1], max_seconds=60).exit_code == 0

    assert signal.getsignal(signal.SIGINT) is before
    assert not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())


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
    with Stop() as stop:
        stop.end_after(time.monotonic(), 60)
        with pytest.raises(KeyboardInterrupt), stop.at_once():
            signal.raise_signal(signal.SIGINT)

    assert (stop.exit_code, stop.why) == (130, "")


@pytest.mark.parametrize("seconds", [0, -1, "10", True, float("inf"), float("nan")])
def test_other_values_are_refused(tmp_path, seconds):
    with pytest.raises(GridError, match="max_seconds must be a number of seconds above 0, got"):
        execute(tmp_path, max_seconds=seconds)

    assert not list(tmp_path.iterdir())
