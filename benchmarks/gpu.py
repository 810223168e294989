"""The first hour on a GPU: ``python -m benchmarks gpu [check ...] [--device cpu]`` says what held.

Each check is a process of its own, of a few minutes; a call ends in less than nine, and prints how to go on.
What checks print and claim is appended to one file at once. ``--device cpu`` tries the checks themselves, on
less data. What only a GPU can show is then listed as not tried.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

from benchmarks.gpu_checks import CHECKS, IS_SMALL, marked
from benchmarks.gpu_speed import CHECKS as OF_SPEED

CALL_S = 520
"""A call begins no check that it expects to take longer than is left of this."""
HOME = Path(__file__).parents[1]
RESULTS = HOME / "runs" / "gpu.txt"
HELD, FAILED, NOT_TRIED, BEGIN = "held", "DID NOT HOLD", "not tried", "== "
ALL = CHECKS | OF_SPEED


def main(arguments: list[str] | None = None) -> int:
    """Execute checks, each in a process of its own, and print what held; return how many did not."""
    expected = {check.__name__: seconds for check, seconds in ALL.items()}
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__)
    parser.add_argument(
        "checks", nargs="*", metavar="check", help="default: all but those of speed, see --list"
    )
    parser.add_argument("--speed", action="store_true", help="execute those of speed, and print their output")
    parser.add_argument(
        "--device", default="cuda", choices=["cuda", "cpu"], help="cpu tries the checks (default: cuda)"
    )
    parser.add_argument("--list", action="store_true", help="print the checks and their expected seconds")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="FILE", help="gets all output (default: runs/gpu.txt)"
    )
    given = parser.parse_args(arguments)
    names = given.checks or [check.__name__ for check in (OF_SPEED | {marked: 0} if given.speed else CHECKS)]
    if unknown := [name for name in names if name not in expected]:
        parser.error(f"no check {', '.join(unknown)}; there are: {', '.join(expected)}")
    if given.list:
        print("\n".join(listed(expected)))
        return 0
    from runmanager.devices import torch_devices

    if why := torch_devices.missing(given.device):
        print("\n".join(f"{name:<10} {NOT_TRIED}: {why}" for name in names))
        print("\nnothing was tried; --device cpu tries the checks themselves")
        return len(names)
    return execute_all(
        {name: expected[name] for name in names}, given.device, given.results, is_loud=given.speed
    )


def listed(expected: dict[str, int]) -> list[str]:
    """Describe each check in a line."""
    docs = {check.__name__: str(check.__doc__).partition("\n")[0] for check in ALL}
    return [f"{name:<10} {seconds:>4} s  {docs[name]}" for name, seconds in expected.items()]


def execute_all(expected: dict[str, int], device: str, results: Path, *, is_loud: bool = False) -> int:
    """Execute checks for as long as a call may take; print what held, and return how many checks did not."""
    begin = time.monotonic()
    ended: dict[str, list[str]] = {}
    left: list[str] = []
    for name, seconds in expected.items():
        remaining = CALL_S - (time.monotonic() - begin)
        if left or (ended and seconds > remaining):
            left.append(name)
            continue
        before = time.monotonic()
        limit_s = remaining if IS_SMALL else min(remaining, 60 + 3 * seconds)  # a rehearsal computes on a cpu
        size = results.stat().st_size if results.exists() else 0
        ended[name] = execute(name, device, results, limit_s)
        if is_loud:
            print(results.read_bytes()[size:].decode(errors="replace"), flush=True)
        print(f"{name:<10} {summary(ended[name])}, {time.monotonic() - before:.0f} s", flush=True)
        for line in ended[name]:
            if not line.startswith(HELD):
                print(f"{'':<10}   {line}", flush=True)
    failed = [name for name, lines in ended.items() if has_failed(lines)]
    everything = summary([line for lines in ended.values() for line in lines])
    print(f"\n{'all':<10} {everything}" + (f": {', '.join(failed)}" if failed else ""))
    print(f"all output is in {results}")
    if left:
        options = f"--device {device} --results {results}"
        print(f"no time was left; go on by: python -m benchmarks gpu {options} {' '.join(left)}")
    return len(failed)


def execute(name: str, device: str, results: Path, limit_s: float) -> list[str]:
    """Execute a check in a process of its own, which writes to a file; return its claims with verdicts."""
    environment = {
        **os.environ,
        "RUNMANAGER_GPU_CHECK_DEVICE": device,
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "-c", f"from benchmarks import gpu; gpu.check({name!r})"]
    with results.open("ab", buffering=0) as file:
        file.write(f"\n{BEGIN}{name}\n".encode())
        process = subprocess.Popen(  # noqa: S603 - our own
            command, cwd=HOME, env=environment, stdout=file, stderr=file, start_new_session=True
        )
        try:
            code = process.wait(limit_s)
            has_said_so = code == 1 and has_failed(claims(results)[name])
            end = f"it ended with exit code {code}" if code and not has_said_so else ""
        except subprocess.TimeoutExpired:
            end = f"it did not end within {limit_s:.0f} s"
        with suppress(ProcessLookupError):  # what it has started may hold the device
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if end:
            file.write(f"\n{FAILED}: {end}\n".encode())
    return claims(results)[name]


def claims(results: Path) -> dict[str, list[str]]:
    """Read the claims of each check with their verdicts, of a check that was repeated the last ones."""
    names, read = {check.__name__ for check in ALL}, dict[str, list[str]]()
    for line in results.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(BEGIN) and line.removeprefix(BEGIN) in names:
            read[line.removeprefix(BEGIN)] = []
        elif line.startswith((f"{HELD}: ", f"{FAILED}: ", f"{NOT_TRIED}: ")):
            read[next(reversed(read))].append(line)
    return read


def has_failed(lines: list[str]) -> bool:
    """Whether a claim did not hold."""
    return any(line.startswith(FAILED) for line in lines)


def summary(lines: list[str]) -> str:
    """Count verdicts.

    >>> summary(["held: a", "held: b", "not tried: c"])
    '2 held, 1 not tried'
    """
    counts = {verdict: sum(line.startswith(verdict) for line in lines) for verdict in (HELD, NOT_TRIED, FAILED)}
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count) or "claimed nothing"


def check(name: str) -> None:
    """Execute a check in this process, print what it claims, and end with 1 if something did not hold."""
    lines: list[str] = []

    def note(claim: str, held: bool | None) -> None:
        lines.append(f"{NOT_TRIED if held is None else HELD if held else FAILED}: {claim}")
        print(lines[-1], flush=True)

    try:
        for claim, held in next(check for check in ALL if check.__name__ == name)():
            note(claim, held)
    except Exception as error:  # noqa: BLE001 - a check that breaks off is one that did not hold
        traceback.print_exc()
        note(f"it broke off by {type(error).__name__}: {str(error).partition(chr(10))[0]}", held=False)
    sys.exit(1 if has_failed(lines) else 0)
