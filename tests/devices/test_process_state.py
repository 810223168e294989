import os
import re
from typing import Any

import pytest
import torch

from runmanager import RunBuilder, RunManager, run_grid
from runmanager.devices.torch_devices import (
    as_before,
    process_state,
    set_back,
    settings_of_numbers,
)
from runmanager.errors import RunsWarning

OTHER = {
    "the working directory": lambda: os.chdir(os.sep),
    "the default dtype": lambda: torch.set_default_dtype(torch.float64),
    "the default device": lambda: torch.set_default_device("meta"),
    "grad mode": lambda: torch.set_grad_enabled(False),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "cudnn.benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "cudnn.deterministic": lambda: setattr(torch.backends.cudnn, "deterministic", True),
    "cudnn.allow_tf32": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    "the number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "the precision of float32": lambda: torch.set_float32_matmul_precision("medium"),
}


@pytest.fixture(autouse=True)
def _as_before(monkeypatch, tmp_path):
    """Set back what the tests change."""
    monkeypatch.chdir(tmp_path)
    before = process_state()
    yield
    set_back(before)


@pytest.mark.parametrize("name", OTHER)
def test_a_changed_setting_is_named_and_set_back(name):
    before = process_state()

    OTHER[name]()
    changed = set_back(before)

    assert changed == [name]
    assert process_state() == before


def test_all_settings_are_set_back_together_and_for_a_block_alone():
    before = process_state()

    for change in OTHER.values():
        change()
    with as_before(before):
        within = process_state()
    after = set_back(before)

    assert within == before
    assert {*after} == {*OTHER}


def train(run, manager):
    """Train an epoch; change the setting that the run names."""
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(1.0, 1)
            OTHER.get(run.what, int)()


def grid(*whats):
    return RunBuilder.get_runs({("number", "what"): list(enumerate(whats))})


def test_what_a_run_of_a_grid_leaves_in_this_process_is_set_back_and_said_once(tmp_path):
    before = process_state()

    with pytest.warns(RunsWarning) as warned:
        run_grid(
            grid("", "the working directory", "", "grad mode"), train, experiment="exp", root=tmp_path,
            executor="inline", display=False, tensorboard=False,
        )  # fmt: skip

    (message,) = (str(warning.message) for warning in warned)
    assert re.match(
        r"Run\(number=1, .*\) left settings of this process changed: the working directory; they are restored",
        message,
    )
    assert process_state() == before


NEW_NAMES: dict[str, Any] = {
    "the precision of float32": (torch.backends.cuda.matmul, "tf32"),
    "cudnn.allow_tf32": (getattr(torch.backends.cudnn, "conv", None), "ieee"),
}


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="an older torch has no fp32_precision")
@pytest.mark.parametrize("name", NEW_NAMES)
def test_a_precision_that_torch_cannot_read_by_its_old_name_ends_no_run(tmp_path, name):
    backend, precision = NEW_NAMES[name]
    before = process_state()
    backend.fp32_precision = precision

    manager = RunManager("own", tmp_path, display=False, tensorboard=False)
    train(grid("")[0], manager)
    runs = run_grid(
        grid(""), train, experiment="exp", root=tmp_path, executor="inline", display=False,
        tensorboard=False,
    ).runs  # fmt: skip

    assert (len(manager.run_data), runs["status"].tolist()) == (1, ["completed"])
    assert (backend.fp32_precision, settings_of_numbers()[name]) == (precision, "unreadable")
    assert set_back(before) == [name]
