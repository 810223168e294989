"""Causes of death of worker processes, in one sentence."""

import re
import signal
from contextlib import suppress
from pathlib import Path

from runmanager.core.contracts import uncommitted
from runmanager.core.outcome import BatchProgress, EpochRecord, Outcome, Status

_SIGKILL = 9  # Windows lacks the name
# what C++ prints about an exception that nothing catches: a failed GPU raises one as it frees pinned memory
_UNCAUGHT = re.compile(r"^terminate called after throwing an instance of .*\n +what\(\): +(.*)", re.MULTILINE)
_ASSERTION = re.compile(r"Assertion (`.*`) failed")  # printed by a CUDA kernel


class Deaths:
    """Determines why processes died. On Linux, the count of kills by the out-of-memory killer is used."""

    def __init__(self) -> None:
        self._num_oom_kills = _num_oom_kills()

    def explain(self, code: int | None, where: str, log: str = "") -> tuple[Status, str]:
        """Return the status of a dead process's run, and its cause in one sentence."""
        before, self._num_oom_kills = self._num_oom_kills, _num_oom_kills()
        if code is None or code >= 0:
            return Status.KILLED, f"its process ended itself with exit code {code}{where}"
        if code == -signal.SIGABRT and (uncaught := _UNCAUGHT.search(log)):
            is_memory = re.search(r"out of memory|bad_alloc|allocate memory", uncaught[1])
            assertion = _ASSERTION.search(log)
            why = uncaught[1] + (f": {assertion[1]} is false" if assertion else "")
            return (Status.OUT_OF_MEMORY if is_memory else Status.FAILED), f"its process aborted{where} ({why})"
        if code != -_SIGKILL:
            name = str(signal.strsignal(-code)).lower()
            return Status.KILLED, f"its process crashed ({name}, signal {-code}){where}"
        if self._num_oom_kills > before:
            return Status.OUT_OF_MEMORY, f"the system ran out of memory and killed its process{where}"
        return Status.KILLED, f"its process was killed (SIGKILL){where}"


def hung(timeout: float | None, news: EpochRecord | BatchProgress | None, log: str) -> Outcome:
    """Return the outcome of a run that was stopped after `timeout` seconds without progress."""
    return uncommitted(Status.HUNG, f"no progress for {timeout:g} s{whereabouts(news)}, so it was stopped", log)


def whereabouts(news: EpochRecord | BatchProgress | None) -> str:
    """Return the end of a sentence with the last reported epoch and step of a run; "" without a report."""
    match news:
        case BatchProgress(epoch, batch):
            return f" in epoch {epoch}, step {batch}"
        case EpochRecord(epoch=epoch):
            return f" after epoch {epoch}"
    return ""


def _num_oom_kills(root: Path = Path("/")) -> int:
    """Return the number of processes killed by Linux's out-of-memory killer, 0 on other systems."""
    group = ""
    with suppress(OSError, ValueError):
        group = (root / "proc/self/cgroup").read_text(encoding="utf-8").strip().rpartition("0::/")[2]
    for path in (root / "sys/fs/cgroup" / group / "memory.events", root / "proc/vmstat"):
        with suppress(OSError, StopIteration, ValueError):
            lines = path.read_text(encoding="ascii").splitlines()
            return int(next(line for line in lines if line.startswith("oom_kill ")).split()[1])
    return 0
