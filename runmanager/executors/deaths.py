"""Why a worker process died, in one sentence."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from runmanager.executors.base import Step
from runmanager.outcome import EpochRecord, Status

_GIB = 2**30


class Deaths:
    """Finds out why processes died; which were killed for want of memory, by a count that Linux keeps."""

    def __init__(self) -> None:
        self._num_oom_kills = _num_oom_kills()

    def explain(self, code: int | None, where: str, memory: int) -> tuple[Status, str]:
        """Return how the run of a process ended, and its cause in one sentence.

        Args:
            code: Its exit code, or -signal; None if nobody knows.
            where: How far the run was, as `whereabouts` says it.
            memory: The most (bytes) that it was seen to have, 0 if that is not known.
        """
        before, self._num_oom_kills = self._num_oom_kills, _num_oom_kills()
        if code is None or code >= 0:
            return Status.KILLED, f"its process ended itself with exit code {code}{where}"
        if code != -signal.SIGKILL:
            return Status.KILLED, f"its process crashed ({_signal_name(-code)}){where}"
        if self._num_oom_kills > before:
            who = "the system ran out of memory and killed its process (signal 9)"
            return Status.OUT_OF_MEMORY, f"{who}{where}{_peak(memory)}"
        often = ": often the system ran out of memory"
        return Status.KILLED, f"somebody killed its process (signal 9){where}{often}{_peak(memory)}"


def whereabouts(news: EpochRecord | Step | None) -> str:
    """Say where a run was by its last news, as the end of a sentence; "" if there were none."""
    match news:
        case Step(epoch, step):
            return f" in epoch {epoch}, step {step}"
        case EpochRecord(epoch=epoch):
            return f" after epoch {epoch}"
    return ""


def _peak(memory: int) -> str:
    if not memory:
        return ""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f" (it had {memory / _GIB:.1f} of {total / _GIB:.1f} GiB)"


def _num_oom_kills(root: Path = Path("/")) -> int:
    """Count the processes that Linux has killed because memory ran out, 0 elsewhere.

    Those of this process's control group (cgroups(7), version 2), or else of the whole machine.
    """
    group = ""
    with suppress(OSError, ValueError):
        group = (root / "proc/self/cgroup").read_text(encoding="utf-8").strip().rpartition("0::/")[2]
    for path in (root / "sys/fs/cgroup" / group / "memory.events", root / "proc/vmstat"):
        with suppress(OSError, StopIteration, ValueError):
            lines = path.read_text(encoding="ascii").splitlines()
            return int(next(line for line in lines if line.startswith("oom_kill ")).split()[1])
    return 0


def _signal_name(number: int) -> str:
    names = {signal.SIGSEGV: "segmentation fault", signal.SIGABRT: "aborted", signal.SIGFPE: "arithmetic error"}
    with suppress(ValueError):
        known = signal.Signals(number)
        return f"{names.get(known, known.name)}, signal {number}"
    return f"signal {number}"
