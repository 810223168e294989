import subprocess
import sys

import pytest

import runmanager

HEAVY = (
    "torch", "torchvision", "tensorboard", "pandas", "numpy", "rich", "scipy", "pyarrow", "mlflow", "wandb",
)  # fmt: skip


LIGHT = f"""
import sys
import runmanager
from runmanager import RunBuilder, GridError
RunBuilder.get_runs({{'lr': [0.1], 'device': ['cpu']}})
print([name for name in {HEAVY} if name in sys.modules])
"""
FIRST = """
import random, sys
from runmanager import RayExecutor, SuccessiveHalving, run_grid

def train(run, manager):
    with manager.run(run):
        for _ in manager.epochs(2):
            manager.track_loss(run.lr, 1)

state = random.getstate()
RayExecutor()
options = {"experiment": "e", "executor": "inline", "display": True, "prune": SuccessiveHalving("loss")}
runs = run_grid({"lr": [1, 2]}, train, **options).runs
found = [name for name in ("torchvision", "optuna", "ray") if name in sys.modules]
print(random.getstate() == state, found, runs["status"].tolist())
"""


def test_the_package_and_a_grid_load_nothing_heavy():
    found = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)

    assert found.stdout == "[]\n"


@pytest.mark.slow(everywhere=True)
def test_a_first_grid_draws_no_random_number_and_imports_no_extra_that_it_does_not_need(warm, tmp_path):
    (tmp_path / "program.py").write_text(FIRST)

    # where the names were imported, warm.py looks itself
    last = warm.execute(tmp_path / "program.py").stdout.splitlines()[-1]
    assert last == "True [] ['completed', 'pruned']"


def test_the_public_names_are_sorted_all_there_is_and_resolve():
    assert None not in [getattr(runmanager, name) for name in runmanager.__all__]
    assert {*runmanager.__all__} <= {*vars(runmanager)}  # at once from now on
    assert runmanager.__all__ == sorted(set(runmanager.__all__))
    assert dir(runmanager) == runmanager.__all__


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError) as caught:
        runmanager.RunManger  # noqa: B018

    assert str(caught.value) == "module 'runmanager' has no attribute 'RunManger'; did you mean 'RunManager'?"
