"""What tests need that a system lacks, whether it is the real or a pretended one."""

import sys

import pytest

from tests import pretended

SYSTEM = pretended.ASKED or {"win32": "windows", "darwin": "macos"}.get(sys.platform, "linux")

_LACKING = {
    "boots": (("windows",), "Windows has no ids of its boots"),
    "a fine clock": (("windows",), "Windows has clocks that step by 16 ms, before Python 3.13"),
    "SIGCHLD": (("windows",), "Windows has no SIGCHLD"),
    "/proc": (("windows", "macos"), "only Linux has /proc"),
}
"""What a test needs -> the systems that lack it, and the reason of the skip."""


def needs(what: str) -> pytest.MarkDecorator:
    """Skip a test on systems that lack what it needs."""
    systems, reason = _LACKING[what]
    return pytest.mark.skipif(SYSTEM in systems, reason=reason)
