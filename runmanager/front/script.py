"""The command line of a script with a grid: a flag for each axis, and each setting of its training function."""

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from runmanager.core.grid import Grid, RunBuilder, flat, space_of
from runmanager.core.loop import INTERRUPTED, STORAGE_FAILED
from runmanager.core.outcome import from_command_line
from runmanager.core.ranges import IntRange, Range
from runmanager.core.values import closest, text
from runmanager.errors import InvalidArgumentError, Problems, RunManagerError, StorageError
from runmanager.executors import EXECUTORS
from runmanager.front.run_grid import DEFAULTS, run_grid

REFUSED = 2
"""The exit code of a grid that was not started."""

_NEGATIVE = re.compile(r"-\.?\d")


def main(
    params: Grid,
    train: Callable[..., object],
    *,
    experiment: str | None = None,
    help: Mapping[str, str] | None = None,  # noqa: A002 - as argparse has it
    constants: Sequence[str] = (),
    data: Any = None,
    arguments: Sequence[str] | None = None,
    **options: Any,
) -> int:
    """Execute a grid with flags from the command line; return the exit code: ``sys.exit(main(GRID, train))``.

    Each axis has a flag with one or more values: ``--lr 0.1 0.01`` replaces the values in the grid. Each
    keyword parameter of `train` has a flag too: if the flag is used, the parameter becomes an axis, and a
    column of the tables. A range can be replaced by another range, for example by ``--lr 1e-4..1e-2``, and
    ``--sample 50`` draws runs. There are flags for the options of `run_grid`, such as ``--plan``, ``--only``,
    ``--jobs``, ``--executor``; ``--help`` lists all flags.

    Args:
        params: The grid: axis -> values. An axis of a nested mapping has a flag like ``--opt.lr``, a paired
            axis has none.
        train: Called as ``train(run, manager)``, with its further parameters by name.
        experiment: The name of the experiment; by default the name of the script.
        help: Axis or setting -> its description for ``--help``. The type follows from the grid's values: whole
            numbers, numbers, true and false, text, or one of the values by its name.
        constants: The values of those parameters of `train` that are not hyperparameters and have one value for
            the whole grid, such as the folder of the data.
        data: As in `run_grid`; a function gets the constants that are among its parameters.
        arguments: The arguments to parse instead of the command line.
        **options: Further arguments of `run_grid`, such as ``prune=``, or defaults of its flags, such as
            ``jobs=4``. A name in `repeats` that is not an axis is ignored.

    Returns:
        The exit code: 0 success; 1 runs failed; 2 the grid was refused; 74 the storage failed; 75
        ``max_seconds`` elapsed; 130 Ctrl-C.

    Raises:
        SystemExit: The arguments have ``--help``, a flag that does not exist, or a value of another type.

    Example:
        >>> def train(run, manager, num_epochs=5, data_dir="data"):
        ...     with manager.run(run):
        ...         for epoch in manager.epochs(num_epochs):
        ...             manager.track_loss(run.lr / epoch, 1)
        >>> grid = {"lr": [0.1, 0.01], "device": ["cpu"]}
        >>> words = "--lr 0.3 --num-epochs 2 --experiment example"  # in a script: sys.exit(main(grid, train))
        >>> main(grid, train, arguments=words.split(), constants=["data_dir"], executor="inline", display=False)
        0
    """
    grid: dict[Any, Any] = dict(flat(params))
    axes = {name: values for name, values in grid.items() if isinstance(name, str)}  # not the paired ones
    settings = {
        each.name: [each.default]
        for each in [*inspect.signature(train).parameters.values()][2:]
        if each.default is not each.empty
    }
    for name in constants:
        if name not in settings:
            raise InvalidArgumentError(
                f"constants= has {name!r}, which is no parameter of train with a default"
            )
    for name in chain(*space_of(params)):  # the paired axes too
        settings.pop(name, None)
    fixed = {name: settings.pop(name) for name in constants if name in settings}
    parser = argparse.ArgumentParser(
        description=inspect.getdoc(train),
        usage="%(prog)s [--AXIS VALUE ...] [OPTION ...]; --help lists all",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Started again, the command executes only the missing runs.",
        allow_abbrev=False,  # a misspelt axis must not match another flag
        argument_default=argparse.SUPPRESS,
    )
    parser._negative_number_matcher = _NEGATIVE  # noqa: SLF001 - argparse parses neither -1e-3 nor -1..1
    options = {"experiment": experiment or Path(sys.argv[0]).stem or "experiment", **options}
    problems = Problems()
    add = partial(_add_axes, parser, help or {}, problems)
    try:
        add("axes of the grid, each with one value or several", axes)
        add("settings, which become axes if their flags are used", settings)
        add("constants, with one value for all runs", fixed, nargs=None)
        add_options(parser, options)
    except argparse.ArgumentError as error:
        raise InvalidArgumentError(f"{error}: rename the axis") from error
    namespace, unknown = parser.parse_known_args(arguments)
    if unknown:
        flags = parser._option_string_actions  # noqa: SLF001 - as above
        similar = [flag for word in unknown if (flag := _similar(word.partition("=")[0], flags))]
        hint = f"; did you mean {', '.join(similar)}?" if similar else ""
        parser.error(f"unknown arguments: {' '.join(unknown)}{hint}")
    words = vars(namespace)  # only those of flags that are used
    for name in (*axes, *settings):
        if read := words.pop(f"axis {name}", None):
            is_range = len(read) == 1 and isinstance(read[0], Range)
            grid[name] = read[0] if is_range else read  # a single range becomes the axis itself
    values = {name: words.pop(f"axis {name}", default) for name, (default,) in fixed.items()}
    try:
        problems.raise_if_any(InvalidArgumentError)
        chosen = _options(words, options, grid)
        num_runs = chosen.pop("sample", None)
        runs = grid if num_runs is None else RunBuilder.sample(grid, num_runs, seed=0)
        with from_command_line():
            outcome = run_grid(
                runs, _bound(values, train), data=_bound(values, data) if callable(data) else data, **chosen
            )  # fmt: skip
    except RunManagerError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)  # noqa: T201 - argparse prints its errors too
        return STORAGE_FAILED if isinstance(error, StorageError) else REFUSED
    except KeyboardInterrupt:
        print("Forced stop. Start the same command again to go on.", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    return outcome.exit_code


def add_options(parser: argparse.ArgumentParser, options: Mapping[str, Any]) -> None:
    """Add the flags of the options of `run_grid`; `options` are the script's, or the defaults of a command."""
    group, search = parser.add_argument_group("execution"), options.get("search")
    defaults = {**DEFAULTS, **options, "suggest": search and search.n, "sample": None}

    def add(flag: str, about: str, **settings: Any) -> None:
        action = group.add_argument(flag, help=about, **settings)
        default = defaults[action.dest]
        if isinstance(default, str | int | float) and default is not False:
            action.help = f"{about} (default: {default})"

    add("--experiment", "its name", metavar="NAME")
    add("--root", "folder of all experiments", metavar="FOLDER")
    add("--note", "why the grid is executed, as Markdown", metavar="TEXT")
    add(
        "--plan",
        "show which runs would be executed, and stop",
        dest="plan_only",
        action="store_const",
        const=True,
    )
    add("--jobs", "runs at a time, or auto", type=_jobs, metavar="N")
    add("--runs-per-device", "runs that share an accelerator", type=int, metavar="N")
    add("--executor", "worker processes (lanes), this process, or a Ray cluster", choices=EXECUTORS)
    add("--timeout", "seconds without a batch, after which a run counts as hung", type=float, metavar="S")
    add("--retries", "further attempts of a run that was killed or hung", type=int, metavar="N")
    add("--max-seconds", "seconds after which the grid stops, with exit code 75", type=float, metavar="S")
    add("--on-error", "what the grid does when a run fails", choices=["continue", "stop"])
    add(
        "--check", "try two steps of each setting; resume: whether it resumes", nargs="?", const=True,
        choices=["resume"],
    )  # fmt: skip
    add(
        "--only", "execute only these runs, in this process, for a debugger", type=int, nargs="+", metavar="RUN"
    )
    add("--retry-failed", "execute runs again that ended by a fault", action="store_const", const=True)
    add("--changed", "what to do with runs of other code, data or versions", choices=["rerun", "keep"])
    if search:
        add(
            "--suggest",
            "number of runs that the search suggests, including earlier runs",
            type=int,
            metavar="N",
        )
    else:
        add("--sample", "draw N runs of the grid at random", type=int, metavar="N")


def _jobs(word: str) -> int | str:
    return int(word) if word.isdecimal() else word


def _add_axes(
    parser: argparse.ArgumentParser,
    descriptions: Mapping[str, str],
    problems: Problems,
    title: str,
    axes: Mapping[str, Any],
    nargs: str | None = "+",
) -> None:
    """Add a flag for each axis or parameter of `train`; wrong values become `problems`."""
    group = parser.add_argument_group(title)
    for name, values in axes.items():
        written = repr(values) if isinstance(values, Range) else " ".join(map(text, values))
        # as --batch-size, --opt.target of "opt._target_"
        flag = f"--{'.'.join(part.strip('_').replace('_', '-') for part in name.split('.'))}"
        group.add_argument(
            flag, dest=f"axis {name}", type=partial(_value, values, flag, problems), nargs=nargs, metavar="X",
            help=f"{descriptions.get(name, '')} (default: {written})".replace("%", "%%").strip(),
        )  # fmt: skip


def _similar(name: str, flags: Iterable[str]) -> str:
    """Return a flag that begins with a name, else the most similar one, "" if none is."""
    return next((flag for flag in flags if flag.startswith(name)), "") or closest(name, flags)


def _options(words: Mapping[str, Any], options: Mapping[str, Any], grid: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `run_grid`; the command line takes precedence over the script."""
    chosen = {**options, **words}
    if "suggest" in words:
        chosen["search"] = replace(chosen["search"], n=chosen.pop("suggest"))
    repeats = options.get("repeats")
    if repeats and not options.get("decide"):  # `Decide` adds the repeat axis itself
        names = [repeats] if isinstance(repeats, str) else repeats
        chosen["repeats"] = [name for name in names if name in grid] or None
    return chosen


def _bound(constants: Mapping[str, Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with its parameters bound to the constants of the same names."""
    parameters = inspect.signature(function).parameters
    of_function = {name: value for name, value in constants.items() if name in parameters}
    return partial(function, **of_function) if of_function else function


def _value(values: Any, flag: str, problems: Problems, word: str) -> Any:
    """Parse a word as a value of the same type; a wrong word becomes a problem."""
    is_range = isinstance(values, Range)
    kinds = {int if isinstance(values, IntRange) else float} if is_range else {type(value) for value in values}
    if kinds <= {str}:
        return word
    if kinds <= {int, float}:
        number, rule = (int, "a whole number") if kinds == {int} else (float, "a number")
        low, dots, high = word.partition("..")
        with suppress(ValueError):
            return replace(values, low=number(low), high=number(high)) if is_range and dots else number(word)
        rule += f", or a range as {values.low}..{values.high}" if is_range else ""
    else:
        choices = {"true": True, "false": False} if kinds == {bool} else {text(each): each for each in values}
        if word in choices:
            return choices[word]
        rule = f"one of {', '.join(choices)}"
    problems.append(f"{flag} must be {rule}, got {word!r}")
    return word
