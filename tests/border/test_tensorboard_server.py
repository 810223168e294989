"""TensorBoard's own servers on our runs, and the links to its pages (docs/tensorboard.md)."""

import contextlib
import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import warnings
from pathlib import Path
from statistics import mean
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from runmanager import RunManagerError, RunsWarning, load_results, open_tensorboard
from tests.border.events import event_files, train
from tests.border.experiments import execute
from tests.border.reading import as_killed, flip
from tests.border.work import wait_until

HOME = Path(__file__).parents[2]
GRID = {"lr": [0.1, 0.01], "amp": [True, False]}
TRAINED = [f"grid/00{n}-lr={lr}-amp={amp}" for n, (lr, amp) in enumerate(
    [(0.1, True), (0.1, False), (0.01, True), (0.01, False)], 1
)]  # fmt: skip
CONTINUED = [f"{name}/001" for name in ("anew", "before", "failed", "healed", "killed")]
STATUSES = ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]
ALL = {"allowedStatuses": STATUSES, "colParams": [], "startIndex": 0, "sliceSize": 1_000_000}
COLUMNS = {"loss": "loss/train", "test_accuracy": "accuracy/test", "run duration": "time/run_s"}
NUM_SESSIONS, LOAD_S = 16, 120


def ask(server, path, content=None, **query):
    body = None if content is None else json.dumps({"experimentName": "", **content}).encode()
    url = f"{server}data/{path}?{urlencode(query)}"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return json.load(answer, parse_constant=pytest.fail)


def sessions_at(server):
    """Return the session of each trial."""
    groups = ask(server, "plugin/hparams/session_groups", ALL).get("sessionGroups", [])
    return {group["name"]: group for group in groups}


def start_again(root, name, error, damage):
    """Execute a run that ends in its third epoch, damage its folder, and execute it again."""
    errors = [error]

    def end(epoch):
        if epoch == 3 and errors:
            raise errors.pop()

    options = {"retry_failed": True, "tensorboard": True}
    for _ in range(2 if damage else 1):
        with warnings.catch_warnings(action="ignore", category=RunsWarning):
            execute(root, {"lr": [0.1]}, lambda run, manager: train(manager, run, 4, end), name, **options)
        if damage and damage is not str:
            damage(root / name / "001")
            damage = str


def kill(folder):
    as_killed(folder)
    with event_files(folder)[-1].open("ab") as file:
        file.write(b"\x40\0\0\0")  # a record that was being written


def lose_all(folder):
    flip(folder / "checkpoint.pt")
    flip(folder / "checkpoint.prev.pt")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Runs that met all that can happen to them, each kind in an experiment of its own."""
    root = tmp_path_factory.mktemp("runs")
    seeds = {"number": [1, 2], "seed": [0, 1, 2]}
    execute(root, GRID, lambda run, manager: train(manager, run, 2), "grid", tensorboard=True)
    execute(root, seeds, lambda run: {"loss": run.number}, "seeds", epochs=2, tensorboard=True)
    start_again(root, "stopped", KeyboardInterrupt(), None)
    start_again(root, "killed", KeyboardInterrupt(), kill)
    start_again(root, "failed", ValueError("no"), lambda _: None)
    start_again(root, "before", KeyboardInterrupt(), lambda folder: flip(folder / "checkpoint.pt"))
    start_again(root, "healed", KeyboardInterrupt(), lambda folder: as_killed(folder, num_lost=1))
    start_again(root, "anew", KeyboardInterrupt(), lose_all)
    (path,) = event_files(root / "stopped")
    path.write_bytes(path.read_bytes()[:-7])  # as by a kill
    return root


@pytest.fixture(scope="module")
def server(root):
    """Start TensorBoard, and wait until it has read all runs; its readers in Python have tests of their own."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        open_tensorboard(root)
    server = printed.getvalue().removeprefix("TensorBoard: ").partition("?")[0]
    wait_until(lambda: is_loaded(server), LOAD_S)
    return server


def is_loaded(server):
    sessions = [session for group in sessions_at(server).values() for session in group["sessions"]]
    unknown = [session for session in sessions if session["status"] == "STATUS_UNKNOWN"]
    return (len(sessions), len(unknown)) == (NUM_SESSIONS, 1)


@pytest.mark.slow
@pytest.mark.parametrize("run", ["grid/001", "grid/004", "stopped/001", *CONTINUED])
def test_each_run_that_began_shows_every_epoch_once_as_the_table(server, root, run):
    experiment, number = run.split("/")
    table = load_results(root / experiment).query(f"run == {int(number)}")
    (name,) = [name for name in ask(server, "runs") if name.startswith(run)]

    for column, tag in COLUMNS.items():
        points = ask(server, "plugin/scalars/scalars", run=name, tag=tag)
        expected = enumerate(table[column].astype("float32").astype(float), 1)
        assert [(step, value) for _, step, value in points] == [*expected]
    epochs = table["epoch"].tolist()
    assert len(epochs) == {"grid": 2, "stopped": 2}.get(experiment, 4)
    for tag in ("weights/1.weight", "weights:grad/1.weight"):
        drawn = ask(server, "plugin/histograms/histograms", run=name, tag=tag)
        steps = [step for _, step, _ in drawn]
        assert steps == epochs or (experiment, steps) == ("stopped", [1])  # a torn record
    samples = ask(server, "plugin/images/images", run=name, tag="visuals/samples", sample="0")
    assert [image["step"] for image in samples] == [0]


