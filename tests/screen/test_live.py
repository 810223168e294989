import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from runmanager import Decide, InlineExecutor, RunBuilder, run_grid
from runmanager.executors import BatchProgress
from runmanager.executors.signals import Stop
from runmanager.outcome import EpochRecord, Outcome, Status
from runmanager.screen import live
from runmanager.storage.design import Design
from runmanager.storage.folders import RunFolder
from runmanager.storage.identity import identity
from runmanager.storage.run_state import RunResult
from tests.screen.telling import progress_of, told

RUNS = RunBuilder.get_runs({"lr": [0.010, 0.020], "net": ["a"], "device": ["cpu"]})
FOLDERS = [
    RunFolder(Path("runs/exp/007-x=1"), number, identity(run._asdict()), run._asdict())
    for number, run in enumerate(RUNS, 7)
]
RECORD = EpochRecord(1, {"loss": 0.598666, "test_accuracy": 0.75, "run duration": 7.5, "f1": 1.0})
COMPLETED = Outcome(Status.COMPLETED, "", 3)


def grid(**options):
    return progress_of(FOLDERS, ["lr"], **options)


def printed(capsys):
    """Return what was printed, without how long runs took."""
    return [
        line.rpartition(" · ")[0] if line.endswith(" s") else line
        for line in capsys.readouterr().out.splitlines()
    ]


@pytest.fixture
def terminal(open_terminal, monkeypatch):
    """A terminal of 100 columns, which is shown so often that no test has to wait for it."""
    monkeypatch.setattr(live, "_LIVE_S", 0.001)
    return open_terminal()


def wait_for(condition):
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    assert condition()


def test_a_run_that_was_never_begun_ends_too(capsys):
    with grid() as shown:
        told(shown).run_progressed(RUNS[0], RECORD)  # late news of a run that ended change nothing
        told(shown).run_ended(RUNS[0], Outcome(Status.UNAVAILABLE, "cuda:1 is lost"), "")

    assert capsys.readouterr().out == "✗ 1/2 run 7 lr=0.01 · unavailable · cuda:1 is lost\n"


def journal_of(folder):
    return RunResult(
        folder, Status.COMPLETED, [EpochRecord(1, {"test_accuracy": folder.params["lr"]})], 1, "", {}
    )


def test_a_terminal_shows_the_lanes_and_the_grid_live(terminal, monkeypatch):
    monkeypatch.setattr(live, "read_run", journal_of)

    with grid(lanes=2, past=[({"lr": 0.3}, 3600.0)]) as shown:
        starting = terminal.wait_for("0/2")
        shown.say("exp: 2 runs")
        told(shown).run_started(RUNS[0], 0, "cuda:0")
        told(shown).run_started(RUNS[1], 1, "cpu")
        told(shown).run_progressed(RUNS[0], RECORD)
        told(shown).run_progressed(RUNS[0], BatchProgress(4, 14, 9, 60, 0.25))
        running = terminal.wait_for("14/60", "0.25")
        told(shown).run_ended(RUNS[1], COMPLETED, "")
        one = terminal.wait_for("1/2", "idle", "best so far")
        told(shown).run_ended(RUNS[0], Outcome(Status.DIVERGED, "loss became nan", 3), "it is not repeated")

    assert starting[-1].endswith("0/2  0 s  starting")
    assert running[:2] == [
        "exp: 2 runs",
        "       run    lr  device  epoch  run duration  test_accuracy    loss",
    ]
    assert running[2] == "…        7  0.01  cuda:0    4/9           7 s         0.7500  0.2500  step 14/60"
    assert running[-1].endswith(" left")
    assert one[1] == running[1]  # runs that have ended have the columns of those that go on
    assert re.match(r"✓ 1/2    8  0\.02  cpu", one[2])
    assert one[-2] == "best so far  test_accuracy 0.02 · run 8 · lr=0.02"
    lines = terminal.last_lines()
    assert re.fullmatch(
        r"✗ 2/2    7  0\.01  cuda:0    4/9        7\.50 s  diverged · loss became nan", lines[3]
    )
    assert lines[4:] == ["    it is not repeated"]  # the picture is gone at the end
    assert not terminal.screen.cursor.hidden


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_a_completed_run_with_eight_hyperparameters_is_one_line(open_terminal, width):
    axes = {
        "lr": [0.001, 0.01], "batch_size": [1000], "num_workers": [0, 4], "optimizer": ["adam", "sgd"],
        "dropout": [0.1, 0.25], "width": [128, 512], "depth": [3], "seed": [1, 2],
    }  # fmt: skip
    runs = RunBuilder.get_runs(axes)
    folders = [
        RunFolder(Path("runs/exp/7_x"), number, identity(run._asdict()), run._asdict())
        for number, run in enumerate(runs, 1)
    ]
    terminal = open_terminal(width)
    record = EpochRecord(
        1, {"loss": 0.51234, "accuracy": 0.7, "validation_accuracy": 0.76543, "run duration": 7.5}
    )

    with progress_of(folders, list(axes), Design(repeats=("seed",))) as shown:
        for run in runs[:3]:
            told(shown).run_started(run, 0, "cpu")
            told(shown).run_progressed(run, record)
            told(shown).run_ended(run, COMPLETED, "")
        lines = terminal.wait_for("3/64")

    begin = next(index for index, line in enumerate(lines) if line.startswith("✓"))
    headings, *rows = lines[begin - 1 : begin + 3]
    assert [row.split()[:2] for row in rows] == [["✓", f"{number}/64"] for number in (1, 2, 3)]
    assert all(row.split()[3] == "0.001" and "0.7654" in row for row in rows)
    ends = [headings.index(name) + len(name) for name in ("run", "lr")]
    assert all(row[end - 1] != " " and row[end : end + 1] in ("", " ") for row in rows for end in ends)
    assert ("seed" in headings) == (width >= 100)
    assert (lines[0].startswith("(not shown: ") and lines[0].endswith("seed)")) == (width < 100)


