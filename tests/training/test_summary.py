import math

import pytest
import torch
from torch import nn

from runmanager import RunManager, best, load_results, load_runs, show
from runmanager.errors import CheckpointError, InvalidArgumentError, LifecycleError
from runmanager.storage import paths

LOADER = [(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3)]


@pytest.fixture
def manager(tmp_path):
    return RunManager("exp", tmp_path, tensorboard=False, display=False)


def train(manager, network=None, lr=0.1, after=lambda: None, **options):
    with manager.run({"lr": lr}, network):
        for epoch in manager.epochs(3, **options):
            if network:
                with torch.no_grad():
                    network.weight.fill_(epoch)
            manager.track_loss(abs(epoch - 2) + lr, 1)
        after()


def test_a_result_of_the_whole_run_is_a_column_of_the_runs_alone(manager, tmp_path):
    train(manager, after=lambda: manager.summary({"final/f1": torch.tensor(0.5)}, seconds=3))
    train(manager, lr=0.2)

    runs = load_runs(tmp_path)
    assert runs["final_f1"].tolist()[0] == 0.5
    assert math.isnan(runs["final_f1"][1])
    assert runs["seconds"][0] == 3
    assert "final_f1" not in load_results(tmp_path)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_kept(manager, tmp_path, value):
    train(manager, after=lambda: manager.summary(score=value))

    read = load_runs(tmp_path)["score"][0]
    assert math.isnan(read) if math.isnan(value) else read == value


def test_runs_are_ranked_by_it(manager, tmp_path):
    for lr, score in ((0.1, 1.0), (0.2, 3.0), (0.3, 2.0)):
        train(manager, lr=lr, after=lambda score=score: manager.summary(score=score))

    runs = load_runs(tmp_path)
    assert best(runs, "max:score")["run"].tolist() == [2, 3, 1]
    assert "score" in show(runs, "max:score")._repr_html_()


def test_the_final_test_on_the_best_weights_takes_two_lines(manager, tmp_path):
    network = nn.Linear(4, 3)

    def test():
        assert network.weight[0, 0] == 3
        manager.load_weights()
        assert network.weight[0, 0] == 2
        manager.evaluate(LOADER, "final")

    train(manager, network, after=test, keep="best:loss")

    (row,) = load_runs(tmp_path).to_dict("records")
    expected = nn.functional.cross_entropy(network(LOADER[0][0]), LOADER[0][1]).item()
    assert row["final_loss"] == pytest.approx(expected, abs=1e-6)
    assert "final_loss" not in load_results(tmp_path)


def test_a_run_that_was_interrupted_before_it_ended_has_it_in_the_end(manager, tmp_path):
    def interrupt():
        manager.summary(score=1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(manager, after=interrupt, checkpoint={"state": {}})
    again = RunManager("exp", tmp_path, tensorboard=False, display=False)
    train(again, after=lambda: again.summary(score=2), checkpoint={"state": {}})

    runs = load_runs(tmp_path)
    assert runs[["status", "epochs", "score"]].to_numpy().tolist() == [["completed", 3, 2]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss": 1}, "'loss' is a column of the epochs: give it another name, as final_f1"),
        ({"status": 1}, "'status' is a column already"),
        ({"folder": 1}, "'folder' is a column already"),
        ({"lr": 1}, "'lr' is a hyperparameter"),
        ({"a b": 1}, "'a b' is not an identifier"),
        ({"score": "good"}, "score must be a number or a tensor of one, got 'good'"),
        ({"score": torch.zeros(2)}, "score must be a single value"),
    ],
)
def test_what_is_no_result_is_refused(manager, values, message):
    def add():
        with pytest.raises(InvalidArgumentError) as raised:
            manager.summary(values)
        assert message in str(raised.value)

    train(manager, after=add)


