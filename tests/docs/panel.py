"""Compares README's panel with what its program prints: python board.py | python -m tests.docs.panel."""

import re
import sys

from tests.docs.test_pages import README, blocks

NUMBER = re.compile(r"\d+\.\d+")
BY_CHANCE = re.compile(
    r"━+|^time .*?(?=^next )| [\d.]+ s$", re.MULTILINE | re.DOTALL
)  # a line's width, durations


def words_of(output: str) -> tuple[list[str], list[str]]:
    """Return the words and the numbers of the panel at the end of an output, of whatever width."""
    panel = BY_CHANCE.sub("", output[output.index("━━ ") :])
    return NUMBER.sub("", panel).split(), NUMBER.findall(panel)


def difference(output: str) -> str:
    """Return README's panel and the output if they differ, else "".

    Numbers may differ by 0.02, as processors compute differently, but not in how many decimals they have.
    """
    (panel,) = blocks(README, "text")
    (expected, numbers), (words, others) = words_of(panel), words_of(output)
    is_same = words == expected and all(
        len(number) == len(other) and abs(float(number) - float(other)) <= 0.02
        for number, other in zip(numbers, others, strict=True)
    )
    return "" if is_same else f"README shows\n{panel}\nand its program printed\n{output}"


if __name__ == "__main__":
    sys.exit(difference(sys.stdin.read()) or 0)
