"""The disk: in which order things reach it, and what a grid does where a call of the system fails."""

import errno
import itertools
import json
import os
import re
import shutil
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from runmanager import ExperimentLockedError, RunManager, StorageError, load_runs, load_steps
from tests.border import reading
from tests.border.disk import SHORT, Disk, NthCall
from tests.border.work import announce, left, meet, minimize
from tests.border.work import start as start_in_this_process

pytestmark = pytest.mark.usefixtures("own_folder")
GRID = {"lr": [0.1], "device": ["cpu"]}


@pytest.fixture
def disk(own_folder, monkeypatch):
    return Disk(own_folder, monkeypatch.setattr)


def train(run, manager):
    torch.manual_seed(1)
    network = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(network.parameters(), run.lr)
    with manager.run(run, network):
        for epoch in manager.epochs(2, checkpoint={"network": network, "optimizer": optimizer}, keep="last"):
            loss = network(torch.ones(1, 2)).square().mean()
            minimize(optimizer, loss)
            manager.track_loss(loss, 1)
            manager.log(step_loss=loss)
            meet(run, epoch)


def start(root="runs", function=train):
    return start_in_this_process(GRID, function, root=Path(root).absolute())


def test_content_is_on_disk_before_its_name_its_name_before_what_follows_and_all_is_closed(disk):
    start()

    calls: dict[str, list[str]] = {}
    for number, (call, path) in enumerate(disk.calls):
        if call in ("replace", "link", "mkdir"):
            assert ("fsync", str(Path(path).parent)) in disk.calls[number : number + 12]
        if call in ("replace", "link") and "prev" not in path:
            beside = [each for each in calls if Path(each).name.startswith(f".{Path(path).name}.")]
            assert calls[beside[-1]][-3:] == ["write", "fsync", "close"]
        calls.setdefault(path, []).append(call)
    journal, checkpoint = (
        [number for number, (call, path) in enumerate(disk.calls) if path.endswith(name) and call == of]
        for name, of in (("attempt-1.jsonl", "fsync"), ("checkpoint.pt", "replace"))
    )
    (of_journal,) = [each for path, each in calls.items() if path.endswith("attempt-1.jsonl")]
    assert of_journal == ["link", "open", *["ftruncate", "write", "fsync"] * 3, "close"]
    assert checkpoint[0] < journal[0] < checkpoint[1] < journal[1]
    assert disk.num_open == 0


def test_files_have_the_usual_permissions_and_nothing_else_is_left(own_folder):
    start()

    (own_folder / "usual").touch()
    files = [path for path in Path("runs/exp").rglob("*") if path.is_file()]
    assert {path.stat().st_mode for path in files} == {(own_folder / "usual").stat().st_mode}
    assert sorted(path.name for path in files if not path.name.startswith("source-")) == [
        "attempt-1.jsonl", "attempt-1.steps.jsonl", "grid.json", "results.csv", "results.json", "run.json",
        "weights.pt",
    ]  # fmt: skip


