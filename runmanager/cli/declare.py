"""The declaration of commands by functions: options and help come from the signature and the docstring."""

import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any

import typer

from runmanager.cli.common import Subcommand
from runmanager.cli.rows import Selection

_OPTION = inspect.Parameter.KEYWORD_ONLY
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


def declare(app: typer.Typer, name: str, function: Callable[..., None], panel: str) -> None:
    """Add a command that calls a function.

    Positional parameters are arguments, keyword-only parameters and the fields of a `Selection` are options.
    Their help is in the docstring under `Options:`, or here if several commands have them.

    Options:
        folder (FOLDER): The root of all experiments, an experiment, or a run.
        root (FOLDER): The root of all experiments, or one experiment.
        folders (FOLDER): Roots, experiments or runs. Default: runs.
        run (RUN): A run's folder, or EXPERIMENT/NUMBER such as runs/fashion_grid/2.
        goal (METRIC): Metric that decides, as max:NAME or min:NAME, or a name that implies the direction.
            Default: the goal of the grid, else the validation, test or training accuracy, else the loss.
        goals (METRIC): Metric that decides, as max:NAME or min:NAME, or a name that implies the direction.
            Default: the goal of the grid, else the validation, test or training accuracy, else the loss. With
            several goals, the runs on the Pareto front are listed.
        repeats (AXIS): Axis that only repeats a setting, such as seed; '()' for none. Default: the grid's, else
            axes that vary and are called seed, fold, split, trial or repeat.
        hyperparameters (A,B): The hyperparameters in a file of another tool that does not name them.
        as_json: Write JSON, for scripts.
    """
    help_, texts = _read(function)
    texts = _read(declare)[1] | _read(Selection)[1] | texts
    parameters = dict(inspect.signature(function).parameters)
    of_rows = inspect.signature(Selection).parameters if parameters.pop("rows", None) else {}
    parameters |= of_rows

    def command(**arguments: Any) -> None:
        if of_rows:
            arguments["rows"] = Selection(**{each: arguments.pop(each) for each in of_rows})
        if arguments.get("repeats") == ["()"]:
            arguments["repeats"] = []
        function(**arguments)

    vars(command)["__signature__"] = inspect.Signature([_declared(each, texts) for each in parameters.values()])
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
    marked = re.sub(r"(?m)^(For example|Exit codes):", r"[bold]\1:[/bold]", "\n\n".join(paragraphs))
    return marked, {
        name: (value or None, " ".join(help_.split()))
        for name, value, help_ in re.findall(r"(?m)^ {4}(\w+)(?: \((.*?)\))?: (.*(?:\n {8}.*)*)", options)
    }
