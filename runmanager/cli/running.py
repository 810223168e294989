"""The subcommand that executes a user's program as a grid."""

import argparse
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import typer

from runmanager.cli.common import Subcommand
from runmanager.core.grid import RunBuilder
from runmanager.core.outcome import from_command_line
from runmanager.core.ranges import IntRange, LogUniform, Uniform
from runmanager.errors import InvalidArgumentError, Problems

HELP = """Execute a program once per setting: a grid over a script that knows nothing of runmanager.

Each axis becomes a flag of the program. Started again, only what is missing is executed.

[bold]For example:[/bold]

  runmanager run --lr 0.1 0.02 --seed 0..4 --goal max:val_acc -- python train.py --epochs 30

runmanager run --help lists all options."""

_AXES = """Each axis is a flag with values: --lr 0.1 0.02, --amp true false, --seed 0..9 for whole numbers; with
--search also ranges: --lr log:1e-4..1e-1, --dropout 0.0..0.5. An axis becomes a flag of the program, unless it
stands in the command as {lr}. {folder} is a folder of the run, {run} its name.

examples:
  %(prog)s --lr 0.1 0.02 --seed 0..4 --goal max:val_acc -- python train.py --epochs 30
  %(prog)s --lr 0.1 0.02 --decide --goal max:val_acc -- python train.py --out {folder}
  %(prog)s --lr log:1e-4..1e-1 --search 20 --goal max:val_acc --catch wandb -- python train.py
  %(prog)s --optimizer.lr 0.1 0.02 --style hydra -- python train.py "hydra.run.dir='{folder}'\""""


class Words(Subcommand):
    """A command that reads its words itself, as those after -- are another program's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words as they are."""
        ctx.args = list(args)
        return []


def run_command(ctx: typer.Context) -> None:
    """Execute the grid of the command line."""
    from runmanager.front.command import Command, name_of
    from runmanager.front.reported import column_name
    from runmanager.front.run_grid import run_grid  # imports torch
    from runmanager.search.decide import Decide
    from runmanager.search.optuna_search import OptunaSearch

    words = ctx.args
    end = words.index("--") if "--" in words else len(words)
    problems = Problems()
    parser = _parser()
    namespace, others = parser.parse_known_args(words[:end])
    options = {name: value for name, value in vars(namespace).items() if value is not None}
    of_command = {name: options.pop(name) for name in _OF_COMMAND if name in options}
    if "check" in options:
        of_command["check"], options["check"] = options["check"] or None, True
    num_suggestions, num_sampled = options.pop("suggest", 0), options.pop("sample", None)
    axes, flags = _axes(others, problems, is_search=num_suggestions > 0)
    if not words[end + 1 :]:
        problems.append("no program: write it behind --, as in -- python train.py")
    problems.raise_if_any(InvalidArgumentError)
    train = Command(words[end + 1 :], flags=flags, **of_command)
    if "goal" in options:  # the name that the program writes, as max:val/acc
        options["goal"] = [":".join(map(column_name, goal.split(":", 1))) for goal in options["goal"]]
    if "repeats" in options:
        options["repeats"] = [name.replace("-", "_") for name in options["repeats"]]
    if "decide" in options:
        options["decide"] = Decide(axis=options["decide"] or None)
        options.setdefault("repeats", ["seed"])
    if num_suggestions:
        options["search"] = OptunaSearch(n=num_suggestions)
    options.setdefault("experiment", name_of(train))
    with from_command_line():
        runs = axes if num_sampled is None else RunBuilder.sample(axes, num_sampled, seed=0)
        outcome = run_grid(runs, train, **options)
    raise typer.Exit(outcome.exit_code)


_RANGE = re.compile(r"(log:)?([-+.\de]+?)\.\.([-+.\de]+)")
_NUMBER = re.compile(r"[-+]?(0|[1-9]\d*)?(\.\d*)?(e[-+]?\d+)?", re.IGNORECASE)
_OF_COMMAND = ("style", "catch", "events", "metrics_file", "resume")


def _parser() -> argparse.ArgumentParser:
    from runmanager.front.command import CAUGHT, STYLES
    from runmanager.front.script import add_options

    parser = argparse.ArgumentParser(
        prog="runmanager run",
        usage="%(prog)s [--AXIS VALUE ...] [OPTION ...] -- PROGRAM [WORD ...]",
        description=HELP.partition("\n")[0],
        epilog=_AXES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        conflict_handler="resolve",  # for --check
    )
    parser._negative_number_matcher = _NUMBER  # noqa: SLF001 - argparse takes -1e-3 for an option
    add = parser.add_argument_group("the program and its metrics").add_argument
    add("--style", choices=STYLES, help="how an axis is written: --lr 0.1 (flags), or lr=0.1 (hydra)")
    add("--catch", choices=CAUGHT, help="read the calls of this library; +send sends them too")
    about = "read TensorBoard's event files in a folder (default: {folder})"
    add("--events", nargs="?", const="{folder}", metavar="FOLDER", help=about)
    add("--metrics-file", metavar="FILE", help="read a CSV file, or lines of JSON, in {folder}")
    add("--resume", metavar="WORDS", help="add these words when an interrupted run goes on, as in "
        "'--resume {folder}/last.pth'")  # fmt: skip
    add = parser.add_argument_group("the answer").add_argument
    add("--goal", action="append", metavar="METRIC", help="as max:val_acc; also where a row of the table ends")
    add("--repeats", nargs="+", metavar="AXIS", help="axes that only repeat a setting")
    add("--decide", nargs="?", const="", metavar="AXIS", help="repeat until it is decided which value is best")
    add("--suggest", "--search", type=int, metavar="N", help="let Optuna suggest N runs")
    add("--report", action="store_const", const=True, help="write the page report.html")
    add_options(parser, {"experiment": "the program's"})
    about = "try one run first, with these words in addition"
    parser.add_argument("--check", nargs="?", const="", metavar="WORDS", help=about)
    return parser


def _axes(
    words: Sequence[str], problems: Problems, *, is_search: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the axes of the words that are no options, and the flag of each axis."""
    given: dict[str, list[str]] = {}
    flags: dict[str, str] = {}
    for word in words:
        if re.match("--?[A-Za-z]", word):
            flag, _, value = word.partition("=")
            name = flag.lstrip("-").replace("-", "_")
            flags[name] = flag
            given.setdefault(name, []).extend([value] * bool(value))
        elif given:
            given[name].append(word)
        else:
            problems.append(f"{word!r} is no axis: write axes as --lr 0.1, and the program behind --")
    axes: dict[str, Any] = {}
    for name, values in given.items():
        axes[name] = [*map(_value, values)]
        if not values:
            problems.append(f"{flags[name]} has no value: write {flags[name]} true false, or put it behind --")
        elif ends := next(filter(None, map(_RANGE.fullmatch, values)), None):
            low, high = _value(ends[2]), _value(ends[3])
            are_whole = isinstance(low, int) and isinstance(high, int) and not ends[1]
            if len(values) > 1 or not (is_search or are_whole):
                problems.append(f"{flags[name]}: a range stands alone, and needs --search N but for 0..9")
            elif is_search:
                axes[name] = (LogUniform if ends[1] else IntRange if are_whole else Uniform)(low, high)
            else:
                axes[name] = range(low, high + 1)
    return axes, flags


def _value(word: str) -> Any:
    """Return a number, true or false, else the word itself, such as 007."""
    for kind in (int, float) if _NUMBER.fullmatch(word) else ():
        with suppress(ValueError):
            return kind(word)
    return {"true": True, "false": False}.get(word.lower(), word)