def test_headings_that_have_scrolled_away_are_printed_again(open_terminal):
    terminal = open_terminal()
    runs = RunBuilder.get_runs({"lr": [number / 100 for number in range(1, 51)]})
    folders = [
        RunFolder(Path("runs/exp/7_x"), number, identity(run._asdict()), run._asdict())
        for number, run in enumerate(runs, 1)
    ]

    with progress_of(folders, ["lr"]) as shown:
        for run in runs:
            told(shown).run_started(run, 0, "cpu")
            told(shown).run_progressed(run, RECORD)
            told(shown).run_ended(run, COMPLETED, "")

    lines = terminal.last_lines()
    assert [index for index, line in enumerate(lines) if "test_accuracy" in line] == [0, 21, 42]
    assert len(lines) == 53


def test_the_axes_that_repeat_are_the_last(open_terminal):
    terminal = open_terminal()

    with progress_of(FOLDERS, ["lr", "net"], Design(repeats=("lr",))) as shown:
        told(shown).run_started(RUNS[0], 0, "cpu")
        head = terminal.wait_for("epoch")[0]

    assert head.split()[1:3] == ["net", "lr"]


@pytest.mark.parametrize(("encoding", "bar"), [("ascii", "."), ("latin-1", "."), ("utf-8", "╌")])
def test_no_symbol_ends_a_grid_in_a_terminal_of_another_encoding(open_terminal, encoding, bar):
    terminal = open_terminal(encoding=encoding)

    with grid() as shown:
        told(shown).run_started(RUNS[0], 0, "cpu")
        told(shown).run_ended(RUNS[0], Outcome(Status.FAILED, "ValueError: … —"), "")
        lines = terminal.wait_for("1/2", "failed")

    assert lines[1].startswith("✗ 1/2" if encoding == "utf-8" else "x 1/2")
    assert f"{bar * 20}  1/2" in lines[-1]


def test_the_word_tensorboard_leads_to_its_page(terminal):
    with grid(page=lambda: "http://localhost:6006/?smoothing=0") as shown:
        shown.say("TensorBoard: runmanager tensorboard runs")
        lines = terminal.wait_for("TensorBoard")

    assert lines[0] == "TensorBoard: runmanager tensorboard runs"
    link = rb"\x1b\]8;[^;]*;http://localhost:6006/\?smoothing=0\x1b\\(?:\x1b\[[0-9;]*m)?TensorBoard"
    assert re.search(link, terminal.all_bytes())


def test_a_terminal_that_is_made_narrower_or_wider_gets_what_fits(terminal):
    with grid() as shown:
        told(shown).run_started(RUNS[0], 0, "cpu")
        told(shown).run_progressed(RUNS[0], RECORD)
        terminal.wait_for("test_accuracy", "0.5987")
        terminal.resize(50, 24)
        told(shown).run_progressed(RUNS[0], EpochRecord(4, {"loss": 0.25, "test_accuracy": 0.5}))
        narrow = terminal.wait_for("duration", "0.5000")
        terminal.resize(120, 24)
        told(shown).run_progressed(RUNS[0], EpochRecord(5, {"loss": 0.125, "test_accuracy": 0.5}))
        terminal.wait_for("test_accuracy", "0.125")

    assert all(len(line) <= 50 for line in narrow[-3:])


