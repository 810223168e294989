import json
import os
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from runmanager import (
    InvalidArgumentError,
    LifecycleError,
    RunManager,
    RunsWarning,
    load_results,
    load_runs,
)
from runmanager.devices import torch_devices
from runmanager.outcome import EpochRecord
from runmanager.storage import paths, processes
from runmanager.storage.journal import Journal, read_attempt
from tests.locations import line_with

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


def times(tmp_path, epoch=1):
    (folder,) = (tmp_path / "exp").glob("001*")
    return read_attempt(folder / "attempt-1.jsonl").epochs[epoch].times


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


def test_ctrl_c_before_the_first_epoch_leaves_the_same_run_of_another_process_alone(
    plain, tmp_path, monkeypatch
):
    other = {**processes.this_process(), "pid": os.getppid(), "pid_start": processes._started(os.getppid())}

    with suppress(KeyboardInterrupt), plain.run(RUN):
        with monkeypatch.context() as patch:
            patch.setattr(processes, "this_process", lambda: other)
            journal = Journal(tmp_path / "exp" / "001-lr=0.1", 1, {})
        journal.epoch(EpochRecord(1, {"loss": 0.5}))
        raise KeyboardInterrupt

    assert statuses(tmp_path) == [("running", 1, "")]


def test_a_failed_run_leaves_its_traceback(plain, tmp_path):
    def mistake():
        return 1 / 0

    with pytest.raises(ZeroDivisionError), plain.run(RUN):
        mistake()

    log = (tmp_path / "exp" / "001-lr=0.1" / paths.ERROR_LOG).read_text()
    assert log.startswith("Traceback (most recent call last):\n")
    assert ", in mistake\n" in log
    assert log.endswith("ZeroDivisionError: division by zero\n")


def test_a_batch_on_another_device_than_the_network_is_explained(plain):
    network = nn.Linear(4, 3)

    with pytest.raises(RuntimeError) as caught, plain.run({"device": "meta"}, network):
        network(INPUTS)

    assert "".join(caught.value.__notes__) == (
        "the run's device is meta, its network is on meta: take the batches from "
        "manager.batches(), or send them with .to('meta')"
    )


def test_an_epoch_left_by_an_exception_does_not_count(plain, tmp_path):
    def train():
        with plain.run(RUN):
            for epoch in plain.epochs(5):
                plain.track_loss(1 / (epoch - 2), 1)

    with pytest.raises(ZeroDivisionError):
        train()

    line = line_with("1 / (epoch - 2)")
    assert statuses(tmp_path) == [("failed", 1, f"ZeroDivisionError: division by zero (in epoch 2, {line})")]


def test_a_run_without_enough_memory_says_so(plain, tmp_path):
    def train():
        with plain.run(RUN):
            plain.begin_epoch()
            raise MemoryError

    with pytest.raises(MemoryError):
        train()

    line = line_with("raise MemoryError")
    assert statuses(tmp_path) == [("out of memory", 0, f"out of main memory in epoch 1, {line}")]
    (folder,) = (tmp_path / "exp").glob("001*")
    assert (folder / paths.ERROR_LOG).read_text().endswith("MemoryError\n")


def test_a_run_tells_how_much_memory_it_took(plain, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(torch_devices, "warm", lambda _: calls.append("warm"))
    monkeypatch.setattr(torch_devices, "reset_peak", lambda _: calls.append("reset"))
    monkeypatch.setattr(torch_devices, "peak_memory", lambda *_: 5 * 2**20)

    with plain.run(RUN):
        calls.append("run")

    assert calls == ["warm", "reset", "run"]
    assert load_runs(tmp_path / "exp")["peak memory"].tolist() == [5.0]


def test_a_run_on_a_device_that_failed_ends_nevertheless(plain, tmp_path, monkeypatch):
    def fail(_):
        raise RuntimeError("CUDA error: device-side assert triggered")

    counter = SimpleNamespace(max_memory_allocated=fail, reset_peak_memory_stats=fail)
    monkeypatch.setattr(torch_devices, "_memory_counter", lambda _: counter)

    with plain.run(RUN):
        pass

    assert statuses(tmp_path) == [("completed", 0, "")]


def test_a_network_on_several_devices_stays_where_it_is(manager, tmp_path):
    network = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3, device="meta"))

    with manager.run(RUN, network):
        for _ in manager.epochs(1):
            pass

    assert [parameter.device.type for parameter in network.parameters()] == ["cpu", "cpu", "meta", "meta"]
    assert statuses(tmp_path) == [("completed", 1, "")]


def test_evaluate_gives_modes_back_after_an_error(plain):
    network = nn.Linear(4, 3)

    with plain.run(RUN, network), pytest.raises(RuntimeError, match="shapes"):
        plain.evaluate([(torch.zeros(2, 5), torch.zeros(2))])

    assert network.training


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


def test_tables_are_written_after_every_run(plain, tmp_path):
    counts = []
    for lr in (0.1, 0.2):
        with plain.run({"lr": lr}):
            for _ in plain.epochs(1):
                pass
        counts.append(len(json.loads((tmp_path / "exp" / "results.json").read_bytes())))

    assert counts == [1, 2]
    assert plain.results.equals(load_results(tmp_path / "exp"))


def test_what_is_added_by_hand_is_in_the_runs_one_event_file(manager, tmp_path):
    with manager.run(RUN):
        manager.tb.add_scalar("extra", 7.0, 3)

    (path,) = tmp_path.rglob("events.*")
    assert [(e.step, e.value) for e in EventAccumulator(str(path)).Reload().Scalars("extra")] == [(3, 7.0)]


def test_a_run_may_have_no_network(manager, tmp_path):
    with manager.run(RUN, loader=batches_of(5)):
        for _ in manager.epochs(2):
            for inputs, _ in manager.batches():
                manager.track_loss(inputs.mean(), inputs)

    assert manager.network is None
    assert load_results(tmp_path)["loss"].tolist() == pytest.approx([INPUTS.mean().item()] * 2)
    assert "parameters" not in runs_of(tmp_path)[0]


def test_parameters_are_counted_once(manager, tmp_path):
    with manager.run(RUN, nn.Linear(4, 3)):
        pass

    assert runs_of(tmp_path)[0]["parameters"] == 15


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_parameters_that_are_not_yet_built_are_unknown(manager, tmp_path):
    with manager.run(RUN, nn.Sequential(nn.Linear(4, 3), nn.LazyLinear(2))):
        pass

    assert "parameters" not in runs_of(tmp_path)[0]


def test_a_break_out_of_a_loop_that_somebody_holds_counts(tmp_path):
    manager = RunManager("exp", tmp_path, display=False)

    with manager.run({"lr": 0.1}):
        loop = manager.epochs(5)
        for epoch in loop:
            manager.track_loss(0.5, 1)
            if epoch == 2:
                break

    assert manager.outcome
    assert (str(manager.outcome.status), manager.outcome.epochs) == ("completed", 2)


@pytest.mark.parametrize("n", ["3", None, 2.5, -1])
def test_a_number_of_epochs_that_is_none_is_refused(tmp_path, n):
    manager = RunManager("exp", tmp_path, display=False)
    manager.begin_run({"lr": 0.1})

    with pytest.raises(
        LifecycleError, match=r"epochs\(\) takes a whole number, 0 or more, got .*: write epochs"
    ):
        manager.epochs(n)

    manager.end_run()


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
