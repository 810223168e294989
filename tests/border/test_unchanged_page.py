"""The commands of docs/unchanged.md, on its scripts: TensorBoard, W&B and Hydra."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from runmanager import load_runs
from tests.docs.test_pages import ROOT, blocks

PAGE = ROOT / "docs" / "unchanged.md"


@pytest.mark.slow
def test_the_commands_of_the_page_run_its_scripts_unchanged(own_folder):
    names = re.findall(r"[Ss]ave this as\s`(\w+\.py)`", PAGE.read_text())
    for name, script in zip(names, blocks(PAGE, "py"), strict=True):
        (own_folder / name).write_text(script)
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    for line in "".join(blocks(PAGE, "console")).splitlines():
        words = ["-m", *shlex.split(line)]
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    for name in names:
        runs = load_runs(f"runs/{name.removesuffix('.py')}")
        best = runs.loc[runs["lr"] == 0.02, "val_acc"] - (runs["seed"] / 100 if "seed" in runs else 0)
        assert best.dropna().tolist() == pytest.approx([1 - 0.02 / 3] * (len(runs) // 2))
        assert set(runs["epochs"]) == {3}
