import os
import threading
from multiprocessing import Pipe

import pytest

from runmanager.executors import worker
from runmanager.outcome import EpochRecord, Question


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


def ask_and_leave(ours, *, with_unread_news):
    """Wait for a question, and leave without an answer; news that nobody has read reset the connection."""
    assert ours.poll(9)
    if not with_unread_news:
        ours.recv()
    ours.close()


@pytest.mark.parametrize("with_unread_news", [False, True])
def test_a_run_whose_parent_goes_before_it_answers_is_stopped_and_not_at_fault(with_unread_news):
    ours, theirs = Pipe()
    parent = threading.Thread(target=ask_and_leave, args=(ours,), kwargs={"with_unread_news": with_unread_news})
    parent.start()

    with theirs, pytest.raises(worker._Stopped):
        worker._tell(theirs, os.getpid(), Question(EpochRecord(1, {})))
    parent.join()


def test_a_question_gets_its_answer():
    ours, theirs = Pipe()
    ours.send("behind")

    with ours, theirs:
        assert worker._tell(theirs, os.getpid(), Question(EpochRecord(1, {}))) == "behind"
