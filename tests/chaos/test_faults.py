"""Each call of the commit protocol fails in turn, in an experiment's first start and in its continuation."""

import errno
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from runmanager.core import files
from tests.chaos.faults import CALLS, JOURNAL
from tests.chaos.harness import Witness, Zygote, result, show
from tests.chaos.work import EXPERIMENT, axes
from tests.nightly import of_night, of_night_but

PARAMS = axes(lrs=[0.01], num_epochs=3, padding=4)
KILLED = -9
STORAGE_FAILED = 74
STRACE = shutil.which("strace") or ""


class Faults:
    """Injects faults into one stage of an experiment, and checks what comes of each.

    Args:
        zygote: What starts processes.
        folder: Where the experiments are made.
        begun: A copy of what there is when the fault comes; None for an experiment's first start.
        mutant: A mistake that the package is made to have.
    """

    def __init__(self, zygote: Zygote, folder: Path, begun: Path | None = None, mutant: str = "") -> None:
        self._zygote = zygote
        self._folder = folder
        self._begun = begun
        self._mutant = mutant
        self._number = 0
        self.counts: Counter[str] = Counter()
        reference = folder / "reference"
        assert zygote.run(reference, PARAMS) == 0
        self._reference = result(reference)

    def inject(self, call: str, kind: str, mend: str = "", step: int = 1) -> list[str]:
        """Let the first, second, ... of some calls fail, until there are no more; return what was wrong.

        With a larger `step`, calls between them are left out.
        """
        problems: list[str] = []
        at = 1 - step
        while True:
            at += step
            what = f"{call} {at} {kind} {mend}".rstrip()
            is_hit, found = self._one(call, at, kind, mend)
            problems += [f"{what}: {problem}" for problem in found]
            if not is_hit:
                return problems

    def _one(self, call: str, at: int, kind: str, mend: str) -> tuple[bool, list[str]]:
        self._number += 1
        root = self._folder / f"{self._number}"
        if self._begun:
            shutil.copytree(self._begun, root)
        witness = Witness(root / EXPERIMENT)
        problems = witness.problems()
        code, target, is_mend_hit = self._start(root, call, at, kind, mend)
        if target and (is_mend_hit or not mend):
            self.counts[f"{call} {kind} {mend}".rstrip()] += 1
            # a holder's file that stays behind holds nothing, nor an empty log, so nobody has to know
            if code != 0 or not target.endswith((files.HOLDER, files.OUTPUT_LOG)):
                problems += self._after(root, code, {kind, mend} - {""})
        problems += witness.problems()
        again = self._zygote.run(root, PARAMS, mutant=self._mutant)
        problems += [] if again == 0 else [f"started again: {again}, {_output(root)}"]
        problems += witness.problems()
        try:
            problems += [] if result(root) == self._reference else ["the result differs from the reference"]
        except Exception as error:  # noqa: BLE001 - a mutant may leave anything
            problems.append(f"no result: {error}")
        if not problems:
            shutil.rmtree(root)
        return bool(target), problems

    def _start(self, root: Path, call: str, at: int, kind: str, mend: str) -> tuple[int, str, bool]:
        """Start the experiment with a fault; return exit code, which file it hit, whether mending failed."""
        hit = root.with_suffix(".hit")
        fault = {"call": call, "at": at, "kind": kind, "mend": mend, "hit": str(hit)}
        code = self._zygote.run(root, PARAMS, fault=fault, mutant=self._mutant)
        return code, hit.read_text() if hit.exists() else "", Path(f"{hit}.mend").exists()

    def _after(self, root: Path, code: int, kinds: set[str]) -> list[str]:
        """Check what the start with the fault said."""
        output = _output(root)
        if "kill" in kinds:
            return [] if code == KILLED else [f"not killed: {code}"]
        if kinds == {"short"}:
            return [] if code == 0 else [f"a short write ended it: {code}, {output}"]
        causes = [os.strerror(getattr(errno, kind)) for kind in kinds]
        problems = [] if code == STORAGE_FAILED else [f"exit code {code}"]
        if not any(cause in output for cause in causes) or str(root) not in output:
            problems.append("the path and the cause are not told")
        if "Traceback" in output:
            problems.append("a traceback is shown")
        return problems if not problems else [*problems, output]


