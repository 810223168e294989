import copy
import json
import math
import os
import random
import time
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from runmanager import (
    DeviceError,
    GridError,
    InvalidArgumentError,
    LifecycleError,
    RunBuilder,
    RunManager,
    RunsWarning,
    load_results,
    load_runs,
)
from runmanager.devices import torch_devices
from runmanager.outcome import EpochRecord, Outcome, Status
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


def train_epoch(manager, network, loss=functional.cross_entropy):
    for inputs, labels in manager.batches():
        value = loss(network(inputs), labels)
        if value.requires_grad:
            value.backward()
        manager.track_loss(value, inputs)


def runs_of(tmp_path):
    return load_runs(tmp_path / "exp").to_dict(orient="records")


def statuses(tmp_path):
    return [(row["status"], row["epochs"], row["error"]) for row in runs_of(tmp_path)]


def times(tmp_path, epoch=1):
    (folder,) = (tmp_path / "exp").glob("001*")
    return read_attempt(folder / "attempt-1.jsonl").epochs[epoch].times


OUTSIDE_A_RUN = {
    "begin_epoch()": lambda m: m.begin_epoch(),
    "end_epoch()": lambda m: m.end_epoch(),
    "end_run()": lambda m: m.end_run(),
    "track_loss()": lambda m: m.track_loss(0.5),
    "track_num_correct()": lambda m: m.track_num_correct(torch.zeros(2, 3), torch.zeros(2)),
    "track()": lambda m: m.track(f1=0.5),
    "epochs()": lambda m: list(m.epochs(1)),
    "batches()": lambda m: list(m.batches()),
    "evaluate()": lambda m: m.evaluate(batches_of()),
}


@pytest.mark.parametrize("call", OUTSIDE_A_RUN)
@pytest.mark.parametrize("ended", [False, True], ids=["before", "after"])
def test_a_hook_outside_a_run_says_what_to_call_first(plain, call, ended):
    if ended:
        plain.begin_run(RUN)
        plain.end_run()

    with pytest.raises(LifecycleError) as caught:
        OUTSIDE_A_RUN[call](plain)

    step = "call begin_run(run, network, loader) first"
    if call not in ("begin_epoch()", "end_epoch()", "end_run()"):  # which are called in the block by itself
        step = f"write `with manager.run(run, network, loader):` around it, or {step}"
    assert str(caught.value) == f"{call} outside a run: {step}"


@pytest.mark.parametrize("call", ["end_epoch()", "track_loss()", "track_num_correct()", "track()", "batches()"])
def test_a_hook_outside_an_epoch_says_what_to_call_first(plain, call):
    with plain.run(RUN, nn.Linear(4, 3), batches_of()), pytest.raises(LifecycleError) as caught:
        OUTSIDE_A_RUN[call](plain)

    step = "call begin_epoch() first"
    if call != "end_epoch()":
        step = f"write `for epoch in manager.epochs(n):` around it, or {step}"
    assert str(caught.value) == f"{call} outside an epoch: {step}"


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (
            lambda m: [m.begin_run(RUN), m.begin_epoch(), m.begin_epoch()],
            "begin_epoch() inside epoch 1: call end_epoch() first",
        ),
        (
            lambda m: [m.begin_run(RUN), m.begin_epoch(), *m.batches()],
            "batches() without a loader: write manager.run(run, network, loader)",
        ),
        (
            lambda m: [m.begin_run(RUN), m.evaluate(batches_of())],
            "evaluate() without a network: write manager.run(run, network, loader)",
        ),
        (
            lambda m: [
                m.begin_run(RUN, nn.Linear(4, 3)), m.begin_epoch(), m.end_epoch(), m.evaluate(batches_of())
            ],
            "evaluate() after epoch 1 has ended: call it before end_epoch()",
        ),
        (
            lambda _: list(RunManager().remaining([RUN])),
            "remaining() of an experiment without a name: write RunManager('name')",
        ),
    ],
)  # fmt: skip
def test_a_hook_in_the_wrong_place_says_what_to_do_instead(plain, calls, message):
    with pytest.raises(LifecycleError) as caught:
        calls(plain)

    assert str(caught.value) == message


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


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        (0.1, "a run is a namedtuple or a mapping of hyperparameters, got 0.1"),
        ({"learning rate": 1}, "'learning rate' cannot be read as run.learning rate: write 'learning_rate'"),
        ({"device": "gpu"}, "unknown device 'gpu': did you mean 'cuda'?"),
    ],
)
def test_a_run_that_cannot_be_recorded_is_refused_before_anything_is_written(plain, tmp_path, run, problem):
    with pytest.raises(GridError) as caught:
        plain.begin_run(run)

    assert str(caught.value) == problem
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_named_with_those_that_are(plain, tmp_path):
    with pytest.raises(DeviceError) as caught:
        plain.begin_run({"device": "cuda"}, nn.Linear(4, 3))

    assert str(caught.value) == (
        "device 'cuda' is not there, this machine has cpu; leave it out of the axis 'device', "
        "or use run_grid, which marks its runs as unavailable"
    )

    assert plain.run_count == 0
    assert list(tmp_path.iterdir()) == []


