"""Settings of all tests."""

from hypothesis import settings

settings.register_profile("runmanager", deadline=None, derandomize=True)
settings.load_profile("runmanager")
