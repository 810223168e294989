"""What the tests of executors share: a Ray on this machine."""

import pytest

from runmanager.executors.ray import cluster


@pytest.fixture(scope="module")
def local_ray():
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else Ray leaves a token in the home folder
        with cluster.connected(None):
            yield
