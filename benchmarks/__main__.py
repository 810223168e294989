"""Run the benchmarks named on the command line, or all of them."""

import argparse
import os
import platform
import sys
from importlib import import_module
from importlib.metadata import version

NAMES = (
    "committing", "devices", "displaying", "evaluating", "fashion_search", "foreseeing", "halving", "loading",
    "overhead", "page", "reading", "running", "searching", "seeds", "sharing", "starting", "steps",
    "tensorboard", "thousand", "tracking", "training", "verdict",
)  # fmt: skip


def main() -> None:
    """Print the machine, then each benchmark's figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(NAMES)}; or peers, or gpu")
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="of peers (default: 1)")
    if sys.argv[1:2] == ["gpu"]:  # checks, for a machine with a GPU
        from benchmarks import gpu

        sys.exit(min(gpu.main(sys.argv[2:]), 1))
    arguments = parser.parse_intermixed_args()
    names = arguments.names or NAMES
    if names[0] == "peers":  # takes minutes, and other libraries: only when it is asked for
        from benchmarks import peers

        machine()
        peers.main(names[1:], arguments.rounds)
        return
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(NAMES)}")
    machine()
    for name in names:
        print(f"\n== {name}")
        import_module(f"benchmarks.{name}").main()


def machine() -> None:
    """Print what the figures were taken on."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "tensorboard", "pandas", "numpy"))
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {libraries}")
    print(f"load average {load}")


if __name__ == "__main__":
    main()
