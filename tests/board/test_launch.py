import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import nbclient
import nbformat
import pytest

from runmanager import BoardError, RunManager
from runmanager.board import launch
from runmanager.board.launch import Server, hint, page_of
from runmanager.board.tags import tag
from runmanager.storage.folders import Experiment
from runmanager.storage.identity import identity
from tests.board.reading import train

HOME = Path(__file__).parents[2]


def make(root, name, number=2, *, devices=("cpu",), missing=()):
    """Plan an experiment of `number` learning rates on each device; `missing` ones are not here."""
    grid = [{"max_lr": 1, "lr": 0.1 + n, "device": device} for device in devices for n in range(number)]
    unavailable = {identity(params): "not there" for params in grid if params["device"] in missing}
    return Experiment(root / name).plan(grid, unavailable)


def asked(link):
    """Return what a link asks the page for."""
    return {name: value for name, (value,) in parse_qs(urlsplit(link).query).items()}


def colors(query, runs):
    """Return what each run's color follows from: the groups of the expression that the page gets."""
    expression = asked(f"?{query}")["runColorGroup"].removeprefix("regex:")
    return [match.groups() if (match := re.search(expression, run)) else None for run in runs]


def test_the_link_shows_the_experiment_without_smoothing_and_pins_what_matters(tmp_path):
    make(tmp_path, "grid.v1")

    link = page_of(tmp_path, "grid.v1").link("http://127.0.0.1:1234/")

    assert link.startswith("http://127.0.0.1:1234/?")
    assert link.endswith("#timeseries")
    shown = asked(link)
    assert shown["smoothing"] == "0"
    assert "runFilter" not in shown  # it is alone
    assert json.loads(shown["pinnedCards"]) == [
        {"plugin": "scalars", "tag": tag(column)} for column in ("accuracy", "loss", "epoch duration")
    ]


def test_what_was_tested_is_pinned_if_anything_was(tmp_path):
    train(RunManager("exp", tmp_path, display=False), {"lr": 0.1})

    pinned = json.loads(asked(page_of(tmp_path).link())["pinnedCards"])

    assert [card["tag"] for card in pinned] == [
        tag(column) for column in ("test_accuracy", "test_loss", "epoch duration")
    ]


def test_a_link_has_no_character_at_which_a_terminal_or_a_shell_would_cut_it(tmp_path):
    make(tmp_path, "grid")

    assert re.fullmatch(r"http://localhost:6006/\?[\w%.,:=&/~+-]+#timeseries", page_of(tmp_path, "grid").link())


def test_runs_have_the_color_of_their_device_if_it_varies(tmp_path):
    runs = make(tmp_path, "grid", devices=("cpu", "cuda:0"))

    assert colors(page_of(tmp_path).query, [f"grid/{run.path.name}" for run in runs]) == [
        ("cpu",), ("cpu",), ("cuda0",), ("cuda0",),
    ]  # fmt: skip


def test_a_device_without_runs_here_gives_no_color(tmp_path):
    runs = make(tmp_path, "grid", devices=("cuda", "cpu"), missing=("cuda",))

    assert colors(page_of(tmp_path).query, [f"grid/{run.path.name}" for run in runs[2:]]) == [
        ("0.1",),
        ("1.1",),
    ]


def test_an_axis_is_not_taken_for_one_whose_name_ends_alike(tmp_path):
    grid = [{"max_lr": top, "lr": low} for low in (1, 2) for top in (3, 4)]
    runs = Experiment(tmp_path / "grid").plan([{"lr": run["lr"], "max_lr": run["max_lr"]} for run in grid], {})

    query = page_of(tmp_path / "grid").query

    assert colors(query, [run.path.name for run in runs]) == [("1",), ("1",), ("2",), ("2",)]
    assert colors(query, ["001-max_lr=3-lr=1"]) == [("1",)]


def test_several_experiments_have_a_color_each(tmp_path):
    make(tmp_path, "one")
    make(tmp_path, "two")

    query = page_of(tmp_path).query

    assert colors(query, ["one/001-lr=1", "two/001-lr=1"]) == [("one",), ("two",)]
    assert "runFilter" not in asked(f"?{query}")


@pytest.mark.parametrize("folder", ["", "grid"])
def test_one_experiment_is_shown_alone_on_its_folder(tmp_path, folder):
    runs = make(tmp_path, "grid")
    make(tmp_path, "other", 300)

    found = page_of(tmp_path / folder, "grid")

    assert (found.logdir, found.notes) == (tmp_path / "grid", [])
    assert colors(found.query, [run.path.name for run in runs]) == [("0.1",), ("1.1",)]


def test_files_that_other_tools_wrote_are_shown_too(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events.out.tfevents.1").touch()

    assert asked(page_of(tmp_path).link()) == {"smoothing": "0"}


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="give the one that RunManager or run_grid wrote"):
        page_of(tmp_path / "missing")


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(BoardError, match=r"no runs in .*: start a grid first"):
        page_of(tmp_path)


