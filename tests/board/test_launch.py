import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from werkzeug.test import Client
from werkzeug.wrappers import Request, Response

from runmanager import RunManager, RunManagerError
from runmanager.core.experiment import Experiment
from runmanager.tensorboard import server as server_module
from runmanager.tensorboard.server import Server
from tests.board.reading import train

HOME = Path(__file__).parents[2]


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


@pytest.mark.slow
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


@pytest.mark.slow
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
    board = server_module._guarded(lambda _, start: start("200 OK", []), None)

    board({"HTTP_HOST": host, "REQUEST_METHOD": "GET"}, lambda words, _: said.append(words))

    assert said[0].startswith(str(status))


@pytest.mark.slow
def test_a_port_that_is_taken_is_refused(server, root):
    port = urlsplit(server.url).port

    with pytest.raises(
        RunManagerError, match=f"^port {port} is in use: choose another, or 0 for any that is free$"
    ):
        Server(root, port)


@pytest.mark.slow
def test_an_address_that_is_not_of_this_machine_is_refused(root):
    with pytest.raises(
        RunManagerError, match=r"did not start on 192\.0\.2\.1, port 0: .+"
    ):  # for documentation
        Server(root, host="192.0.2.1")


@pytest.mark.slow
def test_a_tensorboard_that_ends_by_itself_is_told(server):
    os.kill(server._process.pid, signal.SIGTERM)

    with pytest.raises(RunManagerError, match=r"ended by itself: TensorBoard caught SIGTERM; exiting\.\.\."):
        server.wait()


@pytest.mark.slow
def test_it_starts_beside_files_named_like_modules_and_finds_what_its_parent_finds(root, tmp_path):
    (tmp_path / "queue.py").write_text("raise ImportError('not the queue of Python')")
    program = (
        f"import sys; sys.path[:] = [*sys.path[1:], {str(HOME)!r}]; from pathlib import Path\n"
        "from runmanager.tensorboard.server import Server\n"
        f"with Server(Path({str(root)!r})) as server: print(server.url)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    found = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=180, check=False,
    )  # fmt: skip

    assert found.stdout.startswith("http://127.0.0.1:"), found.stderr


@pytest.mark.slow
def test_it_ends_with_a_process_that_is_killed(root):
    program = (
        "import time; from pathlib import Path; from runmanager.tensorboard.server import Server\n"
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


def test_hparams_shows_what_all_runs_have_and_what_varies(tmp_path):
    Experiment(tmp_path / "one").plan([{"lr": lr, "width": 8, "device": "cpu"} for lr in (0.1, 0.2)], {})
    Experiment(tmp_path / "two").plan([{"lr": 0.3, "device": "cpu"}], {})
    Experiment(tmp_path / "without event files").plan([{"width": 8, "device": "cpu"}], {})
    for name in ("one", "two"):
        (tmp_path / name / "001").mkdir()
        (tmp_path / name / "001" / "events.out.tfevents.1.host").touch()
    (tmp_path / "nothing of ours").mkdir()
    infos = [{"name": "device"}, {"name": "lr", "differs": True}, {"name": "width", "differs": True}]

    @Request.application
    def board(request):
        shown = infos if len(request.get_data()) else infos[:1]
        return Response(json.dumps({"hparamInfos": shown}), content_type="application/json")

    def names(folder, path="/data/plugin/hparams/experiment", data="{}"):
        answer = Client(server_module._with_few_hparams(board, folder)).post(path, data=data).get_json()
        return [info["name"] for info in answer["hparamInfos"]]

    assert names(tmp_path) == ["lr"]
    assert names(tmp_path / "one") == ["lr", "width"]
    assert names(tmp_path / "nothing of ours") == ["lr", "width"]
    assert names(tmp_path, data="") == ["device"]  # nothing varies
    assert names(tmp_path, "/data/plugin/hparams/other") == ["device", "lr", "width"]


@pytest.mark.slow
def test_without_a_notebook_the_link_is_printed_and_the_same_server_shows_it_again(root, capsys, monkeypatch):
    monkeypatch.setattr(server_module, "_SERVERS", {})

    for folder, experiment in ((root, "exp"), (root / "exp", None)):
        server_module.open_tensorboard(folder, experiment)

    (server,) = server_module._SERVERS.values()
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    assert first.startswith(f"TensorBoard: {server.url}?smoothing=0")
    server.stop()
    server_module.open_tensorboard(root, "exp")  # it has ended: another one
    (other,) = server_module._SERVERS.values()
    assert runs_at(other.url) == ["001-lr=0.1"]
    other.stop()


@pytest.mark.slow
def test_behind_a_proxy_the_link_leads_through_it(root, capsys, monkeypatch):
    monkeypatch.setattr(server_module, "_SERVERS", {})
    monkeypatch.setenv("TENSORBOARD_PROXY_URL", "/user/me/proxy/%PORT%/")

    server_module.open_tensorboard(root)

    (server,) = server_module._SERVERS.values()
    assert f" /user/me/proxy/{urlsplit(server.url).port}/?smoothing=0" in capsys.readouterr().out
    server.stop()


@pytest.mark.slow  # a kernel starts
def test_a_notebook_shows_it_below_the_cell_until_the_kernel_ends(root):
    import nbclient
    import nbformat

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
