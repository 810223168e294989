"""What a further attempt makes of what earlier ones left: rows, weights, artifacts, curves and sentences."""

from pathlib import Path

import pytest
import torch
from tensorboard.compat.proto.event_pb2 import Event
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from runmanager import load_results, load_run, load_runs
from tests.border import reading
from tests.border.events import event_records, framed, scalars_of
from tests.border.work import announce, left, meet, minimize, scaled, start, statuses, trained

pytestmark = pytest.mark.usefixtures("own_folder")
DATA = TensorDataset(torch.randn(14, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.arange(14) % 3)
ONE, TWO = {"lr": [0.1]}, {"lr": [0.1, 0.2]}
FIRST = Path("runs/exp/1")


def keeping(value, keep="last", checkpoint=None):
    """Make a training function whose weight is a value and the epoch."""

    def train_weight(run, manager):
        network = nn.Linear(1, 1)
        with manager.run(run, network):
            for epoch in manager.epochs(2, keep=keep, checkpoint=checkpoint):
                meet(run, epoch)
                network.weight.data.fill_(value + epoch)
                manager.artifact(str(value), "value.txt")
                manager.track_loss(1.0, 1)

    return train_weight


def weights():
    return {
        path.name: torch.load(path)["weight"].item()
        for path in reading.run_folder("runs/exp").glob("*weights.pt")
    }


OLD, NEW = {"weights.pt": 12.0}, {"weights.pt": 22.0}
ASIDE = {"attempt-1.weights.pt": 12.0}


@pytest.mark.parametrize(
    ("first_fault", "again", "fault", "left", "artifact"),
    [
        (0, (20.0, "last"), 0, ASIDE | NEW, "20.0"),
        (0, (20.0, None), 0, ASIDE, "20.0"),
        (0, (20.0, "last"), 1, OLD, "10.0"),
        (0, (20.0, "max:f1"), 0, OLD, None),
        (2, (10.0, "last"), 0, OLD, "10.0"),
    ],
    ids=["other code", "keeps none", "stopped before an epoch", "no such metric", "the same code"],
)
def test_weights_and_artifacts_stay_until_other_code_has_an_epoch(first_fault, again, fault, left, artifact):
    announce("stop", 0.1, first_fault)
    start(ONE, keeping(10.0))
    announce("stop", 0.1, fault)
    start(ONE, keeping(*again))

    assert weights() == left
    if artifact:
        assert load_run(FIRST).artifacts["value.txt"].read_text() == artifact


class InterruptedSave:
    """A part of a checkpoint: Ctrl-C comes when its epoch's weights are saved, and its record is not."""

    def state_dict(self):
        if (reading.run_folder("runs/exp") / "attempt-1.weights.pt").exists():
            raise KeyboardInterrupt
        return {}

    def load_state_dict(self, state):
        pass


def test_weights_set_aside_stay_when_the_next_attempt_ends_before_its_first_record():
    start({"lr": [0.1]}, keeping(10.0))
    start({"lr": [0.1]}, keeping(20.0, "last", {"part": InterruptedSave()}))

    of_the_row = nn.Linear(1, 1)
    load_run("runs/exp/1").load_weights(of_the_row)
    start({"lr": [0.1]}, keeping(30.0))

    assert weights() == {"attempt-1.weights.pt": 12.0, "weights.pt": 32.0}
    assert of_the_row.weight.item() == 12.0


def averaging(run, manager):
    """Keep an average of the weights that is evaluated in place of the network."""
    torch.manual_seed(1)
    network, loader = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), DataLoader(DATA, 4)
    averaged = AveragedModel(network)
    optimizer, keep = torch.optim.SGD(network.parameters(), 0.1), ("min:test_loss", averaged)
    optimizer.register_step_post_hook(lambda *_: averaged.update_parameters(network))

    def step(network, batch):
        return functional.cross_entropy(network(batch[0]), batch[1])

    with manager.run(run, network, loader):
        parts = {"network": network, "optimizer": optimizer}
        for epoch in manager.epochs(3, checkpoint=parts, keep=keep):
            for batch in manager.batches():
                loss = step(network, batch)
                minimize(optimizer, loss)
                manager.track_loss(loss, batch)
            meet(run, epoch)
            manager.evaluate(loader, step=lambda _, batch: step(averaged, batch))


def test_the_weights_of_a_given_module_are_kept_and_resumed():
    start(ONE, averaging, root="whole")
    announce("stop", 0.1, 2)
    start(ONE, averaging)

    start(ONE, averaging)

    assert left() == left("whole")
    plain = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    load_run("runs/exp/1").load_weights(plain)
    inputs, labels = DATA.tensors
    kept = functional.cross_entropy(plain(inputs), labels).item()
    table = load_results("runs/exp")
    assert kept == pytest.approx(table["test_loss"].min(), rel=1e-5)
    assert load_runs("runs/exp")["kept test_loss"].tolist() == [table["test_loss"].min()]


def fragile(run, manager):
    with manager.run(run):
        for epoch in manager.epochs(1):
            meet(run, epoch)
            manager.track_loss(run.lr, 1)


def begin(data, fault=None, **options):
    """Execute two runs, each of which may meet a fault before its first epoch; return the runs executed."""
    for lr in TWO["lr"] if fault else ():
        announce(fault.replace("killed", "stop"), lr, 1)
    outcome = start(TWO, fragile, data=data, **options)
    if fault == "killed":
        for folder in reading.run_folders("runs/exp")[:1]:
            reading.as_killed(folder)
    return [lr for lr, _ in trained()], outcome


