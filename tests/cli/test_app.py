import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import runmanager
from runmanager import RunManager
from runmanager.board.launch import Server
from runmanager.cli.app import app
from runmanager.devices.torch_devices import available_devices
from tests.board.reading import train


def test_a_folder_that_is_not_there_is_refused_without_a_traceback(tmp_path):
    result = CliRunner().invoke(app, ["list", str(tmp_path / "missing")])

    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_the_devices_of_this_machine_are_listed():
    result = CliRunner().invoke(app, ["devices"])

    assert result.exit_code == 0
    for name in available_devices():
        assert f"\n{name} " in result.stdout
    assert "memory_gib" in result.stdout


def test_the_version_is_that_of_the_package():
    result = CliRunner().invoke(app, ["--version"])

    assert (result.exit_code, result.output) == (0, f"runmanager {runmanager.__version__}\n")


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["list", "missing"], 2), ([], 2)])
def test_python_m_is_the_same_command(tmp_path, arguments, code):
    done = subprocess.run(
        [sys.executable, "-m", "runmanager", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(runmanager.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )

    result = CliRunner().invoke(app, arguments, prog_name="python -m runmanager")
    assert (done.returncode, done.stdout, done.stderr) == (code, result.stdout, result.stderr)


@pytest.mark.slow(everywhere=True)
def test_help_imports_nothing_heavy():
    heavy = ("torch", "tensorboard", "pandas", "numpy")
    program = (
        "import sys\n"
        "from runmanager.cli.app import app\n"
        "try:\n"
        "    app(['--help'])\n"
        "finally:\n"
        f"    print([name for name in {heavy} if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "tensorboard" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", ["list", "show", "best", "compare", "report", "export", "rm"])
def test_the_examples_of_a_command_are_one_line_each(command, name):
    lines = [line.rstrip() for line in command(name, "--help").stdout.splitlines()]

    first = lines.index(" For example:") + 2
    assert all(line.startswith(f"   runmanager {name}") for line in lines[first : lines.index("", first)])
    assert any(line.startswith(" Exit codes: 0 ") for line in lines)


def test_the_list_of_commands_has_one_line_for_each(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    lines = command("--help").stdout.splitlines()

    first = next(index for index, line in enumerate(lines) if " Results " in line)
    assert len([line for line in lines[first:] if line.startswith("│")]) == len(app.registered_commands)


@pytest.mark.parametrize("name", ["list", "compare", "diff", "report", "note", "rm"])
def test_arguments_have_no_types_of_python(command, name):
    lines = command(name, "--help").stdout.splitlines()

    first = next(index for index, line in enumerate(lines) if " Arguments " in line)
    end = next(index for index, line in enumerate(lines[first:], first) if line.startswith("╰"))
    assert "<" not in "".join(lines[first:end])


@pytest.fixture
def root(tmp_path):
    train(RunManager("exp", tmp_path, display=False), {"lr": 0.1})
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["{root}/missing"], "no folder '{root}/missing': give the folder"),
        (["{root}", "--experiment", "other"], "no runs of an experiment 'other'; it has those of: exp"),
        (["{root}/exp/001-lr=0.1/empty"], "start a grid first, or give the folder that it wrote"),
        (["{root}", "--host", "0.0.0.0"], "all addresses of this machine are asked for by --bind-all"),  # noqa: S104
        (["{root}", "--host", "localhost", "--bind-all"], "asked for by --bind-all, without --host"),
        (["{root}", "--port", "{port}"], "port {port} is in use: choose another, or 0 for any that is free"),
    ],
)
def test_what_tensorboard_cannot_show_is_refused_without_a_traceback(root, arguments, problem):
    (root / "exp" / "001-lr=0.1" / "empty").mkdir()

    with socket.create_server(("127.0.0.1", 0)) as taken:
        names = {"root": root, "port": taken.getsockname()[1]}
        result = CliRunner().invoke(app, ["tensorboard", *(part.format(**names) for part in arguments)])

    assert result.exit_code == 2
    assert problem.format(**names) in " ".join(result.output.replace("│", " ").split())
    assert "Traceback" not in result.output


