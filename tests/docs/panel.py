"""Compares README's panel with what its program writes to a terminal of 80 columns, given as standard input."""

import re
import sys

from tests.border.screens import Terminal
from tests.docs.test_pages import README, blocks

NUMBER = re.compile(r"\d+\.\d+")


def words_of(panel: list[str]) -> tuple[list[str], list[str]]:
    """Return the words of the lines and the numbers, without which run it is and how long anything took."""
    begin = next(index for index, line in enumerate(panel) if line.startswith("time "))
    end = next(index for index, line in enumerate(panel) if line.startswith("next "))
    lines = [re.sub(r" [\d.]+ s$|run \d \(.*?\)", "", line) for line in [*panel[:begin], *panel[end:]]]
    numbers = [number for line in lines for number in NUMBER.findall(line)]
    return [" ".join(NUMBER.sub("", line).split()) for line in lines], numbers


def main(written: str) -> None:
    """Make sure that the program ended as README shows."""
    (panel,), screen = blocks(README, "text"), Terminal(80)
    screen.write(written)
    lines = "\n".join(line for line in screen.lines if line)
    ended = lines[lines.index("━━ ") :].splitlines()

    (expected, numbers), (actual, others) = words_of(panel.splitlines()), words_of(ended)
    assert actual == expected, f"{actual}\nis not\n{expected}"
    pairs = zip(map(float, others), map(float, numbers), strict=True)
    assert all(abs(other - number) <= 0.02 for other, number in pairs), (others, numbers)  # processors differ
    assert list(map(len, others)) == list(map(len, numbers)), (others, numbers)  # the same decimals


if __name__ == "__main__":
    main(sys.stdin.buffer.read().decode())
