import os
from multiprocessing import Pipe

import pytest

from runmanager.executors import worker


def test_a_run_whose_parent_has_gone_is_stopped_and_not_at_fault():
    ours, theirs = Pipe()
    ours.close()

    with theirs, pytest.raises(worker._Stopped):
        worker._tell(theirs, os.getpid(), worker.Ready())


def test_a_process_that_a_run_has_forked_tells_nothing():
    ours, theirs = Pipe()

    with ours, theirs:
        worker._tell(theirs, os.getpid() + 1, worker.Ready())

        assert not ours.poll()
