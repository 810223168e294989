import os
import re
import resource
import signal
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from runmanager import RunBuilder, RunManager, run_grid
from runmanager.devices.process_state import (
    Leftovers,
    as_before,
    listed_changes,
    process_state,
    set_back,
    state_changes,
)
from runmanager.errors import RunsWarning
from tests.accelerators import Machine, installed

LEFT = "left settings of this process changed, and"


@pytest.fixture(autouse=True)
def _as_before(monkeypatch, tmp_path):
    """Set back what the tests change."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEFT_BEHIND", "no")
    yield
    torch.set_default_dtype(torch.float32)
    torch.backends.mkldnn.enabled = True  # type: ignore[assignment] # a property of the module


@pytest.fixture
def cuda(tmp_path):
    """Let CUDA be there."""
    with installed(Machine(tmp_path, count=1)):
        yield


def test_what_is_set_otherwise_is_named(monkeypatch, tmp_path):
    before = process_state()

    os.chdir(os.sep)
    monkeypatch.setenv("LEFT_BEHIND", "yes")
    monkeypatch.setenv("LEFT_TOO", "yes")
    torch.set_default_dtype(torch.float64)
    names = state_changes(before, process_state())
    os.chdir(tmp_path)

    assert sorted(names) == [
        "environment variable LEFT_BEHIND", "environment variable LEFT_TOO", "the default dtype",
        "the working directory",
    ]  # fmt: skip


def test_what_torch_and_other_libraries_set_for_themselves_is_no_change(monkeypatch):
    before = process_state()

    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "somewhere")
    monkeypatch.setenv("KMP_INIT_AT_FORK", "FALSE")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    monkeypatch.syspath_prepend(os.path.join(sys.prefix, "site-packages", "part"))  # noqa: PTH118 - as in sys.path
    for _ in DataLoader(TensorDataset(torch.zeros(2)), num_workers=1):  # torch handles SIGCHLD from now on
        pass
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        torch.nn.Linear(2, 2)(torch.ones(1, 2))

    assert state_changes(before, process_state()) == []


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a"], "a"),
        (["a", "b", "c"], "a, b and c"),
        (list("abcde"), "a, b, c, d and e"),
        (list("abcdefg"), "a, b, c, d and 3 more"),
    ],
)
def test_settings_are_listed_in_a_sentence(names, text):
    assert listed_changes(names) == text


modes: list[torch.inference_mode] = []


def train(run, manager):
    """Train an epoch; change the settings that the run names while it is open, or once it has ended."""
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(1.0, 1)
            if run.when == "open":
                change(run.what)
    if run.when == "ended":
        change(run.what)


def change(what):
    match what:
        case "directory":
            os.chdir(os.sep)
        case "variable":
            os.environ["LEFT_BEHIND"] = "yes"
        case "flag":
            torch.backends.mkldnn.enabled = False  # type: ignore[assignment] # a property of the module
        case "mode":
            torch.set_flush_denormal(True)
            modes.append(torch.inference_mode())  # it ends with its last reference
            modes[0].__enter__()


def inline(root, runs):
    run_grid(runs, train, experiment="exp", root=root, executor="inline", display=False, tensorboard=False)


def bare(root, runs):
    manager = RunManager("exp", root, display=False, tensorboard=False)
    for run in runs:
        train(run, manager)


def in_a_thread(call):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result()


def grid(*whats, when):
    return RunBuilder.get_runs({("number", "what"): list(enumerate(whats)), "when": [when]})


@pytest.mark.parametrize("when", ["open", "ended"])
@pytest.mark.parametrize(
    ("what", "name"), [("directory", "the working directory"), ("variable", "environment variable LEFT_BEHIND")]
)
def test_what_a_run_leaves_to_the_next_is_warned_of_once(tmp_path, what, name, when):
    with pytest.warns(RunsWarning) as warned:
        bare(tmp_path, grid("", what, "", "flag", "", when=when))

    (message,) = (str(warning.message) for warning in warned)
    assert re.match(rf"run 2 {LEFT} run 3 begins with them: {name}; restore them", message)
    assert message.endswith("restore them at its end, or use run_grid with executor='lanes'")


def test_a_flag_of_torch_that_a_run_leaves_is_warned_of(tmp_path):
    with pytest.warns(RunsWarning, match=r"begins with them: torch\.backends\.mkldnn\.enabled; restore them"):
        bare(tmp_path, grid("flag", "", when="open"))


def test_what_the_last_run_leaves_is_nobodys_concern(tmp_path):
    bare(tmp_path, grid("", "directory", when="open"))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["open", "ended"])
def test_what_a_run_of_a_grid_leaves_in_this_process_is_set_back_and_said_once(tmp_path, when):
    before = process_state()

    with pytest.warns(RunsWarning) as warned:
        inline(tmp_path, grid("", "directory", "", "variable", "flag", when=when))

    (message,) = (str(warning.message) for warning in warned)
    assert re.match(
        r"Run\(number=1, .*\) left settings of this process changed: the working directory; they were restored",
        message,
    )
    assert state_changes(before, process_state()) == []


@pytest.mark.slow
def test_what_cannot_be_set_back_is_named(tmp_path):
    def leave_the_mode():
        with pytest.warns(
            RunsWarning, match="grad mode and subnormal numbers; grad mode cannot be set back: use"
        ):
            inline(tmp_path, grid("mode", when="open"))

    in_a_thread(leave_the_mode)  # such a mode is a thread's
    modes.clear()


def test_a_run_that_leaves_too_many_files_open_is_noticed():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1000), hard))
    before = process_state()
    descriptors: list[int] = []
    try:
        while not descriptors or descriptors[-1] < min(soft, 1000) - 60:
            descriptors.append(os.open(os.devnull, os.O_RDONLY))
        changed, left = set_back(before)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert changed == left == ["room for open files"]


OTHER = {
    "the working directory": lambda: os.chdir(os.sep),
    "the umask": lambda: os.umask(0o077),
    "the timer": lambda: signal.setitimer(signal.ITIMER_REAL, 1000),
    "handler of SIGUSR2": lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
    "sys.stdout": lambda: setattr(sys, "stdout", None),
    "warnings as errors": lambda: warnings.simplefilter("error", ResourceWarning),
    "the default dtype": lambda: torch.set_default_dtype(torch.float64),
    "the default device": lambda: torch.set_default_device("meta"),
    "grad mode": lambda: torch.set_grad_enabled(False),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "subnormal numbers": lambda: torch.set_flush_denormal(True),
    "the number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "the precision of float32": lambda: torch.set_float32_matmul_precision("medium"),
    "torch.backends.cudnn.benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "torch.backends.cuda.matmul.allow_tf32": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "torch.backends.mkldnn.enabled": lambda: setattr(torch.backends.mkldnn, "enabled", False),
    "environment variable LEFT_BEHIND": lambda: os.environ.pop("LEFT_BEHIND"),
    "environment variable LEFT_TOO": lambda: os.environ.update(LEFT_TOO="yes"),
}


@pytest.mark.parametrize("name", OTHER)
def test_a_setting_that_can_be_written_is_set_back(name, cuda):
    before = process_state()

    OTHER[name]()
    changed, left = set_back(before)

    assert name in changed
    assert left == []
    assert state_changes(before, process_state()) == []


def test_all_settings_are_set_back_together_and_for_a_block_alone(cuda):
    before = process_state()

    for change_one in OTHER.values():
        change_one()
    with as_before(before):
        within = state_changes(before, process_state())
    after = state_changes(before, process_state())
    _, left = set_back(before)

    assert within == left == []
    assert {*OTHER} - {"the timer"} <= {*after}  # it is off: nothing knows what was left of it


def seed_everything(monkeypatch):
    """Do what recipes for reproducible runs do."""
    torch.manual_seed(7)
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)


@pytest.mark.parametrize(("kind", "count"), [("cuda", 0), ("xpu", 2), ("cuda", 1)])
def test_what_cuda_alone_reads_is_a_change_where_it_is_there(tmp_path, monkeypatch, kind, count):
    with installed(Machine(tmp_path, count, kind)):
        before = process_state()
        seed_everything(monkeypatch)
        names = state_changes(before, process_state())
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")  # it may hide devices, or show them
        visible = state_changes(before, process_state())

    of_cuda = [
        "torch.backends.cudnn.benchmark", "torch.backends.cudnn.deterministic",
        "environment variable CUBLAS_WORKSPACE_CONFIG", "environment variable CUDA_LAUNCH_BLOCKING",
        "environment variable PYTORCH_CUDA_ALLOC_CONF", "environment variable PYTORCH_ALLOC_CONF",
    ]  # fmt: skip
    assert names == (of_cuda if (kind, count) == ("cuda", 1) else [])
    assert visible == [*names, "environment variable CUDA_VISIBLE_DEVICES"]


def test_a_loop_may_set_torch_for_each_run(tmp_path):
    manager = RunManager("exp", tmp_path, display=False, tensorboard=False)
    for run in RunBuilder.get_runs({"dtype": [torch.float32, torch.float64, torch.float32]}):
        torch.set_default_dtype(run.dtype)
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track_loss(1.0, 1)

    assert len(manager.run_data) == 3


def test_the_seed_of_lightning_is_no_change_and_not_left_to_the_next_run(tmp_path, monkeypatch):
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    seeds = []

    def train(run, manager):
        seeds.append(os.environ.get("PL_GLOBAL_SEED"))
        os.environ["PL_GLOBAL_SEED"] = str(run.seed)
        with manager.run(run):
            pass

    # neither the grid nor the loop warns
    run_grid(
        {"seed": [1, 2]}, train, experiment="grid", root=tmp_path,
        executor="inline", tensorboard=False, display=False,
    )  # fmt: skip
    manager = RunManager("loop", tmp_path, display=False, tensorboard=False)
    for seed in (1, 2):
        monkeypatch.setenv("PL_GLOBAL_SEED", str(seed))
        with manager.run({"seed": seed}):
            pass

    assert seeds == [None, None]


def test_a_run_that_sets_back_what_it_changed_leaves_nothing(monkeypatch):
    leftovers = Leftovers()

    sentences = [leftovers.run_begins("run 1")]
    monkeypatch.setenv("LEFT_BEHIND", "yes")
    torch.set_default_dtype(torch.float64)
    leftovers.run_ended()
    monkeypatch.setenv("LEFT_BEHIND", "no")
    torch.set_default_dtype(torch.float32)
    sentences.append(leftovers.run_begins("run 2"))

    assert sentences == ["", ""]
