"""Operating systems in which the n-th call of a kind fails, and packages with a mistake in them."""

import errno
import functools
import io
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from runmanager.core import checkpoint, files, lock
from runmanager.core.checkpoint import ResumeState
from runmanager.core.journal import Journal
from runmanager.tables import results_files

CALLS = ("open", "write", "fsync", "replace", "link", "rename", "unlink")
"""What the commit protocol asks of the operating system, beside ftruncate, which only repairs, and reading."""


class Fault:
    """Makes one call of this process fail.

    Args:
        call: Which function of os.
        at: Which of its calls, from 1.
        kind: "kill", an error such as "ENOSPC", or "short" (of a write: a part is written and no error).
        among: A part of the names of the files that count.
        mend: How the ftruncate that follows fails too; empty if it does not.
        hit: The file that will say that the call was reached, and for what.
    """

    def __init__(self, *, call: str, at: int, kind: str, hit: str, among: str = "", mend: str = "") -> None:
        self._call, self._left, self._kind = call, at, kind
        self._hit, self._among, self._mend = hit, among, mend
        self._paths: dict[int, str] = {}

    def install(self, root: str) -> None:
        """Let the package see an operating system with the fault."""
        real = SimpleNamespace(**vars(os))
        faulty = {name: self._faulty(name, getattr(real, name)) for name in CALLS}
        faulty["ftruncate"] = self._ftruncate
        for module in (files, lock):
            _replace(module, "os", SimpleNamespace(**vars(os) | faulty))
        for name in ("rename", "replace", "unlink"):  # pathlib's

            def guarded(path: Any, *rest: Any, name: str = name, **options: Any) -> Any:
                function = faulty[name] if str(path).startswith(root) else getattr(real, name)
                return function(path, *rest, **options)

            _replace(os, name, guarded)

    def _faulty(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any, *rest: Any, **options: Any) -> Any:
            path = self._paths.get(target, "") if isinstance(target, int) else str(target)
            is_reading = name == "open" and not rest[0] & (os.O_WRONLY | os.O_RDWR) and not Path(path).is_dir()
            if name == self._call and self._among in path and not is_reading:
                self._left -= 1
                if self._left == 0:
                    return self._fail(target, *rest)
            # a process that is killed does not need what a power failure would
            done: Any = None if name == "fsync" else real(target, *rest, **options)
            if name == "open":
                self._paths[done] = path
            return done

        return call

    def _fail(self, target: Any, *rest: Any) -> int:
        Path(self._hit).write_text(str(target))
        if self._call == "write":
            part = bytes(rest[0])[: len(rest[0]) // 2]
            os.write(target, part)
            if self._kind == "short":
                return len(part)
        raise _error_or_death(self._kind)

    def _ftruncate(self, descriptor: int, length: int) -> None:
        if self._mend and self._left == 0:
            Path(f"{self._hit}.mend").touch()
            kind, self._mend = self._mend, ""
            raise _error_or_death(kind)
        os.ftruncate(descriptor, length)


def _error_or_death(kind: str) -> OSError:
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    number = getattr(errno, kind)
    return OSError(number, os.strerror(number))


def _replace(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)


def _checkpoint_under_its_final_name() -> None:
    atomic = files.write_file

    def write(path: Path, content: Any, previous: Path | None = None, **options: Any) -> None:
        if previous is None:
            atomic(path, content, **options)
            return
        with path.open("wb") as file:
            digest, saved = content
            file.write(digest)
            torch.save(torch.load(io.BytesIO(saved), weights_only=True), file)

    _replace(files, "write_file", write)


def _journal_before_checkpoint() -> None:
    save, commit = ResumeState.save, Journal.epoch
    waiting: list[Callable[[], None]] = []

    def save_later(*arguments: Any, **options: Any) -> None:
        waiting.append(functools.partial(save, *arguments, **options))

    def commit_first(journal: Journal, record: Any) -> None:
        commit(journal, record)
        while waiting:
            waiting.pop()()

    _replace(ResumeState, "save", save_later)
    _replace(Journal, "epoch", commit_first)


def _no_repair_of_the_tail() -> None:
    def append(file: Any, record: bytes) -> None:
        with files.explained(file.path):
            files._write_all(file._descriptor, record)
            vars(files)["os"].fsync(file._descriptor)

    _replace(files.AppendFile, "append", append)


def _short_writes_ignored() -> None:
    def write(descriptor: int, content: bytes) -> None:
        vars(files)["os"].write(descriptor, content)

    _replace(files, "_write_all", write)


def _tables_in_place() -> None:
    def write(path: Path, content: bytes) -> None:
        descriptor = vars(files)["os"].open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        files._write_all(descriptor, content)
        os.close(descriptor)

    _replace(results_files, "files", SimpleNamespace(**vars(files) | {"write_file": write}))


def _code_in_checkpoints() -> None:
    def load(*arguments: Any, **options: Any) -> Any:
        return torch.load(*arguments, **options | {"weights_only": False})

    _replace(checkpoint, "torch", SimpleNamespace(**vars(torch) | {"load": load}))


MUTANTS: Mapping[str, Callable[[], None]] = {
    function.__name__.removeprefix("_"): function
    for function in (
        _checkpoint_under_its_final_name,
        _journal_before_checkpoint,
        _no_repair_of_the_tail,
        _short_writes_ignored,
        _tables_in_place,
        _code_in_checkpoints,
    )
}
"""Mistakes by name; each makes the process that calls it a worse one."""

JOURNAL = "attempt-1.jsonl"
