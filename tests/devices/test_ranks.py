import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.distributed_c10d import BackendConfig

from runmanager import GridError, load_results, load_runs, load_steps, run_grid
from runmanager.core.journal import read_attempt
from runmanager.devices import ranks
from runmanager.errors import RunManagerError
from tests.accelerators import Machine, installed

RANKS = Path(__file__).parents[1] / "ranks.py"
CASES = {  # folder -> the cases executed in it, one after the other, each by so many ranks
    "plain": [(2, "plain")],
    "alone": [(1, "plain")],
    "chance": [(2, "chance")],
    "killed": [(2, "killed"), (2, "continued")],
    "nan": [(2, "nan")],
    "failed": [(2, "failed")],
    "grid": [(2, "grid")],
}
CLOCKS = ("epoch duration", "run duration")


PROGRAM = """
import json
from pathlib import Path
from tests import ranks

for num_ranks, case, folder in CASES:
    print(json.dumps(ranks.fork(num_ranks, case, Path(folder))), flush=True)
"""


@pytest.fixture(scope="module")
def folder(warm, tmp_path_factory):
    """Where all cases were executed, by ranks that were forked from one process."""
    root = tmp_path_factory.mktemp("ranks")
    for name in CASES:
        (root / name).mkdir()
    cases = [(ranks, case, str(root / name)) for name, cases in CASES.items() for ranks, case in cases]
    (root / "program.py").write_text(PROGRAM.replace("CASES", repr(cases)))
    ended = warm.execute(root / "program.py")
    codes = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("[")]
    expected = {"killed": [-9, -9], "failed": [1, 1]}
    assert codes == [expected.get(case, [0] * ranks) for cases in CASES.values() for ranks, case in cases], (
        ended.stderr
    )
    return root


def launch(command):
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(RANKS.parent.parent)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


def known(folder, rank):
    return json.loads((folder / f"rank{rank}.json").read_text())


def rows(folder):
    table = load_results(folder / "exp").drop(columns=list(CLOCKS))
    return table.to_dict(orient="records")


@pytest.mark.slow
def test_there_is_one_row_per_epoch_with_the_values_of_a_single_process(folder):
    found, expected = rows(folder / "plain"), rows(folder / "alone")

    assert [row["epoch"] for row in found] == [1, 2, 3]
    assert len(found) == len(expected)
    for own, other in zip(found, expected, strict=True):
        assert own == {**other, "loss": own["loss"], "test_loss": own["test_loss"]}
        assert own["loss"] == pytest.approx(other["loss"], abs=1e-6)
        assert own["test_loss"] == pytest.approx(other["test_loss"], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["plain", "chance", "killed", "nan"])
def test_every_rank_knows_what_the_first_one_knows(folder, case):
    first, second = (known(folder / case, rank) for rank in (0, 1))

    assert json.dumps({**first, "written": []}) == json.dumps(second)
    assert json.dumps(first["rows"]) == json.dumps(first["results"])


@pytest.mark.slow
@pytest.mark.parametrize("case", ["plain", "killed", "nan", "grid"])
def test_only_the_first_rank_writes(folder, case):
    assert known(folder / case, 1)["written"] == []
    assert len(known(folder / case, 0)["written"]) > 3


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(folder):
    (run,) = (folder / "killed" / "exp").glob("001*")

    assert sorted(path.name for path in run.glob("attempt-?.jsonl")) == ["attempt-1.jsonl", "attempt-2.jsonl"]
    assert read_attempt(run / "attempt-2.jsonl").start["after"] == 1
    assert rows(folder / "killed") == rows(folder / "chance")


@pytest.mark.slow
def test_steps_and_artifacts_are_those_of_the_first_rank(folder):
    steps = {case: load_steps(folder / case) for case in ("plain", "chance", "killed")}

    assert steps["plain"]["step"].tolist() == list(range(1, 13))
    assert set(steps["plain"]["step_rank"]) == {0}
    assert steps["killed"].equals(steps["chance"])
    assert [path.read_text() for path in (folder / "killed").rglob("artifacts/*")] == ["of rank 0\n"]


@pytest.mark.slow
def test_ranks_leave_a_run_that_diverged_on_one_of_them_together(folder):
    (row,) = load_runs(folder / "nan" / "exp").to_dict(orient="records")

    assert (row["status"], row["epochs"]) == ("diverged", 2)
    assert row["error"].startswith("loss became nan in epoch 2, step 3; before it was 0.")
    assert math.isnan(rows(folder / "nan")[-1]["loss"])


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_run_of_all(folder):
    (row,) = load_runs(folder / "failed" / "exp").to_dict(orient="records")

    assert (row["status"], row["epochs"]) == ("failed", 1)
    assert "epoch 2, step " in row["error"]


