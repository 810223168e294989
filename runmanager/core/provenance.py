"""The circumstances of a run: versions, git commit and program."""

import contextlib
import functools
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from runmanager import __version__


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that affect results."""
    versions = {"python": platform.python_version(), "runmanager": __version__}
    for name in ("torch", "numpy"):
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


@functools.cache
def git_commit() -> str:
    """Return the git commit of the working directory, with ``+changes`` if files differ; empty without git."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if not head:
        return ""
    return f"{head}+changes" if _git("status", "--porcelain", "--untracked-files=no") else head


def command() -> str:
    """Return the name of the program without its arguments, as arguments may contain secrets."""
    return Path(sys.argv[0]).name if sys.argv else ""


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            ["git", *arguments],  # noqa: S607 - the git on the user's path
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
