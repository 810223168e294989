"""A Chromium without a window, for tests that read a page back; without one, who imports this is skipped."""

import os
import shutil

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[test]'")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = ["--no-sandbox"] if os.name == "posix" and os.geteuid() == 0 else []
NEEDS_CHROMIUM = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium"),
]
"""The marks of such a module."""
