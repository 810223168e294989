"""Settings of all tests."""

from hypothesis import settings

settings.register_profile("runmanager", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("runmanager")