def test_a_cause_without_room_is_explained_by_the_first_run_that_has_it(open_terminal):
    terminal = open_terminal(60)

    with grid() as shown:
        for step, run in enumerate(RUNS):
            error = f"loss became nan in epoch 3, step {step}; before it was 0.2{step}"
            told(shown).run_started(run, 0, "cpu")
            told(shown).run_progressed(run, RECORD)
            told(shown).run_ended(run, Outcome(Status.DIVERGED, error), f"the log is {step}.log")

    _, first, cause, step, second = terminal.last_lines()
    assert re.fullmatch(r"✗ 1/2    7  0\.01      1        7\.50 s  diverged", first)
    assert cause == "    loss became nan in epoch 3, step 0; before it was 0.20"
    assert step == "    the log is 0.log"
    assert re.fullmatch(r"✗ 2/2    8  0\.02      1        7\.50 s  diverged · as run 7", second)


class Preparing(InlineExecutor):
    """Says what the user sees before anything that takes long."""

    def __init__(self, look):
        super().__init__()
        self.look = look
        self.seen = None

    def prepare(self, train, folder):
        self.seen = self.look()
        super().prepare(train, folder)


@pytest.mark.parametrize(("term", "stays"), [("xterm-256color", False), ("dumb", True)])
def test_a_grid_shows_a_first_line_before_anything_that_takes_long(open_terminal, tmp_path, term, stays):
    terminal = open_terminal(term=term)
    executor = Preparing(terminal.last_lines)

    run_grid({"lr": [0.1, 0.2]}, print, experiment="exp", root=tmp_path, executor=executor, plan_only=True)

    assert executor.seen == ["exp: starting 2 runs"]
    assert ("exp: starting 2 runs" in terminal.last_lines()) == stays


def test_the_first_line_of_a_decided_grid_has_its_limit(open_terminal, tmp_path):
    terminal = open_terminal(term="dumb")
    grid = {"lr": [0.1, 0.2]}

    run_grid(
        grid, print, experiment="exp", root=tmp_path, executor="inline", plan_only=True, goal="max:score",
        repeats="seed", decide=Decide(max_repeats=8),
    )  # fmt: skip

    assert "exp: starting up to 16 runs" in terminal.last_lines()


def test_nothing_comes_between_a_failure_and_its_next_step(terminal, monkeypatch):
    monkeypatch.setattr(live, "_LIVE_S", 60.0)

    with grid() as shown:
        told(shown).run_ended(RUNS[0], Outcome(Status.FAILED, "no"), "look into error.log")
        lines = terminal.wait_for("look into error.log")

    assert lines[1].endswith("failed · no")
    assert lines[2] == "    look into error.log"


@pytest.mark.parametrize(
    ("said", "lines"),
    [
        ("a\x1b[2Jb\tc", [r"a\x1b[2Jb  c"]),
        ("one\r\ntwo\n", ["one", "two", ""]),
        (" 10%\r 50%\r100%", ["100%"]),
        ("x" * 1000, ["x" * 1000]),
        ("[bold]", ["[bold]"]),
    ],
)
def test_what_runs_print_steers_no_terminal(capsys, said, lines):
    grid().say(said)

    assert capsys.readouterr().out.splitlines() == lines


def test_without_a_terminal_a_line_tells_of_the_whole_grid_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(live, "_PLAIN_S", 0.001)
    monkeypatch.setattr(live, "_CLOCK_S", 0.0)
    said: list[str] = []
    shown = grid(past=[({"lr": 0.3}, 600.0)])
    monkeypatch.setattr(shown, "say", said.append)

    with shown:
        wait_for(lambda: len(said) == 1)
        told(shown).run_started(RUNS[0], 0, "cpu")
        told(shown).run_progressed(RUNS[0], RECORD)
        wait_for(lambda: len(said) == 2)
        time.sleep(0.02)  # nothing changes: nothing is said

    assert said == [f"0/2 done, {n} running, 20 min left" for n in (0, 1)]
    assert capsys.readouterr().out == ""


def test_runs_that_ended_tell_how_long_the_others_take(monkeypatch):
    times = iter(range(0, 1000, 100))
    shown = grid(show=False)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(times)))

    before = shown._time_left(0.0)
    told(shown).run_started(RUNS[0], 0, "cpu")
    told(shown).run_ended(RUNS[0], COMPLETED, "")

    assert before is None
    assert shown._time_left(0.0) == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("running", "what"),
    [
        (0, ""),
        (1, ": 1 running run stops now; what came after its last checkpoint is dropped"),
        (2, ": 2 running runs stop now; what came after their last checkpoint is dropped"),
    ],
)
def test_it_is_said_once_that_a_grid_stops(capsys, running, what):
    with grid(lanes=2) as shown:
        for lane, run in enumerate(RUNS[:running]):
            told(shown).run_started(run, lane, "cpu")
        shown.stopping(Stop())
        shown.stopping(Stop())

    assert capsys.readouterr().out == f"Stopping{what}. Press Ctrl-C again to stop without waiting.\n"


