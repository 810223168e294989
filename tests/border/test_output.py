"""output.log: what a run printed, in every executor, whatever happens to it, and what its user still sees."""

# ruff: noqa: T201, S602 - runs print

import contextlib
import ctypes
import io
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from runmanager import Executor, InlineExecutor, LanesExecutor, RayExecutor, load_runs, run_grid
from tests.border import reading
from tests.border.experiments import complete
from tests.border.screens import command

pytestmark = pytest.mark.usefixtures("own_folder")
MOST = 10_000_000
EXECUTORS: dict[str, Callable[[], Executor]] = {
    "inline": InlineExecutor,
    "lanes": lambda: LanesExecutor(jobs=2),
    "ray": lambda: RayExecutor(jobs=2),
}
LINES = [
    *("of Python", "of its errors", "of a descriptor", "of its twin", "of C", "of a process"), "of a handler",
    "of bytes",
]  # fmt: skip


def output(number=1):
    return (reading.run_folder("runs/exp", number) / "output.log").read_text()


def start(train, executor="inline", params=None, **options):
    return run_grid(
        params or {"lr": [1]}, train, experiment="exp", executor=executor, **{"display": False} | options
    )


def say_all(run, manager):
    """Print a line in each of eight ways."""
    handler = logging.StreamHandler(sys.__stderr__)
    print(f"{run.lr} of Python")
    sys.stderr.writelines([f"{run.lr} of ", "its errors\n"])
    os.write(1, f"{run.lr} of a descriptor\n".encode())
    os.write(2, f"{run.lr} of its twin\n".encode())
    ctypes.CDLL(None).printf(f"{run.lr} of C\n".encode())
    subprocess.run(f"echo {run.lr} of a process", shell=True, check=True)
    handler.emit(logging.LogRecord("", 20, "", 0, f"{run.lr} of a handler", None, None))
    sys.stdout.buffer.write(f"{run.lr} of bytes\n".encode())
    sys.stdout.buffer.flush()
    complete(run, manager)


@pytest.mark.parametrize("name", ["inline", "lanes", pytest.param("ray", marks=pytest.mark.slow)])
def test_the_file_has_what_python_c_and_processes_print_and_the_screen_too(name, capfd, request):
    if name == "ray":
        request.getfixturevalue("local_ray")

    assert start(say_all, EXECUTORS[name](), {"lr": [1, 2]}, display=True).exit_code == 0

    screen = "".join(capfd.readouterr())
    for number in (1, 2):
        lines = {f"{number} {line}" for line in LINES}
        assert lines <= {*output(number).splitlines()}
        labels = {f"[run {number}] {line}" if name != "inline" else line for line in lines}
        assert labels <= {*screen.splitlines()}


PROGRAM = """
import os, sys, time
from pathlib import Path
from runmanager import run_grid

for file in sorted(Path().glob("std*")):
    os.dup2(os.open(file, os.O_WRONLY if file.name == "stdout" else os.O_RDONLY), file.name == "stdout")

def train(run, manager):
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(1, 1)
        {}

run_grid({{"lr": [1]}}, train, experiment="exp", executor="inline", display=False, tensorboard=False)
"""


@pytest.fixture
def begin(warm, own_folder):
    """Begin a program whose run does something; return the number of its process."""

    def begin_program(body):
        (own_folder / "program.py").write_text(PROGRAM.format(body))
        return warm.begin(own_folder / "program.py")

    return begin_program


def test_what_was_printed_survives_a_kill_and_the_next_attempt_is_named(warm, begin):
    begin("print('Python', end=''); os.write(2, b' and C'); os.kill(os.getpid(), 9)")
    assert warm.wait() == -signal.SIGKILL
    assert output() == "Python and C"

    begin("print('again')")

    assert warm.wait() == 0
    assert output() == "Python and C\n--- attempt 2 ---\nagain\n"


