"""List the tests that were skipped, and fail if one was for a reason that this machine does not explain.

The arguments are the JUnit files of pytest.
"""

import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import torch

EXPECTED = {
    r"needs a CUDA device": not torch.cuda.is_available(),
    r"needs a machine without (CUDA|an accelerator)": torch.accelerator.is_available(),
    r"root may write into any folder": os.geteuid() == 0,
    r"needs chromium": shutil.which("chromium") is None,
    r"strace (is not installed|does not work here)": True,  # a container may refuse to trace
    r"other Pythons compile the training function": True,  # the quick tests on other Pythons
}
"""Reason, as it begins -> whether this machine explains it."""


def skips(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the part of CI, which is the name of the file, and the reason of each skip."""
    for skip in ET.parse(path).iter("skipped"):  # noqa: S314 - pytest wrote it just now
        yield path.stem, skip.get("message", "")


def main(paths: list[Path]) -> None:
    """Print each reason once per part, and exit with 1 if one is unexpected."""
    counts = Counter(skip for path in paths for skip in skips(path))
    expected = re.compile("|".join(reason for reason, is_explained in EXPECTED.items() if is_explained))
    unexpected = [reason for _, reason in counts if not expected.match(reason)]
    print(f"{counts.total()} tests were skipped, {len(unexpected)} for an unexpected reason")
    for (part, reason), count in sorted(counts.items()):
        print(f"{'!' if reason in unexpected else ' '} {count:3} {part}: {reason}")
    sys.exit(bool(unexpected))


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
