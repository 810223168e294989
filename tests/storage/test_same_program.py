"""Programs of the kinds that public tutorials show, started again and again: nothing counts as changed."""

import json
from pathlib import Path

import pytest

from tests.docs.test_pages import PAGES, blocks, name_of
from tests.nightly import of_night_but

HOME = Path(__file__).parents[2]
NUM_STARTS = 5
TELLING = """
import runmanager.front.run_grid as _grid

def _telling(*given, _since=_grid.changes_since, **options):
    changes = _since(*given, **options)
    if changes:
        print("CHANGED", changes)
    return changes

_grid.changes_since = _telling
"""
HEAD = """
import argparse, dataclasses, datetime, functools, os, random, secrets, socket, sys, tempfile, time, uuid
from dataclasses import dataclass, field
from pathlib import Path
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from runmanager import RunBuilder, RunManager, run_grid

GRID = {"lr": [0.1], "device": ["cpu"]}
OPTIONS = dict(experiment="same", executor="inline", tensorboard=False, display=False)

def loop(run, manager, *used):
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(run.lr, 1)
"""
SCRIPTS = {
    "parsed arguments, a global device, the date in a name": """
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--run-name", default="run")
args = parser.parse_args()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RUN_NAME = datetime.datetime.now().strftime("%b%d_%H-%M-%S") + "_" + socket.gethostname()
LOG_DIR = os.path.join("logs", RUN_NAME)
started = time.perf_counter()

def train(run, manager):
    net = nn.Linear(2, 2).to(device)
    print(RUN_NAME, LOG_DIR, args.run_name, args, time.perf_counter() - started)
    loop(run, manager, net, args.epochs)
""",
    "an id as Weights & Biases makes it, and a folder for temporary files": """
RUN_ID = uuid.uuid4().hex[:8]
TOKEN = secrets.token_hex(4)
SCRATCH = Path(tempfile.mkdtemp())
HERE = os.path.dirname(os.path.abspath(__file__))
CONFIG = {"lr": 0.1, "id": RUN_ID}
CONFIG["pid"] = os.getpid()
config = dict(name=f"{CONFIG['lr']}-{TOKEN}", layers=[32, 64])

def train(run, manager):
    print(RUN_ID, CONFIG, config, SCRATCH, HERE)
    loop(run, manager, CONFIG)
""",
    "a data class": """
@dataclass
class Config:
    epochs: int = 2
    sizes: list = field(default_factory=lambda: [8, 16])
    name: str = field(default_factory=lambda: f"exp-{time.time()}")

cfg = Config()

def train(run, manager):
    print(cfg, cfg.name)
    loop(run, manager, cfg.sizes)
""",
    "lambdas, partials, decorators, closures": """
def timed(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        begin = time.time()
        try:
            return function(*args, **kwargs)
        finally:
            print(time.time() - begin)
    return inner

def make(width):
    began = time.time()
    transform = nn.Sequential(nn.Linear(width, 2))
    def step(x):
        return transform(x), began
    return step

acts = {"relu": torch.relu, "own": lambda x: x * 2}
step = make(3)

@timed
def inner(run, manager, width=3, stamp=time.time()):
    step(torch.zeros(1, width)), acts["own"](2), stamp
    loop(run, manager)

train = functools.partial(inner, width=3)
""",
    "a class with methods": """
class Trainer:
    history = []

    def __init__(self, width):
        self.width, self.began, self.best = width, time.time(), 0.0
        self.net = nn.Linear(width, 2)

    def fit(self, run, manager):
        self.history.append(time.time())
        self.best = max(self.best, random.random())
        self.rows = [self.width]
        loop(run, manager)

trainer = Trainer(4)

def train(run, manager):
    trainer.fit(run, manager)
""",
    "a helper of one's own, data and transforms of the module": """
import helper
from helper import STAMP as stamp, scale

class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = mean, std
    def __call__(self, x):
        return (x - self.mean) / self.std

transform = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
normalize = Normalize(0.5, 0.2)
data = TensorDataset(torch.arange(8.0).view(2, 4))
loader = DataLoader(data, batch_size=2)
losses, seen = [], set()

def train(run, manager):
    for (x,) in loader:
        transform(normalize(x)), scale(x), helper.SETTINGS["a"], stamp, helper.now()
    losses.append(1.0)
    seen.add(run.lr)
    loop(run, manager)
""",
    "all in main()": """
def main():
    args = argparse.Namespace(epochs=2, stamp=str(time.time()))
    now = datetime.datetime.now()
    args.log_dir = f"logs/{now}"
    mean = 0.5
    transform = nn.Sequential(nn.Linear(2, 2))
    results = []

    def train(run, manager):
        results.append(args.epochs)
        transform(torch.zeros(2) - mean), args.log_dir, now
        loop(run, manager)

    run_grid(GRID, train, **OPTIONS)

main()
train = None
""",
    "seeds, two grids in one program, a global counter": """
torch.manual_seed(0)
np.random.seed(0)
weights = torch.randn(3)
noise = np.random.randn(4)
steps = 0

def train(run, manager):
    global steps
    steps += 1
    loop(run, manager, weights, noise)

run_grid(GRID, train, **OPTIONS)
""",
}
HELPER = """
import time

STAMP = time.strftime("%H%M%S")
SETTINGS = {"a": [1, 2]}

def now():
    return STAMP

def scale(x):
    return x * SETTINGS["a"][0]
"""


