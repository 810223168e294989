"""A program that imports everything once and then forks a process per job; harness.py talks to it.

Orders come as lines of JSON, answers go back so; the processes report through the file system alone.
"""

import json
import os
import select
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import optuna  # noqa: F401 - so that no process has to, as the following
import pandas as pd  # noqa: F401
import scipy.stats  # noqa: F401
import torch._dynamo
import torch.utils.tensorboard  # noqa: F401

import runmanager
from runmanager import ExperimentLockedError, StorageError
from tests.border.disk import Disk, NthCall
from tests.chaos import work
from tests.warm import fork_fork_servers

PATIENCE_S = 60.0


def main() -> None:
    """Carry out orders until one says to end, then end what is left."""
    for name in runmanager.__all__:
        getattr(runmanager, name)
    alive: dict[int, int] = {}
    _answer("ready")
    for line in sys.stdin:
        order = json.loads(line)
        if "end" in order:
            break
        if "job" in order:
            pid = os.fork() or _child(order["job"])
            alive[pid] = os.pidfd_open(pid)
            _answer(pid)
        else:
            _answer(_wait(alive.pop(order["pid"]), **order))
    for pid, descriptor in alive.items():
        _wait(descriptor, pid, 0, signal.SIGKILL)
    _answer("ended")


def _answer(content: Any) -> None:
    sys.stdout.write(f"{json.dumps(content)}\n")
    sys.stdout.flush()


def _wait(
    descriptor: int, pid: int, seconds: float, number: int, is_of_group: bool = False
) -> tuple[int, bool, float]:
    """Send a signal after some seconds; return exit code or -signal, whether it was sent, and how long on."""
    is_late = not select.select([descriptor], [], [], seconds)[0]
    before = time.monotonic()
    if is_late:
        try:
            if not is_of_group:
                raise ProcessLookupError  # noqa: TRY301
            os.killpg(pid, number)  # as a terminal does
        except ProcessLookupError:  # it may not have made its group yet
            signal.pidfd_send_signal(descriptor, number)
        if not select.select([descriptor], [], [], PATIENCE_S)[0]:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(descriptor)
    return code, is_late, time.monotonic() - before


def _child(job: dict[str, Any]) -> int:
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
        output = os.open(job.pop("output"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, number in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(descriptor, number)
        code = _execute(**job)
    except (StorageError, ExperimentLockedError) as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")
        code = 74 if isinstance(error, StorageError) else 2
    except BaseException as error:  # noqa: BLE001 - as the interpreter would
        traceback.print_exc()
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
    finally:
        sys.stdout.flush()
        os._exit(code)


def _execute(
    *,
    root: str,
    how: str,
    params: dict[str, list[Any]],
    fault: dict[str, Any] | None = None,
    ready: str = "",
    start: str = "",
    jobs: int = 2,
    retries: int = 1000,
    tensorboard: bool = False,
    is_warm: bool = False,
) -> int:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "'pin_memory' argument is set")  # of a machine without an accelerator
    warnings.simplefilter("ignore", ResourceWarning)  # of a module that a signal tears while it is read
    if fault:
        Disk(Path(root), setattr).fault = NthCall(**fault)
    if is_warm:
        fork_fork_servers()
    if ready:
        Path(ready).touch()
    work.wait_for(start)
    return work.execute(root, how, params, jobs=jobs, retries=retries, tensorboard=tensorboard)


if __name__ == "__main__":
    main()
