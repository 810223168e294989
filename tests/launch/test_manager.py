import time

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from runmanager import InvalidArgumentError, LifecycleError, RunManager, RunsWarning, load_results, load_runs
from runmanager.devices import torch_devices

INPUTS = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(10) % 3
RUN = {"lr": 0.1}


@pytest.fixture
def manager(tmp_path):
    return RunManager("exp", tmp_path, display=False)


@pytest.fixture
def plain(tmp_path):
    return RunManager("exp", tmp_path, display=False, tensorboard=False)


def batches_of(size=4, **options):
    return DataLoader(TensorDataset(INPUTS, LABELS), batch_size=size, **options)


def runs_of(tmp_path):
    return load_runs(tmp_path / "exp").to_dict(orient="records")


def statuses(tmp_path):
    return [(row["status"], row["epochs"], row["error"]) for row in runs_of(tmp_path)]


def test_a_run_ended_inside_an_epoch_is_interrupted_and_the_next_one_can_begin(plain, tmp_path):
    plain.begin_run(RUN)
    for _ in range(2):
        plain.begin_epoch()
        plain.end_epoch()
    plain.begin_epoch()
    with pytest.raises(LifecycleError) as caught:
        plain.end_run()
    with plain.run({"lr": 0.2}):
        pass

    assert str(caught.value) == (
        "end_run() inside epoch 3: call end_epoch() first; run 1 is recorded as interrupted, without that epoch"
    )
    assert statuses(tmp_path) == [("interrupted", 2, "ended inside an epoch"), ("completed", 0, "")]


def test_a_batch_on_another_device_than_the_network_is_explained(plain):
    network = nn.Linear(4, 3)

    with pytest.raises(RuntimeError) as caught, plain.run({"device": "meta"}, network):
        network(INPUTS)

    assert "".join(caught.value.__notes__) == (
        "the run's device is meta, its network is on meta: take the batches from "
        "manager.batches(), or send them with .to('meta')"
    )


def test_a_mean_that_is_too_large_for_a_number_names_no_batch(plain, tmp_path):
    with plain.run(RUN):
        for _ in plain.epochs(2):
            plain.track_loss(1e308, 100)

    assert statuses(tmp_path) == [("diverged", 1, "loss became inf in epoch 1")]


def test_a_run_tells_how_much_memory_it_took(plain, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(torch_devices, "warm", lambda _: calls.append("warm"))

    def take_peak(*_):
        calls.append("peak")
        return 5 * 2**20

    monkeypatch.setattr(torch_devices, "take_peak", take_peak)

    with plain.run(RUN):
        calls.append("run")

    assert calls == ["warm", "peak", "run", "peak"]
    assert load_runs(tmp_path / "exp")["peak memory"].tolist() == [5.0]


def test_a_network_on_several_devices_stays_where_it_is(manager, tmp_path):
    network = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3, device="meta"))

    with manager.run(RUN, network):
        for _ in manager.epochs(1):
            pass

    assert [parameter.device.type for parameter in network.parameters()] == ["cpu", "cpu", "meta", "meta"]
    assert statuses(tmp_path) == [("completed", 1, "")]


def test_an_evaluation_before_the_first_epoch_is_step_0_and_no_row(manager, tmp_path):
    with manager.run(RUN, nn.Linear(4, 3)):
        result = manager.evaluate(batches_of())
        for _ in manager.epochs(1):
            manager.evaluate(batches_of())

    events = EventAccumulator(str(tmp_path / "exp" / "001-lr=0.1")).Reload()
    assert [(e.step, pytest.approx(e.value)) for e in events.Scalars("loss/test")] == [
        (0, result.loss), (1, result.loss),
    ]  # fmt: skip
    assert load_results(tmp_path)["epoch"].tolist() == [1]


def test_an_evaluation_does_not_write_over_a_hyperparameter(plain):
    with (
        plain.run({"test_loss": 1}, nn.Linear(4, 3)),
        pytest.raises(
            InvalidArgumentError, match="'test_loss' is a hyperparameter: give the metric another name"
        ),
    ):
        plain.evaluate(batches_of())


def test_parameters_are_counted_once(manager, tmp_path):
    with manager.run(RUN, nn.Linear(4, 3)):
        pass

    assert runs_of(tmp_path)[0]["parameters"] == 15


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_parameters_that_are_not_yet_built_are_unknown(manager, tmp_path):
    with manager.run(RUN, nn.Sequential(nn.Linear(4, 3), nn.LazyLinear(2))):
        pass

    assert "parameters" not in runs_of(tmp_path)[0]


def test_the_clocks_that_the_tutorial_shows_are_wall_times(plain):
    before = time.time()
    plain.begin_run({"lr": 0.1})
    plain.begin_epoch()

    assert before <= plain.run_start_time <= plain.epoch_start_time <= time.time()
    plain.end_epoch()
    plain.end_run()


def test_a_warning_of_begin_run_names_the_line_that_called_it(plain):
    network = nn.Linear(4, 3)
    plain.begin_run(RUN, network)

    with pytest.warns(RunsWarning) as caught:
        plain.begin_run(RUN, network)

    assert [str(warning.message).split(" ")[0] for warning in caught] == ["begin_run()", "the"]
    assert [warning.filename for warning in caught] == [__file__] * 2
