"""Signals and streams of the process that lanes are forked from: that process imports this module first."""

import multiprocessing
import os
import signal
from contextlib import suppress
from multiprocessing import util

from runmanager.core.files import open_closed_streams
from runmanager.executors.lane import PREFIX
from runmanager.executors.signals import SIGNALS

_ANCESTOR = os.getpid()


def _unblock(_: object) -> None:
    """Unblock signals in other processes of the user that are forked from the same process."""
    if os.getppid() == _ANCESTOR and not multiprocessing.current_process().name.startswith(PREFIX):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


open_closed_streams()  # a file without inheritance may have had the number of a stream of the parent
util.register_after_fork(_unblock, _unblock)
with suppress(Exception):  # lanes import it again, and report why they cannot
    import torch  # noqa: F401
