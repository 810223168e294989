"""Where lines of the tests are, as the causes of failed runs name them."""

import sys
from pathlib import Path


def line_with(text):
    """Return file and line of the only line that has this text, but for those that look for it."""
    path = Path(sys._getframe(1).f_code.co_filename)
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    (number,) = [number for number, line in lines if text in line and "line_with(" not in line]
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path.name
    return f"{shown}:{number}"
