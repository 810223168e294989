"""A process that imports torch once and then executes programs, each in a forked process of its own.

It reads an order from each line: to begin a program, which it answers with the number of the process, or to
wait for one, which it answers with its exit code. The program is executed in its folder, as the main module;
what it prints is in files beside it, which end with `.out` and `.err`, in another file, or in a terminal.
"""

import atexit
import gc
import importlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Mapping
from multiprocessing import resource_tracker, util
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Self

LONGEST_S = 180
FILTERS = list(warnings.filters)
HOME = str(Path(__file__).parents[1])
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""On a busy machine, idle threads take the others' time."""


class Warm:
    """The process, as a test sees it.

    Args:
        imports: Further modules that it imports.
        uses_all_cores: Whether programs compute with as many threads as there are cores.
    """

    def __init__(self, *imports: str, uses_all_cores: bool = False) -> None:
        self._command = [sys.executable, __file__, *imports]
        self._environment = os.environ | {"PYTHONPATH": HOME} | ({} if uses_all_cores else ONE_THREAD)
        self._latest = 0

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            self._command, stdin=pipe, stdout=pipe, text=True, env=self._environment, bufsize=1
        )
        return self

    def __exit__(self, *_: object) -> None:
        # the end of its input may not reach it: a process that a test has forked and left holds the pipe too
        self._process.kill()
        with self._process:
            """Wait for it, and close its pipes."""

    def execute(
        self, program: Path, *arguments: str, forks_lanes: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Execute a program; return its exit code and what it printed."""
        self.begin(program, *arguments, forks_lanes=forks_lanes)
        code = self.wait()
        output, errors = (program.with_suffix(suffix).read_text() for suffix in (".out", ".err"))
        return subprocess.CompletedProcess(program, code, output, errors)

    def begin(
        self,
        program: Path,
        *arguments: str,
        terminal: int | None = None,
        output: Path | None = None,
        environment: Mapping[str, str | None] | None = None,
        forks_lanes: bool = False,
    ) -> int:
        """Begin to execute a program, in a terminal if one is given; return the number of its process.

        Args:
            program: Its file.
            arguments: Its arguments.
            terminal: What the program sees of a pseudo-terminal; it can be closed here afterwards.
            output: The file for all that it prints.
            environment: Variables to set or, if None, to remove.
            forks_lanes: Whether its lanes have torch already too.
        """
        order = {
            "program": str(program), "arguments": arguments, "environment": dict(environment or {}),
            "terminal": terminal and os.ttyname(terminal), "output": output and str(output),
            "forks_lanes": forks_lanes,
        }  # fmt: skip
        self._latest = self._ask(order)
        return self._latest

    def wait(self, pid: int | None = None) -> int:
        """Wait until a program has ended, the latest if none is given; return its exit code."""
        return self._ask({"pid": self._latest if pid is None else pid})

    def _ask(self, order: Mapping[str, Any]) -> int:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{json.dumps(order)}\n")
        return int(self._process.stdout.readline())


def main() -> None:
    """Import what programs need, and carry out orders until there are no more."""
    gc.disable()
    import pandas as pd  # noqa: F401
    import torch._dynamo
    import torch.utils.tensorboard  # noqa: F401

    before = random.getstate()
    import runmanager

    for name in runmanager.__all__:
        getattr(runmanager, name)
    assert random.getstate() == before  # as tests/test_package.py says
    for name in sys.argv[1:]:
        importlib.import_module(name)
    vars(os)["fsync"] = str  # leave out what only a power cut would show, as the other tests
    gc.collect()
    gc.enable()
    gc.freeze()  # else each program looks through what was imported, and copies its memory
    for line in sys.stdin:
        order = json.loads(line)
        print(wait(**order) if "pid" in order else begin(**order), flush=True)  # noqa: T201


def wait(pid: int) -> int:
    """Wait for a process; return its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def begin(program: str, terminal: str | None, output: str | None, **order: Any) -> int:
    """Execute a program in a process that is forked; return its number."""
    descriptors = [os.open(terminal, os.O_RDWR)] * 3 if terminal else files(Path(program), output)
    pid = os.fork()
    if not pid:
        execute(descriptors, program, **order)
    for descriptor in set(descriptors):
        os.close(descriptor)
    return pid


def files(program: Path, output: str | None) -> list[int]:
    """Open what a program reads, nothing, and the files that it prints to."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    written = [output] * 2 if output else [program.with_suffix(suffix) for suffix in (".out", ".err")]
    return [os.open(os.devnull, os.O_RDONLY), *(os.open(path, flags) for path in written)]


def execute(
    descriptors: list[int],
    program: str,
    arguments: list[str],
    environment: dict[str, str | None],
    *,
    forks_lanes: bool,
) -> None:
    """Execute a program in this process, with its standard input, output and errors."""
    path = Path(program)
    os.chdir(path.parent)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    if os.isatty(0):
        os.setsid()
        import fcntl  # not on Windows, which collects tests that import this module
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.alarm(LONGEST_S)
    # the orders are not for this process; and in a terminal, lines are written as they end
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, closefd=False)  # noqa: SIM115
        for number, mode in enumerate("rww")
    )
    for name, value in environment.items():
        os.environ.pop(name, None)
        os.environ |= {name: value} if value is not None else {}
    if forks_lanes:
        fork_fork_servers()
    sys.argv, sys.path[0] = [path.name, *arguments], str(path.parent)
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__file__ = program
    end(code_of(compile(path.read_bytes(), program, "exec"), module))


def code_of(program: CodeType, module: ModuleType) -> int:
    """Execute a program as Python itself does, up to its last words; return its exit code."""
    try:
        exec(program, vars(module))  # noqa: S102 - as said
    except SystemExit as error:
        return int(error.code or 0)  # no text
    except Exception as error:  # noqa: BLE001 - as said
        vars(sys).update(last_value=error, last_exc=error)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def fork_fork_servers() -> None:
    """Let the process that lanes are forked from be forked from this one: it has torch, which takes seconds."""
    process: Any = util
    start = process.spawnv_passfds

    def fork(path: Any, args: list[Any], descriptors: list[int]) -> int:
        program = str(args[-1])
        if "forkserver" not in program:
            return int(start(path, args, descriptors))
        pid = os.fork()
        if not pid:
            _become(program, descriptors)
        return pid

    process.spawnv_passfds = fork


def _become(program: str, descriptors: list[int]) -> None:
    """Execute a program as a new process would: without the files, the signals and the filters of this one."""
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    try:
        kept = [2, *sorted(descriptors), os.sysconf("SC_OPEN_MAX")]
        for before, after in itertools.pairwise(kept):
            if before + 1 < after:
                os.closerange(before + 1, after)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        warnings.filters[:] = FILTERS  # type: ignore[index]
        vars(resource_tracker)["_resource_tracker"] = resource_tracker.ResourceTracker()
        exec(program, {})  # noqa: S102 - as Python would
    except SystemExit:
        os._exit(0)
    except BaseException:  # noqa: BLE001 - as Python would
        traceback.print_exc()
    finally:
        os._exit(1)


def end(code: int) -> None:
    """End the process as Python does, but leave its memory to the system: to free torch takes a second."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