def changes_of(warm, program):
    """Start a program five times and return what it has said that changed."""
    outputs = []
    for number in range(NUM_STARTS):
        done = warm.execute(program)
        # what a page asserts may hold at its first start alone
        assert number or done.returncode == 0, done.stdout + done.stderr
        outputs += [line for line in done.stdout.splitlines() if line.startswith("CHANGED")]
    return outputs


@pytest.mark.slow(everywhere=True)
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_that_is_started_again_has_not_changed(warm, tmp_path, script):
    (tmp_path / "helper.py").write_text(HELPER)
    program = tmp_path / "program.py"
    program.write_text(f"{TELLING}{HEAD}{SCRIPTS[script]}\nif train:\n    run_grid(GRID, train, **OPTIONS)\n")

    assert changes_of(warm, program) == []
    assert len(list((tmp_path / "runs" / "same").glob("*/attempt-*.jsonl"))) == 1


@pytest.mark.slow(everywhere=True)
def test_a_script_whose_arguments_differ_has_changed(warm, tmp_path):
    program, script = tmp_path / "program.py", next(iter(SCRIPTS.values()))
    program.write_text(f"{TELLING}{HEAD}{script}\nrun_grid(GRID, train, **OPTIONS)\n")
    warm.execute(program)

    warm.begin(program, "--epochs", "3")
    assert warm.wait() == 0

    (said,) = [line for line in program.with_suffix(".out").read_text().splitlines() if "CHANGED" in line]
    assert said == "CHANGED ['args.epochs was 2, is 3']"


NOTEBOOK = [
    """
import time, torch
from runmanager import run_grid
STAMP = time.time()
SIZES = [1, 2]
""",
    """
class Net(torch.nn.Module):
    width = 3
""",
    """
def train(run, manager):
    Net(), STAMP, SIZES
    with manager.run(run):
        for _ in manager.epochs(1):
            manager.track_loss(run.lr, 1)
""",
    """
options = dict(experiment="same", executor="inline", tensorboard=False, display=False)
outcome = run_grid({"lr": [0.1], "device": ["cpu"]}, train, **options)
outcome.runs["attempts"].tolist()
""",
]


@pytest.mark.slow
@pytest.mark.nightly
def test_a_notebook_that_is_executed_again_has_not_changed(tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    cells = [nbformat.v4.new_code_cell(text) for text in NOTEBOOK]

    for _ in range(NUM_STARTS):
        notebook = nbformat.v4.new_notebook(cells=cells)
        nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
        assert notebook.cells[-1].outputs[-1]["data"]["text/plain"] == "[1]"

    notebook.cells[1].source = NOTEBOOK[1].replace("3", "4")
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert notebook.cells[-1].outputs[-1]["data"]["text/plain"] == "[2]"


UNCHANGED = [
    page
    for page in PAGES
    if "run_grid" in "".join(blocks(page, "python")) and page.name != "two-stages.md"  # it changes its data
]
BY_DAY = [page for page in UNCHANGED if page.name == "verdict.md"]


@pytest.mark.slow(minutes=2)
@pytest.mark.parametrize("page", of_night_but(UNCHANGED, BY_DAY), ids=name_of)
def test_a_documented_program_that_is_started_again_has_not_changed(warm, page, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("\n".join([TELLING, *blocks(page, "python")]))

    assert changes_of(warm, program) == []


@pytest.mark.slow
def test_the_experiment_that_is_started_again_has_not_changed(warm, tmp_path):
    program = tmp_path / "program.py"
    (tmp_path / "data").symlink_to(HOME / "data")
    flags = ["--train-size", "200", "--batch-size", "100", "--num-workers", "0", "--device", "cpu"]
    code = (HOME / "experiments" / "fashion_grid.py").read_text()
    program.write_text(f"{TELLING}\nimport sys\nsys.argv[1:] = {json.dumps(flags)}\n{code}")

    assert changes_of(warm, program) == []