ENDS = [
    (None, 0.5, "completed", ""),
    (None, math.nan, "diverged", "loss became nan in epoch 1, step 1"),
    (None, math.inf, "diverged", "loss became inf in epoch 1, step 1"),
    (ValueError("no\nmore"), 0.5, "failed", "ValueError: no (in {line})"),
    (ValueError(), math.nan, "failed", "ValueError (in {line})"),
    (KeyboardInterrupt(), 0.5, "interrupted", "interrupted"),
    (SystemExit(3), 0.5, "failed", "SystemExit: 3 (in {line})"),
]


@pytest.mark.parametrize("tensorboard", [False, True])
@pytest.mark.parametrize(("error", "loss", "status", "cause"), ENDS, ids=repr)
def test_a_run_is_recorded_as_it_ended(tmp_path, tensorboard, error, loss, status, cause):
    def train(manager):
        with manager.run(RUN):
            for _ in manager.epochs(1):
                manager.track_loss(loss, 1)
            if error:
                raise error

    cause = cause.format(line=line_with("raise error"))
    manager = RunManager("exp", tmp_path, display=False, tensorboard=tensorboard)

    if error:
        with pytest.raises(type(error)) as caught:
            train(manager)
        assert caught.value is error
    else:
        train(manager)

    assert statuses(tmp_path) == [(status, 1, cause)]
    assert manager.outcome == Outcome(Status(status), cause, 1)
    assert not manager._hooks.is_open


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


def test_epochs_begin_and_end_themselves(plain, tmp_path):
    with plain.run(RUN):
        numbers = [(epoch, plain.epoch_count) for epoch in plain.epochs(3)]

    assert numbers == [(1, 1), (2, 2), (3, 3)]
    assert statuses(tmp_path) == [("completed", 3, "")]


def test_an_epoch_left_by_break_counts(plain, tmp_path):
    with plain.run(RUN):
        for epoch in plain.epochs(5):
            plain.track_loss(0.5, 1)
            if epoch == 2:
                break

    assert load_results(tmp_path)["epoch"].tolist() == [1, 2]
    assert statuses(tmp_path) == [("completed", 2, "")]


def test_an_epoch_left_by_an_exception_does_not_count(plain, tmp_path):
    def train():
        with plain.run(RUN):
            for epoch in plain.epochs(5):
                plain.track_loss(1 / (epoch - 2), 1)

    with pytest.raises(ZeroDivisionError):
        train()

    line = line_with("1 / (epoch - 2)")
    assert statuses(tmp_path) == [("failed", 1, f"ZeroDivisionError: division by zero (in epoch 2, {line})")]