FAULTS: list[tuple[str, str, int, int | None, int]] = [  # which calls, what comes of them and of mending, step
    ("write", "", errno.ENOSPC, None, 5), ("write", "jsonl", errno.EIO, errno.EIO, 2),
    ("write", "", SHORT, None, 6), ("fsync", "", errno.EDQUOT, None, 9), ("open", "tmp", errno.EROFS, None, 7),
    ("replace", "", errno.EIO, None, 4), ("link", "", errno.ENOSPC, None, 1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "among", "code", "mend", "step"),
    [FAULTS[0], *(pytest.param(*fault, marks=pytest.mark.slow(everywhere=True)) for fault in FAULTS[1:])],
)
def test_whatever_call_fails_the_file_and_the_cause_are_named_and_the_next_start_completes(
    disk, own_folder, caplog, call, among, code, mend, step
):
    if call != "link":
        announce("stop", 0.1, 2)
        start("whole")
        shutil.copytree("whole", "begun")  # after an epoch
    start("whole")
    expected, steps, num_hits = left("whole"), load_steps("whole"), 0
    for number in itertools.count(1, step):
        root = own_folder / f"runs{number}"
        if Path("begun").exists():
            shutil.copytree("begun", root)
        disk.fault = fault = NthCall(call, number, code, f"{root.name}/.*{among}", mend)
        caplog.clear()
        try:
            exit_code, said = start(root).exit_code, caplog.text
        except StorageError as error:
            exit_code, said = 74, str(error)
        disk.fault = lambda *_: None
        if not fault.hit:
            break
        num_hits += 1
        if code != SHORT and not fault.hit.endswith(("holder.json", "output.log")):  # which may be missing
            assert exit_code == 74, fault.hit
            assert os.strerror(code) in said or mend
            assert root.name in said
            assert "Traceback" not in said
            assert code not in (errno.ENOSPC, errno.EDQUOT) or re.search(r"\d+\.\d of \d+\.\d GB free", said)
        for path in root.rglob("*.json*"):
            for line in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
                json.loads(line)
        if list(root.glob("exp/*/run.json")):
            status = load_runs(root / "exp")["status"].tolist()
            assert status in (["interrupted"], ["completed"], ["running" if mend else "pending"])
        assert start(root).exit_code == 0
        assert left(root) == expected
        assert load_steps(root).equals(steps)
        assert not list(root.rglob("*.tmp"))
        shutil.rmtree(root)

    assert num_hits >= 2


def test_a_file_system_without_hard_links_has_one_grid_at_a_time_and_loses_nothing(disk):
    disk.fault = lambda name, _: errno.EPERM if name == "link" else None
    refused: list[BaseException] = []

    def start_again(run, manager):
        def hold():
            try:
                start(function=train)
            except ExperimentLockedError as error:
                refused.append(error)

        other = threading.Thread(target=hold)
        other.start()
        other.join()
        train(run, manager)

    assert start(function=start_again).exit_code == 0
    assert len(refused) == 1
    assert load_runs("runs")[["status", "epochs", "attempts"]].to_numpy().tolist() == [["completed", 2, 1]]
    manager = RunManager("exp", display=False, tensorboard=False)
    with manager.run({"lr": 0.1}):
        pass
    assert load_runs("runs")["run"].tolist() == [1, 2]
    assert not list(Path("runs").rglob("*.tmp"))


def test_an_attempt_that_another_process_has_just_begun_is_left_alone(disk):
    def be_faster(name, path):
        if name == "link" and path.endswith("attempt-1.jsonl"):
            Path(path).write_text("theirs\n")

    disk.fault = be_faster

    start()

    folder = reading.run_folder("runs/exp")
    assert (folder / "attempt-1.jsonl").read_text() == "theirs\n"
    types = [line["type"] for line in reading.lines(folder / "attempt-2.jsonl")]
    assert types == ["start", "epoch", "epoch", "end"]


def test_an_answer_that_a_network_file_system_lost_is_no_other_holder(disk):
    def lose(name, path):
        if name == "link" and path.endswith("holder.json"):
            disk.fault = lambda *_: None
            Path(path).write_bytes(next(Path(path).parent.glob(".holder*")).read_bytes())

    disk.fault = lose

    assert start().exit_code == 0
    assert not list(Path("runs").rglob("holder.json*"))


def test_what_writers_left_that_died_is_removed_and_what_may_be_written_now_stays(own_folder):
    announce("stop", 0.1, 2)
    start()
    (folder,) = Path("runs/exp").glob("001*")
    (folder / ".artifact.1.tmp").mkdir()
    for name in (".checkpoint.pt.1.tmp", "mine.tmp", ".attempt-2.jsonl.7.tmp", "../.report.html.1.tmp"):
        (folder / name).touch()
    for name in (".checkpoint.pt.1.tmp", "mine.tmp", ".artifact.1.tmp", "../.report.html.1.tmp"):
        os.utime(folder / name, (0, 0))

    assert start().exit_code == 0
    assert sorted(p.name for p in Path("runs").rglob("*.tmp")) == [".attempt-2.jsonl.7.tmp", "mine.tmp"]
