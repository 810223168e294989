"""Draw the pictures of the documentation: what grids print, and the report of one.

    python experiments/pictures.py             # docs/overview.png, docs/report.png, docs/grid.gif
    python experiments/pictures.py recording   # docs/grid.gif alone

It executes grids for some minutes, in a folder of its own; what is drawn is what was printed and written. It
needs playwright, pillow, pyte and Chromium.
"""

import argparse
import fcntl
import itertools
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from html import escape
from io import BytesIO, StringIO
from pathlib import Path

import pyte
from PIL import Image
from playwright.sync_api import Page, ViewportSize
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from benchmarks.browser import browser

HOME = Path(__file__).parents[1]
OVERVIEW, REPORT, RECORDING = (HOME / "docs" / name for name in ("overview.png", "report.png", "grid.gif"))
COLUMNS, LINES = 92, 22  # of the terminal
NUM_COLORS = 255  # of a picture, which is a third as large then

COMMAND = (
    "python experiments/fashion_grid.py --experiment clothes --train-size 6000 --epochs 3 "
    "--lr 0.01 0.003 --batch-size 100 1000 --num-workers 0 --device cpu --seed 1 2 3 4 5 6 7 8"
)
SIZE: ViewportSize = {"width": 1480, "height": 740}
SIZE_OF_REPORT: ViewportSize = {"width": 1000, "height": 1875}
PAGE = """
<body style="margin: 0; background: #fff; font-family: sans-serif">
<iframe src="report.html" style="position: absolute; left: 20px; top: 20px; width: 1180px; height: 1000px;
transform: scale(0.7); transform-origin: 0 0; border: 1px solid #c9cdd4; border-radius: 14px"></iframe>
<pre style="position: absolute; right: 20px; bottom: 36px; margin: 0; padding: 14px 16px; background: #23252b;
color: #d9d9d9; font: 13px/1.35 'DejaVu Sans Mono', monospace; border-radius: 10px;
box-shadow: 0 6px 24px rgba(0, 0, 0, 0.3)">{terminal}</pre></body>
"""

RECORDED = (
    "python experiments/fashion_grid.py --train-size 6000 --epochs 3 --lr 0.01 0.003 "
    "--batch-size 100 1000 --num-workers 0 --device cpu"
)
SIZE_OF_TERMINAL: ViewportSize = {"width": 800, "height": 420}
EVERY_S = 0.25
LAST_MS = 6000  # how long the end is shown
NUM_COLORS_OF_RECORDING = 128
COLORS = {
    "default": "#d9d9d9", "red": "#ff6b6b", "green": "#7bd88f", "brown": "#e5c07b", "blue": "#6cb6ff",
    "magenta": "#d29bff", "cyan": "#5ad4e6", "white": "#ffffff", "black": "#6b7078", "brightblack": "#8b9098",
}  # fmt: skip
TERMINAL = """<body style="margin: 0; background: #23252b"><pre style="margin: 14px 16px; color: #d9d9d9;
font: 14px/1.25 'DejaVu Sans Mono', monospace">{content}</pre></body>"""

Frame = tuple[float, str]  # when it was seen (s), and the terminal as HTML


def main() -> None:
    """Execute the grids, and draw what they print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("pictures", nargs="*", help="overview, recording; by default both")
    chosen = parser.parse_args().pictures or ["overview", "recording"]
    if "overview" in chosen:
        with workplace() as root:
            report = ["runmanager", "report", "runs/clothes", "--output", "report.html"]
            panel = "".join(executed(COMMAND.split(), root).rpartition("\x1b[2m━━")[1:])
            executed(report, root)
            draw(root, f"$ {COMMAND}\n{panel}\n$ {' '.join(report[:3])}")
    if "recording" in chosen:
        with workplace() as root:
            record(list(frames([sys.executable, *RECORDED.split()[1:]], root)))


@contextmanager
def workplace() -> Iterator[Path]:
    """Make a folder in which the experiments can be executed."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("experiments", "data", "runmanager"):
            (Path(folder) / name).symlink_to(HOME / name)
        yield Path(folder)


def image_of(tab: Page) -> Image.Image:
    """Return what a tab shows."""
    return Image.open(BytesIO(tab.screenshot())).convert("RGB")


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
    with browser() as chromium:
        for picture, size, scale, shown in (
            (OVERVIEW, SIZE, 1.25, page),
            (REPORT, SIZE_OF_REPORT, 1, folder / "report.html"),
        ):
            tab = chromium.new_page(viewport=size, device_scale_factor=scale)
            tab.goto(shown.as_uri())
            image_of(tab).quantize(NUM_COLORS).save(picture, optimize=True)


def frames(command: Sequence[str], folder: Path) -> Iterator[Frame]:
    """Yield the states of the terminal, while a command is executed in it and at its end."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    stream.feed(f"$ {RECORDED}\r\n".encode())
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    began, before = time.monotonic(), ""
    process = subprocess.Popen(  # noqa: S603 - our own
        command, cwd=folder, env=environment, stdin=child, stdout=child, stderr=child
    )
    with process:
        os.close(child)
        with suppress(OSError):  # the end of a terminal whose program is gone
            while True:
                until = time.monotonic() + EVERY_S
                while (left := until - time.monotonic()) > 0:
                    if select.select([parent], [], [], left)[0]:
                        stream.feed(os.read(parent, 1 << 16))
                if (now := drawn(screen)) != before:
                    yield time.monotonic() - began, now
                    before = now
    os.close(parent)
    if process.returncode:
        raise RuntimeError(f"the grid ended with exit code {process.returncode}")
    yield time.monotonic() - began, drawn(screen)


def drawn(screen: pyte.Screen) -> str:
    """Return what a terminal shows as HTML."""
    lines = []
    for number in range(LINES):
        parts = []
        for column in range(COLUMNS):
            cell = screen.buffer[number][column]
            color = cell.fg if cell.fg.startswith("#") else COLORS.get(cell.fg, f"#{cell.fg}")
            weight = "bold" if cell.bold else "normal"
            parts.append((f"color: {color}; font-weight: {weight}", escape(cell.data)))
        lines.append(joined(parts))
    return TERMINAL.format(content="\n".join(lines))


def joined(parts: Sequence[tuple[str, str]]) -> str:
    """Put characters of one style into one element."""
    line, style = "", ""
    for new, character in parts:
        if new != style:
            line += ("</span>" if line else "") + f'<span style="{new}">'
            style = new
        line += character
    return f"{line}</span>"


def record(states: Sequence[Frame]) -> None:
    """Write the states as an animated picture, each for as long as it was seen."""
    with browser() as chromium:
        tab = chromium.new_page(viewport=SIZE_OF_TERMINAL)
        images = []
        for _, content in states:
            tab.set_content(content)
            images.append(image_of(tab))
    palette = images[-1].quantize(NUM_COLORS_OF_RECORDING)
    times = [seconds for seconds, _ in states]
    durations = [int(1000 * (after - before)) for before, after in itertools.pairwise(times)]
    first, *others = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    first.save(
        RECORDING, save_all=True, append_images=others, duration=[*durations, LAST_MS], loop=0, optimize=True
    )


if __name__ == "__main__":
    main()