def test_an_experiment_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    make(tmp_path, "one")
    make(tmp_path, "none_here", devices=("cuda",), missing=("cuda",))

    with pytest.raises(BoardError, match=r"no runs of an experiment 'another'; it has those of: one$"):
        page_of(tmp_path, "another")
    with pytest.raises(BoardError, match=r"no runs of an experiment 'on'; did you mean 'one'\?$"):
        page_of(tmp_path, "on")


def test_more_runs_than_the_page_selects_are_told_with_the_narrower_command(tmp_path):
    make(tmp_path, "one", 300)
    make(tmp_path, "two", 300)

    everything, one = page_of(tmp_path), page_of(tmp_path, "one")

    assert everything.logdir == tmp_path
    assert everything.notes[0].endswith(
        f"show one experiment: runmanager tensorboard {tmp_path} --experiment NAME"
    )
    assert one.logdir == tmp_path / "one"
    assert "runFilter" not in asked(one.link())
    assert one.notes == [
        "! HParams shows 100 of 300 runs: choose more rows a page below its table",
    ]
    assert hint(tmp_path / "one")[1:] == one.notes


def test_an_experiment_that_is_too_large_itself_is_told(tmp_path):
    make(tmp_path, "one", 501)

    found = page_of(tmp_path, "one")

    assert found.notes[0].endswith("tick those you want, or filter them by name")


def test_100_runs_are_within_all_limits(tmp_path):
    make(tmp_path, "one", 100)

    assert page_of(tmp_path).notes == []


def test_a_notebook_is_told_the_call_instead_of_a_command(tmp_path, monkeypatch):
    make(tmp_path, "grid")
    monkeypatch.setattr(launch, "in_notebook", lambda: True)

    assert hint(tmp_path / "grid") == [f"TensorBoard: open_tensorboard({str(tmp_path)!r}, 'grid')"]


def test_nothing_is_said_of_an_experiment_whose_runs_are_all_elsewhere(tmp_path):
    make(tmp_path, "grid", devices=("cuda",), missing=("cuda",))

    assert hint(tmp_path / "grid") == []


def test_experiments_with_other_hyperparameters_are_better_shown_one_by_one(tmp_path):
    make(tmp_path, "one")
    Experiment(tmp_path / "two").plan([{"dropout": 0.5}], {})

    rule = "! hyperparameters differ between experiments, so HParams has no line for some runs"
    step = f"show one experiment: runmanager tensorboard {tmp_path} --experiment NAME"
    assert page_of(tmp_path).notes == [f"{rule}: {step}"]
    assert page_of(tmp_path, "two").notes == []


def test_experiments_with_values_of_other_kinds_are_better_shown_one_by_one(tmp_path):
    Experiment(tmp_path / "one").plan([{"lr": 0.5}], {})
    Experiment(tmp_path / "two").plan([{"lr": "auto"}], {})
    Experiment(tmp_path / "three").plan([{"lr": 0.1}], {})

    assert len(page_of(tmp_path).notes) == 1


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    train(RunManager("exp", folder, display=False), {"lr": 0.1})
    return folder


@pytest.fixture
def server(root, tmp_path, monkeypatch):
    """A TensorBoard of ours, whose temporary files are under tmp_path."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Server(root) as started:
        yield started


def runs_at(url):
    """Wait until some runs are loaded, which may be after it answers."""
    found: list[str] = []
    deadline = time.monotonic() + 30
    while not found and time.monotonic() < deadline:
        with urllib.request.urlopen(f"{url}data/runs", timeout=30) as answer:  # noqa: S310
            found = json.load(answer)
        time.sleep(0 if found else 0.05)
    return found


def answers(url):
    with socket.socket() as client:
        return client.connect_ex((urlsplit(url).hostname, urlsplit(url).port)) == 0


def wait_until_gone(url):
    deadline = time.monotonic() + 10
    while answers(url) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not answers(url)


def test_it_answers_on_this_machine_until_it_is_stopped(server, tmp_path):
    assert urlsplit(server.url).hostname == "127.0.0.1"
    assert runs_at(server.url) == ["exp/001-lr=0.1"]
    assert server.lives

    server.stop()

    assert not answers(server.url)
    assert not server.lives
    assert list(tmp_path.iterdir()) == []  # no note of a TensorBoard that is no more
    server.stop()


def status_of(url, host):
    """Ask TensorBoard for its runs as a page would whose site has a name; return the status of the answer."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.request("GET", "/data/runs", headers={"Host": host})
    answer = connection.getresponse()
    assert (b"answers to localhost alone" in answer.read()) == (answer.status == 403)
    return answer.status


