"""Importing transformers takes seconds: all tests that do are in this module."""

from functools import partial
from pathlib import Path

import pytest

from runmanager import load_runs, load_steps
from tests.border.trainers import Promises, Stopped, execute, study_of, table

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # those of transformers


@pytest.fixture(scope="module")
def study():
    return study_of("transformers", "huggingface_study")


class TestPromises(Promises):
    """Those of every trainer."""


def test_the_table_is_what_the_trainer_reports(tmp_path, study, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    execute(tmp_path, study.train)

    rows, logged = table(tmp_path), study.reported(tmp_path / "exp" / "001")
    assert rows["epoch"].tolist() == [*logged] == [1, 2, 3, 4]
    for column in ("loss", "grad_norm", "learning_rate", "eval_loss", "eval_accuracy"):
        assert rows[column].tolist() == [values[column] for values in logged.values()]
    assert set(rows) == {
        "run", "epoch", "loss", "accuracy", "lr", "seed", "device", "grad_norm", "learning_rate", "eval_loss",
        "eval_accuracy",
    }  # fmt: skip
    assert [*Path().iterdir()] == []
    assert not (tmp_path / "exp" / "001" / "trainer").exists()


def test_logs_within_an_epoch_are_curves_and_its_loss_is_the_mean_over_its_steps(tmp_path, study):
    execute(tmp_path, study.train, experiment="whole")
    execute(tmp_path, partial(study.train, logging_strategy="steps", logging_steps=3))

    whole, parts = table(tmp_path, "whole")["loss"].tolist(), table(tmp_path)["loss"].tolist()
    assert parts == pytest.approx(whole, rel=1e-6)
    assert len(load_steps(tmp_path / "exp")["step_loss"].dropna()) == 5  # steps 3, 6, ... 15 of 16


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "no"}, marks=pytest.mark.nightly
        ),
        {},
        pytest.param({"save_strategy": "steps", "save_steps": 3}, marks=pytest.mark.nightly),
        {"max_steps": 14, "gradient_accumulation_steps": 2},
    ],
    ids=["eval_steps", "plain", "save_steps", "max_steps"],
)
def test_an_interrupted_run_continues_as_if_nothing_had_happened(tmp_path, study, options):
    execute(tmp_path, partial(study.train, **options), experiment="whole")
    steps = 2 if "max_steps" in options else 4

    outcome = execute(tmp_path, partial(study.train, stop=Stopped(2 * steps + 2), **options))
    committed = table(tmp_path)["epoch"].tolist()
    execute(tmp_path, partial(study.train, **options), changed="keep")

    assert (outcome.exit_code, committed[:2]) == (130, [1, 2])
    assert table(tmp_path).equals(table(tmp_path, "whole"))
    assert load_runs(tmp_path / "exp")[["status", "attempts"]].values.tolist() == [["completed", 2]]


def test_early_stopping_keeps_its_patience(tmp_path, study):
    from transformers import EarlyStoppingCallback

    def train(run, manager, stop=lambda _: None):
        patience = EarlyStoppingCallback(3, early_stopping_threshold=9.0)  # nothing is an improvement
        options = {"num_train_epochs": 8, "metric_for_best_model": "eval_loss", "stop": stop}
        study.train(run, manager, callbacks=[patience], **options)

    execute(tmp_path, train, experiment="whole")
    execute(tmp_path, partial(train, stop=Stopped(10)))
    execute(tmp_path, train, changed="keep")

    assert table(tmp_path)["epoch"].tolist() == [1, 2, 3, 4]
    assert table(tmp_path).equals(table(tmp_path, "whole"))


def test_a_trainer_that_saves_elsewhere_is_refused_unless_it_is_to_save_nothing(tmp_path, study):
    elsewhere = str(tmp_path / "elsewhere")

    outcome = execute(tmp_path, partial(study.train, output_dir=elsewhere))
    execute(tmp_path, partial(study.train, output_dir=f"{tmp_path}/same/001/trainer/"), experiment="same")
    nothing = partial(study.RunManagerCallback, checkpoint=False)
    without = partial(study.train, output_dir=elsewhere, callback=nothing, save_strategy="no")
    execute(tmp_path, without, experiment="without")

    assert "checkpoints have to be in the folder of the run" in outcome.outcomes[0][1].error
    assert [table(tmp_path, name)["epoch"].tolist() for name in ("same", "without")] == [[1, 2, 3, 4]] * 2
    assert not (tmp_path / "elsewhere").exists() or [*(tmp_path / "elsewhere").iterdir()] == []


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_trainer_that_does_not_continue_where_the_run_does_is_refused(tmp_path, study, is_asked):
    execute(tmp_path, partial(study.train, stop=Stopped(10)))

    def forget(run, manager):
        with manager.run(run):
            if is_asked:
                assert Path(study.checkpoint_path(manager)).name == "checkpoint-8"
            arguments = study.training_arguments(manager)
            callbacks = [study.RunManagerCallback(manager)]
            study.Trainer(
                study.Tiny(study.TinyConfig()), arguments, train_dataset=study.rows(), callbacks=callbacks
            ).train()

    outcome = execute(tmp_path, forget, changed="keep")

    assert "resume_from_checkpoint=checkpoint_path(manager)" in outcome.outcomes[0][1].error
