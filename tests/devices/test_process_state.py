import os
import re
import sys

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from runmanager import RunBuilder, RunManager, run_grid
from runmanager.devices.process_state import Leftovers, changes, listed, process_state
from runmanager.errors import RunsWarning

LEFT = "left this process with other settings, and"


@pytest.fixture(autouse=True)
def _as_before(monkeypatch, tmp_path):
    """Set back what the tests change."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEFT_BEHIND", "no")
    yield
    torch.set_default_dtype(torch.float32)
    torch.backends.cudnn.benchmark = False


def test_what_is_set_otherwise_is_named(monkeypatch, tmp_path):
    before = process_state()

    os.chdir(os.sep)
    monkeypatch.setenv("LEFT_BEHIND", "yes")
    monkeypatch.setenv("LEFT_TOO", "yes")
    torch.set_default_dtype(torch.float64)
    names = changes(before, process_state())
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
    monkeypatch.syspath_prepend(os.path.join(sys.prefix, "site-packages", "part"))  # noqa: PTH118 - as in sys.path
    for _ in DataLoader(TensorDataset(torch.zeros(2)), num_workers=1):  # torch handles SIGCHLD from now on
        pass
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        torch.nn.Linear(2, 2)(torch.ones(1, 2))

    assert changes(before, process_state()) == []


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
    assert listed(names) == text


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
        case "benchmark":
            torch.backends.cudnn.benchmark = True


def inline(root, runs):
    run_grid(runs, train, experiment="exp", root=root, executor="inline", display=False, tensorboard=False)


def bare(root, runs):
    manager = RunManager("exp", root, display=False, tensorboard=False)
    for run in runs:
        train(run, manager)


def grid(*whats, when):
    return RunBuilder.get_runs({("number", "what"): list(enumerate(whats)), "when": [when]})


@pytest.mark.parametrize("when", ["open", "ended"])
@pytest.mark.parametrize(
    ("what", "name"), [("directory", "the working directory"), ("variable", "environment variable LEFT_BEHIND")]
)
@pytest.mark.parametrize(
    ("execute", "first", "second"),
    [(bare, "run 2", "run 3"), (inline, r"Run\(number=1, .*\)", r"Run\(number=2, .*\)")],
)
def test_what_a_run_leaves_to_the_next_is_warned_of_once(tmp_path, execute, first, second, what, name, when):
    with pytest.warns(RunsWarning) as warned:
        execute(tmp_path, grid("", what, "", "benchmark", "", when=when))

    (message,) = (str(warning.message) for warning in warned)
    assert re.match(rf"{first} {LEFT} {second} begins with them: {name}; set them back", message)


@pytest.mark.parametrize("execute", [bare, inline])
def test_a_flag_of_torch_that_a_run_leaves_is_warned_of(tmp_path, execute):
    with pytest.warns(RunsWarning, match=r"begins with them: torch\.backends\.cudnn\.benchmark; set them back"):
        execute(tmp_path, grid("benchmark", "", when="open"))


@pytest.mark.parametrize("execute", [bare, inline])
def test_what_the_last_run_leaves_is_nobodys_concern(tmp_path, execute):
    execute(tmp_path, grid("", "directory", when="open"))


def test_a_loop_may_set_torch_for_each_run(tmp_path):
    manager = RunManager("exp", tmp_path, display=False, tensorboard=False)
    for run in RunBuilder.get_runs({"dtype": [torch.float32, torch.float64, torch.float32]}):
        torch.set_default_dtype(run.dtype)
        with manager.run(run):
            for _ in manager.epochs(1):
                manager.track_loss(1.0, 1)

    assert len(manager.run_data) == 3


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
