"""Why a run ended that could not say so itself: one sentence about the end of its process."""

import os
import signal
from contextlib import suppress
from pathlib import Path

from runmanager.errors import gib
from runmanager.executors.base import uncommitted
from runmanager.outcome import BatchProgress, EpochRecord, Outcome, Status

MOST_LINES = 1000
"""How many lines of its output a run that died or hung keeps as its last words."""


class Deaths:
    """Finds out why processes died; a count that Linux keeps says which were killed for want of memory."""

    def __init__(self) -> None:
        self._num_oom_kills = _num_oom_kills()

    def explain(self, code: int | None, where: str, memory: int) -> tuple[Status, str]:
        """Return how the run of a process ended, and its cause in one sentence.

        `code` is its exit code, or -signal; `where` comes from `whereabouts`; `memory` is the most bytes that
        it was seen to have. Of each that is not known: None, "", 0.
        """
        before, self._num_oom_kills = self._num_oom_kills, _num_oom_kills()
        if code is None or code >= 0:
            return Status.KILLED, f"its process ended itself with exit code {code}{where}"
        if code != -signal.SIGKILL:
            return Status.KILLED, f"its process crashed ({_signal_name(-code)}){where}"
        peak = ""
        if memory:
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            peak = f" (it had {gib(memory)} of {gib(total)})"
        if self._num_oom_kills > before:
            cause = "the system ran out of memory and killed its process (SIGKILL)"
            return Status.OUT_OF_MEMORY, f"{cause}{where}{peak}"
        cause = f"its process was killed (SIGKILL){where}, often by the out-of-memory killer"
        return Status.KILLED, f"{cause}{peak}"


def hung(timeout: float | None, news: EpochRecord | BatchProgress | None, log: str) -> Outcome:
    """Return the outcome of a run that was stopped because it had no news for `timeout` seconds."""
    return uncommitted(Status.HUNG, f"no progress for {timeout:g} s{whereabouts(news)}, so it was stopped", log)


def whereabouts(news: EpochRecord | BatchProgress | None) -> str:
    """Say where a run was by its last news, as the end of a sentence; "" if there were none."""
    match news:
        case BatchProgress(epoch, batch):
            return f" in epoch {epoch}, step {batch}"
        case EpochRecord(epoch=epoch):
            return f" after epoch {epoch}"
    return ""


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
        name = signal.Signals(number)
        return f"{names.get(name, name.name)}, signal {number}"
    return f"signal {number}"
