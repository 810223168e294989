"""Importing Lightning takes seconds: all tests that do are in this module."""

import itertools
import logging
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from runmanager import LifecycleError, RunManager, TensorLoader, load_results, load_runs, load_steps
from tests.accelerators import Machine, installed
from tests.border.events import scalars_of
from tests.border.experiments import manager_in
from tests.border.test_pretended_devices import CUDA, network, waits_per_batch
from tests.border.trainers import Promises, Stopped, execute, study_of, table

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # those of Lightning


@pytest.fixture(scope="module")
def study():
    return study_of("lightning", "lightning_study")


class TestPromises(Promises):
    """Those of every trainer."""


def test_the_table_is_what_lightning_reports(tmp_path, study, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    execute(tmp_path, study.train)

    rows = table(tmp_path)
    csv_epochs = study.reported(tmp_path / "exp" / "001")
    assert rows["epoch"].tolist() == [*csv_epochs] == [1, 2, 3, 4]
    names = {"val_loss": "val_loss", "accuracy": "accuracy", "train_loss": "train/loss_epoch"}
    for column, name in names.items():
        assert rows[column].tolist() == [values[name] for values in csv_epochs.values()]
    assert rows["loss"].tolist() == pytest.approx(rows["train_loss"].tolist(), rel=1e-6)
    assert set(rows) == {
        "run", "epoch", "loss", "accuracy", "lr", "seed", "device", "train_loss", "last", "val_loss",
    }  # fmt: skip
    assert [*Path().iterdir()] == []
    assert [path.name for path in (tmp_path / "exp" / "001").glob("*/*.ckpt")] == []


@pytest.mark.parametrize("level", [logging.NOTSET, logging.INFO])
def test_hints_of_lightning_are_off_in_a_run(tmp_path, study, level):
    class Hints(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage())

    messages: list[str] = []
    handler, logger = Hints(), logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        execute(tmp_path, partial(study.train, stop=Stopped(2)))
        execute(tmp_path, study.train, changed="keep")
        level_after = logger.level
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)

    assert (messages, level_after) == ([], level)


def test_curves_within_an_epoch_are_kept(tmp_path, study):
    execute(tmp_path, partial(study.train, log_every_n_steps=2))

    steps = load_steps(tmp_path / "exp")["train_loss_step"].dropna()

    assert len(steps) == 10  # 4 epochs of 5 steps


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param(
            {"max_epochs": -1, "max_steps": 18, "check_val_every_n_epoch": 2}, marks=pytest.mark.nightly
        ),
        pytest.param({"plateau": True}, marks=pytest.mark.nightly),
        {"accumulate_grad_batches": 2, "val_check_interval": 0.4},
        {"is_async": True},
    ],
    ids=["plain", "max_steps", "plateau", "accumulate", "async"],
)
def test_an_interrupted_run_continues_as_if_nothing_had_happened(tmp_path, study, options):
    execute(tmp_path, partial(study.train, **options), experiment="whole")

    outcome = execute(tmp_path, partial(study.train, stop=Stopped(3), **options))
    committed = table(tmp_path)["epoch"].tolist()
    execute(tmp_path, partial(study.train, **options), changed="keep")

    assert (outcome.exit_code, committed) == (130, [1, 2])
    assert table(tmp_path).equals(table(tmp_path, "whole"))
    assert load_runs(tmp_path / "exp")[["status", "attempts"]].values.tolist() == [["completed", 2]]
    validated = [
        epoch for epoch, values in study.reported(tmp_path / "exp" / "001").items() if "val_loss" in values
    ]
    rows = table(tmp_path).dropna(subset="val_loss")
    assert rows["epoch"].tolist() == validated  # a value of an earlier epoch is not repeated


@pytest.mark.parametrize("every", [0, 1])
def test_a_resumed_run_whose_loaders_are_reloaded_is_marked(tmp_path, study, every):
    for stop in (Stopped(2), None):
        manager = manager_in(tmp_path)
        with suppress(KeyboardInterrupt), manager.run({"lr": 0.1}):
            options = study.trainer_options(manager, max_epochs=3, reload_dataloaders_every_n_epochs=every)
            module, path = study.Classifier(0.1, stop=stop), study.checkpoint_path(manager)
            study.L.Trainer(**options).fit(module, study.loader(), ckpt_path=path)

    run = load_runs(tmp_path / "exp").iloc[0]
    assert (run["status"], run["attempts"], run["mixed"]) == ("completed", 2, bool(every))


@pytest.mark.parametrize("case", ["changed", "resumed", "unsaved"])
def test_a_fresh_attempt_has_only_its_own_model_checkpoints(tmp_path, study, case):
    from lightning.pytorch.callbacks import ModelCheckpoint

    from runmanager.trainers.lightning import RunManagerCallback, checkpoint_path

    def train(run, manager, stop=None, max_epochs=2):
        with manager.run(run):
            own = RunManagerCallback(manager, checkpoint=case != "unsaved")
            callbacks = [ModelCheckpoint(save_last=True), own]
            options = study.trainer_options(manager, max_epochs=max_epochs, callbacks=callbacks)
            module, path = study.Classifier(0.1, stop=stop), checkpoint_path(manager)
            study.L.Trainer(**options).fit(module, study.loader(), ckpt_path=path)

    execute(tmp_path, partial(train, stop=None if case == "changed" else Stopped(2)), data=1)
    execute(tmp_path, partial(train, max_epochs=3), **{"data": 2} if case == "changed" else {"changed": "keep"})

    run = tmp_path / "exp" / "001"
    files = {path.relative_to(run).as_posix(): path for path in sorted(run.glob("*artifacts/**/*.ckpt"))}
    last_epochs = {"artifacts": 3, "attempt-1.artifacts": {"changed": 2, "unsaved": 1}.get(case, 0)}
    expected = {}
    for folder, epoch in last_epochs.items():
        for name in (f"epoch={epoch - 1}-step={epoch * 5}", "last") if epoch else ():
            expected[f"{folder}/checkpoints/{name}.ckpt"] = epoch
    saved = {name: torch.load(path, weights_only=False)["epoch"] + 1 for name, path in files.items()}
    assert saved == expected


