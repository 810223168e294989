"""Record docs/grid.gif: a grid in a terminal, from its first line to its last.

    python experiments/recording.py

It executes a small grid for some seconds, in a folder of its own; what is drawn is what the terminal had. It
needs pyte, playwright, pillow and Chromium.
"""

import fcntl
import itertools
import os
import pty
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from html import escape
from io import BytesIO
from pathlib import Path

import pyte
from PIL import Image
from playwright.sync_api import ViewportSize, sync_playwright

HOME = Path(__file__).parents[1]
PICTURE = HOME / "docs" / "grid.gif"
COMMAND = (
    "python experiments/fashion_grid.py --train-size 6000 --epochs 3 --lr 0.01 0.003 "
    "--batch-size 100 1000 --num-workers 0 --device cpu"
)
COLUMNS, LINES = 92, 22
SIZE: ViewportSize = {"width": 800, "height": 420}
EVERY_S = 0.25
LAST_MS = 6000  # how long the end is shown
NUM_COLORS = 128
COLORS = {
    "default": "#d9d9d9", "red": "#ff6b6b", "green": "#7bd88f", "brown": "#e5c07b", "blue": "#6cb6ff",
    "magenta": "#d29bff", "cyan": "#5ad4e6", "white": "#ffffff", "black": "#6b7078", "brightblack": "#8b9098",
}  # fmt: skip
PAGE = """<body style="margin: 0; background: #23252b"><pre style="margin: 14px 16px; color: #d9d9d9;
font: 14px/1.25 'DejaVu Sans Mono', monospace">{content}</pre></body>"""

Frame = tuple[float, str]  # when it was seen (s), and the terminal as HTML


def main() -> None:
    """Execute the grid in a terminal, and draw each of its states."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("experiments", "data", "runmanager"):
            (root / name).symlink_to(HOME / name)
        draw(list(frames([sys.executable, *COMMAND.split()[1:]], root)))


def frames(command: Sequence[str], folder: Path) -> Iterator[Frame]:
    """Yield the states of the terminal, while a command is executed in it and at its end."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    stream.feed(f"$ {COMMAND}\r\n".encode())
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
    return PAGE.format(content="\n".join(lines))


def joined(parts: Sequence[tuple[str, str]]) -> str:
    """Put characters of one style into one element."""
    line, style = "", ""
    for new, character in parts:
        if new != style:
            line += ("</span>" if line else "") + f'<span style="{new}">'
            style = new
        line += character
    return f"{line}</span>"


def draw(states: Sequence[Frame]) -> None:
    """Write the states as an animated picture, each for as long as it was seen."""
    options = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as driver:
        tab = driver.chromium.launch(executable_path=chromium, args=options).new_page(viewport=SIZE)
        images = []
        for _, content in states:
            tab.set_content(content)
            images.append(Image.open(BytesIO(tab.screenshot())).convert("RGB"))
    palette = images[-1].quantize(NUM_COLORS)
    times = [seconds for seconds, _ in states]
    durations = [int(1000 * (after - before)) for before, after in itertools.pairwise(times)]
    first, *others = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    first.save(
        PICTURE, save_all=True, append_images=others, duration=[*durations, LAST_MS], loop=0, optimize=True
    )


if __name__ == "__main__":
    main()
