"""What all commands share: how errors become exit codes, how results are written, how a run is named."""

import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from runmanager.errors import RunManagerError, RunsWarning, StorageError

if TYPE_CHECKING:
    from runmanager.storage.folders import RunFolder

SOME_WRONG, REFUSED, STORAGE_FAILED, INTERRUPTED = 1, 2, 74, 130
"""Exit codes; 0 is that all went well, a reader that had enough (`| head`) included."""

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="The root of all experiments, an experiment, or a run.")
]
RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run's folder, or EXPERIMENT/NUMBER, as runs/fashion_grid/2.")
]
Largest = Annotated[
    bool | None,
    typer.Option(
        "--largest/--smallest",
        help="Which values are good; without, as the name of the metric says.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for scripts; messages go to standard error.")]


def add(app: typer.Typer, function: Callable[..., None], panel: str, name: str | None = None) -> None:
    """Add a command, whose help is its docstring: indented lines stay as they are, others are folded anew."""
    paragraphs = (function.__doc__ or "").replace("\n    ", "\n").strip().split("\n\n")
    folded = [text if text.startswith(" ") else " ".join(text.split("\n")) for text in paragraphs]
    shown = [re.sub(r"^(For example|Exit codes):", r"[bold]\1:[/bold]", text) for text in folded]
    app.command(name, rich_help_panel=panel, help="\n\n".join(shown))(function)


class Commands(TyperGroup):
    """The commands; whatever a user can cause ends in one line on standard error and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Execute a command."""
        with _told(), _seen_warnings():
            return super().invoke(ctx)


class Damage(list[str]):
    """What could not be read: told on standard error when a command is done, which then exits with 1."""

    def tell(self) -> None:
        """Tell it.

        Raises:
            typer.Exit: There is some.
        """
        for problem in self:
            say(f"! {problem}")
        if self:
            raise typer.Exit(SOME_WRONG)


def say(message: str) -> None:
    """Write a line for the person at the terminal, beside what a script reads; nobody has to read it."""
    from runmanager.console import printable

    with allow_unread():
        typer.echo("\n".join(map(printable, message.split("\n"))), err=True)


@contextmanager
def allow_unread() -> Iterator[None]:
    """Go on behind the block when a reader that had enough has closed the pipe that it writes to."""
    try:
        yield
    except BrokenPipeError:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            try:
                stream.flush()
            except BrokenPipeError:
                os.dup2(
                    os.open(os.devnull, os.O_WRONLY), stream.fileno()
                )  # or Python flushes into it at its end


def write_json(content: Any) -> None:
    """Write a JSON document to standard output."""
    typer.echo(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False))


def find_run(path: Path, damaged: list[str]) -> tuple[Path, "RunFolder"]:
    """Find a run by its folder or by its number in an experiment.

    Args:
        path: As the user wrote it; its last part is never followed if it is a link.
        damaged: What cannot be read goes here.

    Returns:
        The folder of its experiment, and where it lives.

    Raises:
        FileNotFoundError: There is no such run.
    """
    from runmanager.storage.folders import is_experiment, read_runs

    place = Path(os.path.normpath(path.absolute()))
    experiment = place.parent.resolve()
    if not experiment.is_dir() or not is_experiment(experiment):
        what = (
            "is an experiment" if place.is_dir() and is_experiment(place) else "is no folder of an experiment"
        )
        subject = path if what == "is an experiment" else path.parent
        raise FileNotFoundError(f"{subject} {what}: name a run, as runs/fashion_grid/2")
    runs = read_runs(experiment, damaged)
    number = int(place.name) if place.name.isdecimal() and not place.exists() else None
    for run in runs:
        if run.number == number or run.path.name == place.name:
            return experiment, run
    known = f"its runs are {runs[0].number} to {runs[-1].number}" if runs else "it has none"
    raise FileNotFoundError(f"{path.parent} has no run {path.name!r}; {known}: runmanager list {path.parent}")


def files_of(run: "RunFolder") -> list[Path]:
    """Return the files in a run's folder, none if there is no such folder."""
    if not run.path.is_dir():
        return []
    return sorted(path for path in run.path.iterdir() if not path.name.startswith("."))


@contextmanager
def _told() -> Iterator[None]:
    """Turn errors into a line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # whatever the terminal can show
    try:
        with allow_unread():
            yield
            if sys.stdout:  # a process may be started without
                sys.stdout.flush()
    except KeyboardInterrupt as error:
        raise typer.Exit(INTERRUPTED) from error
    except StorageError as error:
        say(f"runmanager: {_words(error)}")
        raise typer.Exit(STORAGE_FAILED) from error
    except (RunManagerError, OSError) as error:
        say(f"runmanager: {_words(error)}")
        raise typer.Exit(REFUSED) from error


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


@contextmanager
def _seen_warnings() -> Iterator[None]:
    """Write what is damaged on standard error, in one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", RunsWarning)
        before = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, RunsWarning):
                say(f"! {message}")
            else:
                before(message, category, *where, **more)

        warnings.showwarning = show
        yield
