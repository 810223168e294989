"""A TensorBoard of ours: a process that answers on this machine and ends with this one."""

import atexit
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

from runmanager.errors import BoardError

HERE = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - to refuse them
_START_S, _STOP_S = 60.0, 5.0
# what stands beside a notebook may be called as a module of Python: it comes last
_PROGRAM = """
import json, sys
sys.path += json.loads(sys.argv.pop(1))
from runmanager.board.server import serve
serve()
"""
_ADDRESS = re.compile(r"^TensorBoard \S+ at (http\S+)", re.MULTILINE)


class Server:
    """A running TensorBoard, which ends when this process does, however that ends.

    Args:
        logdir: The folder with event files.
        port: Where it answers; 0 for any that is free, None for 6006 or the next that is free.
        host: The address of this machine on which it answers; None for all of them: whoever reaches the machine
            may then see the runs.

    Attributes:
        url: Where it answers.

    Raises:
        BoardError: It did not start.
    """

    def __init__(self, logdir: Path, port: int | None = 0, host: str | None = HERE) -> None:
        # where it leaves a note of itself, which outlives a killed one and would be believed by the next
        self._folder = tempfile.TemporaryDirectory(prefix="tensorboard-", ignore_cleanup_errors=True)
        self._log = Path(self._folder.name, "log")
        self._owner = os.getpid()
        where = ["--bind_all"] if host is None else ["--host", host]
        options = ["--logdir", str(logdir), *where, "--port", "default" if port is None else str(port)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - no shell sees the folder's name
                [sys.executable, "-P", "-c", _PROGRAM, json.dumps(_found_in()), *options],
                stdin=subprocess.PIPE,  # whose end tells it that this process has gone
                stdout=log,
                stderr=log,
                env={**os.environ, "TMPDIR": self._folder.name},
                start_new_session=True,  # Ctrl-C is for us
            )
        atexit.register(self.stop)
        try:
            self.url = self._wait_for_address(port, host)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def lives(self) -> bool:
        """Whether it answers still."""
        return self._process.poll() is None

    def wait(self) -> None:
        """Wait until it ends, which it does by itself only when something is wrong.

        Raises:
            BoardError: It ended; with its last words.
        """
        self._process.wait()
        raise BoardError(f"TensorBoard ended by itself: {self._last_words()}")

    def stop(self) -> None:
        """End it; a second time does nothing."""
        if os.getpid() != self._owner:
            return  # a forked child that ends
        atexit.unregister(self.stop)
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def _wait_for_address(self, port: int | None, host: str | None) -> str:
        deadline = time.monotonic() + _START_S
        while self._process.poll() is None and time.monotonic() < deadline:
            found = _ADDRESS.search(self._log.read_text(errors="replace"))
            if found:
                return found[1]
            time.sleep(0.05)
        words = self._last_words()
        if "already in use" in words:
            raise BoardError(f"port {port} is in use: choose another, or 0 for any that is free")
        raise BoardError(f"TensorBoard did not start on {host or 'all interfaces'}, port {port}: {words}")

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "it said nothing")


def serve() -> None:
    """Be the process: TensorBoard's own command, until standard input ends."""

    def end_with_parent() -> None:
        os.read(sys.stdin.fileno(), 1)  # sys.stdin's own lock would trouble the end of the process
        os._exit(0)  # its data server ends with it

    threading.Thread(target=end_with_parent, daemon=True).start()
    from tensorboard.main import run_main

    run_main()


def _found_in() -> list[str]:
    """Return where this process finds modules, this package first, for one that may be told less."""
    return [str(Path(__file__).parents[2]), *filter(None, sys.path)]
