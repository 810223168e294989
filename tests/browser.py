"""A Chromium without a window, for tests that read a page back; without one, they are skipped."""

import contextlib
import time
from typing import Any

import pytest

from benchmarks.browser import CHROMIUM, OPTIONS

__all__ = ["CHROMIUM", "NEEDS_CHROMIUM", "OPTIONS", "playwright", "wait_until"]

playwright: Any = None
with contextlib.suppress(ImportError):
    from playwright import sync_api as playwright
NEEDS_CHROMIUM = [
    pytest.mark.slow,
    pytest.mark.skipif(playwright is None, reason="needs playwright: pip install -e '.[test]'"),
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium"),
]
"""The marks of such a module."""


def wait_until(page, condition):
    """Wait for a condition; the page's own policy forbids what playwright would do."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with contextlib.suppress(playwright.Error):  # the page is being loaded
            if page.evaluate(condition):
                return
        time.sleep(0.1)
    raise AssertionError(condition)
