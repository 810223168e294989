"""What the process that lanes are forked from imports first: it blocks signals there, for lanes alone."""

import multiprocessing
import os
import signal
from multiprocessing import util

from runmanager.executors.lane import PREFIX
from runmanager.executors.signals import SIGNALS

_ANCESTOR = os.getpid()


def _unblock(_: object) -> None:
    """Unblock signals in a process of the user's that is forked from the same ancestor."""
    if os.getppid() == _ANCESTOR and not multiprocessing.current_process().name.startswith(PREFIX):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


util.register_after_fork(_unblock, _unblock)