@pytest.mark.slow
def test_the_first_metrics_are_those_to_decide_by_and_a_trial_has_the_mean_of_its_last_epochs(server, root):
    infos = ask(server, "plugin/hparams/experiment", {})["metricInfos"]
    assert [info["name"]["tag"] for info in infos[:5]] == [
        "Goal/last max:test_accuracy", "Goal/last min:loss",
        "Run/best max:test_accuracy", "Run/best min:loss", "Run/best_epoch",
    ]  # fmt: skip

    session = sessions_at(server)["seeds/number=2"]
    (metric,) = [metric for metric in session["metricValues"] if metric["name"]["tag"] == "loss/train"]
    rows = load_results(root / "seeds").query("epoch == 2 and number == 2")
    assert (metric["value"], len(session["sessions"])) == (pytest.approx(mean(rows["loss"])), len(rows))
    assert session["hparams"] == {"number": 2}


@pytest.mark.slow
def test_the_bare_address_leads_to_the_configured_page_behind_a_proxy_too(server):
    with contextlib.closing(http.client.HTTPConnection(urlsplit(server).netloc)) as connection:
        connection.request("GET", "/")
        target = connection.getresponse().headers["Location"]

    assert target.startswith("?smoothing=0&")  # relative
    assert "accuracy/test" in pins(target)


# Links


@pytest.fixture
def link(monkeypatch, capsys):
    """Open runs in a TensorBoard that does not start; return the link that is printed."""
    with warnings.catch_warnings(action="ignore"):  # of what TensorBoard imports
        monkeypatch.setattr("tensorboard.program.TensorBoard.launch", lambda _: "http://127.0.0.1:6006/")

    def link(root, experiment=None):
        open_tensorboard(root, experiment)
        return capsys.readouterr().out.removeprefix("TensorBoard: ").strip()

    return link


def make(root, name, grid, metrics=("loss",), **options):
    """Execute a grid that tracks 0.5 as its metrics; return the names of the runs."""
    execute(root, grid, lambda _: dict.fromkeys(metrics, 0.5), name, **options)
    return [path.parent.name for path in sorted((root / name).glob("*/run.json"))]


def asked(link):
    return {name: value for name, (value,) in parse_qs(urlsplit(link).query).items()}


def colors(link, runs):
    """Return what each run's color follows from: the groups of the expression that the page gets."""
    expression = asked(link)["runColorGroup"].removeprefix("regex:")
    matches = (re.search(expression, run, re.ASCII) for run in runs)  # as in a browser
    return [match.groups() if match else None for match in matches]


def pins(link):
    return [card["tag"] for card in json.loads(asked(link)["pinnedCards"])]


def test_a_link_shows_an_experiment_without_smoothing_and_no_terminal_cuts_it(tmp_path, link):
    make(tmp_path, "grid.v1", {"lr": [0.1, 1.1]})

    for address in (link(tmp_path, "grid.v1"), link(tmp_path / "grid.v1")):
        pattern = r"http://127.0.0.1:6006/\?[\w%.,:=&/~+-]+#timeseries&_smoothingWeight=0"
        assert re.fullmatch(pattern, address)
        assert asked(address)["smoothing"] == "0"
        assert json.loads(asked(address)["pinnedCards"])[0] == {"plugin": "scalars", "tag": "loss/train"}


