"""A Chromium without a window, for tests that read a page back; without one, who imports this is skipped."""

import pytest

from benchmarks.browser import CHROMIUM, OPTIONS

__all__ = ["CHROMIUM", "NEEDS_CHROMIUM", "OPTIONS", "playwright"]

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[test]'")
NEEDS_CHROMIUM = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium"),
]
"""The marks of such a module."""