def test_a_failure_says_in_which_batch(plain, tmp_path):
    def train():
        with plain.run(RUN, nn.Linear(4, 3), batches_of()):
            for _ in plain.epochs(2):
                for number, _ in enumerate(plain.batches(), 1):
                    if plain.epoch_count == 2 and number == 3:
                        raise ValueError("batch 3")

    with pytest.raises(ValueError, match="batch 3"):
        train()

    line = line_with('raise ValueError("batch 3")')
    assert statuses(tmp_path) == [("failed", 1, f"ValueError: batch 3 (in epoch 2, step 3, {line})")]


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


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_epochs_stop_after_a_loss_that_is_not_finite(plain, tmp_path, loss):
    with plain.run(RUN):
        for epoch in plain.epochs(5):
            plain.track_loss(loss if epoch == 2 else 0.5, 1)

    assert statuses(tmp_path) == [("diverged", 2, f"loss became {loss} in epoch 2, step 1; before it was 0.5")]


@pytest.mark.parametrize("sized", [True, False], ids=["with the batch", "without"])
@pytest.mark.parametrize("make", [float, torch.tensor])
def test_a_run_that_diverged_says_in_which_batch(plain, tmp_path, make, sized):
    with plain.run(RUN, loader=batches_of()):
        for epoch in plain.epochs(2):
            for number, (inputs, _) in enumerate(plain.batches(), 1):
                loss = make(math.nan if (epoch, number) == (2, 3) else 2.3125 + number)
                plain.track_loss(loss, *([inputs] if sized else []))

    assert statuses(tmp_path) == [("diverged", 2, "loss became nan in epoch 2, step 3; before it was 4.312")]


def test_a_run_that_diverged_at_once_has_no_last_finite_loss(plain, tmp_path):
    with plain.run(RUN):
        for _ in plain.epochs(2):
            for loss in (-math.inf, 0.5, math.inf):
                plain.track_loss(loss, 1)

    assert statuses(tmp_path) == [("diverged", 1, "loss became -inf in epoch 1, step 1")]


def test_a_mean_that_is_too_large_for_a_number_names_no_batch(plain, tmp_path):
    with plain.run(RUN):
        for _ in plain.epochs(2):
            plain.track_loss(1e308, 100)

    assert statuses(tmp_path) == [("diverged", 1, "loss became inf in epoch 1")]


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


def test_batches_arrive_on_the_runs_device(plain):
    network = nn.Linear(4, 3)

    with plain.run({"device": "meta"}, network, batches_of()):
        for _ in plain.epochs(1):
            found = [(inputs.device.type, labels.device.type) for inputs, labels in plain.batches()]

    assert found == [("meta", "meta")] * 3
    assert network.weight.device.type == "meta"


def test_a_run_without_a_device_is_executed_where_its_network_is(plain):
    network = nn.Linear(4, 3, device="meta")  # as network.cuda(), which the loop's batches follow by hand
    images = torch.ones(2, 4, device="meta")

    with plain.run(RUN, network, batches_of()):
        for _ in plain.epochs(1):
            network(images)
            devices = {tensor.device.type for batch in plain.batches() for tensor in batch}

    assert devices == {"meta"}
    assert torch_devices.devices_of(network) == {torch.device("meta")}


def test_a_network_on_several_devices_stays_where_it_is(manager, tmp_path):
    network = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3, device="meta"))

    with manager.run(RUN, network):
        for _ in manager.epochs(1):
            pass

    assert [parameter.device.type for parameter in network.parameters()] == ["cpu", "cpu", "meta", "meta"]
    assert statuses(tmp_path) == [("completed", 1, "")]


def test_evaluate_gives_modes_and_random_states_back(plain):
    def loader():
        random.random()  # noqa: S311
        np.random.rand(3)  # noqa: NPY002
        yield from batches_of(shuffle=True)

    def states():
        return random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()  # noqa: NPY002

    network = nn.Sequential(nn.Linear(4, 3), nn.Dropout(), nn.BatchNorm1d(3))
    network[2].eval()
    before, weights = states(), {name: value.clone() for name, value in network.state_dict().items()}

    with plain.run(RUN, network):
        for _ in plain.epochs(1):
            plain.evaluate(loader())

    assert [module.training for module in network.modules()] == [True, True, True, False]
    assert states() == before
    assert all(torch.equal(value, weights[name]) for name, value in network.state_dict().items())


