"""Settings of all tests."""

import signal
import sys

from hypothesis import settings

settings.register_profile("runmanager", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("runmanager")

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it, and what it starts


def pytest_sessionfinish():
    """Leave the runs that tests have left open as they are, and say nothing about them."""
    at_exit = sys.modules.get("runmanager.training.at_exit")
    if at_exit:
        at_exit._watched.clear()
