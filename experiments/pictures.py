"""Draw docs/overview.png, the end of a grid in a terminal and its report, and docs/report.png, more of it.

    python experiments/pictures.py

It executes the grid for some minutes, in a folder of its own; what is drawn is what was printed and written. It
needs playwright, pillow and Chromium.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from io import BytesIO, StringIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import ViewportSize, sync_playwright
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

HOME = Path(__file__).parents[1]
OVERVIEW, REPORT = HOME / "docs" / "overview.png", HOME / "docs" / "report.png"
COMMAND = (
    "python experiments/fashion_grid.py --experiment clothes --train-size 6000 --epochs 3 "
    "--lr 0.01 0.003 --batch-size 100 1000 --num-workers 0 --device cpu --seed 1 2 3 4 5 6"
)
COLUMNS = 92
SIZE: ViewportSize = {"width": 1480, "height": 740}
SIZE_OF_REPORT: ViewportSize = {"width": 1000, "height": 1875}
NUM_COLORS = 255  # of the file, which is a third as large then

PAGE = """
<body style="margin: 0; background: #fff; font-family: sans-serif">
<iframe src="report.html" style="position: absolute; left: 20px; top: 20px; width: 1180px; height: 1000px;
transform: scale(0.7); transform-origin: 0 0; border: 1px solid #c9cdd4; border-radius: 14px"></iframe>
<pre style="position: absolute; right: 20px; bottom: 36px; margin: 0; padding: 14px 16px; background: #23252b;
color: #d9d9d9; font: 13px/1.35 'DejaVu Sans Mono', monospace; border-radius: 10px;
box-shadow: 0 6px 24px rgba(0, 0, 0, 0.3)">{terminal}</pre></body>
"""


def main() -> None:
    """Execute the grid, write its report, and draw both."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("experiments", "data", "runmanager"):
            (root / name).symlink_to(HOME / name)
        report = ["runmanager", "report", "runs/clothes", "--output", "report.html"]
        panel = "".join(executed(COMMAND.split(), root).rpartition("\x1b[2m━━")[1:])
        executed(report, root)
        draw(root, f"$ {COMMAND}\n{panel}\n$ {' '.join(report[:3])}")


def executed(command: Sequence[str], folder: Path) -> str:
    """Return what a command prints, with its colors."""
    python = {"python": [sys.executable], "runmanager": [sys.executable, "-m", "runmanager"]}
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    done = subprocess.run(  # noqa: S603 - our own
        [*python[command[0]], *command[1:]],
        cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return done.stdout.rstrip()


def draw(folder: Path, printed: str) -> None:
    """Write the pictures of what was printed, before the report in a folder, and of the report."""
    console = Console(record=True, file=StringIO(), width=COLUMNS, force_terminal=True)
    console.print(Text.from_ansi(printed))
    terminal = console.export_html(theme=MONOKAI, inline_styles=True, code_format="{code}").rstrip()
    page = folder / "page.html"
    page.write_text(PAGE.format(terminal=terminal), "utf-8")
    options = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=options)
        for picture, size, scale, shown in (
            (OVERVIEW, SIZE, 1.25, page),
            (REPORT, SIZE_OF_REPORT, 1, folder / "report.html"),
        ):
            tab = browser.new_page(viewport=size, device_scale_factor=scale)
            tab.goto(shown.as_uri())
            content = Image.open(BytesIO(tab.screenshot())).convert("RGB")
            content.quantize(NUM_COLORS).save(picture, optimize=True)


if __name__ == "__main__":
    main()
