"""The notebooks of experiments/: they are executed, and stored as a reader is to find them."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

HOME = Path(__file__).parents[2]
HOSTED, RESULTS = (HOME / "experiments" / f"{name}.ipynb" for name in ("hosted", "results"))
GRID = (
    "--experiment fashion_rates --lr 0.003 0.01 --train-size 500 --batch-size 100 250 --seed 0 1 --device cpu"
)


@pytest.fixture
def executed(tmp_path, monkeypatch):
    """The notebook after a fresh kernel has executed it in a folder of its own."""
    import nbclient

    monkeypatch.setenv("PYTHONPATH", str(HOME))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where TensorBoard leaves word of its process
    (tmp_path / "data").symlink_to(HOME / "data")
    notebook = nbformat.read(HOSTED, as_version=4)
    # the cell with %pip install could replace packages of the environment whose tests are running
    notebook.cells = [cell for cell in notebook.cells if not cell.source.startswith("%pip")]
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    try:
        yield client.execute(), tmp_path
    finally:
        for file in (tmp_path / ".tensorboard-info").glob("pid-*.info"):
            os.kill(json.loads(file.read_text())["pid"], signal.SIGTERM)


@pytest.mark.slow
def test_the_hosted_notebook_goes_from_an_empty_folder_to_a_verdict(executed):
    notebook, folder = executed
    shown = [output.data for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    tables = [data["text/html"] for data in shown if "text/html" in data]

    assert re.search(r"lr=0\.01 is better than lr=0\.001 by .+ decided after \d+ seeds", "".join(tables))
    assert any("tensorboard-frame" in table for table in tables)
    assert any('src="data:text/html;base64,' in table for table in tables)
    assert "epoch duration" in tables[-1]
    assert (folder / "runs" / "hosted.html").stat().st_size > 50_000


def test_the_hosted_notebook_is_stored_without_outputs_and_begins_with_the_installation():
    notebook = nbformat.read(HOSTED, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]

    assert cells[0].source.startswith("%pip install")
    assert not any(cell.outputs for cell in cells)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_notebook_walks_through_the_results_of_the_grid(tmp_path):
    import nbclient

    command = [sys.executable, "experiments/fashion_grid.py", "--root", str(tmp_path / "runs"), *GRID.split()]
    subprocess.run([*command, "--num-workers", "0"], cwd=HOME, check=True, capture_output=True)
    notebook = nbformat.read(RESULTS, as_version=4)

    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()

    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    tables = [output["data"]["text/html"] for output in shown if "text/html" in output.get("data", {})]
    assert "test_accuracy" in tables[0]
    assert "batch_size" in tables[1]
    assert sum("image/png" in output.get("data", {}) for output in shown) == 2
    assert 'href="runs/report.html"' in tables[-1]
    assert ", the mean of 2 seeds" in (tmp_path / "runs" / "report.html").read_text(encoding="utf-8")


def test_the_stored_notebook_shows_its_whole_grid():
    from experiments.results import grid_command

    notebook = nbformat.read(RESULTS, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    parser_arguments = grid_command(notebook)[2:]

    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [
        output for cell in cells for output in cell.outputs if output.output_type in ("error", "stream")
    ]
    assert all(cell.outputs for cell in cells[1:])
    assert RESULTS.stat().st_size < 300_000
    assert {"--lr", "--batch-size", "--seed", "fashion_rates"} <= {*parser_arguments}
    assert str(HOME) not in RESULTS.read_text(encoding="utf-8")
