import builtins
import os
import pickle
import re
import shlex
import subprocess
import sys

import pytest

from runmanager import errors

TREE = dict(re.findall(r"-- (\w+) \((\w+)\)", str(errors.__doc__)))


def test_every_error_is_in_the_documented_tree_and_is_the_builtin_one_that_a_user_expects():
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    names = [each.__name__ for each in classes if issubclass(each, errors.RunManagerError)]

    assert names == ["RunManagerError", *TREE]
    assert all(issubclass(getattr(errors, name), getattr(builtins, TREE[name])) for name in TREE)


@pytest.mark.parametrize("kind", [errors.GridError, errors.InvalidArgumentError, errors.MissingExtraError])
def test_problems_are_numbered_and_cross_a_process_border(kind):
    copy = pickle.loads(pickle.dumps(kind(["one", "two"])))

    assert (type(copy), copy.problems) == (kind, ["one", "two"])
    started = ", nothing was started" if kind is not errors.InvalidArgumentError else ""
    assert str(copy) == f"2 problems{started}:\n  1. one\n  2. two"
    assert str(kind(["one"])) == "one"


CELLS = {
    "grid": "run_grid({'lr': 0.1}, print, experiment='a b')",
    "files": "load_runs('nope')",
    "file": "open('a_file', 'w').close()\nload_runs('a_file')",
    "root": "run_grid({'lr': [0.1]}, print, experiment='x', root='a_file')",
    "hooks": "def loop():\n    RunManager('x').track_loss(1, 1)\nloop()",
    "cause": "class Bad:\n"
    "    def __reduce__(self):\n"
    "        raise KeyError('deep inside')\n"
    "bad = Bad()\n"
    "def train(run, manager):\n"
    "    bad\n"
    "run_grid({'lr': [0.1]}, train, experiment='x')",
    "link": "from pathlib import Path\n"
    "Path('my runs').mkdir()\n"
    "manager = RunManager('x', 'my runs', display=False, tensorboard=False)\n"
    "with manager.run(RunBuilder.get_runs({'lr': [1]})[0]):\n"
    "    for _ in manager.epochs(1):\n"
    "        manager.track_loss(1, 1)\n"
    "report = write_report('my runs/x', 'my runs/<b>.html')\n"
    "assert report == Path('my runs/<b>.html') and report.read_text() and str(report) == 'my runs/<b>.html'\n"
    "report",
}


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """Execute cells in a notebook; return what each of them shows, by name."""
    import nbclient
    import nbformat

    imports = "from runmanager import RunBuilder, RunManager, load_runs, run_grid, write_report"
    cells = [nbformat.v4.new_code_cell(source) for source in (imports, *CELLS.values())]
    document = nbformat.v4.new_notebook(cells=cells)
    where = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
    nbclient.NotebookClient(document, timeout=120, allow_errors=True, resources=where).execute()
    outputs = [cell.outputs[-1] for cell in document.cells[1:]]
    return dict(zip(CELLS, outputs, strict=True))


def lines_of(output):
    """Return the lines of a traceback as they are seen."""
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output["traceback"])).splitlines()


@pytest.mark.slow  # as all that need the notebook: a kernel starts
@pytest.mark.parametrize(
    ("cell", "error", "last"),
    [
        (
            "grid",
            "GridError",
            "  2. values of 'lr' must be a list or tuple, got 0.1; write lr=[0.1] for a single",
        ),
        (
            "files",
            "InvalidArgumentError",
            "InvalidArgumentError: no results at 'nope': give the folder that RunManager or run_grid",
        ),
        (
            "file",
            "InvalidArgumentError",
            "InvalidArgumentError: 'a_file' is a file: give its folder,",
        ),
        ("root", "GridError", "GridError: root must be a folder, such as 'runs'; 'a_file' is a file"),
        (
            "hooks",
            "LifecycleError",
            "LifecycleError: track_loss() outside a run: write `with manager.run(run, ",
        ),
    ],
)
def test_a_notebook_shows_the_line_of_the_user_and_the_sentence(notebook, cell, error, last):
    lines = lines_of(notebook[cell])

    assert lines[1].startswith(error)
    assert lines[-1].startswith(last)
    assert not [line for line in lines if "runmanager/" in line]
    arrows = [line for line in lines if line.startswith("--")][1:]
    calls = {"grid": "run_grid(", "root": "run_grid("}
    asked = ["loop()", "RunManager('x').track_loss"] if cell == "hooks" else [calls.get(cell, "load_runs(")]
    assert [words in line for words, line in zip(asked, arrows, strict=True)] == [True] * len(arrows)


@pytest.mark.slow
def test_the_cause_of_an_error_keeps_the_lines_of_the_user(notebook):
    lines = lines_of(notebook["cause"])

    assert lines[-1].startswith("GridError: ")
    assert any("raise KeyError('deep inside')" in line and line.startswith("-") for line in lines)
    assert not [line for line in lines if "runmanager/" in line]


@pytest.mark.slow
def test_a_report_is_a_path_and_a_link(notebook):
    data = notebook["link"]["data"]

    assert data["text/html"] == (
        '<a href="my%20runs/%3Cb%3E.html" target="_blank" rel="noopener">my runs/&lt;b&gt;.html</a>'
    )
    assert data["text/plain"] == "WrittenReport('my runs/<b>.html')"


SCRIPT = """
import runmanager
def train(run, manager):
    raise ValueError("as the user wrote it")
runmanager.run_grid({"lr": []}, train, experiment="e")
"""


@pytest.mark.slow
def test_a_script_shows_its_own_line_and_the_sentence_alone(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False
    )

    frames = [line for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert [shlex.split(line)[1].rpartition("/")[2] for line in frames] == ["script.py,"]
    assert done.stderr.splitlines()[-1].endswith(
        "axis 'lr' has no values: give it at least one, or leave it out"
    )