def test_behind_a_proxy_the_link_leads_through_it(tmp_path, link, monkeypatch):
    make(tmp_path, "e", {"lr": [1]})
    monkeypatch.setenv("TENSORBOARD_PROXY_URL", "/user/me/proxy/%PORT%/")

    assert link(tmp_path).startswith("/user/me/proxy/6006/?smoothing=0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grid", "repeats", "shown"),
    [
        ({"lr": [0.1, 1.1], "device": ["cpu", "meta"]}, None, ["cpu", "meta"] * 2),
        ({"lr": [0.1, 1.1], "device": ["cpu", "cuda:99"]}, None, ["0.1", "1.1"]),
        ({"max_lr": [3, 4], "lr": [1, 2]}, "max_lr", ["1", "2"] * 2),
        # a repeat axis tells less
        ({"lr": range(8), "depth": [1, 2], "seed": [0, 1]}, "depth", ["0", "1"] * 16),
        ({"optXlr": range(9), "opt.lr": [1, 2]}, None, ["1", "2"] * 9),
        *(
            ({first: [1e-05, -2], second: range(8)}, None, ["1e-05"] * 8 + ["-2"] * 8)
            for first, second in (("n", "opt.lr"), ("opt.lr", "größe"), ("größe", "n"))
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_the_color_of_a_run_is_its_device_or_the_first_axis_of_at_most_seven_values(
    tmp_path, link, grid, repeats, shown
):
    runs = make(tmp_path, "e", grid, repeats=repeats)

    assert colors(link(tmp_path, "e"), runs) == [(value,) for value in shown]


def test_each_run_or_each_experiment_has_a_color_where_nothing_groups_them(tmp_path, link):
    make(tmp_path, "one", {"lr": range(8)})
    alone = link(tmp_path)
    make(tmp_path, "two", {"lr": [1]})

    assert "runColorGroup" not in asked(alone)
    assert colors(link(tmp_path), ["one/001-lr=1", "two/001-lr=1"]) == [("one",), ("two",)]


@pytest.mark.parametrize(
    ("goal", "metrics", "expected"),
    [
        ("max:reward", ["policy_loss", "reward"], ["train/reward", "loss/policy"]),
        ("max:reward", ["loss", "reward"], ["train/reward", "loss/train"]),
        ("validation_f1", ["validation_loss", "validation_f1"], ["f1/validation", "loss/validation"]),
        ("test_accuracy", ["test_loss", "test_accuracy"], ["accuracy/test", "loss/test"]),
        ("min:test_loss", ["test_loss", "test_accuracy"], ["loss/test", "accuracy/test"]),
        (None, ["test_loss", "test_accuracy"], ["accuracy/test", "loss/test"]),
        (None, ["loss", "reward"], ["loss/train"]),  # each run has it, and decides by it
        (None, ["val_loss"], ["loss/val"]),
    ],
)
def test_the_goal_is_pinned_with_the_metric_beside_it_whatever_it_is_called(
    tmp_path, link, goal, metrics, expected
):
    make(tmp_path, "e", {"lr": [0.1]}, metrics, goal=goal)

    assert pins(link(tmp_path)) == [*expected, "time/epoch_s"]


def test_experiments_with_other_metrics_pin_the_goal_of_each_and_other_tools_nothing(tmp_path, link):
    for name in ("test", "validation"):
        make(tmp_path / "ours", name, {"lr": [0.1]}, ["loss", f"{name}_accuracy", f"{name}_loss"])
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "events.out.tfevents.1").touch()

    expected = ["accuracy/test", "loss/test", "accuracy/validation", "loss/validation", "time/epoch_s"]
    assert pins(link(tmp_path / "ours")) == expected
    assert asked(link(tmp_path / "theirs")) == {"smoothing": "0"}


def test_what_cannot_be_opened_is_refused_with_what_there_is(tmp_path):
    make(tmp_path / "runs", "one", {"lr": [1]})
    make(tmp_path / "runs", "none_here", {"lr": [1], "device": ["cuda:99"]})
    (tmp_path / "empty").mkdir()

    for root, experiment, named in (
        ("missing", None, "no runs in .*missing.*: start a grid first"),
        ("empty", None, "no runs in .*empty.*: start a grid first"),
        ("runs", "another", "'another'; it has those of: one$"),
        ("runs", "on", r"'on'; did you mean 'one'\?$"),
    ):
        with pytest.raises(RunManagerError, match=named):
            open_tensorboard(tmp_path / root, experiment)


# Its process


def runs_at(url):
    """Wait until some runs are loaded, which may be after it answers."""
    return wait_until(lambda: ask(url.partition("?")[0], "runs"), 30)


@pytest.mark.slow
def test_the_same_server_shows_one_experiment_on_this_machine_and_says_nothing_else(root, capfd):
    for folder, experiment in ((root, "grid"), (root / "grid", None)):
        open_tensorboard(folder, experiment)

    printed = capfd.readouterr()
    first, second = (line.removeprefix("TensorBoard: ") for line in printed.out.splitlines())
    assert first == second
    assert urlsplit(first).hostname == "127.0.0.1"
    assert sorted(runs_at(first)) == [run.removeprefix("grid/") for run in TRAINED]
    assert printed.err == ""


PROGRAM = """
import os, signal, sys, threading, time, urllib.request
from runmanager import open_tensorboard
signal.signal(signal.SIGINT, lambda *_: None)
open_tensorboard(sys.argv[1])
def poll():
    while True: urllib.request.urlopen(sys.argv[2] + "data/runs").read()
sys.argv[2:] = [input()]
threading.Thread(target=poll, daemon=True).start()
for _ in range(100):
    child = os.fork()
    if not child: os._exit(0)
    os.waitpid(child, 0)
print("forked", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_it_outlives_an_interrupt_says_nothing_of_forks_and_ends_with_a_process_that_is_killed(root):
    with subprocess.Popen(
        [sys.executable, "-uc", PROGRAM, root], cwd=HOME, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        assert process.stderr
        url = process.stdout.readline().split()[1]
        assert runs_at(url)
        print(url.partition("?")[0], file=process.stdin, flush=True)
        assert process.stdout.readline() == "forked\n"  # as loaders do
        os.killpg(process.pid, signal.SIGINT)  # as a notebook interrupts a cell
        time.sleep(0.5)
        assert runs_at(url)
        process.kill()
        assert process.stderr.read() == ""

    with socket.socket() as client:
        wait_until(lambda: client.connect_ex((urlsplit(url).hostname, urlsplit(url).port)) != 0, 10)