@pytest.mark.slow
def test_the_run_of_a_grid_is_executed_by_all_ranks(folder):
    assert known(folder / "grid", 0)["statuses"] == known(folder / "grid", 1)["statuses"] == ["completed"]
    assert known(folder / "grid", 0)["results"] == known(folder / "grid", 1)["results"]
    assert rows(folder / "grid") == rows(folder / "plain")


@pytest.mark.slow
def test_a_journal_says_how_many_ranks_there_were(folder):
    starts = [
        read_attempt(next((folder / name / "exp").glob("001*/attempt-1.jsonl"))).start
        for name in ("plain", "alone")
    ]

    assert [start.get("ranks") for start in starts] == [2, None]


@pytest.mark.slow
def test_torchrun_starts_the_ranks(folder, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

    ended = launch([*torchrun, str(RANKS), "plain", str(tmp_path)])

    assert ended.returncode == 0, ended.stderr
    assert rows(tmp_path) == rows(folder / "plain")


WITHOUT_BACKEND = """
import sys
from pathlib import Path

sys.path.insert(0, HOME)
from runmanager.devices import ranks as devices
from tests import ranks
from tests.accelerators import Machine, installed

def execute(_case, folder):
    with installed(Machine(folder, 2, "xpu")):
        (folder / f"rank{devices.rank()}.json").write_text(str(devices.gather(devices.rank())))

ranks.execute = execute
print(ranks.fork(2, "", Path.cwd()))
"""


@pytest.mark.slow
def test_ranks_whose_accelerators_have_no_backend_in_this_torch_exchange_messages(warm, tmp_path):
    (tmp_path / "program.py").write_text(WITHOUT_BACKEND.replace("HOME", repr(str(RANKS.parents[1]))))

    ended = warm.execute(tmp_path / "program.py")

    assert ended.stdout.splitlines()[-1:] == ["[0, 0]"], ended.stderr
    assert [known(tmp_path, rank) for rank in (0, 1)] == [[0, 1], [0, 1]]


@pytest.mark.usefixtures("second_of_two")
@pytest.mark.parametrize(
    ("kind", "has_nccl", "expected"),
    [
        ("cuda", True, {"cpu": "gloo", "cuda": "nccl"}),
        ("cuda", False, {"cpu": "gloo", "cuda": "gloo"}),
        ("mps", True, {"cpu": "gloo", "mps": "gloo"}),
    ],
)
def test_messages_of_ranks_do_not_go_through_their_accelerators(
    monkeypatch, tmp_path, kind, has_nccl, expected
):
    configs = []
    monkeypatch.setattr(torch.distributed, "is_backend_available", lambda name: has_nccl or name == "gloo")
    monkeypatch.setattr(
        torch.distributed,
        "init_process_group",
        lambda backend="undefined": configs.append(BackendConfig(backend)),
    )

    with installed(Machine(tmp_path, 2, kind)):
        ranks.join_group()

    assert [config.get_device_backend_map() for config in configs] == [expected]


def test_without_torchrun_there_is_one_rank():
    assert (ranks.rank(), ranks.num_ranks(), ranks.is_main()) == (0, 1, True)
    assert ranks.gather(5) == [5]
    assert ranks.from_main(lambda: "a") == "a"


@pytest.fixture
def second_of_two(monkeypatch):
    for name, value in {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "box"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("second_of_two")
def test_torchrun_tells_a_process_its_rank_and_its_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)

    assert (ranks.rank(), ranks.num_ranks(), ranks.is_main()) == (3, 4, False)
    assert ranks.device_of_rank("cuda") == torch.device("cuda:1")
    assert ranks.device_of_rank("cuda:0") == torch.device("cuda:0")
    assert ranks.device_of_rank("cpu") == torch.device("cpu")


@pytest.mark.usefixtures("second_of_two")
def test_a_rank_that_is_gone_is_said_so(monkeypatch):
    def fail(*_):
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(ranks, "join_group", lambda: None)
    monkeypatch.setattr(torch.distributed, "all_gather_object", fail)

    with pytest.raises(
        RunManagerError, match="rank 3 has lost another rank, which says why: Connection closed"
    ):
        ranks.gather(1)


def test_only_in_their_own_process_do_ranks_execute_a_grid(monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(ranks, "num_ranks", lambda: 2)

    with pytest.raises(GridError, match="write executor='inline'"):
        run_grid({"lr": [1]}, print, experiment="exp", root=tmp_path)