def test_evaluate_gives_modes_back_after_an_error(plain):
    network = nn.Linear(4, 3)

    with plain.run(RUN, network), pytest.raises(RuntimeError, match="shapes"):
        plain.evaluate([(torch.zeros(2, 5), torch.zeros(2))])

    assert network.training


def test_evaluate_computes_means_over_samples_without_gradients(plain, tmp_path):
    def mean_error(preds, labels):
        assert not preds.requires_grad
        return (preds.argmax(1) - labels).abs().float().mean()

    network = nn.Linear(4, 3)
    preds = network(INPUTS)

    with plain.run(RUN, network):
        for _ in plain.epochs(1):
            result = plain.evaluate(batches_of(4))
            plain.evaluate(batches_of(4), "mae", loss=mean_error)

    loss, accuracy = (
        functional.cross_entropy(preds, LABELS).item(),
        (preds.argmax(1) == LABELS).double().mean().item(),
    )
    assert tuple(result) == pytest.approx((loss, accuracy), rel=1e-6)
    (row,) = load_results(tmp_path).to_dict(orient="records")
    assert (row["test_loss"], row["test_accuracy"]) == tuple(result)
    assert row["mae_loss"] == pytest.approx((preds.argmax(1) - LABELS).abs().double().mean().item())


def test_a_regression_is_evaluated_without_an_accuracy(plain):
    targets = TensorDataset(INPUTS, INPUTS.sum(1, keepdim=True))

    with plain.run(RUN, nn.Linear(4, 1)):
        for _ in plain.epochs(1):
            result = plain.evaluate(DataLoader(targets), loss=functional.mse_loss)

    assert math.isnan(result.accuracy)
    assert list(plain.run_data[0])[-2:] == ["lr", "test_loss"]


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


def test_track_adds_columns_weighed_by_the_samples_of_their_batch(plain, tmp_path):
    with plain.run(RUN, None, batches_of(4)):
        for epoch in plain.epochs(2):
            for inputs, _ in plain.batches():
                plain.track(size=len(inputs), nan=torch.tensor([math.nan]))
            if epoch == 2:
                plain.track(late=1)

    table = load_results(tmp_path)
    assert list(table)[-4:] == ["lr", "size", "nan", "late"]
    assert table["size"].tolist() == [(16 + 16 + 4) / 10] * 2
    assert table["nan"].isna().all()
    assert table["late"].isna().tolist() == [True, False]
    assert statuses(tmp_path) == [("completed", 2, "")]


@pytest.mark.parametrize("name", ["loss", "accuracy", "epoch", "lr", "a b", "epoch duration"])
def test_track_does_not_write_over_a_column(plain, name):
    with plain.run(RUN):
        for _ in plain.epochs(1):
            with pytest.raises(InvalidArgumentError, match=f"'{name}' is .*: give the metric another name"):
                plain.track(**{name: 1})


def test_an_evaluation_does_not_write_over_a_hyperparameter(plain):
    with (
        plain.run({"test_loss": 1}, nn.Linear(4, 3)),
        pytest.raises(
            InvalidArgumentError, match="'test_loss' is a hyperparameter: give the metric another name"
        ),
    ):
        plain.evaluate(batches_of())


def test_the_runs_that_are_not_completed_remain(plain, tmp_path):
    runs = RunBuilder.get_runs({"lr": [0.1, 0.2, 0.3, 0.4]})
    with plain.run(runs[0]):
        pass
    with pytest.raises(ValueError, match="no"), plain.run(runs[1]):
        raise ValueError("no")
    with plain.run(runs[2]):
        for _ in plain.epochs(1):
            plain.track_loss(math.nan, 1)

    for manager in (plain, RunManager("exp", tmp_path)):
        assert list(manager.remaining(runs)) == runs[1:]


def test_a_network_that_an_earlier_run_trained_is_a_warning_that_names_both(tmp_path):
    with RunManager("exp", tmp_path, display=False, tensorboard=False).run({"lr": 0.3}):
        pass
    manager, network = RunManager("exp", tmp_path, display=False, tensorboard=False), nn.Linear(4, 3)
    with manager.run({"lr": 0.1}, network):
        pass

    with pytest.warns(RunsWarning) as caught:
        manager.begin_run({"lr": 0.2}, network)
    manager.end_run()

    assert str(caught[0].message) == (
        "the network of run 3 was trained by run 2 already and begins with its weights: "
        "make a new network for every run"
    )
    assert caught[0].filename == __file__


