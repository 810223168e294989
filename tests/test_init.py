import subprocess
import sys

import pytest

import runmanager

HEAVY = (
    "torch", "torchvision", "tensorboard", "pandas", "numpy", "rich", "scipy", "pyarrow", "mlflow", "wandb",
)  # fmt: skip


def test_importing_the_package_and_making_a_grid_load_nothing_heavy():
    program = (
        "import sys; from runmanager import RunBuilder, GridError\n"
        "RunBuilder.get_runs({'lr': [0.1], 'device': ['cpu']})\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )

    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert found.stdout == "[]\n"


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
