"""What the tests at the border share: a folder of their own, a manager, and a Ray on this machine."""

import os
from unittest import mock

import pytest

from tests.border.experiments import manager_in


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """Work in a folder in which nothing is."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def manager(tmp_path):
    """The manager of a loop of one's own in the experiment `exp`."""
    return manager_in(tmp_path)


@pytest.fixture(scope="module")
def local_ray():
    """Connect this process to a Ray of its own, as a user does."""
    ray = pytest.importorskip("ray")
    with mock.patch.dict(os.environ):  # ray.init() sets PYTHONBREAKPOINT
        ray.init("local", include_dashboard=False, logging_level="ERROR", log_to_driver=False)
        yield
        ray.shutdown()
