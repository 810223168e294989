"""Kills at the n-th call of the system for the files of a grid, in its first start and in its continuation."""

import itertools
import shutil
import subprocess
from collections import Counter

import pytest

from tests.border.disk import KILL
from tests.chaos.harness import Witness, result, show
from tests.chaos.work import EXPERIMENT, axes
from tests.nightly import of_night, of_night_but

PARAMS = axes(lrs=[0.01], num_epochs=3, padding=4)
STRACE = shutil.which("strace") or ""
RENAMES, LINKS = "?rename,?renameat,?renameat2", "?link,?linkat"


@pytest.fixture
def begun(zygote, tmp_path):
    """Make an experiment whose second epoch is in the checkpoint but not in the journal."""
    root, note = tmp_path / "begun", str(tmp_path / "note")
    fault = {"call": "write", "at": 2, "code": KILL, "among": "attempt-1.jsonl", "note": note}
    assert zygote.run(root, PARAMS, fault=fault) == -9
    return root


def killed(zygote, root, call, at):
    """Start the experiment and kill it at a call of the package; return whether, and the code."""
    note = root.with_suffix(".note")
    code = zygote.run(root, PARAMS, fault={"call": call, "at": at, "code": KILL, "note": str(note)})
    return note.exists(), code


def traced(zygote, root, call, what, at):
    """Let a call of the system fail, which nothing can go round; return whether it did, and the code."""
    gate, log = root.with_suffix(".gate"), root.with_suffix(".log")
    pid = zygote.start(root, PARAMS, start=str(gate), tensorboard=True)
    inject = ["-o", log, "-e", f"trace={call}", "-e", f"inject={call}:{what}:when={at}"]
    with subprocess.Popen([STRACE, "-f", "-p", f"{pid}", *inject], stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr
        attached = tracer.stderr.readline()
        gate.touch()
        code = zygote.stop(pid)[0]
    if "attached" not in attached:
        pytest.skip(f"strace does not work here: {attached}")
    text = log.read_text()
    return "INJECTED" in text or "killed by SIGKILL" in text, code


def problems_of(zygote, tmp_path, name, step, begun, start):
    """Let the first, second, ... of some calls fail, to the last; return what is wrong, and the hits."""
    if not (tmp_path / "reference").exists():
        assert zygote.run(tmp_path / "reference", PARAMS) == 0
    expected, found, hits = result(tmp_path / "reference"), list[str](), 0
    for at in itertools.count(1, step):
        root = tmp_path / f"{name}-{at}"
        if begun:
            shutil.copytree(begun, root)
        witness = Witness(root / EXPERIMENT)
        found += witness.problems()
        is_hit, code = start(root, at)
        hits += is_hit
        found += [*witness.problems()]
        said = root.with_suffix(".txt").read_text()
        if (
            is_hit
            and code != -9
            and ("No space left" not in said or str(root) not in said or "Traceback" in said)
        ):
            found.append(f"{name} {at} ends with {code}, {said}")
        if (again := zygote.run(root, PARAMS)) != 0 or result(root) != expected:
            found.append(f"{name} {at}: started again, it ends with {again} and other results")
        found += witness.problems()
        if not is_hit or found:
            return found, hits
        shutil.rmtree(root)
    raise AssertionError


@pytest.mark.slow(minutes=1)
@pytest.mark.parametrize("stage", of_night_but(["first start", "continuation"], ["continuation"]))
def test_at_whatever_call_it_is_killed_the_next_start_completes_the_run_exactly(
    zygote, tmp_path, request, stage
):
    root = request.getfixturevalue("begun") if stage == "continuation" else None
    hits: Counter[str] = Counter()
    for call in ("open", "write", "fsync", "replace", "link", "unlink"):
        step = of_night(1, by_day=5 if call in ("open", "write", "fsync") else 3)
        problems, hits[call] = problems_of(
            zygote, tmp_path, call, step, root, lambda root, at, call=call: killed(zygote, root, call, at)
        )
        assert problems == []

    show(dict(hits))
    assert min(hits.values()) > 0


@pytest.mark.slow
@pytest.mark.skipif(not STRACE, reason="strace is not installed")
@pytest.mark.parametrize("call", of_night_but(["write", "fsync", RENAMES, LINKS], [RENAMES]))
def test_whatever_system_call_fails_the_next_start_completes_the_run_exactly(zygote, tmp_path, call):
    step, hits = of_night(1, by_day=8), 0
    for what in ["signal=SIGKILL", *(["error=ENOSPC"] * (call != "write"))]:
        problems, num_hits = problems_of(
            zygote, tmp_path, what, step, None, lambda root, at, what=what: traced(zygote, root, call, what, at)
        )
        assert problems == []
        hits += num_hits

    show(f"{call}: {hits}")
    assert hits > 0