@pytest.mark.parametrize(
    ("fault", "status"), [("error", "failed"), ("stop", "interrupted"), ("killed", "interrupted")]
)
def test_completed_runs_survive_a_change_that_fails_before_its_first_epoch(fault, status):
    begin("old")
    kept = load_results("runs")

    _, lost = begin("new", fault)
    after = load_runs("runs")
    executed, undone = begin("old")

    assert (lost.runs["status"][0], lost.exit_code > 0) == (status, True)
    assert after["status"].tolist() == ["completed"] * 2
    is_said = fault == "error"
    assert after["error"].str.startswith("attempt 2 failed: ValueError").tolist() == [is_said] * 2
    assert (executed, undone.exit_code, undone.runs["status"].tolist()) == ([], 0, ["completed"] * 2)
    assert kept.equals(load_results("runs"))
    assert kept.equals(undone.results)
    for path in Path().glob("fault-*"):  # which a second run did not meet
        path.unlink()
    assert begin("new", retry_failed=True)[0] == [0.1, 0.2]


def test_a_change_that_failed_is_not_repeated_unless_that_is_wanted(capsys):
    begin("old")
    begin("new", "error")
    capsys.readouterr()

    again, failed = begin("new", display=True)
    said = capsys.readouterr().out
    debugged, alone = begin("new", only=2)
    newer, completed = begin("newer")

    assert (again, failed.exit_code, failed.runs["status"].tolist()) == ([], 1, ["failed", "failed"])
    assert "exp: 2 runs, 0 to execute, 2 failed" in said
    assert "keep the earlier results of 2 runs until the first new epoch" in said
    assert (debugged, alone.exit_code) == ([0.2], 0)
    assert (newer, completed.runs["status"].tolist()) == ([0.1, 0.2], ["completed"] * 2)
    assert completed.runs["error"].tolist() == ["", ""]


def test_only_attempts_since_a_change_count_in_what_a_grid_shows():
    start(TWO, data="old")
    announce("stop", 0.1, 2)

    stopped = start(TWO, data="new")

    assert statuses(stopped) == [("interrupted", 1), ("pending", 0)]
    assert stopped.results[["run", "epoch"]].to_numpy().tolist() == [[1, 1]]
    assert "2 of 2 runs are left to execute" in str(stopped.panel)
    assert "again: run 1 resumes after epoch 1" in str(stopped.panel)
    assert "keep the earlier results of 1 run until the first new epoch" in str(stopped.panel)
    assert load_results("runs")[["run", "epoch"]].to_numpy().tolist() == [[1, 1], [2, 1], [2, 2], [2, 3]]
    assert "earlier results" not in str(start(TWO, data="new").panel)


@pytest.mark.parametrize("at", [0, 2], ids=["completed", "interrupted"])
def test_runs_begun_with_another_release_of_torch_are_executed_anew_and_their_journals_stay(capsys, at):
    announce("stop", 0.1, at)
    start(TWO)
    paths = sorted(Path("runs").rglob("attempt-1.jsonl"))
    for path in paths:
        first, *rest = reading.lines(path)
        first["fingerprint"]["versions"]["torch"] = "1.0.0"
        reading.write(path, [first, *rest])
    before = [path.read_bytes() for path in paths]
    trained()

    outcome = start(TWO, display=True)

    said = capsys.readouterr().out.partition("\n")[0]
    assert said.startswith(f"! {len(paths)} run")
    assert f"executed again: torch was 1.0.0, is {torch.__version__.partition('+')[0]}" in said
    assert trained() == [(lr, epoch) for lr in TWO["lr"] for epoch in (1, 2, 3)]
    assert [path.read_bytes() for path in paths] == before
    assert outcome.results["epoch"].tolist() == [1, 2, 3] * 2
    assert outcome.runs["attempts"].tolist() == [2, 1 if at else 2]


@pytest.mark.parametrize("plan_only", [True, False])
def test_what_changed_in_runs_is_in_the_first_line(capsys, plan_only):
    start(ONE, scaled(2))
    start(TWO, scaled(1), data="first", changed="keep")
    capsys.readouterr()

    start(TWO, scaled(2), data="second", plan_only=plan_only, display=True)

    line = capsys.readouterr().out.partition("\n")[0]
    assert line.startswith("! 2 runs changed and will be executed again")
    parts = ("data= is given now", "scale was 1, is 2", "the data")
    assert [part for part in parts if part not in line] == []


@pytest.mark.parametrize("lost", [(3,), (1, 3), (1, 2, 3), ()], ids=["3", "1, 3", "all", "the end"])
def test_curves_that_a_kill_has_cost_are_written_when_a_run_continues(lost):
    announce("stop", 0.1, 3)
    start(ONE, patient_train, tensorboard=True)
    folder = reading.run_folder("runs/exp")
    (path,) = folder.glob("events*")
    events = map(Event.FromString, event_records(path.read_bytes()))
    kept = [each for each in events if each.step not in lost or not each.HasField("summary")]
    content = b"".join(framed(each.SerializeToString()) for each in kept)
    end = content.rindex(b"time/epoch_s") + 4 if lost == () else None
    reading.as_killed(folder, num_lost=int(lost == ()))
    path.write_bytes(content[:end])

    start(ONE, patient_train, tensorboard=True)

    shown = scalars_of(Path("runs"))
    losses = load_results("runs")["loss"].astype("float32").tolist()
    assert shown["loss/train"] == list(zip((1, 2, 3, 4), losses, strict=True))
    assert [step for step, _ in shown["time/epoch_s"]] == [1, 2, 3, 4]


def patient_train(run, manager):
    with manager.run(run):
        for epoch in manager.epochs(4, checkpoint={}):
            manager.track_loss(1 / epoch, 1)
            meet(run, epoch)
