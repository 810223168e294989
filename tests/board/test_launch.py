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

from runmanager import RunManager, RunManagerError
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