def test_the_page_of_another_site_cannot_read_the_runs(server):
    port = urlsplit(server.url).port
    ours = ["localhost", f"localhost:{port}", f"127.0.0.1:{port}", "[::1]:6006", "board.localhost", "LOCALHOST"]
    foreign = [
        "evil.example",
        f"evil.example:{port}",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "@",
    ]

    assert {host: status_of(server.url, host) for host in ours} == dict.fromkeys(ours, 200)
    assert {host: status_of(server.url, host) for host in foreign} == dict.fromkeys(foreign, 403)


@pytest.mark.parametrize(
    ("proxy", "host", "status"),
    [
        ("https://hub.example/proxy/%PORT%/", "hub.example", 200),
        ("https://hub.example/proxy/%PORT%/", "evil.example", 403),
        ("/proxy/%PORT%/", "hub.example", 200),  # nobody knows the name
        ("", "hub.example", 403),
    ],
)
def test_the_proxy_that_leads_to_it_is_no_other_site(monkeypatch, proxy, host, status):
    monkeypatch.setenv("TENSORBOARD_PROXY_URL", proxy)
    said = []
    board = launch._guarded(lambda _, start: start("200 OK", []), None)

    board({"HTTP_HOST": host}, lambda words, _: said.append(words))

    assert said[0].startswith(str(status))


def test_a_port_that_is_taken_is_refused(server, root):
    port = urlsplit(server.url).port

    with pytest.raises(BoardError, match=f"^port {port} is in use: choose another, or 0 for any that is free$"):
        Server(root, port)


def test_an_address_that_is_not_of_this_machine_is_refused(root):
    with pytest.raises(BoardError, match=r"did not start on 192\.0\.2\.1, port 0: .+"):  # for documentation
        Server(root, host="192.0.2.1")


def test_a_tensorboard_that_ends_by_itself_is_told(server):
    os.kill(server._process.pid, signal.SIGTERM)

    with pytest.raises(BoardError, match=r"ended by itself: TensorBoard caught SIGTERM; exiting\.\.\."):
        server.wait()


def test_it_starts_beside_files_named_like_modules_and_finds_what_its_parent_finds(root, tmp_path):
    (tmp_path / "queue.py").write_text("raise ImportError('not the queue of Python')")
    program = (
        f"import sys; sys.path[:] = [*sys.path[1:], {str(HOME)!r}]; from pathlib import Path\n"
        "from runmanager.board.launch import Server\n"
        f"with Server(Path({str(root)!r})) as server: print(server.url)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    found = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=180, check=False,
    )  # fmt: skip

    assert found.stdout.startswith("http://127.0.0.1:"), found.stderr


def test_it_ends_with_a_process_that_is_killed(root):
    program = (
        "import time; from pathlib import Path; from runmanager.board.launch import Server\n"
        f"print(Server(Path({str(root)!r})).url, flush=True); time.sleep(60)"
    )

    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=HOME, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        url = process.stdout.readline().strip()
        assert answers(url)
        process.kill()

    wait_until_gone(url)


def test_without_a_notebook_the_link_is_printed_and_the_same_server_shows_it_again(root, capsys, monkeypatch):
    monkeypatch.setattr(launch, "_SERVERS", {})

    for folder, experiment in ((root, "exp"), (root / "exp", None)):
        launch.open_tensorboard(folder, experiment)

    (server,) = launch._SERVERS.values()
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    assert first.startswith(f"TensorBoard: {server.url}?smoothing=0")
    server.stop()
    launch.open_tensorboard(root, "exp")  # it has ended: another one
    (other,) = launch._SERVERS.values()
    assert runs_at(other.url) == ["001-lr=0.1"]
    other.stop()


def test_behind_a_proxy_the_link_leads_through_it(root, capsys, monkeypatch):
    monkeypatch.setattr(launch, "_SERVERS", {})
    monkeypatch.setenv("TENSORBOARD_PROXY_URL", "/user/me/proxy/%PORT%/")

    launch.open_tensorboard(root)

    (server,) = launch._SERVERS.values()
    assert f" /user/me/proxy/{urlsplit(server.url).port}/?smoothing=0" in capsys.readouterr().out
    server.stop()


def test_a_notebook_shows_it_below_the_cell_until_the_kernel_ends(root):
    cell = f"from runmanager import open_tensorboard\nopen_tensorboard({str(root)!r}, height=300)"
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])

    client = nbclient.NotebookClient(page, timeout=180, resources={"metadata": {"path": HOME}})
    with client.setup_kernel():
        client.execute_cell(page.cells[0], 0)
        printed, frame = page.cells[0].outputs
        link = printed.text.removeprefix("TensorBoard: ").strip()
        assert runs_at(link.partition("?")[0]) == ["exp/001-lr=0.1"]

    assert f'src="{link}"' in frame.data["text/html"].replace("&amp;", "&")
    assert 'height="300"' in frame.data["text/html"]
    wait_until_gone(link)
