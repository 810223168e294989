import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from experiments.fashion_grid import make_network
from runmanager import load_results, load_runs

HOME = Path(__file__).parents[2]
TESTED = ["test_loss", "test_accuracy"]
SMALL = "--train-size 500 --batch-size 250 --num-workers 0 --device cpu"


@pytest.fixture
def start(tmp_path):
    """Start the script as a person does; it writes under tmp_path."""

    def run(arguments):
        command = [sys.executable, "experiments/fashion_grid.py", "--root", str(tmp_path), *arguments.split()]
        return subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=False, timeout=180)

    return run


def test_the_network_gives_the_bits_of_the_tutorials():
    def tutorial(x: Any) -> Any:
        x = functional.max_pool2d(functional.relu(network.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(network.conv2(x)), 2).flatten(1)
        return network.out(functional.relu(network.fc2(functional.relu(network.fc1(x)))))

    torch.manual_seed(0)
    network: Any = make_network()
    images = torch.rand(20, 1, 28, 28)
    images[:, :, :14] = 0  # as the borders of clothes: windows of equal values

    results = []
    for forward in (network, tutorial):
        network.zero_grad()
        scores = forward(images)
        functional.cross_entropy(scores, torch.arange(20) % 10).backward()
        results.append([scores, *(parameter.grad.clone() for parameter in network.parameters())])

    assert all(map(torch.equal, *results))


@pytest.mark.slow
@pytest.mark.nightly
def test_the_grid_is_trained_once(start, tmp_path):
    first = start(SMALL)
    (journal,) = tmp_path.rglob("*.jsonl")
    written = journal.read_bytes()
    second = start(SMALL)

    assert [(done.returncode, done.stderr) for done in (first, second)] == [(0, "")] * 2
    assert f"{tmp_path}/fashion_grid: 1 run, 1 to execute\n" in first.stdout
    assert f"{tmp_path}/fashion_grid: 1 run, 0 to execute, 1 completed\n" in second.stdout
    assert [path.read_bytes() for path in tmp_path.rglob("*.jsonl")] == [written]
    (row,) = load_results(tmp_path).to_dict(orient="records")
    assert list(row)[6:] == ["lr", "batch_size", "num_workers", "device", "train_size", *TESTED]
    assert 0 < row["accuracy"] < 0.5
    assert abs(row["loss"] - math.log(10)) < 0.1
    assert load_runs(tmp_path)["parameters"].tolist() == [32_998]
    assert len(list(tmp_path.rglob("events.*"))) == 1


@pytest.mark.slow
@pytest.mark.nightly
def test_its_runs_leave_their_process_as_it_was(start, tmp_path):
    done = start(f"{SMALL} --num-workers 0 1 --precision fp32 bf16")

    assert (done.returncode, done.stderr) == (0, "")
    starts = [json.loads(path.read_text().partition("\n")[0]) for path in tmp_path.rglob("*.jsonl")]
    assert len(starts) == 4
    assert len({start["pid"] for start in starts}) == 1  # all in one process, which stayed warm


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize(("arguments", "code"), [("--help", 0), ("--lr x", 2), ("--device cpu:3", 2)])
def test_what_trains_nothing_imports_nothing_heavy(arguments, code):
    heavy = ("torch", "tensorboard", "pandas", "numpy")
    program = (
        "import runpy, sys\n"
        f"sys.argv = ['experiments/fashion_grid.py', *{arguments.split()}]\n"
        "try:\n"
        "    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally:\n"
        f"    print([name for name in {heavy} if name in sys.modules])"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=HOME, capture_output=True, text=True, check=False, timeout=180
    )

    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
