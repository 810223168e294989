"""What cells of a notebook show, all of one kernel: errors, the panel of a grid, a report and TensorBoard."""

import html
import re

import pytest

pytestmark = pytest.mark.slow  # a kernel starts
CELLS = {
    "grid": "run_grid({'lr': 0.1}, print, experiment='a b')",
    "files": "load_runs('nope')",
    "file": "open('a_file', 'w').close()\nload_runs('a_file')",
    "root": "run_grid({'lr': [0.1]}, print, experiment='x', root='a_file')",
    "hooks": "def loop():\n    RunManager('x').track_loss(1, 1)\nloop()",
    "cause": """
class Bad:
    def __reduce__(self):
        raise KeyError('deep inside')
bad = Bad()
def train(run, manager):
    bad
run_grid({'lr': [0.1]}, train, experiment='x')
""",
    "link": """
Path('my runs').mkdir()
manager = RunManager('x', 'my runs', display=False, tensorboard=False)
with manager.run(RunBuilder.get_runs({'lr': [1]})[0]):
    for _ in manager.epochs(1):
        manager.track_loss(1, 1)
report = write_report('my runs/x', 'my runs/<b>.html')
assert report == Path('my runs/<b>.html') and report.read_text() and str(report) == 'my runs/<b>.html'
report
""",
    "panel": """
def train(run, manager):
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track(val_accuracy=SCALE * run.lr)
SCALE = 2
with warnings.catch_warnings(action='error'):
    outcome = run_grid({'lr': [0.1], 'depth': [1, 2]}, train, experiment='e', jobs=2)
outcome
""",
    "panel again": "outcome",
    "board": "open_tensorboard('runs', height=300)",
}
IMPORTS = """
import warnings
from pathlib import Path
from runmanager import RunBuilder, RunManager, load_runs, open_tensorboard, run_grid, write_report
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """Execute the cells in a notebook; return what each of them shows, by name."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    cells = [nbformat.v4.new_code_cell(source) for source in (IMPORTS, *CELLS.values())]
    document = nbformat.v4.new_notebook(cells=cells)
    where = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
    nbclient.NotebookClient(document, timeout=180, allow_errors=True, resources=where).execute()
    return {name: cell.outputs for name, cell in zip(CELLS, document.cells[1:], strict=True)}


def lines_of(outputs):
    """Return the lines of a traceback as they are seen."""
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(outputs[-1]["traceback"])).splitlines()


@pytest.mark.parametrize(
    ("cell", "error", "last", "asked"),
    [
        ("grid", "GridError", "  2. values of 'lr' must be a list or tuple, got 0.1; write", ["run_grid("]),
        ("files", "InvalidArgumentError", "InvalidArgumentError: no results at 'nope': give", ["load_runs("]),
        ("file", "InvalidArgumentError", "InvalidArgumentError: 'a_file' is a file: give its", ["load_runs("]),
        ("root", "GridError", "GridError: root must be a folder, such as 'runs'; 'a_file' is", ["run_grid("]),
        ("hooks", "LifecycleError", "LifecycleError: track_loss() outside a run: write `with",
         ["loop()", "RunManager('x').track_loss"]),
    ],
)  # fmt: skip
def test_an_error_shows_the_line_of_the_user_and_the_sentence(notebook, cell, error, last, asked):
    lines = lines_of(notebook[cell])

    assert lines[1].startswith(error)
    assert lines[-1].startswith(last)
    assert not [line for line in lines if "runmanager/" in line]
    arrows = [line for line in lines if line.startswith("--")][1:]
    assert [words in line for words, line in zip(asked, arrows, strict=True)] == [True] * len(arrows)


def test_the_cause_of_an_error_keeps_the_lines_of_the_user(notebook):
    lines = lines_of(notebook["cause"])

    assert lines[-1].startswith("GridError: ")
    assert any("raise KeyError('deep inside')" in line and line.startswith("-") for line in lines)
    assert not [line for line in lines if "runmanager/" in line]


def test_a_report_is_a_path_and_a_link(notebook):
    data = notebook["link"][-1]["data"]

    assert re.match(r'<a href="my%20runs/%3Cb%3E.html".*>my runs/&lt;b&gt;.html</a>', data["text/html"])
    assert data["text/plain"] == "WrittenReport('my runs/<b>.html')"


def test_the_panel_of_a_grid_in_lanes_is_shown_once(notebook):
    log, *displayed, same_cell = notebook["panel"]
    (next_cell,) = notebook["panel again"]

    assert same_cell.data["text/html"] == ""
    assert re.match(r"<pre.*never reads .*depth.*</pre><details><summary>log .* lines<", log.data["text/html"])
    assert displayed[-1].data["text/html"] == next_cell.data["text/html"]
    assert "val_accuracy 0.2" in html.unescape(next_cell.data["text/html"])


def test_tensorboard_is_a_link_and_a_frame_below_the_cell(notebook):
    printed, frame = notebook["board"]
    link = printed.text.removeprefix("TensorBoard: ").strip()

    assert f'src="{link}"' in frame.data["text/html"].replace("&amp;", "&")
    assert 'height="300"' in frame.data["text/html"]
