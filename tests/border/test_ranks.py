"""Runs of several processes, as torchrun starts them (docs/trainers.md)."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runmanager import load_results, load_runs, load_steps
from tests.border.events import values_of
from tests.border.reading import lines

pytestmark = pytest.mark.slow
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


def test_there_is_one_row_per_epoch_with_the_values_of_a_single_process(folder):
    found, expected = rows(folder / "plain"), rows(folder / "alone")

    assert [row["epoch"] for row in found] == [1, 2, 3]
    assert len(found) == len(expected)
    for own, other in zip(found, expected, strict=True):
        assert own == {**other, "loss": own["loss"], "test_loss": own["test_loss"]}
        assert own["loss"] == pytest.approx(other["loss"], abs=1e-6)
        assert own["test_loss"] == pytest.approx(other["test_loss"], abs=1e-6)
    journals = [next((folder / name / "exp").glob("001*/attempt-1.jsonl")) for name in ("plain", "alone")]
    assert [lines(path)[0].get("ranks") for path in journals] == [2, None]
    drawn = [[str(each) for _, each in values_of(path.parent) if "confusion" in each.tag] for path in journals]
    assert drawn[0] == drawn[1] != []


@pytest.mark.parametrize("case", ["plain", "chance", "killed", "nan", "grid"])
def test_only_the_first_rank_writes_and_every_rank_knows_what_it_knows(folder, case):
    first, second = (known(folder / case, rank) for rank in (0, 1))

    assert len(first["written"]) > 3
    assert json.dumps({**first, "written": []}) == json.dumps(second)
    assert case == "grid" or json.dumps(first["rows"]) == json.dumps(first["results"])


def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(folder):
    (run,) = (folder / "killed" / "exp").glob("001*")

    assert sorted(path.name for path in run.glob("attempt-?.jsonl")) == ["attempt-1.jsonl", "attempt-2.jsonl"]
    assert lines(run / "attempt-2.jsonl")[0]["after"] == 1
    assert rows(folder / "killed") == rows(folder / "chance")


def test_steps_and_artifacts_are_those_of_the_first_rank(folder):
    steps = {case: load_steps(folder / case) for case in ("plain", "chance", "killed")}

    assert steps["plain"]["step"].tolist() == list(range(1, 13))
    assert set(steps["plain"]["step_rank"]) == {0}
    assert steps["killed"].equals(steps["chance"])
    assert [path.read_text() for path in (folder / "killed").rglob("artifacts/*")] == ["of rank 0\n"]


def test_ranks_leave_a_run_that_diverged_or_failed_on_one_of_them_together(folder):
    diverged, failed = (load_runs(folder / case).loc[0] for case in ("nan", "failed"))

    assert (diverged["status"], diverged["epochs"]) == ("diverged", 2)
    assert diverged["error"].startswith("loss became nan in epoch 2, step 3; before it was 0.")
    assert math.isnan(rows(folder / "nan")[-1]["loss"])
    assert (failed["status"], failed["epochs"]) == ("failed", 1)
    assert "epoch 2, step " in failed["error"]


def test_the_run_of_a_grid_is_executed_by_all_ranks(folder):
    assert known(folder / "grid", 0)["statuses"] == ["completed"]
    assert rows(folder / "grid") == rows(folder / "plain")


def test_torchrun_starts_the_ranks(folder, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

    ended = launch([*torchrun, str(RANKS), "plain", str(tmp_path)])

    assert ended.returncode == 0, ended.stderr
    assert rows(tmp_path) == rows(folder / "plain")