def test_early_stopping_of_lightning_ends_a_run_that_was_interrupted_after_the_same_epoch(tmp_path, study):
    from lightning.pytorch.callbacks import EarlyStopping

    def train(run, manager, stop=None):
        early = EarlyStopping("val_loss", patience=1, min_delta=9.0)
        study.train(run, manager, stop=stop, callbacks=[early])

    execute(tmp_path, train, experiment="whole")
    execute(tmp_path, partial(train, stop=Stopped(2)))
    execute(tmp_path, train, changed="keep")

    assert table(tmp_path)["epoch"].tolist() == [1, 2]
    assert {*load_runs(tmp_path)["stopped early"]} == {"the trainer stopped after epoch 2 of 4"}
    assert table(tmp_path).equals(table(tmp_path, "whole"))


def test_the_norm_of_gradients_is_that_before_lightning_clips_them(tmp_path, study):
    from runmanager.trainers.lightning import trainer_options

    norms = []
    for clip in (None, 0.01):
        torch.manual_seed(1)
        module, manager = study.Classifier(1e-9), RunManager("exp", tmp_path, display=False)
        with manager.run({"lr": 1e-9, "clip": clip or 0}, module):
            options = trainer_options(manager, max_epochs=1, gradient_clip_val=clip)
            torch.manual_seed(2)
            study.L.Trainer(**options).fit(module, study.loader())
        assert manager.folder is not None
        norms += [value for _, value in scalars_of(manager.folder)["train/grad_norm"]]

    assert norms == pytest.approx([norms[0]] * 2)
    assert norms[0] > 0.1


def test_several_loaders_have_columns_of_their_own_and_a_test_is_a_result(tmp_path, study):
    L, manager = study.L, manager_in(tmp_path)  # noqa: N806
    from runmanager.trainers.lightning import trainer_options

    with manager.run({"lr": 0.1}):
        trainer = L.Trainer(**trainer_options(manager, max_epochs=1))
        module = study.Classifier(0.1)
        trainer.fit(module, study.loader(), [study.loader(), study.loader(30)])
        module.test_step = lambda *_, **__: module.log("test/size", 16.0)
        manager.summary(trainer.test(module, study.loader(16), verbose=False)[0])
    trainer.test(module, study.loader(16), verbose=False)  # which the run, that has ended, does not notice

    assert {"val_loss_dataloader_idx_0", "val_loss_dataloader_idx_1"} <= set(manager.results)
    assert load_runs(tmp_path / "exp")["test_size"].tolist() == [16.0]


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_trainer_that_does_not_continue_where_the_run_does_is_refused(tmp_path, study, is_asked):
    execute(tmp_path, partial(study.train, stop=Stopped(2)))

    def forget(run, manager):
        from runmanager.trainers.lightning import checkpoint_path, trainer_options

        with manager.run(run):
            trainer = study.L.Trainer(**trainer_options(manager, max_epochs=3))
            if is_asked:
                assert str(checkpoint_path(manager)).endswith("epoch-1.ckpt")
            trainer.fit(study.Classifier(0.1), study.loader())

    outcome = execute(tmp_path, forget, changed="keep")

    assert "write trainer.fit(..., ckpt_path=checkpoint_path(manager))" in outcome.outcomes[0][1].error


def test_a_second_fit_in_one_run_is_refused(tmp_path, study):
    from runmanager.trainers.lightning import checkpoint_path, trainer_options

    def fit_twice():
        manager = manager_in(tmp_path)
        with manager.run({"lr": 0.1}):
            path = checkpoint_path(manager)
            for number in (1, 2):
                trainer = study.L.Trainer(**trainer_options(manager, max_epochs=number))
                trainer.fit(study.Classifier(0.1), study.loader(), ckpt_path=path)

    with pytest.raises(LifecycleError, match="once in a run"):
        fit_twice()

    assert load_results(tmp_path)["epoch"].tolist() == [1]


def test_a_stream_is_trained_on_and_a_callback_that_saves_nothing_takes_the_place_of_the_other(tmp_path, study):
    from runmanager.trainers.lightning import RunManagerCallback, trainer_options

    class Stream(IterableDataset[Any]):
        def __iter__(self):
            return iter(study.loader().dataset)

    manager = manager_in(tmp_path)
    with manager.run({"lr": 0.1}):
        callback = RunManagerCallback(manager, checkpoint=False)
        trainer = study.L.Trainer(**trainer_options(manager, max_epochs=2, callbacks=[callback]))
        trainer.fit(study.Classifier(0.1), DataLoader(Stream(), 16))
        saved = [*tmp_path.rglob("*.ckpt")]

    assert (manager.results["epoch"].tolist(), saved) == ([1, 2], [])


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
