"""The circumstances of a run: versions, git commit, and the files of other runs that it loads."""

import contextlib
import functools
import hashlib
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from runmanager import __version__
from runmanager.core import files

_SECRET = re.compile(r"(key|token|auth|pwd|pass)$|secret|passw|passphrase|bearer|credential", re.IGNORECASE)
_HOSTS = {"ipykernel_launcher.py", "default_worker.py"}  # of a notebook and of Ray: their arguments say nothing
_LONGEST = 2000  # maximum number of characters of a command

loaded_now: dict[Path, str] | None = None
"""What the current run has loaded from -> digests of results and of files, with a space between them."""


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
    answers: list[str] = []
    for words in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "--untracked-files=no")):
        try:
            done = subprocess.run(  # noqa: S603 - fixed arguments
                ["git", *words],  # noqa: S607 - the git on the user's path
                capture_output=True, text=True, timeout=10, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            break
        if done.returncode:
            break
        answers.append(done.stdout.strip())
    head, *changes = answers or [""]
    return f"{head}+changes" if any(changes) else head


@functools.cache
def command(words: tuple[str, ...]) -> str:
    """Return a command line; values that an argument names as secret are left out."""
    parts, is_hidden = [Path(word).name for word in words[:1] if word], False
    for word in words[1:] if not {*parts} & _HOSTS else ():
        flag, sign, _ = word.partition("=")
        is_secret = bool((sign or flag.startswith("-")) and _SECRET.search(flag))
        parts.append("..." if is_hidden else f"{flag}=..." if is_secret and sign else word)
        is_hidden = is_secret and not sign
    return re.sub(r"://[^/\s]*@", "://...@", shlex.join(parts))[:_LONGEST]


def note_run(folder: Path) -> None:
    """Record the files of another run, if a run is being executed."""
    if loaded_now is not None:
        results = loaded_now.get(folder.resolve(), "").partition(" ")[0]
        loaded_now[folder.resolve()] = f"{results} {files_digest(folder)}"


def loaded_by(run: Path) -> dict[str, str]:
    """Return what a run has loaded, as paths relative to its root; its own experiment changes with each run."""
    loaded: dict[str, str] = {}
    for path, digest in (loaded_now or {}).items():
        if path not in (run.resolve(), run.parent.resolve()):
            loaded[Path(os.path.relpath(path, run.parent.parent)).as_posix()] = digest
    return loaded


def files_digest(run: Path) -> str:
    """Return the digest of the weights and artifacts of a run; "" without such files."""
    return joined_digest([f"{path.relative_to(run)} {digest_of_file(path)}" for path in loadable_files(run)])


def loadable_files(run: Path) -> list[Path]:
    """Return the paths of the weights and artifacts of a run."""
    artifacts = sorted((run / files.ARTIFACTS).rglob("*"))
    return [path for path in (run / files.WEIGHTS, *artifacts) if path.is_file()]


def joined_digest(texts: Sequence[str]) -> str:
    """Return a digest of texts, "" without texts."""
    return hashlib.sha256("\n".join(texts).encode("utf-8", "surrogateescape")).hexdigest()[:16] if texts else ""


def digest_of_file(path: Path) -> str:
    """Return the digest of a file's content; many runs may have loaded the same file."""
    return _digest_of_version(path, files.version_of(path))


@functools.lru_cache
def _digest_of_version(path: Path, _version: object) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
