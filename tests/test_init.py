import subprocess
import sys

import pytest

import runmanager

HEAVY = (
    "torch", "torchvision", "tensorboard", "pandas", "numpy", "rich", "scipy", "pyarrow", "mlflow", "wandb",
)  # fmt: skip


PROGRAM = f"""
import random, sys
import runmanager
from runmanager import RunBuilder, GridError
runs = RunBuilder.get_runs({{'lr': [0.1], 'device': ['cpu']}})
print([name for name in {HEAVY} if name in sys.modules])
from runmanager import run_grid
state = random.getstate()
run_grid(runs, print, experiment="e", plan_only=True, display=True)
for name in runmanager.__all__:
    getattr(runmanager, name)
print(random.getstate() == state, "torchvision" in sys.modules)
"""


def test_the_package_and_a_grid_load_nothing_heavy_and_a_first_display_draws_no_random_numbers(tmp_path):
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert [found.stdout.splitlines()[line] for line in (0, -1)] == ["[]", "True False"]


def test_the_public_names_are_sorted_and_all_there_is():
    assert runmanager.__all__ == sorted(set(runmanager.__all__))
    assert dir(runmanager) == runmanager.__all__


@pytest.mark.parametrize("name", runmanager.__all__)
def test_every_public_name_resolves(name):
    assert getattr(runmanager, name) is not None
    assert name in vars(runmanager)  # found at once from now on


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError) as caught:
        runmanager.RunManger  # noqa: B018

    assert str(caught.value) == "module 'runmanager' has no attribute 'RunManger'; did you mean 'RunManager'?"
