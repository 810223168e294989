"""What all commands share: declaration, exit codes, output, and how to name a run."""

import inspect
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from runmanager.errors import RunManagerError, RunsWarning, StorageError
from runmanager.wording import listed

if TYPE_CHECKING:
    from runmanager.storage.folders import RunFolder

SOME_WRONG, REFUSED, STORAGE_FAILED, INTERRUPTED = 1, 2, 74, 130
"""Exit codes. 0 is success; a reader that closes the pipe early (`| head`) is no error."""

_MOST_NAMES = 8  # of experiments, in a message


def add_command(app: typer.Typer, name: str, function: Callable[..., None], panel: str) -> None:
    """Add a command whose help is its docstring: indented lines stay as they are, others are joined."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    joined = [text if text.startswith(" ") else " ".join(text.split("\n")) for text in paragraphs]
    marked = [re.sub(r"^(For example|Exit codes):", r"[bold]\1:[/bold]", text) for text in joined]
    app.command(name, cls=Command, rich_help_panel=panel, help="\n\n".join(marked))(function)


class Command(TyperCommand):
    """A command whose help names no types where the name says it."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the arguments and options."""
        return _without_types(super().get_params(ctx))


class Commands(TyperGroup):
    """All commands; every error that a user can cause ends in a line on standard error and an exit code."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options, those of the shell last."""
        return sorted(_without_types(super().get_params(ctx)), key=lambda option: "completion" in option.name)

    def invoke(self, ctx: Any) -> Any:
        """Execute a command."""
        with _exit_codes(), _short_warnings():
            return super().invoke(ctx)


def _without_types(options: list[Any]) -> list[Any]:
    for option in options:
        if getattr(option, "is_flag", False) and option.metavar is None:
            option.metavar = ""  # a flag has no value
        if not option.opts[0].startswith("-"):
            option.display_type_rich = lambda **_: None  # what typer would write: <list[Path]>
    return options


class Damage(list[str]):
    """What a command could not read; it reports that at its end."""

    def tell(self) -> None:
        """Report the damage, if there is any, on standard error and exit with 1."""
        for problem in self:
            say(f"! {problem}")
        if self:
            raise typer.Exit(SOME_WRONG)


def say(message: str) -> None:
    """Write a message to standard error, where no script reads results."""
    with allow_unread():
        write(message, err=True)


def write(text: str, *, err: bool = False) -> None:
    """Write lines that cannot steer a terminal."""
    from runmanager.wording import printable

    typer.echo("\n".join(map(printable, text.split("\n"))), err=err)


@contextmanager
def allow_unread() -> Iterator[None]:
    """Leave the block without an error when the reader of its output has closed the pipe."""
    try:
        yield
    except BrokenPipeError:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            try:
                stream.flush()
            except BrokenPipeError:
                # or Python flushes into the pipe when it exits
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def write_json(content: Any) -> None:
    """Write a JSON document to standard output; what would steer a terminal is escaped in it."""
    document = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    typer.echo("".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in document))


def find_run(path: Path) -> tuple[Path, "RunFolder"]:
    """Find a run by its folder, which is not followed if it is a link, or by its number in an experiment.

    Returns:
        The folder of the experiment, and the run's.

    Raises:
        FileNotFoundError: There is no such run.
    """
    from runmanager.results.one_run import search
    from runmanager.storage import paths
    from runmanager.storage.folders import is_experiment, read_runs

    searched = search(path)
    if searched.experiment is None:
        folder = paths.absolute(path)
        if folder.is_dir() and is_experiment(folder):
            first = next((run.number for run in read_runs(folder)), 1)
            raise FileNotFoundError(f"{path} is an experiment: name a run, as {path / str(first)}")
        raise FileNotFoundError(f"{path} is no run, {_no_experiment(path.parent, path)}")
    if searched.run is not None:
        return searched.experiment, searched.run
    numbers = (not searched.is_numbered and paths.nearest(path)) or searched.numbers
    raise FileNotFoundError(f"{path.parent} has no run {path.name!r}; {numbers}: runmanager list {path.parent}")


def find_experiment(path: Path) -> Path:
    """Find the folder of an experiment, which is not followed if it is a link.

    Raises:
        FileNotFoundError: There is no such experiment.
    """
    from runmanager.storage import paths
    from runmanager.storage.folders import is_experiment

    absolute = paths.absolute(path)
    if absolute.is_symlink():
        raise FileNotFoundError(f"{path} is a link, which is not followed: name the folder itself")
    if not absolute.is_dir() or not is_experiment(absolute):
        raise FileNotFoundError(_no_experiment(path))
    return absolute.parent.resolve() / absolute.name


def find_target(path: Path) -> tuple[Path, "RunFolder | None"]:
    """Find an experiment, or a run in one; of neither, links are followed.

    Returns:
        The folder of the experiment, and the run's, None if the path names the experiment.

    Raises:
        FileNotFoundError: There is no such experiment or run.
    """
    from runmanager.storage import paths
    from runmanager.storage.folders import is_experiment

    parent = paths.absolute(path).parent
    is_run = parent.is_dir() and is_experiment(parent)
    return find_run(path) if is_run else (find_experiment(path), None)


def _no_experiment(path: Path, asked: Path | None = None) -> str:
    """Say that a path is no experiment, and which one was meant or is there; `asked` is what was given."""
    from runmanager.storage import paths
    from runmanager.storage.folders import experiments, is_experiment

    root = path if path.is_dir() and not is_experiment(path) else path.parent
    folders = experiments(root) if root.is_dir() and not is_experiment(root) else []
    if not folders:
        return f"{path} is no experiment, and none is beside it"
    hint = paths.nearest(asked or path)
    names = listed((folder.name for folder in folders), _MOST_NAMES)
    return f"{path} is no experiment; {hint or f'{root} has: {names}'}"


def check_folder(root: Path) -> None:
    """Refuse what is no folder.

    Raises:
        FileNotFoundError: The path does not exist, or is a file.
    """
    from runmanager.storage import paths

    if not root.is_dir():
        rule = "give the folder that RunManager or run_grid wrote, such as 'runs'"
        raise FileNotFoundError(f"no folder {str(root)!r}: {paths.nearest(root) or rule}")


def files_of(run: "RunFolder") -> dict[str, int]:
    """Return the files in a run's folder, those of its artifacts included: name -> size in bytes."""
    from runmanager.storage import artifacts, paths

    if not run.path.is_dir():
        return {}
    names = sorted(path.name for path in run.path.iterdir() if not path.name.startswith("."))
    inside = [f"{paths.ARTIFACTS}/{name}" for name in artifacts.names(run.path, files_only=True)]
    names = [name for name in names if not inside or name != paths.ARTIFACTS] + inside
    return {name: (run.path / name).lstat().st_size for name in names}


@contextmanager
def _exit_codes() -> Iterator[None]:
    """Turn errors into a line on standard error and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # not every terminal can show all
    try:
        with allow_unread():
            yield
            if sys.stdout:  # None in a process that was started without one
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
def _short_warnings() -> Iterator[None]:
    """Write warnings about damaged files as one line on standard error."""
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
