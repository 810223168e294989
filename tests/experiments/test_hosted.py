import json
import os
import re
import signal
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
NOTEBOOK = HOME / "experiments" / "hosted.ipynb"


@pytest.fixture
def executed(tmp_path, monkeypatch):
    """The notebook after a fresh kernel has executed it in a folder of its own."""
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(HOME))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where TensorBoard leaves word of its process
    (tmp_path / "data").symlink_to(HOME / "data")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    # the cell with %pip install could replace packages of the environment whose tests are running
    notebook.cells = [cell for cell in notebook.cells if not cell.source.startswith("%pip")]
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    try:
        yield client.execute(), tmp_path
    finally:
        for file in (tmp_path / ".tensorboard-info").glob("pid-*.info"):
            os.kill(json.loads(file.read_text())["pid"], signal.SIGTERM)


@pytest.mark.slow
def test_it_goes_from_an_empty_folder_to_a_verdict(executed):
    notebook, folder = executed
    shown = [output.data for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    tables = [data["text/html"] for data in shown if "text/html" in data]

    assert re.search(r"lr=0\.01 is better than lr=0\.001 by .+ decided after \d+ seeds", "".join(tables))
    assert any("tensorboard-frame" in table for table in tables)
    assert any('src="data:text/html;base64,' in table for table in tables)
    assert "epoch duration" in tables[-1]
    assert (folder / "runs" / "hosted.html").stat().st_size > 50_000


def test_it_is_stored_without_outputs_and_begins_with_the_installation():
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]

    assert cells[0].source.startswith("%pip install")
    assert not any(cell.outputs for cell in cells)
