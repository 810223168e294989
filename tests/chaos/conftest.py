"""What the chaos tests share: one process that forks all others."""

import os
import sys

import pytest

from tests.chaos.harness import Zygote


@pytest.fixture(scope="session")
def zygote():
    if not hasattr(os, "pidfd_open") or not sys.platform.startswith("linux"):
        pytest.skip("processes are forked and waited for as Linux does it")
    with Zygote() as zygote:
        yield zygote
