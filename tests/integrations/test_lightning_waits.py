"""How often our callback waits for a device that Lightning trains on."""

import itertools
import warnings

import pytest
import torch

from runmanager import RunManager, TensorLoader
from tests.accelerators import Machine, installed
from tests.border.test_pretended_devices import CUDA, network, waits_per_batch

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # those of Lightning


@pytest.fixture(scope="module")
def study():
    pytest.importorskip("lightning", reason="the extra lightning is not installed")
    with warnings.catch_warnings(action="ignore"):
        from tests.border import lightning_study
    return lightning_study


@pytest.mark.parametrize("is_logged", [False, True], ids=["", "logged"])
def test_our_callback_waits_for_the_device_in_no_batch(study, tmp_path, is_logged):
    from lightning.pytorch.accelerators import CPUAccelerator
    from lightning.pytorch.strategies import SingleDeviceStrategy

    class Pretended(CPUAccelerator):  # type: ignore[misc]  # mypy does not follow lightning
        def setup_device(self, device):
            """Ask no driver."""

    class Module(study.L.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self):
            super().__init__()
            self.network = network()

        def training_step(self, batch, _):
            loss = torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])
            if is_logged:
                self.log("train/loss", loss, on_step=True, on_epoch=True)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(samples, **options):
        strategy = SingleDeviceStrategy(device=CUDA, accelerator=Pretended())
        options |= {"accelerator": "auto", "devices": 1, "strategy": strategy, "enable_progress_bar": False}
        study.L.Trainer(**options).fit(Module(), TensorLoader(samples, 20, device=CUDA))

    def alone(samples):
        fit(samples, max_epochs=1, logger=False, enable_checkpointing=False)

    def ours(samples):
        manager = RunManager("exp", tmp_path, tensorboard=False, display=False)
        with manager.run({"device": "cuda:0", "number": next(number)}):
            fit(samples, **study.trainer_options(manager, max_epochs=1))

    number = itertools.count()
    (tmp_path / "devices").mkdir()
    with installed(Machine(tmp_path / "devices")) as here:
        of_lightning = waits_per_batch(here, alone)
        waits = waits_per_batch(here, ours)

    assert (of_lightning, waits) == ({}, {})
