import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
NOTEBOOK = HOME / "experiments" / "results.ipynb"
GRID = (
    "--experiment fashion_rates --lr 0.003 0.01 --train-size 500 --batch-size 100 250 --seed 0 1 --device cpu"
)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_notebook_walks_through_the_results_of_the_grid(tmp_path):
    import nbclient
    import nbformat

    command = [sys.executable, "experiments/fashion_grid.py", "--root", str(tmp_path / "runs"), *GRID.split()]
    subprocess.run([*command, "--num-workers", "0"], cwd=HOME, check=True, capture_output=True)
    notebook = nbformat.read(NOTEBOOK, as_version=4)

    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()

    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    tables = [output["data"]["text/html"] for output in shown if "text/html" in output.get("data", {})]
    assert "test_accuracy" in tables[0]
    assert "batch_size" in tables[1]
    assert sum("image/png" in output.get("data", {}) for output in shown) == 2
    assert 'href="runs/report.html"' in tables[-1]
    assert ", the mean of 2 seeds" in (tmp_path / "runs" / "report.html").read_text(encoding="utf-8")


def test_the_stored_notebook_shows_its_whole_grid():
    import nbformat

    from experiments.results import grid_command

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    parser_arguments = grid_command(notebook)[2:]

    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [
        output for cell in cells for output in cell.outputs if output.output_type in ("error", "stream")
    ]
    assert all(cell.outputs for cell in cells[1:])
    assert NOTEBOOK.stat().st_size < 300_000
    assert {"--lr", "--batch-size", "--seed", "fashion_rates"} <= {*parser_arguments}
    assert str(HOME) not in NOTEBOOK.read_text(encoding="utf-8")