def test_tables_are_written_after_every_run(plain, tmp_path):
    counts = []
    for lr in (0.1, 0.2):
        with plain.run({"lr": lr}):
            for _ in plain.epochs(1):
                pass
        counts.append(len(json.loads((tmp_path / "exp" / "results.json").read_bytes())))

    assert counts == [1, 2]
    assert plain.results.equals(load_results(tmp_path / "exp"))


def test_saved_files_take_every_value(plain, tmp_path):
    with plain.run({"name": "\udc80ö", "device": torch.device("cpu"), "size": (3, 3), "limit": math.inf}):
        for _ in plain.epochs(1):
            plain.track_loss(math.nan, 1)

    plain.save(tmp_path / "new" / "results.v1")

    (row,) = json.loads((tmp_path / "new" / "results.v1.json").read_text(encoding="utf-8"))
    assert isinstance(row.pop("epoch duration"), float)
    assert isinstance(row.pop("run duration"), float)
    assert row == {
        "run": 1, "epoch": 1, "loss": None, "accuracy": None,
        "name": "\udc80ö", "device": "cpu", "size": [3, 3], "limit": None,
    }  # fmt: skip
    header = (tmp_path / "new" / "results.v1.csv").read_text(encoding="utf-8").partition("\n")[0]
    assert header == ",run,epoch,loss,accuracy,epoch duration,run duration,name,device,size,limit"


def test_without_tensorboard_there_is_still_a_writer(plain, tmp_path):
    with plain.run(RUN):
        plain.tb.add_scalar("extra", 1.0, 0)
        plain.tb.add_histogram("weights", torch.zeros(3), 0)
        plain.tb.close()

    assert not list(tmp_path.rglob("events.*"))


def test_what_is_added_by_hand_is_in_the_runs_one_event_file(manager, tmp_path):
    with manager.run(RUN):
        manager.tb.add_scalar("extra", 7.0, 3)

    (path,) = tmp_path.rglob("events.*")
    assert [(e.step, e.value) for e in EventAccumulator(str(path)).Reload().Scalars("extra")] == [(3, 7.0)]


class Answers(nn.Module):
    """A network that answers with a dict."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, inputs):
        return {"logits": self.linear(inputs)}


class Odd(nn.Module):
    """A network with parameters and buffers of every kind."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.tied = self.linear
        self.unused = nn.Linear(2, 2)  # its gradients are None
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.scalar = nn.Parameter(torch.tensor(1.0))
        self.complex = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        self.brain = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        self.words = nn.Embedding(9, 3, sparse=True)
        self.register_buffer("counts", torch.arange(3))
        self.register_buffer("nothing", None)

    def forward(self, inputs):
        if inputs.sum() > 1e9:  # depends on the data: no graph can be traced
            return inputs
        added = self.empty.sum() + self.complex.abs().sum() + self.brain.sum().float()
        return self.linear(inputs) * self.scalar + self.words(self.get_buffer("counts")).sum() + added


def with_gradients(value):
    network = nn.Linear(4, 3)
    network.weight.register_hook(lambda gradient: gradient * value)
    return network


def frozen():
    network = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3))
    network[0].requires_grad_(requires_grad=False)
    return network


NETWORKS = {
    "lazy": lambda: nn.LazyLinear(3),
    "answers with a dict": Answers,
    "odd parameters": Odd,
    "frozen layer": frozen,
    "all frozen": lambda: nn.Linear(4, 3).requires_grad_(requires_grad=False),
    "no parameters": nn.Flatten,
    "NaN gradient": lambda: with_gradients(math.nan),
    "infinite gradient": lambda: with_gradients(math.inf),
}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize("name", NETWORKS)
def test_no_network_ends_a_run(manager, tmp_path, name):
    def loss(preds, labels):
        return functional.cross_entropy(preds["logits"] if isinstance(preds, dict) else preds, labels)

    network = NETWORKS[name]()

    with manager.run(RUN, network, batches_of(5)):
        for _ in manager.epochs(2):
            train_epoch(manager, network, loss)
            manager.evaluate(batches_of(5), loss=loss)

    table = load_results(tmp_path)
    assert statuses(tmp_path) == [("completed", 2, "")]
    assert np.isfinite(table[["loss", "test_loss"]]).all(axis=None)


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