def test_a_lane_that_is_killed_has_its_output_in_both_files():
    def train(run, manager):
        with manager.run(run):
            print("the last word")
            os.kill(os.getpid(), signal.SIGKILL)

    outcome = start(train, "lanes")

    assert outcome.runs["status"].tolist() == ["killed"]
    assert output() == "the last word\n"
    assert "the last word" in (reading.run_folder("runs/exp") / "error.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("is_of_c", [False, True])
def test_a_long_output_keeps_its_first_and_its_last_part_and_says_what_is_left_out(is_of_c):
    def train(run, manager):
        for number in range(30):
            lines = b"".join(b"%03d %0994d\n" % (number, line) for line in range(1000))
            os.write(1, lines) if is_of_c else print(lines.decode(), end="")
        complete(run, manager)

    for attempt in (1, 2):  # the parts that two attempts left out are one part
        assert start(train, changed="rerun", data=attempt).exit_code == 0

        content = (reading.run_folder("runs/exp") / "output.log").read_bytes()
        head, _, rest = content.partition(b"\n... ")
        count, _, tail = rest.partition(b" bytes are left out here ...\n")
        assert len(content) <= MOST
        assert (len(head), head[:9], tail[-999:-990]) == (5_000_000, b"000 00000", b"029 00000")
        headings = len("\n--- attempt 2 ---\n") * (attempt - 1)
        assert int(count) + len(head) + len(tail) == attempt * 30 * 999 * 1000 + headings


def test_a_full_disk_harms_no_run_and_the_user_sees_its_output(capsys):
    def train(run, manager):
        complete(run, manager)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8, hard))  # the ninth byte of a file does not fit
        try:
            print("more than eight bytes")
            print("and more", file=sys.stderr)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, handler)

    assert start(train).exit_code == 0

    assert capsys.readouterr() == ("more than eight bytes\n", "and more\n")


def test_a_folder_that_cannot_have_the_file_harms_no_run(capsys):
    def train(run, manager):
        print(sys.stdout.isatty())
        complete(run, manager)

    start(complete)
    (reading.run_folder("runs/exp") / "output.log").mkdir()

    assert start(train, changed="rerun").exit_code == 0
    assert capsys.readouterr().out == "False\n"


def test_output_that_nobody_reads_does_not_block_a_run_that_prints_by_c(warm, begin):
    os.mkfifo("stdout")
    with os.fdopen(os.open("stdout", os.O_RDWR)):  # of which nobody reads
        begin("[os.write(1, b'x' * 1000) for _ in range(1000)]; os.kill(os.getpid(), 9)")
        assert warm.wait() == -signal.SIGKILL

    assert output() == "x" * 1_000_000


def test_the_user_sees_lines_while_a_run_goes_on_which_is_kept_if_the_reader_of_its_output_is_gone(warm, begin):
    for name in ("stdin", "stdout"):
        os.mkfifo(name)
    begin("print('Python'); os.write(1, b'C\\n'); sys.stdin.read(); print('more' * 9000); os.write(1, b'C\\n')")
    with open("stdin", "w"), open("stdout") as shown:  # noqa: PTH123 - pipes
        assert [shown.readline(), shown.readline()] == ["Python\n", "C\n"]  # it waits for us

    assert warm.wait() == 0
    assert output() == "Python\nC\n" + "more" * 9000 + "\nC\n"
    assert load_runs("runs")["status"].tolist() == ["completed"]


def test_processes_that_a_run_forks_print_into_its_file(capfd):
    def train(run, manager):
        print("before")
        process = os.fork()
        if process == 0:
            print("of a fork")
            os._exit(0)
        os.waitpid(process, 0)
        complete(run, manager)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, in later versions of Python
        start(train)

    assert output() == capfd.readouterr().out == "before\nof a fork\n"


class Notebook(io.StringIO):
    """Standard output of a notebook, which has no descriptor and may be asked for anything."""

    name = "stdout of a cell"


def test_streams_without_a_descriptor_as_in_a_notebook_are_kept_too_and_stay():
    def train(run, manager):
        print("in a cell")
        names.append(sys.stdout.name)
        os.write(1, b"of C\n")
        complete(run, manager)

    names: list[str] = []
    with contextlib.redirect_stdout(Notebook()) as cell:
        start(train)
        assert sys.stdout is cell

    assert (names, cell.getvalue(), output()) == (["stdout of a cell"], *["in a cell\nof C\n"] * 2)


