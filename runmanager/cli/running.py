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
    from runmanager.front.run_grid import run_grid  # imports torch
    from runmanager.search.optuna_search import OptunaSearch

    end = ctx.args.index("--") if "--" in ctx.args else len(ctx.args)
    program = ctx.args[end + 1 :]
    namespace, others = _parser().parse_known_args(ctx.args[:end])
    options = vars(namespace)  # only those of flags that are used
    problems = Problems()
    axes, flags = _axes(others, problems, is_search="search" in options)
    if not program:
        problems.append("no program: write it behind --, as in -- python train.py")
    problems.raise_if_any(InvalidArgumentError)
    of_command = {name: options.pop(name) for name in _OF_COMMAND if name in options}
    if "check" in options:
        of_command["check"], options["check"] = options["check"] or None, True
    train = Command(program, flags=dict(sorted(flags.items())), **of_command)
    if "decide" in options:
        options.setdefault("repeats", ["seed"])
    if "search" in options:
        options["search"] = OptunaSearch(n=options["search"])
    num_sampled = options.pop("sample", None)
    runs = axes if num_sampled is None else RunBuilder.sample(axes, num_sampled, seed=0)
    with from_command_line():
        outcome = run_grid(runs, train, **{"experiment": name_of(train), **options})
    raise typer.Exit(outcome.exit_code)


_RANGE = re.compile(r"(log:)?([-+.\de]+?)\.\.([-+.\de]+)")
_NUMBER = re.compile(r"[-+]?(0|[1-9]\d*)?(\.\d*)?(e[-+]?\d+)?", re.IGNORECASE)
_OF_COMMAND = ("style", "catch", "events", "metrics_file", "resume")


def _parser() -> argparse.ArgumentParser:
    from runmanager.front.command import CAUGHT, STYLES
    from runmanager.front.script import add_options
    from runmanager.search.decide import Decide

    parser = argparse.ArgumentParser(
        prog="runmanager run",
        usage="%(prog)s [--AXIS VALUE ...] [OPTION ...] -- PROGRAM [WORD ...]",
        description=HELP.partition("\n")[0],
        epilog=_AXES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        conflict_handler="resolve",  # for --check
    )
    add = parser.add_argument_group("the program and its metrics").add_argument
    add("--style", choices=STYLES, help="how an axis is written: --lr 0.1 (flags), or lr=0.1 (hydra)")
    add("--catch", choices=CAUGHT, help="read the calls of this library; +send sends them too")
    about = "read TensorBoard's event files in a folder (default: {folder})"
    add("--events", nargs="?", const="{folder}", metavar="FOLDER", help=about)
    add("--metrics-file", metavar="FILE", help="read a .csv file, or lines of JSON, in {folder}")
    add("--resume", metavar="WORDS", help="add these words when an interrupted run goes on, as in "
        "'--resume {folder}/last.pth'")  # fmt: skip
    add = parser.add_argument_group("the answer").add_argument
    about = "as max:val_acc; also where a row of the table ends"
    add("--goal", type=_goal, action="append", metavar="METRIC", help=about)
    add("--repeats", nargs="+", metavar="AXIS", help="axes that only repeat a setting")
    about = "repeat until it is decided which value is best"
    add("--decide", type=Decide, nargs="?", const=Decide(), metavar="AXIS", help=about)
    add("--search", type=int, metavar="N", help="let Optuna suggest N runs")
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
    axes = {name: _values(flags[name], words, problems, is_search) for name, words in given.items()}
    return axes, flags


def _values(flag: str, words: Sequence[str], problems: Problems, is_search: bool) -> Any:
    """Return the values of an axis, or its range."""
    if not words:
        problems.append(f"{flag} has no value: write {flag} true false, or put it behind --")
    ends = next(filter(None, map(_RANGE.fullmatch, words)), None)
    if ends is None:
        return [*map(_value, words)]
    low, high = _value(ends[2]), _value(ends[3])
    are_whole = isinstance(low, int) and isinstance(high, int) and not ends[1]
    if len(words) > 1 or not (is_search or are_whole):
        problems.append(f"{flag}: a range stands alone, and needs --search N but for 0..9")
        return []
    if is_search:
        return (LogUniform if ends[1] else IntRange if are_whole else Uniform)(low, high)
    return range(low, high + 1)


def _goal(word: str) -> str:
    """Return a goal with the column of the name that the program writes, as of max:val/acc."""
    from runmanager.front.reported import column_name

    return ":".join(map(column_name, word.split(":", 1)))


def _value(word: str) -> Any:
    """Return a number, true or false, else the word itself, such as 007."""
    for kind in (int, float) if _NUMBER.fullmatch(word) else ():
        with suppress(ValueError):
            return kind(word)
    return {"true": True, "false": False}.get(word.lower(), word)
