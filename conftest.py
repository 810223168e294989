"""Examples of docstrings run in a folder of their own; `runs/circle` in one is a small experiment."""

import os
import shutil
from pathlib import Path

import pytest

os.environ["RAY_AUTH_MODE"] = "disabled"  # else Ray leaves a token in the home folder; a process keeps the mode
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - else its workers wait until no other test computes

# importing them takes seconds; docs/trainers.md has their examples; the last are imported by programs alone
collect_ignore_glob = [
    "runmanager/trainers/lightning*", "runmanager/trainers/huggingface*", "runmanager/front/caught/*"
]  # fmt: skip

SAMPLES = 2500
ENDS = (
    (0.1, 8, 0.9352, 0.1685),
    (0.1, 64, 0.9624, 0.08844),
    (0.01, 8, 0.7388, 0.5922),
    (0.01, 64, 0.9632, 0.2143),
)
"""Learning rate, width, accuracy and loss of each run."""


SLOW = ("Command", "Listener", "export_mlflow", "export_wandb", "open_tensorboard", "RayExecutor")
"""Names whose examples take seconds: they run with the slow tests."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the examples that take seconds."""
    for item in items:
        if isinstance(item, pytest.DoctestItem) and item.name.endswith(SLOW):
            item.add_marker("slow")
            item.add_marker(pytest.mark.filterwarnings("ignore"))  # those of other libraries


@pytest.fixture(scope="session")
def circle(tmp_path_factory):
    """The experiment of four runs that the examples of docstrings read."""
    import torch

    from runmanager import RunManager

    root = tmp_path_factory.mktemp("circle")
    manager = RunManager("circle", root, tensorboard=False, display=False)
    labels = torch.ones(SAMPLES, dtype=torch.int64)
    for lr, width, accuracy, loss in ENDS:
        is_right = torch.arange(SAMPLES) < round(accuracy * SAMPLES)
        scores = torch.nn.functional.one_hot(is_right.long(), 2)
        with manager.run({"lr": lr, "width": width, "device": "cpu"}):
            for epoch in manager.epochs(5):
                manager.track_loss(loss + 0.1 * (5 - epoch), SAMPLES)
                manager.track_num_correct(scores, labels)
    return root / "circle"


@pytest.fixture(autouse=True)
def _folder_of_an_example(request):
    """Let the example of a docstring write its files where they are in nobody's way."""
    if isinstance(request.node, pytest.DoctestItem):
        import torch

        from runmanager import RunManager

        folder = request.getfixturevalue("tmp_path")
        if "runs/circle" in (request.node.dtest.docstring or ""):
            shutil.copytree(request.getfixturevalue("circle"), folder / "runs" / "circle")
        if "fashion_mnist(" in (request.node.dtest.docstring or ""):
            (folder / "data").symlink_to(Path(__file__).parent / "data")
        request.getfixturevalue("monkeypatch").chdir(folder)
        names = request.getfixturevalue("doctest_namespace")  # examples of `RunManager` are in its base too
        names |= {"torch": torch, "nn": torch.nn, "functional": torch.nn.functional, "RunManager": RunManager}
        names["Path"] = Path
