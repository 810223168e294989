"""Execute results.ipynb on the grid that it is about, and store what it shows.

    python experiments/results.py

The grid's command is the one that the notebook's first cell names; what is completed is not executed again.
"""

import shlex
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat

NOTEBOOK = Path(__file__).with_suffix(".ipynb")


def main() -> None:
    """Execute the grid, then the notebook, and write the notebook."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    subprocess.run(grid_command(notebook), cwd=NOTEBOOK.parents[1], check=True)  # noqa: S603 - our own
    where = {"metadata": {"path": str(NOTEBOOK.parent)}}
    # without times, which would differ whenever it is executed
    nbclient.NotebookClient(notebook, timeout=600, record_timing=False, resources=where).execute()
    nbformat.write(notebook, NOTEBOOK)


def grid_command(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the command of the grid, as the first cell of the notebook has it."""
    lines = (line.strip() for line in notebook.cells[0].source.splitlines())
    command = next(line for line in lines if line.startswith("python experiments/fashion_grid.py "))
    return [sys.executable, *shlex.split(command)[1:]]


if __name__ == "__main__":
    main()
