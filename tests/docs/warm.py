"""A program that imports torch once and then executes programs, each in a forked process of its own.

It reads the folder of a program from each line, and answers with the exit code; the output is in the folder.
"""

import os
import runpy
import signal
import sys
from pathlib import Path

import pandas as pd  # noqa: F401 - imported for the programs, as all below
import torch._dynamo
import torch.utils.tensorboard  # noqa: F401

import runmanager

for name in runmanager.__all__:
    getattr(runmanager, name)

PROGRAM, OUTPUT = "program.py", "output.txt"
LONGEST_S = 180


def main() -> None:
    """Carry out orders until there are no more."""
    for line in sys.stdin:
        folder = Path(line.rstrip("\n"))
        pid = os.fork()
        if not pid:
            execute(folder)
            return
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(code, flush=True)  # noqa: T201


def execute(folder: Path) -> None:
    os.chdir(folder)
    output = os.open(OUTPUT, os.O_WRONLY | os.O_CREAT)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, number in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, number)
    signal.alarm(LONGEST_S)
    sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115 - the orders are not for this process
    runpy.run_path(str(folder / PROGRAM), run_name="__main__")


if __name__ == "__main__":
    main()
