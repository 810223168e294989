"""Run the benchmarks named on the command line, or all of them."""

import argparse
import os
import platform
from importlib.metadata import version

from benchmarks import committing, displaying, loading, running, sharing, starting
from benchmarks import committing, loading, overhead, running, sharing, starting, tensorboard
from benchmarks import committing, loading, running, seeds, sharing, training

BENCHMARKS = {
    "committing": committing.main,
    "displaying": displaying.main,
    "loading": loading.main,
    "overhead": overhead.main,
    "running": running.main,
    "seeds": seeds.main,
    "sharing": sharing.main,
    "starting": starting.main,
    "tensorboard": tensorboard.main,
    "training": training.main,
}


def main() -> None:
    """Print the machine, then each benchmark's figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}")
    names = parser.parse_args().names or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}")
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "tensorboard", "pandas", "numpy"))
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {libraries}")
    print(f"load average {load}")
    for name in names:
        print(f"\n== {name}")
        BENCHMARKS[name]()


if __name__ == "__main__":
    main()