def test_the_table_is_shown_after_each_run_where_it_is_wanted(tmp_path, capsys):
    manager = RunManager("exp", tmp_path, display=True, tensorboard=False)

    with manager.run(RUN):
        for _ in manager.epochs(1):
            manager.track_loss(0.5, 1)

    header, row = capsys.readouterr().out.splitlines()[:2]
    assert header.split() == ["run", "epoch", "loss", "accuracy", "epoch", "duration", "run", "duration", "lr"]
    assert row.split()[:3] == ["1", "1", "0.5"]


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


def test_a_network_can_be_copied_and_saved_before_its_first_step(tmp_path):
    manager = RunManager("exp", tmp_path, display=False)
    network = nn.Linear(2, 2)

    with manager.run({"lr": 0.1}, network):
        for _ in manager.epochs(1):
            copied = copy.deepcopy(network)
            torch.save(network, tmp_path / "network.pt")
            manager.track_loss(copied(torch.ones(1, 2)).sum(), 1)

    assert manager.outcome
    assert str(manager.outcome.status) == "completed"


@pytest.mark.parametrize("name", ["get_num_correct", "_get_num_correct"])
def test_a_subclass_that_counts_itself_is_asked(tmp_path, name):
    def count(self, preds, labels):
        return (preds.round() == labels).sum().item()

    manager = type("Binary", (RunManager,), {name: count})("exp", tmp_path, tensorboard=False, display=False)

    with manager.run({"lr": 0.1}):
        for _ in manager.epochs(1):
            for preds in (torch.tensor([[0.9], [0.2], [0.7]]), torch.tensor([[0.1]])):
                manager.track_loss(1.0)
                manager.track_num_correct(preds, torch.ones(len(preds), 1))

    assert manager.results["accuracy"].tolist() == [0.5]


@pytest.mark.parametrize(
    ("inside", "status", "num_epochs"),
    [(False, "completed", 1), (True, "interrupted", 0)],
    ids=["ended", "inside"],
)
def test_a_run_that_is_open_ends_when_the_next_one_begins(plain, tmp_path, inside, status, num_epochs):
    plain.begin_run({"lr": 0.1})
    plain.begin_epoch()
    plain.track_loss(1.0, 1)
    if not inside:
        plain.end_epoch()

    with pytest.warns(RunsWarning, match=f"begin_run.. while run 1 was open: it is recorded as {status}; call"):
        plain.begin_run({"lr": 0.2})
    plain.begin_run({"lr": 0.3})  # is said once
    plain.end_run()

    assert [(row[0], row[1]) for row in statuses(tmp_path)] == [
        (status, num_epochs), ("completed", 0), ("completed", 0),
    ]  # fmt: skip


def test_a_subclass_may_set_what_the_tutorials_class_has(tmp_path):
    class Mine(RunManager):
        def begin_epoch(self):
            super().begin_epoch()
            self.epoch_loss = 0
            self.epoch_num_correct = 0

        def track_loss(self, loss, batch=None):
            super().track_loss(loss, batch)
            self.epoch_loss += loss * batch

    manager = Mine("exp", tmp_path, tensorboard=False, display=False)
    names = ("tb", "network", "loader", "epoch_count", "epoch_start_time", "run_start_time")
    with manager.run({"lr": 0.1}):
        for _ in manager.epochs(1):
            manager.track_loss(0.5, 4)
            assert (manager.epoch_loss, manager.epoch_num_correct) == (2.0, 0)
    for name in names:
        setattr(manager, name, "mine")

    assert [getattr(manager, name) for name in names] == ["mine"] * 6
    assert manager.results["loss"].tolist() == [0.5]


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
