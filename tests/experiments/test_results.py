import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

HOME = Path(__file__).parents[2]
GRID = "--train-size 500 --batch-size 100 250 --device cpu cuda --seed 0 1"


@pytest.mark.slow
def test_the_notebook_walks_through_the_results_of_the_grid(tmp_path):
    command = [sys.executable, "experiments/fashion_grid.py", "--root", str(tmp_path / "runs"), *GRID.split()]
    subprocess.run(command, cwd=HOME, check=True, capture_output=True)
    notebook = nbformat.read(HOME / "experiments" / "results.ipynb", as_version=4)

    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()

    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    tables = [output["data"]["text/html"] for output in shown if "text/html" in output.get("data", {})]
    assert "test_accuracy" in tables[0]
    assert "batch_size" in tables[1]
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert "Run " in (tmp_path / "runs" / "report.html").read_text(encoding="utf-8")
