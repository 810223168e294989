"""What the tests of executors share: a Ray on this machine."""

from contextlib import ExitStack

import pytest

from runmanager.executors.ray import connected


@pytest.fixture(scope="module")
def local_ray():
    pytest.importorskip("ray")
    with ExitStack() as stack:
        try:
            stack.enter_context(connected(None))
        except Exception:  # noqa: BLE001 - on a busy machine Ray gives up waiting for itself
            stack.enter_context(connected(None))
        yield
