"""A process that imports torch once and then executes programs, each in a forked process of its own.

It reads the path of a program from each line, and answers with the exit code. The program is executed in its
folder, as the main module; what it prints is in files beside it, which end with `.out` and `.err`.
"""

import atexit
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Self

LONGEST_S = 180
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}  # on a busy machine, idle threads take the others' time


class Warm:
    """The process, as a test sees it."""

    def __enter__(self) -> Self:
        command, pipe = [sys.executable, __file__], subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=ENVIRONMENT, bufsize=1
        )
        return self

    def __exit__(self, *_: object) -> None:
        # the end of its input may not reach it: a process that a test has forked and left holds the pipe too
        self._process.kill()
        with self._process:
            """Wait for it, and close its pipes."""

    def execute(self, program: Path) -> subprocess.CompletedProcess[str]:
        """Execute a program; return its exit code and what it printed."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{program}\n")
        code = int(self._process.stdout.readline())
        output, errors = (program.with_suffix(suffix).read_text() for suffix in (".out", ".err"))
        return subprocess.CompletedProcess(program, code, output, errors)


def main() -> None:
    """Import what programs need, and carry out orders until there are no more."""
    import pandas as pd  # noqa: F401
    import torch._dynamo
    import torch.utils.tensorboard  # noqa: F401

    import runmanager

    for name in runmanager.__all__:
        getattr(runmanager, name)
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            execute(Path(line.rstrip("\n")))
            return
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(code, flush=True)  # noqa: T201


def execute(program: Path) -> None:
    os.chdir(program.parent)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output, errors = (
        os.open(program.with_suffix(suffix), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for suffix in (".out", ".err")
    )
    for descriptor, number in ((nothing, 0), (output, 1), (errors, 2)):
        os.dup2(descriptor, number)
    signal.alarm(LONGEST_S)
    sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115 - the orders are not for this process
    sys.argv, sys.path[0] = [program.name], str(program.parent)
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__file__ = str(program)
    exec(compile(program.read_bytes(), program, "exec"), vars(module))  # noqa: S102 - as Python itself does
    end()


def end() -> None:
    """End the process as Python does, but leave its memory to the system: to free torch takes a second."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
