"""Write root/: done once, at commit fa751bf, by ``python -m tests.legacy.write_old_root``.

What that commit left behind has to stay readable, so root/ is never written again: a later commit would write
its own format. This file is kept to show how each run came about, and to write the root of another commit.
"""

import multiprocessing
import os
import signal
import socket
from pathlib import Path
from typing import Any

from runmanager import RunManager, run_grid
from tests.legacy.old_training import GRID, loop, train

ROOT = Path(__file__).with_name("root")


def main() -> None:
    """Write the root: a bare loop, then a grid that is killed in its last run."""
    if ROOT.exists():
        raise SystemExit(f"{ROOT} is kept as it is")
    spawning = multiprocessing.get_context("spawn")
    for write, exit_code in ((write_loop, 0), (write_grid, -signal.SIGKILL)):
        process = spawning.Process(target=write)
        process.start()
        process.join()
        assert process.exitcode == exit_code


def write_grid() -> None:
    """Execute the grid, and die in the third epoch of its last run."""
    _pretend_to_be_elsewhere()
    end_epoch = RunManager.end_epoch

    def die_or_end_epoch(manager: RunManager) -> None:
        run: Any = manager.run_params
        if (run.lr, manager.epoch_count) == (0.25, 3):
            os.kill(os.getpid(), signal.SIGKILL)
        end_epoch(manager)

    RunManager.end_epoch = die_or_end_epoch  # type: ignore[assignment, method-assign]  # train() must not know
    run_grid(GRID, train, experiment="grid", root=ROOT, executor="inline", display=False)


def write_loop() -> None:
    """Execute the bare loop, with other hyperparameters than the grid."""
    _pretend_to_be_elsewhere()
    loop(RunManager("loop", ROOT, display=False))


def _pretend_to_be_elsewhere() -> None:
    """Let no process of the machine that reads the root be taken for one that wrote it."""
    socket.gethostname = lambda: "old-machine"
    os.environ["LOGNAME"] = "somebody"  # getpass asks it first


if __name__ == "__main__":
    main()