class Tee:
    """Standard output that is written to a log too."""

    def __init__(self, stream, log):
        self.stream, self.log = stream, log

    def write(self, text):
        self.stream.write(text)
        self.log.write(text)

    def flush(self):
        self.stream.flush()


class TeeWithDescriptor(Tee):
    def fileno(self):
        return self.stream.fileno()


@pytest.mark.parametrize("tee", [Tee, TeeWithDescriptor])
def test_a_stream_that_also_writes_a_log_shows_and_logs_each_text_once(tee, capfd):
    def train(run, manager):
        print("in a run")
        os.write(1, b"of C\n")
        time.sleep(0.2)
        complete(run, manager)

    log = io.StringIO()
    with (
        os.fdopen(1, "w", closefd=False) as stream,
        mock.patch.object(sys, "__stdout__", stream),
        contextlib.redirect_stdout(tee(stream, log)),
    ):
        start(train, display=None)

    assert output() == "in a run\nof C\n"
    for shown in (log.getvalue(), capfd.readouterr().out):
        assert [shown.count(each) for each in ("in a run\n", "of C\n", "✓ 1/1")] == [1, 1, 1]


def test_a_handler_that_a_run_adds_is_kept_in_later_runs_too_and_a_stream_that_it_sets_stays(capfd):
    def train(run, manager):
        if run.lr == 1:
            handlers.append(logging.StreamHandler())
        handlers[0].emit(logging.LogRecord("", 20, "", 0, f"run {run.lr}", None, None))
        complete(run, manager)
        if run.lr == 3:
            sys.stdout = mine

    handlers: list[logging.Handler] = []
    mine = io.StringIO()
    with (
        contextlib.redirect_stdout(sys.stdout),
        os.fdopen(2, "w", closefd=False) as errors,
        contextlib.redirect_stderr(errors),
    ):
        start(train, params={"lr": [1, 2, 3]})
        assert sys.stdout is mine

    assert [output(number) for number in (1, 2, 3)] == ["run 1\n", "run 2\n", "run 3\n"]


def test_a_silent_run_has_no_file_and_no_thread_or_descriptor_is_left():
    start(complete, params={"lr": [1, 2]})  # what torch opens once
    before = threading.active_count(), len([*Path("/dev/fd").iterdir()])

    start(complete, params={"lr": [3, 4]})

    assert (threading.active_count(), len([*Path("/dev/fd").iterdir()])) == before
    assert not list(Path("runs").rglob("output.log"))


def test_show_prints_the_output_and_a_removal_takes_it(capsys):
    def train(run, manager):
        print("10 %\r20 %\r\nlast \x1b[1m")
        complete(run, manager)

    run_grid({"lr": [1, 2]}, train, experiment="exp", executor=LanesExecutor(jobs=2), display=True)

    lines = capsys.readouterr().out.splitlines()  # the last state of a progress bar
    of_first = [line for line in lines if line.startswith("[run 1]")]
    assert of_first == ["[run 1] 20 %", r"[run 1] last \x1b[1m"]

    assert command("show", "runs/exp/1", "--output").out.splitlines() == ["20 %", r"last \x1b[1m"]
    assert "output.log" in command("show", "runs/exp/1").out
    command("rm", "runs/exp/1", "runs/exp/2", "--yes")
    assert not load_runs("runs").shape[0]
    assert not list(Path("runs").rglob("output.log"))


def test_the_folder_of_a_run_of_a_grid_is_known_from_the_beginning_of_train_on():
    folders = []

    def train(run, manager):
        folders.append(manager.folder)
        (manager.folder / "mine.txt").touch()
        complete(run, manager)
        folders.append(manager.folder)

    start(train, params={"lr": [1, 2]})

    assert folders == [Path(f"runs/exp/00{number}-lr={number}").absolute() for number in (1, 1, 2, 2)]
