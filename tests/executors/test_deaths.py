import signal

import pytest

from runmanager.core.outcome import EpochRecord, Status
from runmanager.executors import BatchProgress, deaths
from runmanager.executors.deaths import Deaths, whereabouts


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (3, "its process ended itself with exit code 3 in epoch 1"),
        (None, "its process ended itself with exit code None in epoch 1"),
        (-signal.SIGSEGV, "its process crashed (segmentation fault, signal 11) in epoch 1"),
        (-signal.SIGTERM, "its process crashed (terminated, signal 15) in epoch 1"),
        (-9, "its process was killed (SIGKILL) in epoch 1"),
    ],
)
def test_the_cause_of_a_death_is_read_from_the_exit_code(code, cause, monkeypatch):
    monkeypatch.setattr(deaths, "_num_oom_kills", lambda: 7)

    assert Deaths().explain(code, " in epoch 1") == (Status.KILLED, cause)


def test_a_process_that_the_system_killed_ran_out_of_memory_and_the_next_did_not(monkeypatch):
    kills = iter([7, 8, 8])
    monkeypatch.setattr(deaths, "_num_oom_kills", lambda: next(kills))
    known = Deaths()

    status, cause = known.explain(-9, "")
    next_status, _ = known.explain(-9, "")

    assert (status, next_status) == (Status.OUT_OF_MEMORY, Status.KILLED)
    assert cause == "the system ran out of memory and killed its process"


@pytest.mark.parametrize(
    ("groups", "num_kills"),
    [("0::/jobs/one\n", 3), ("4:memory:/own\n0::/\n", 9), ("0::/another\n", 9), ("0::/\xff\n", 9), (None, 9)],
    ids=["of its group", "version 1", "none that is seen", "not UTF-8", "no groups"],
)
def test_who_ran_out_of_memory_is_counted_in_the_own_control_group_if_there_is_one(tmp_path, groups, num_kills):
    files = {
        "sys/fs/cgroup/jobs/one/memory.events": "low 0\nhigh 5\nmax 7\noom 4\noom_kill 3\noom_group_kill 0\n",
        "proc/vmstat": "nr_free_pages 100\noom_kill 9\n",
        "proc/self/cgroup": groups,
    }
    for name, content in files.items():
        if content is not None:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(content.encode("latin-1"))

    assert deaths._num_oom_kills(tmp_path) == num_kills


# recorded on an H100 with torch 2.11: a batch in pinned memory is freed after a kernel has failed
ABORTED = """\
/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], \
thread: [13,0,0] Assertion `t >= 0 && t < n_classes` failed.
terminate called after throwing an instance of 'c10::AcceleratorError'
  what():  CUDA error: device-side assert triggered
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Exception raised from createEvent at /pytorch/c10/cuda/CUDAEvent.h:261 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation) + 0x9d (0x7fa042b7305d in libc10.so)
"""


@pytest.mark.parametrize(
    ("log", "status", "why"),
    [
        (
            ABORTED,
            Status.FAILED,
            "CUDA error: device-side assert triggered: `t >= 0 && t < n_classes` is false",
        ),
        (
            "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: out of memory",
            Status.OUT_OF_MEMORY,
            "CUDA error: out of memory",
        ),
        (
            "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
            Status.OUT_OF_MEMORY,
            "std::bad_alloc",
        ),
    ],
)
def test_an_exception_of_cpp_that_nothing_catches_is_a_failure_of_the_run(log, status, why):
    expected = (status, f"its process aborted in epoch 1, step 1 ({why})")

    assert Deaths().explain(-signal.SIGABRT, " in epoch 1, step 1", f"epoch 1\n{log}") == expected
    assert Deaths().explain(-signal.SIGSEGV, "", log)[0] is Status.KILLED
    assert Deaths().explain(-signal.SIGABRT, "", "no more")[0] is Status.KILLED


def test_a_run_is_where_its_last_news_were():
    assert whereabouts(BatchProgress(2, 5)) == " in epoch 2, step 5"
    assert whereabouts(EpochRecord(3, {})) == " after epoch 3"
    assert whereabouts(None) == ""