@pytest.mark.slow
@pytest.mark.parametrize("display", [":0", ""])
def test_tensorboard_is_opened_where_there_is_a_display(root, monkeypatch, display):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(Server, "wait", interrupt)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", display)

    result = CliRunner().invoke(app, ["tensorboard", str(root), "--port", "0"])

    (link,) = re.findall(r"TensorBoard: (http://127\.0\.0\.1:\d+/)\n", result.stdout)
    assert [page.partition("?")[0] for page in opened] == ([link] if display else [])
    assert all(page.endswith("#timeseries&_smoothingWeight=0") for page in opened)


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_the_printed_link_of_tensorboard_is_short_and_leads_to_the_configured_page(root, monkeypatch, term):
    def begin(server: Server, *_: Any) -> None:
        server.url = "http://127.0.0.1:6006/"

    monkeypatch.setattr(Server, "__init__", begin)
    monkeypatch.setattr(Server, "stop", lambda _: None)
    monkeypatch.setattr(Server, "wait", interrupt)
    monkeypatch.setattr("webbrowser.open", lambda _: None)

    result = CliRunner().invoke(
        app, ["tensorboard", str(root)], env={"FORCE_COLOR": "1", "TERM": term}, color=True
    )

    shown = re.sub(r"\x1b(\]8;[^\x1b]*\x1b\\|\[[\d;]*m)", "", result.stdout)
    assert shown.startswith("TensorBoard: http://127.0.0.1:6006/\nCtrl-C ends it.")
    page = re.findall(
        r"\x1b\]8;[^;]*;(http://127.0.0.1:6006/\?smoothing=0\S*#timeseries[^\x1b]*)", result.stdout
    )
    assert len(page) == (term != "dumb")


@pytest.mark.slow(everywhere=True)
def test_tensorboard_of_one_experiment_is_started_on_its_folder(root, monkeypatch):
    logdirs: list[Path] = []
    start = Server.__init__

    def record(server: Server, logdir: Path, *options: Any) -> None:
        logdirs.append(logdir)
        start(server, logdir, *options)

    monkeypatch.setattr(Server, "__init__", record)
    monkeypatch.setattr(Server, "wait", interrupt)

    for arguments in ([], ["--experiment", "exp"]):
        CliRunner().invoke(app, ["tensorboard", str(root), "--port", "0", *arguments])

    assert logdirs == [root, root / "exp"]


def interrupt(_: Server) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_ctrl_c_ends_tensorboard_without_a_traceback(root):
    command = [
        sys.executable,
        "-c",
        "from runmanager.cli.app import app; app()",
        "tensorboard",
        str(root),
        "--port",
        "0",
    ]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert "TensorBoard: http://127.0.0.1:" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)

    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message", "help_of"),
    [
        (["best", "--gaol", "loss"], "no such option '--gaol'; did you mean '--goal'?", " best"),
        (["devices", "--x"], "no such option '--x'; it has: --help", " devices"),
        (["--verison"], "no such option '--verison'; did you mean '--version'?", ""),
        (["show"], "missing argument 'RUN'", " show"),
        (["best", "--goal"], "option '--goal' requires an argument", ""),
        (["list", "a", "b"], "got unexpected extra argument", " list"),
        (["tensorboard", "--port", "70000"], "--port is a number from 0 to 65535, got 70000", None),
    ],
)
def test_a_command_line_that_cannot_be_read_is_answered_as_every_error(command, arguments, message, help_of):
    result = command(*arguments, prog_name="runmanager")

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"runmanager: {message}")
    if help_of is not None:
        assert result.stderr.endswith(f"\nsee: runmanager{help_of} --help\n")
