"""The shared parts of all commands: exit codes, output, and finding experiments and runs."""

import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from runmanager.core.outcome import from_command_line
from runmanager.errors import RunManagerError, RunsWarning, StorageError

if TYPE_CHECKING:
    from runmanager.core.experiment import RunFolder

SOME_WRONG, REFUSED, STORAGE_FAILED, INTERRUPTED = 1, 2, 74, 130
"""Exit codes; 0 means success, even if a reader such as `head` closes the pipe early."""


class _WithoutTypes:
    def get_params(self, ctx: Any) -> list[Any]:
        """Return the arguments and options; the help text leaves out the types of flags and arguments."""
        options: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the next class
        for option in options:
            if option.metavar is None or not option.opts[0].startswith("-"):
                option.display_type_rich = lambda **_: None  # typer would write a type such as <list[Path]>
        return options


class Subcommand(_WithoutTypes, TyperCommand):
    """A command."""


class Commands(_WithoutTypes, TyperGroup):
    """The group of all commands; user errors become a line on standard error and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Execute a command."""
        # a command does not know whether the script of the runs has flags
        with _exit_codes(), warnings.catch_warnings(), from_command_line(are_there=None):
            warnings.simplefilter("always", RunsWarning)
            warnings.showwarning = lambda message, *_, **__: say(f"! {message}")
            return super().invoke(ctx)


def tell_damage(damaged: Sequence[str]) -> None:
    """Report damaged files on standard error, and exit with 1 if there are any."""
    for problem in damaged:
        say(f"! {problem}")
    if damaged:
        raise typer.Exit(SOME_WRONG)


def say(message: str) -> None:
    """Write a message to standard error, apart from the results that scripts read."""
    with allow_unread():
        write_out(message, err=True)


def write_out(text: str, *, err: bool = False) -> None:
    """Write lines, with terminal control sequences escaped."""
    from runmanager.core.wording import printable

    typer.echo("\n".join(map(printable, text.split("\n"))), err=err)


@contextmanager
def allow_unread() -> Iterator[None]:
    """End the block without an error if the reader of its output has closed the pipe."""
    try:
        yield
    except BrokenPipeError:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            try:
                stream.flush()
            except BrokenPipeError:
                # otherwise, Python flushes its output into the closed pipe at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def write_json(content: Any) -> None:
    """Write a JSON document to standard output, in ASCII without terminal control sequences."""
    typer.echo(json.dumps(content, indent=2, allow_nan=False))


def find_target(path: Path) -> tuple[Path, "RunFolder | None"]:
    """Find an experiment, or a run in an experiment; links are not followed."""
    from runmanager.tables.one_run import find_run
    from runmanager.tables.roots import absolute_path, is_experiment, no_experiment

    absolute = absolute_path(path)
    if is_experiment(absolute.parent):
        return find_run(path)
    if absolute.is_symlink():
        raise FileNotFoundError(f"{path} is a link, which is not followed: name the folder itself")
    if not is_experiment(absolute):
        raise FileNotFoundError(no_experiment(path))
    return absolute.parent.resolve() / absolute.name, None


@contextmanager
def _exit_codes() -> Iterator[None]:
    """Turn errors into a line on standard error and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal's encoding may lack characters
    try:
        with allow_unread():
            yield
            if sys.stdout:  # sys.stdout is None in a process without standard output
                sys.stdout.flush()
    except KeyboardInterrupt as error:
        raise typer.Exit(INTERRUPTED) from error
    except (RunManagerError, OSError) as error:
        message = str(error)
        if isinstance(error, OSError) and error.strerror:
            message = f"{error.filename}: {error.strerror}"
        say(f"runmanager: {message}")
        raise typer.Exit(STORAGE_FAILED if isinstance(error, StorageError) else REFUSED) from error
