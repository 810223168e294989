"""Draw the pictures of the documentation: README's program, killed and continued, and a report.

    python experiments/pictures.py    # docs/grid.gif, docs/report.png

It executes grids for some minutes, in a folder of its own; what is drawn is what was printed and written. It
needs bash, playwright, pillow, pyte and Chromium.
"""

import fcntl
import itertools
import os
import pty
import re
import select
import signal
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
from playwright.sync_api import Page, ViewportSize

from benchmarks.browser import browser

HOME = Path(__file__).parents[1]
RECORDING, REPORT = (HOME / "docs" / name for name in ("grid.gif", "report.png"))
FASHION = (
    "experiments/fashion_grid.py --experiment clothes --train-size 6000 --num-epochs 3 "
    "--lr 0.01 0.003 --batch-size 100 1000 --num-workers 0 --device cpu --seed 1 2 3 4 5 6 7 8"
)
SIZE_OF_REPORT: ViewportSize = {"width": 1000, "height": 1875}
NUM_COLORS = 255  # of a picture, which is a third as large then

COLUMNS, LINES = 54, 24  # of the terminal: its text can be read on a phone
SIZE_OF_TERMINAL: ViewportSize = {"width": 486, "height": 448}
SCALE = 1.25  # pixels of the picture per pixel of the terminal
COMMAND, NUM_STARTS = "python board.py", 2
KILLED_AT = re.compile(r"^✓ +8/21 [\s\S]* [2-5]/10 ", re.MULTILINE)
"""What the first start shows when it is killed."""
PLAYED_MS = 12_000  # how long the recording is, without its end
FIRST_MS, LAST_MS = 1500, 6000  # how long the end is shown, before and after it
EVERY_S = 0.5
NUM_COLORS_OF_RECORDING = 40
COLORS = {
    "default": "#d9d9d9", "red": "#ff6b6b", "green": "#7bd88f", "brown": "#e5c07b", "blue": "#6cb6ff",
    "magenta": "#d29bff", "cyan": "#5ad4e6", "white": "#ffffff", "black": "#6b7078", "brightblack": "#8b9098",
}  # fmt: skip
TERMINAL = """<body style="margin: 0; background: #23252b"><pre style="margin: 14px 16px; color: #d9d9d9;
font: 14px/1.25 'DejaVu Sans Mono', monospace">{content}</pre></body>"""

Frame = tuple[float, str]  # when it was seen (s), and the terminal as HTML


def main() -> None:
    """Execute the grids, and draw what they print and write."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for linked in ("experiments", "data", "runmanager"):
            (folder / linked).symlink_to(HOME / linked)
        program = re.search(
            r"^```python\n(.*?)^```", (HOME / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
        )
        assert program is not None
        (folder / "board.py").write_text(program[1], "utf-8")
        record(list(frames(folder)))
        for arguments in (FASHION.split(), ["-m", "runmanager", "report", "runs/clothes"]):
            subprocess.run([sys.executable, *arguments], cwd=folder, check=True)  # noqa: S603 - our own
        with browser() as chromium:
            tab = chromium.new_page(viewport=SIZE_OF_REPORT)
            tab.goto((folder / "report.html").as_uri())
            image_of(tab).quantize(NUM_COLORS).save(REPORT, optimize=True)


def image_of(tab: Page) -> Image.Image:
    """Return what a tab shows."""
    return Image.open(BytesIO(tab.screenshot())).convert("RGB")


def frames(folder: Path) -> Iterator[Frame]:
    """Yield the states of a terminal in which the program is started, killed and started again."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    environment = {**os.environ, "TERM": "xterm-256color", "PS1": "$ "}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    pid, parent = pty.fork()
    if not pid:
        os.chdir(folder)
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment)  # noqa: S606, S607 - our own
    fcntl.ioctl(parent, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))

    began, before, num_started, is_killed = time.monotonic(), "", 0, False
    with suppress(OSError):  # the end of a terminal whose shell is gone
        while True:
            until = time.monotonic() + EVERY_S
            while (left := until - time.monotonic()) > 0:
                if select.select([parent], [], [], left)[0]:
                    stream.feed(os.read(parent, 1 << 16))
                    if not is_killed and KILLED_AT.search("\n".join(screen.display)):
                        os.kill(os.tcgetpgrp(parent), signal.SIGKILL)  # the process that the shell waits for
                        is_killed = True
            if (now := drawn(screen)) != before:
                yield time.monotonic() - began, now
                before = now
            if screen.display[screen.cursor.y].rstrip() == "$":
                if num_started == NUM_STARTS:
                    break
                os.write(parent, f"{COMMAND}\n".encode())
                num_started += 1
    os.close(parent)
    os.waitpid(pid, 0)


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
    """Write the states as a picture that is played twice; its first and last frame are the end."""
    with browser() as chromium:
        tab = chromium.new_page(viewport=SIZE_OF_TERMINAL, device_scale_factor=SCALE)
        images = []
        for _, content in states:
            tab.set_content(content)
            images.append(image_of(tab))
    palette = images[-1].quantize(NUM_COLORS_OF_RECORDING)
    times = [seconds for seconds, _ in states]
    speed = PLAYED_MS / (times[-1] - times[0])
    durations = [int(speed * (after - before)) for before, after in itertools.pairwise(times)]
    first, *others = [
        image.quantize(palette=palette, dither=Image.Dither.NONE) for image in (images[-1], *images)
    ]
    first.save(
        RECORDING, save_all=True, append_images=others, duration=[FIRST_MS, *durations, LAST_MS], loop=1,
        optimize=True,
    )  # fmt: skip
    print(f"{times[-1] - times[0]:.0f} s, played in {PLAYED_MS / 1000:.0f} s")  # for the caption


if __name__ == "__main__":
    main()
