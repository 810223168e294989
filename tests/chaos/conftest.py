"""What the chaos tests share: one process that forks all others, and Ray clusters on this machine."""

import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.chaos.harness import Zygote


@pytest.fixture(scope="session")
def zygote():
    if not hasattr(os, "pidfd_open") or not sys.platform.startswith("linux"):
        pytest.skip("processes are forked and waited for as Linux does it")
    with Zygote() as zygote:
        yield zygote


@pytest.fixture(scope="module")
def zygote_of_all_cores(zygote):
    with Zygote(uses_all_cores=True) as free:
        yield free


@pytest.fixture
def ray_address():
    """Start a Ray with two CPUs, which all grids of a test use; yield what makes them use it."""
    with ray_cluster(num_cpus=2) as cluster:
        yield f"ray {cluster.address}"


@pytest.fixture(scope="module")
def ray_nodes():
    """Start a Ray whose head executes nothing, and three nodes with one CPU and one slot each."""
    with ray_cluster(num_cpus=0) as cluster:
        for _ in range(3):
            add_node(cluster, num_cpus=1, resources={"slot": 1})
        yield cluster


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