class TracedFaults(Faults):
    """Injects faults where the system is called, which nothing can go round."""

    def _start(self, root: Path, call: str, at: int, kind: str, mend: str) -> tuple[int, str, bool]:
        assert not mend
        gate, log = root.with_suffix(".gate"), root.with_suffix(".log")
        pid = self._zygote.start(root, PARAMS, start=str(gate), tensorboard=True)
        what = "signal=SIGKILL" if kind == "kill" else f"error={kind}"
        inject = [f"trace={call}", "-e", f"inject={call}:{what}:when={at}"]
        with subprocess.Popen(
            [STRACE, "-f", "-p", str(pid), "-o", log, "-e", *inject], stderr=subprocess.PIPE, text=True
        ) as tracer:
            assert tracer.stderr
            attached = tracer.stderr.readline()
            gate.touch()
            code = self._zygote.wait(pid)[0]
        if "attached" not in attached:
            pytest.skip(f"strace does not work here: {attached}")
        text = log.read_text()
        return code, call if "INJECTED" in text or "killed by SIGKILL" in text else "", False


def _output(root: Path) -> str:
    return root.with_suffix(".txt").read_text()


@pytest.fixture
def begun(zygote, tmp_path):
    """Make an experiment whose second epoch is in the checkpoint but not in the journal."""
    root = tmp_path / "begun"
    fault = {"call": "write", "at": 2, "kind": "kill", "among": JOURNAL, "hit": str(tmp_path / "hit")}
    assert zygote.run(root, PARAMS, fault=fault) == KILLED
    return root


@pytest.fixture(params=of_night_but(["first start", "continuation"], ["continuation"]))
def faults(request, zygote, tmp_path):
    copied = request.getfixturevalue("begun") if request.param == "continuation" else None
    return Faults(zygote, tmp_path, copied)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "kind"),
    [
        ("continuation", "EIO"),
        pytest.param("first start", "kill", marks=pytest.mark.nightly),
        pytest.param("first start", "ENOSPC", marks=pytest.mark.nightly),
        pytest.param("continuation", "kill", marks=pytest.mark.nightly),
    ],
    indirect=["faults"],
)
@pytest.mark.nightly
def test_whatever_call_fails_the_next_start_completes_the_run_exactly(faults, kind):
    problems = [problem for call in CALLS for problem in faults.inject(call, kind)]

    show(dict(faults.counts), *problems[:40])
    assert problems == []
    assert set(faults.counts) >= {f"{call} {kind}" for call in ("open", "write", "fsync", "replace", "link")}


@pytest.mark.slow
def test_a_write_that_is_cut_short_goes_on(faults):
    problems = faults.inject("write", "short")

    show(dict(faults.counts), *problems[:40])
    assert problems == []
    assert faults.counts["write short"] > 10


@pytest.mark.slow
@pytest.mark.parametrize("mend", of_night_but(["kill", "EIO"], ["EIO"]))
def test_a_journal_that_cannot_be_mended_either_is_continued_all_the_same(faults, mend):
    problems = faults.inject("write", "ENOSPC", mend)

    show(dict(faults.counts), *problems[:40])
    assert problems == []
    assert faults.counts[f"write ENOSPC {mend}"] >= 2


@pytest.mark.slow
@pytest.mark.skipif(not STRACE, reason="strace is not installed")
def test_whatever_system_call_fails_the_next_start_completes_the_run_exactly(zygote, tmp_path):
    faults = TracedFaults(zygote, tmp_path)
    renames, links = "?rename,?renameat,?renameat2", "?link,?linkat"

    faulty = [(call, "kill") for call in ("write", "fsync", renames, links)]
    faulty += [(call, "ENOSPC") for call in ("fsync", renames, links)]

    step = of_night(1, by_day=6)
    problems = [problem for call, kind in faulty for problem in faults.inject(call, kind, step=step)]

    show(dict(faults.counts), *problems[:40])
    assert problems == []
    assert len(faults.counts) == 7
