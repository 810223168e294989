import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from runmanager import RunManager, RunManagerError, open_tensorboard
from runmanager.tensorboard.server import start
from tests.board.reading import train

HOME = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    train(RunManager("exp", folder, display=False), {"lr": 0.1})
    return folder


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
def test_it_answers_on_this_machine_and_says_nothing(root, capfd):
    url = start(root)

    assert urlsplit(url).hostname == "127.0.0.1"
    assert runs_at(url) == ["exp/001-lr=0.1"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_port_that_is_taken_is_refused(root):
    port = urlsplit(start(root)).port

    with pytest.raises(
        RunManagerError, match=f"^port {port} is in use: choose another, or 0 for any that is free$"
    ):
        start(root, port)


@pytest.mark.slow
def test_an_address_that_is_not_of_this_machine_is_refused(root):
    with pytest.raises(
        RunManagerError, match=r"did not start on 192\.0\.2\.1, port 0: .+"
    ):  # for documentation
        start(root, host="192.0.2.1")


@pytest.mark.slow
def test_it_outlives_an_interrupt_and_ends_with_a_process_that_is_killed(root):
    program = (
        "import signal, time; from pathlib import Path; from runmanager.tensorboard.server import start\n"
        "signal.signal(signal.SIGINT, lambda *_: None)\n"
        f"print(start(Path({str(root)!r})), flush=True); time.sleep(60)"
    )

    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=HOME, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout
        url = process.stdout.readline().strip()
        assert runs_at(url)
        os.killpg(process.pid, signal.SIGINT)  # as a notebook interrupts a cell
        time.sleep(0.5)
        assert runs_at(url)
        process.kill()

    wait_until_gone(url)


@pytest.mark.slow
def test_it_says_nothing_when_loaders_fork_the_process(root):
    program = (
        "import os, threading, urllib.request; from pathlib import Path\n"
        "from runmanager.tensorboard.server import start\n"
        f"url = start(Path({str(root)!r}))\n"
        "def poll():\n    while True: urllib.request.urlopen(url + 'data/runs').read()\n"
        "threading.Thread(target=poll, daemon=True).start()\n"
        "for _ in range(100):\n    child = os.fork()\n    if not child: os._exit(0)\n    os.waitpid(child, 0)\n"
        "os._exit(0)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=HOME, capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stderr == ""


@pytest.mark.slow
def test_without_a_notebook_the_link_is_printed_and_the_same_server_shows_it_again(root, capsys, monkeypatch):

    for folder, experiment in ((root, "exp"), (root / "exp", None)):
        open_tensorboard(folder, experiment)

    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    assert re.match(r"TensorBoard: http://127.0.0.1:\d+/\?smoothing=0", first)


@pytest.mark.slow
def test_behind_a_proxy_the_link_leads_through_it(root, capsys, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_PROXY_URL", "/user/me/proxy/%PORT%/")

    open_tensorboard(root)

    assert re.match(r"TensorBoard: /user/me/proxy/\d+/\?smoothing=0", capsys.readouterr().out)


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
