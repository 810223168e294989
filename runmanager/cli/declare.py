"""The declaration of commands by functions: options and help come from the signature and the docstring."""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from runmanager.cli.common import Subcommand, allow_unread, tell_damage, write_json
from runmanager.cli.rows import Selection

_OPTION = inspect.Parameter.KEYWORD_ONLY
_GOAL = (
    "Metric that decides, as max:NAME or min:NAME, or a name that implies the direction. Default: the "
    "goal of the grid, else the validation, test or training accuracy, else the loss."
)
_REPEATS = (
    "Axis that only repeats a setting, such as seed; '()' for none. Default: the grid's, else axes "
    "that vary and are called seed, fold, split, trial or repeat."
)
_NAMES = {
    "as_json": ["--json"],
    "everything": ["--all"],
    "goals": ["--goal"],
    "limit": ["--limit", "-n"],
    "output": ["--output", "-o"],
    "printed": ["--output"],
    "yes": ["--yes", "-y"],
}
"""Parameter -> the names of its option, if they differ."""

Texts = dict[str, tuple[str | None, str]]
"""Parameter -> the placeholder for its value (None for a flag), and its help."""

_SHARED: Texts = {
    "folder": ("FOLDER", "The root of all experiments, an experiment, or a run."),
    "root": ("FOLDER", "The root of all experiments, or one experiment."),
    "folders": ("FOLDER", "Roots, experiments or runs. Default: runs."),
    "run": ("RUN", "A run's folder, or EXPERIMENT/NUMBER such as runs/fashion_grid/2."),
    "goal": ("METRIC", _GOAL),
    "goals": ("METRIC", f"{_GOAL} With several goals, the runs on the Pareto front are listed."),
    "repeats": ("AXIS", _REPEATS),
    "hyperparameters": ("A,B", "The hyperparameters in a file of another tool that does not name them."),
    "as_json": (None, "Write JSON, for scripts."),
}


@dataclass(frozen=True)
class Answer:
    """The result of a command: how it is printed for people, as a JSON document, and the damaged files."""

    show: Callable[[], object]
    json: Callable[[], Any]
    damaged: Sequence[str] = ()


def declare(app: typer.Typer, name: str, function: Callable[..., Answer | None], panel: str) -> None:
    """Add a command that calls a function; an `Answer` has ``--json``.

    Positional parameters are arguments, keyword-only parameters and the fields of a `Selection` are options.
    Their help is in the docstring under `Options:`, as in ``limit (N): Number of rows.``
    """
    help_, texts = _read(function)
    parameters = list(inspect.signature(function).parameters.values())
    has_rows = bool(parameters) and parameters[-1].annotation is Selection
    if has_rows:
        parameters[-1:] = inspect.signature(Selection).parameters.values()
    if inspect.signature(function).return_annotation is Answer:
        parameters.append(inspect.Parameter("as_json", _OPTION, default=False, annotation=bool))

    def command(*, as_json: bool = False, **arguments: Any) -> None:
        if has_rows:
            arguments["rows"] = Selection(**{each.name: arguments.pop(each.name) for each in fields(Selection)})
        if arguments.get("repeats") == ["()"]:
            arguments["repeats"] = []
        if answer := function(**arguments):
            with allow_unread():
                write_json(answer.json()) if as_json else answer.show()
            tell_damage(answer.damaged)

    texts = _SHARED | _read(Selection)[1] | texts
    declared = {each.name: _declared(each, texts) for each in parameters}
    vars(command)["__signature__"] = inspect.Signature(list(declared.values()))
    command.__annotations__ = {each: parameter.annotation for each, parameter in declared.items()}
    app.command(name, cls=Subcommand, rich_help_panel=panel, help=help_)(command)


def _declared(parameter: inspect.Parameter, texts: Texts) -> inspect.Parameter:
    """Return a parameter with the annotation that typer reads."""
    value, help_ = texts.get(parameter.name, (None, ""))  # python -OO removes docstrings
    how: Any = typer.Argument(metavar=value, help=help_)
    if parameter.kind is _OPTION:
        names = _NAMES.get(parameter.name, [f"--{parameter.name.replace('_', '-')}"])
        how = typer.Option(*names, metavar=value, help=help_)
    return parameter.replace(kind=_OPTION, annotation=Annotated[parameter.annotation, how])


def _read(function: Callable[..., Any]) -> tuple[str, Texts]:
    """Return the help of a command, and the texts on its parameters, from the docstring."""
    text, _, options = inspect.cleandoc(function.__doc__ or "").partition("\n\nOptions:\n")
    paragraphs = [each if each.startswith(" ") else " ".join(each.split("\n")) for each in text.split("\n\n")]
    marked = [re.sub(r"^(For example|Exit codes):", r"[bold]\1:[/bold]", each) for each in paragraphs]
    entries = re.findall(r"^ {4}(\w+)(?: \((.*?)\))?: (.*(?:\n {8}.*)*)", options, flags=re.MULTILINE)
    return "\n\n".join(marked), {
        name: (value or None, " ".join(help_.split())) for name, value, help_ in entries
    }