def test_no_thread_is_left(terminal):
    with pytest.raises(KeyboardInterrupt), grid():
        raise KeyboardInterrupt

    assert [thread.name for thread in threading.enumerate() if thread.name == "progress"] == []
    assert b"\x1b[?25h" in terminal.all_bytes()  # the cursor is back


@pytest.mark.slow(everywhere=True)
def test_ipython_is_not_imported():
    program = (
        "import sys; from runmanager.screen.live import GridProgress\n"
        "with GridProgress('exp'): print('IPython' in sys.modules, 'ipywidgets' in sys.modules)"
    )

    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert found.stdout == "False False\n"


NOTEBOOK = """
import warnings
warnings.simplefilter("error")
from runmanager import run_grid
from runmanager.screen import live
live._LIVE_S = live._CLOCK_S = 0.01

def train(run, manager):
    with manager.run(run):
        for epoch in manager.epochs(3):
            manager.track_loss(run.lr, 1)
            if run.lr == 0.2 and epoch == 2:
                raise ValueError("<b>no</b>")

grid = {"lr": [0.2, *(n / 10 for n in range(3, 13))]}
outcome = run_grid(grid, train, experiment="exp", executor="inline", tensorboard=False)
"""


@pytest.mark.slow
def test_a_notebook_shows_the_same_in_place(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cell = nbformat.v4.new_code_cell(NOTEBOOK)
    notebook = nbformat.v4.new_notebook(cells=[cell])

    pages = []

    process_message = nbclient.NotebookClient.process_message

    def process_and_keep(self, message, cell, index):
        if message["msg_type"] == "update_display_data":
            pages.append(message["content"]["data"].get("text/html", ""))
        return process_message(self, message, cell, index)

    monkeypatch.setattr(nbclient.NotebookClient, "process_message", process_and_keep)
    nbclient.NotebookClient(notebook, timeout=180, resources={"metadata": {"path": str(tmp_path)}}).execute()

    outputs = cell.outputs
    assert [output.output_type for output in outputs] == ["display_data"] * 3
    lines, runs, panel = (output.data["text/plain"] for output in outputs)
    assert lines == "runs/exp: 11 runs, 11 to execute"
    assert re.search(
        r"✗  1/11    1  0\.2    1/3 +\d\.\d+ s  failed\n    ValueError: <b>no</b> .*\n    see ", runs
    )
    assert re.search(r"✓  2/11    2  0\.3    3/3 +\d\.\d+ s  0\.3000\n", runs)
    assert "✓ Run 2 (lr=0.3) is best: loss 0.3" in panel
    page = outputs[1].data["text/html"]
    assert "ValueError: &lt;b&gt;no&lt;/b&gt;" in page
    assert page.startswith("<details><summary>11 ended runs</summary>")
    assert "<progress" not in page  # no frame of what is over
    tables = [page for page in pages if 'class="dataframe"' in page and "summary" not in page]
    assert "<progress" in tables[-1]
    assert "best so far: loss 0.3 · run 2 · lr=0.3" in tables[-1]


def test_an_ended_run_shows_the_duration_of_its_journal_and_the_number_that_ranks_it(capsys, monkeypatch):
    values = (0.5, 0.9, 0.75)
    epochs = [EpochRecord(n, {"accuracy": v, "run duration": n / 4}) for n, v in enumerate(values, 1)]
    kept = RunResult(FOLDERS[0], Status.COMPLETED, epochs, 1, "", {"keep": "best:accuracy"})
    monkeypatch.setattr(live, "read_run", lambda _: kept)

    with grid() as shown:
        told(shown).run_started(RUNS[0], 0, "cpu")
        time.sleep(0.1)  # as long as its data take
        for record in epochs:
            told(shown).run_progressed(RUNS[0], record)
        told(shown).run_ended(RUNS[0], COMPLETED, "")

    (line,) = capsys.readouterr().out.splitlines()
    assert line == "✓ 1/2 run 7 lr=0.01 · kept accuracy 0.9000 · accuracy 0.7500 · 0.750 s"
    assert str(shown._best).startswith("kept accuracy 0.9 · run 7")
