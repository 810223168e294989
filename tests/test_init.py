import subprocess
import sys

import pytest

import runmanager

HEAVY = (
    "torch",
    "torchvision",
    "tensorboard",
    "pandas",
    "numpy",
    "rich",
    "scipy",
    "pyarrow",
    "mlflow",
    "wandb",
)


def test_importing_the_package_loads_nothing_heavy():
    program = "import sys, runmanager; print([name for name in {} if name in sys.modules])"

    found = subprocess.run(
        [sys.executable, "-c", program.format(HEAVY)], capture_output=True, text=True, check=True
    )

    assert found.stdout == "[]\n"


def test_making_a_grid_loads_nothing_heavy():
    program = (
        "import sys; from runmanager import RunBuilder, GridError\n"
        "RunBuilder.get_runs({{'lr': [0.1], 'device': ['cpu']}})\n"
        "print([name for name in {} if name in sys.modules])"
    )

    found = subprocess.run(
        [sys.executable, "-c", program.format(HEAVY)], capture_output=True, text=True, check=True
    )

    assert found.stdout == "[]\n"


def test_workers_begin_to_import_torch_before_the_parent_does():
    program = (
        "import sys; from runmanager import run_grid\n"
        "from runmanager.executors.lanes import LanesExecutor\n"
        "LanesExecutor.prepare = lambda *_: sys.exit(str([name for name in {} if name in sys.modules]))\n"
        "run_grid({{'lr': [0.1]}}, print, experiment='exp')"
    )

    found = subprocess.run(
        [sys.executable, "-c", program.format(HEAVY)], capture_output=True, text=True, check=False
    )

    assert found.stderr == "['rich']\n"


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
