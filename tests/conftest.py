"""Settings of all tests."""

import signal

from hypothesis import settings

settings.register_profile("runmanager", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("runmanager")

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it, and what it starts
