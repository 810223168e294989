"""What the chaos tests share: one process that forks all others, and Ray clusters on this machine."""

import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.harness import Zygote


@pytest.fixture(scope="session")
def zygote():
    if sys.platform != "linux":
        pytest.skip("processes are forked and waited for as Linux does it")
    with Zygote() as zygote:
        yield zygote


@pytest.fixture(scope="module")
def zygote_of_all_cores(zygote):
    with Zygote(uses_all_cores=True) as free:
        yield free


def add_node(cluster, tries_left=2, **options):
    """Add a node, the head first; on a busy machine Ray gives up waiting for it."""
    try:
        cluster.add_node(num_gpus=0, **options)  # on a machine with GPUs too
    except Exception:
        if not tries_left:
            raise
        add_node(cluster, tries_left - 1, **options)


@contextmanager
def ray_cluster(num_cpus):
    utils = pytest.importorskip("ray.cluster_utils")
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        Path("/tmp/ray").mkdir(exist_ok=True)  # noqa: S108 - where Ray notes the head's address, whatever temp_dir is
        # without its hooks, which only the main thread can set
        cluster = utils.Cluster(shutdown_at_exit=False)
        try:
            add_node(cluster, num_cpus=num_cpus, include_dashboard=False, temp_dir=folder)
            yield cluster
        finally:
            cluster.shutdown()
