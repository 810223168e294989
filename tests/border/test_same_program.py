"""Documented programs, started again and again: nothing counts as changed."""

import json
from pathlib import Path

import pytest

from tests.docs.test_pages import PAGES, blocks, name_of
from tests.nightly import of_night_but

HOME = Path(__file__).parents[2]
NUM_STARTS = 3


def changes_of(warm, program):
    """Start a program some times; return what it has said that changed."""
    said = []
    for number in range(NUM_STARTS):
        done = warm.execute(program, forks_lanes=True)
        # what a page asserts may hold at its first start alone
        assert number or done.returncode == 0, done.stdout + done.stderr
        said += [line for line in done.stdout.splitlines() if line.startswith("!") and "changed" in line]
    return said


UNCHANGED = [page for page in PAGES if "run_grid" in "".join(blocks(page, "python"))]
BY_DAY = [page for page in UNCHANGED if page.name == "verdict.md"]


@pytest.mark.slow(minutes=2)
@pytest.mark.parametrize("page", of_night_but(UNCHANGED, BY_DAY), ids=name_of)
def test_a_documented_program_that_is_started_again_has_not_changed(warm, page, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("\n".join(blocks(page, "python")))

    assert changes_of(warm, program) == []


@pytest.mark.slow
def test_the_experiment_that_is_started_again_has_not_changed(warm, tmp_path):
    program = tmp_path / "program.py"
    (tmp_path / "data").symlink_to(HOME / "data")
    flags = ["--train-size", "200", "--batch-size", "100", "--num-workers", "0", "--device", "cpu"]
    code = (HOME / "experiments" / "fashion_grid.py").read_text()
    program.write_text(f"import sys\nsys.argv[1:] = {json.dumps(flags)}\n{code}")

    assert changes_of(warm, program) == []