def test_a_column_of_the_epochs_is_not_evaluated_again_after_them(manager):
    def after():
        with pytest.raises(
            InvalidArgumentError, match="'test_loss' is a column of the epochs: give it another name"
        ):
            manager.evaluate(LOADER)

    with manager.run({"lr": 0.1}, nn.Linear(4, 3)):
        for _ in manager.epochs(1):
            manager.evaluate(LOADER)
        after()


def test_a_metric_of_an_earlier_epoch_has_its_last_word_in_the_summary(manager, tmp_path):
    with manager.run({"lr": 0.1}, nn.Linear(4, 3)):
        for epoch in manager.epochs(2):
            manager.track_loss(1.0, 1)
            if epoch == 1:
                manager.track(f1=0.25)
        manager.summary(f1=0.5)

    assert load_runs(tmp_path)["f1"].tolist() == [0.5]


def test_in_the_tutorials_loop_an_evaluation_after_an_epoch_is_still_refused(manager):
    manager.begin_run({"lr": 0.1}, nn.Linear(4, 3))
    manager.begin_epoch()
    manager.end_epoch()

    with pytest.raises(LifecycleError, match="evaluate\\(\\) after epoch 1 has ended: call it before"):
        manager.evaluate(LOADER)
    manager.summary(score=1)
    manager.end_run()


def test_without_kept_weights_there_are_none_to_load(manager, tmp_path):
    def load():
        with pytest.raises(CheckpointError, match=r"exp/001-lr=0.1 has kept no weights: write manager.epochs"):
            manager.load_weights()

    train(manager, nn.Linear(4, 3), after=load)


def test_damaged_weights_and_those_of_another_network_are_named(manager, tmp_path):
    def load():
        with pytest.raises(
            CheckpointError, match=r"does not fit the network \('weight' has the shape \(3, 4\) in "
        ):
            manager.load_weights(nn.Linear(5, 3))
        path = manager.folder / paths.WEIGHTS
        path.write_bytes(path.read_bytes()[:100])
        with pytest.raises(CheckpointError, match=r"weights.pt cannot be loaded: "):
            manager.load_weights()

    train(manager, nn.Linear(4, 3), after=load, keep="last")


def test_the_folder_of_the_run_is_known(manager, tmp_path):
    before = manager.folder
    train(manager, after=lambda: (manager.folder / "predictions.txt").write_text("1"))

    assert before is None

    assert manager.folder == tmp_path / "exp" / "001-lr=0.1"
    assert (tmp_path / "exp" / "001-lr=0.1" / "predictions.txt").read_text() == "1"


def test_an_artifact_is_kept_over_a_resume_and_belongs_to_its_run(manager, tmp_path):
    def keep(manager, text):
        manager.artifact(f"{text}\n", "notes.txt")
        manager.artifact(f"{manager.folder}/run.json", "deep/run.json")

    def interrupt():
        keep(manager, "first")
        raise KeyboardInterrupt

    with pytest.raises(LifecycleError, match=r"artifact\(\) outside a run: write `with manager.run"):
        manager.artifact("text", "notes.txt")
    with pytest.raises(KeyboardInterrupt):
        train(manager, after=interrupt, checkpoint={"state": {}})
    again = RunManager("exp", tmp_path, tensorboard=False, display=False)
    train(again, checkpoint={"state": {}})
    assert again.folder
    kept = (again.folder / "artifacts" / "notes.txt").read_text()
    train(again, lr=0.2, after=lambda: keep(again, "second"))

    assert kept == "first\n"
    assert [path.read_text() for path in sorted(tmp_path.rglob("notes.txt"))] == ["first\n", "second\n"]
    assert len(list(tmp_path.rglob("deep/run.json"))) == 2


def test_a_figure_of_matplotlib_is_kept_as_png(manager):
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.add_subplot()
    axes.plot([1, 2])

    train(manager, after=lambda: [manager.artifact(figure, "curve"), manager.artifact(axes, "axes.svg")])

    assert (manager.folder / "artifacts" / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (manager.folder / "artifacts" / "axes.svg").read_bytes()
