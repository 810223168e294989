"""The command line of a script with a grid: a flag for each axis, and each setting of its training function."""

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from runmanager.core.grid import RunBuilder, space_of
from runmanager.core.nested import Grid, flat, mapping_of
from runmanager.core.outcome import from_command_line
from runmanager.core.ranges import IntRange, Range
from runmanager.core.values import text
from runmanager.core.wording import did_you_mean, listed
from runmanager.errors import GridError, InvalidArgumentError, Problems, RunManagerError, StorageError
from runmanager.front.run_grid import run_grid
from runmanager.session.grid_options import EXECUTION, GridOptions
from runmanager.session.train_call import defaults_of

REFUSED, STORAGE_FAILED, INTERRUPTED = 2, 74, 130
"""Further exit codes, which `GridOutcome` does not have."""

Allowed = tuple[Callable[[Any], bool], str]
"""A predicate for allowed values, and a description of these values."""

_Reader = Callable[[str], Any]
"""Parses a word as a value of an axis; the message of its ValueError describes the valid values."""


def main(
    params: Grid,
    train: Callable[..., object],
    *,
    experiment: str | None = None,
    allowed: Mapping[str, Allowed] | None = None,
    help: Mapping[str, str] | None = None,  # noqa: A002 - as argparse has it
    flags: Mapping[str, str] | None = None,
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
        params: The grid: axis -> values. An axis of a nested mapping has a flag like ``--opt.lr``.
        train: Called as ``train(run, manager)``, with its further parameters by name.
        experiment: The name of the experiment; by default the name of the script.
        allowed: Axis or setting -> a predicate for allowed values, and a description of them:
            ``{"lr": (lambda lr: lr > 0, "numbers above 0")}``. The type follows from the grid's values: whole
            numbers, numbers, true and false, text, or one of the values by its name.
        help: Axis or setting -> its description for ``--help``.
        flags: Axis or setting -> its flag, if the flag is not ``--its-name``.
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
        SystemExit: The arguments have ``--help``, or a flag that does not exist.

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
    script = Script(params, train, allowed or {}, help or {}, flags or {}, constants)
    try:
        parser = script.parser(experiment or Path(sys.argv[0]).stem or "experiment", options)
    except argparse.ArgumentError as error:
        raise InvalidArgumentError([f"{error}: rename the axis, or write flags={{its name: '--x'}}"]) from error
    namespace, unknown = parser.parse_known_args(arguments)
    if unknown:
        names = re.findall(r"(?<!\S)--[\w.-]+", parser.format_help())
        wrong = next((word for word in unknown if word.startswith("-")), unknown[0]).partition("=")[0]
        parser.error(
            f"unrecognized arguments: {' '.join(unknown)}; {did_you_mean(wrong, names, 'the flags are')}"
        )
    given = vars(namespace)
    try:
        grid = script.grid(given)
        runs = _runs(grid, given.get("sample"), options)
        data = script.bound(given, data) if callable(data) else data
        with from_command_line():
            outcome = run_grid(runs, script.bound(given, train), data=data, **_options(given, options, grid))
    except StorageError as error:
        return _say(parser, error, STORAGE_FAILED)
    except RunManagerError as error:
        return _say(parser, error, REFUSED)
    except KeyboardInterrupt:
        print("Forced stop. Start the same command again to go on.", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    return outcome.exit_code


def _say(parser: argparse.ArgumentParser, error: Exception, code: int) -> int:
    print(f"{parser.prog}: {error}", file=sys.stderr)  # noqa: T201 - argparse prints its errors too
    return code


class Script:
    """The axes of a grid and the settings of its training function, as flags."""

    def __init__(
        self,
        params: Grid,
        train: Callable[..., object],
        allowed: Mapping[str, Allowed],
        help_: Mapping[str, str],
        flags: Mapping[str, str],
        constants: Sequence[str],
    ) -> None:
        space_of(params)
        self._params = dict(flat(mapping_of(params) or {}))
        self._train = train
        self._settings = defaults_of(train)
        self._constants = list(constants)
        self._help = help_
        problems = Problems()
        names_of_all = {*self._params, *self._settings}
        named = {"allowed": allowed, "help": help_, "flags": flags, "constants": constants}
        for what, names in named.items():
            for name in names:
                if name not in names_of_all:
                    problems.append(f"{what}= has {name!r}, which is no axis and no parameter of train")
        problems += [
            f"{name!r} is an axis and a parameter of train: leave one out"
            for name in self._settings
            if name in self._params
        ]
        problems.raise_if_any(InvalidArgumentError)
        self._read = {name: _reader(values) for name, values in self._params.items()}
        self._read |= {name: _reader([value]) for name, value in self._settings.items()}
        self._allowed = allowed
        self._flags = {name: _flag(name) for name in self._read} | dict(flags)

    def parser(self, experiment: str, options: Mapping[str, Any]) -> argparse.ArgumentParser:
        """Return the parser."""
        parser = argparse.ArgumentParser(
            description=inspect.getdoc(self._train),
            usage="%(prog)s [--AXIS VALUE ...] [OPTION ...]",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog="Started again, the command executes only the missing runs.",
            allow_abbrev=False,  # a misspelt axis must not match another flag
        )
        parser._negative_number_matcher = _NEGATIVE  # noqa: SLF001 - argparse parses neither -1e-3 nor -1..1
        axes = parser.add_argument_group("axes of the grid, each with one value or several")
        further = parser.add_argument_group("settings, which become axes if their flags are used")
        where = parser.add_argument_group("experiment")
        where.add_argument(
            "--experiment", metavar="NAME", default=experiment, help="its name (default: %(default)s)"
        )
        where.add_argument(
            "--root", metavar="FOLDER", default=options.get("root", "runs"),
            help="folder of all experiments (default: %(default)s)",
        )  # fmt: skip
        where.add_argument("--note", metavar="TEXT", help="why the grid is executed, as Markdown")
        for name, values in {
            **self._params,
            **{name: [value] for name, value in self._settings.items()},
        }.items():
            is_constant = name in self._constants
            group = axes if name in self._params else where if is_constant else further
            written = repr(values) if isinstance(values, Range) else " ".join(map(text, values))
            default = f"(default: {written})".replace("%", "%%")
            about = self._help.get(name, "").replace("%", "%%")
            group.add_argument(
                self._flags[name], dest=f"axis {name}", nargs=1 if is_constant else "+", metavar="X",
                help=f"{about} {default}".strip(),
            )  # fmt: skip
        _add_options(parser, options)
        return parser

    def grid(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the grid with the values from the flags that were used."""
        problems = Problems()
        read = {name: self._values(name, given, problems) for name in self._read}
        # a single range becomes the axis itself
        grid = {
            name: read[name][0]
            if len(read[name]) == 1 and isinstance(read[name][0], Range)
            else read[name] or values
            for name, values in self._params.items()
        }
        grid |= {name: read[name] for name in self._settings if read[name] and name not in self._constants}
        with problems.collecting():
            space_of(grid)
        problems.raise_if_any(GridError)
        return grid

    def bound(self, given: Mapping[str, Any], function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function with its parameters bound to the constants of the same names."""
        parameters = inspect.signature(function).parameters
        constants = {
            name: next(iter(self._values(name, given, Problems())), self._settings[name])
            for name in self._constants
            if name in parameters
        }
        return partial(function, **constants) if constants else function

    def _value(self, name: str, word: str) -> Any:
        is_allowed, which = self._allowed.get(name, (None, ""))
        try:
            value = self._read[name](word)
        except ValueError as error:
            raise ValueError(which or str(error)) from None
        ends = (value.low, value.high) if isinstance(value, Range) else (value,)
        if is_allowed is not None and not all(map(is_allowed, ends)):
            raise ValueError(which)
        return value

    def _values(self, name: str, given: Mapping[str, Any], problems: Problems) -> list[Any]:
        values = []
        for word in given[f"axis {name}"] or ():
            try:
                values.append(self._value(name, word))
            except ValueError as error:
                problems.append(f"{self._flags[name]} takes {error}, got {word!r}")
        return values


def _flag(name: str) -> str:
    """Return the flag of a hyperparameter.

    >>> _flag("batch_size"), _flag("opt._target_")
    ('--batch-size', '--opt.target')
    """
    return f"--{'.'.join(part.strip('_').replace('_', '-') for part in name.split('.'))}"


def _reader(values: Sequence[Any] | Range) -> _Reader:
    """Return the parser for values of the same type as the given values."""
    if isinstance(values, Range):
        return partial(_range_or_number, values)
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return partial(_one_of, {"true": True, "false": False})
    if kinds == {int}:
        return _whole
    if kinds and kinds <= {int, float}:
        return _number
    if kinds == {str} or not kinds:
        return str
    return partial(_one_of, {text(value): value for value in values})


def _whole(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise ValueError("whole numbers") from None


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError("numbers") from None


def _range_or_number(values: Range, word: str) -> Any:
    low, dots, high = word.partition("..")
    read = _whole if isinstance(values, IntRange) else _number
    try:
        return replace(values, low=read(low), high=read(high)) if dots else read(word)
    except ValueError:
        numbers = "whole numbers" if isinstance(values, IntRange) else "numbers"
        raise ValueError(f"{numbers}, or a range as {values.low}..{values.high}") from None


def _one_of(choices: Mapping[str, Any], word: str) -> Any:
    if word not in choices:
        raise ValueError(f"one of {', '.join(choices)}")
    return choices[word]


def _runs(grid: Mapping[str, Any], num_runs: int | None, options: Mapping[str, Any]) -> Any:
    """Return the runs or the grid for `run_grid`; with `num_runs`, a random sample of the grid."""
    if num_runs is not None:
        return RunBuilder.sample(grid, num_runs, seed=0)
    ranges = [name for name, values in grid.items() if isinstance(values, Range)]
    if ranges and not options.get("search"):
        step = f"draw runs with --sample 50, or write values: {_flag(str(ranges[0]))} X"
        raise GridError([f"{listed(ranges)}: a range cannot be expanded, {step}"])
    return grid


_NEGATIVE = re.compile(r"-\.?\d")


def _add_options(parser: argparse.ArgumentParser, options: Mapping[str, Any]) -> None:
    """Add the flags of `run_grid`, with the script's defaults."""
    headings: dict[str, Any] = {}
    for name, flag in GridOptions.flags():
        if flag.heading not in headings:
            headings[flag.heading] = parser.add_argument_group(flag.heading)
        about = flag.help
        if flag.default is not None:
            value = options.get(name) or flag.default
            about += f" (default: {value if isinstance(value, str | int | float) else type(value).__name__})"
        headings[flag.heading].add_argument(flag.name, dest=name, help=about, **flag.settings)
        if name == "executor":
            address = {"metavar": "HOST:PORT", "help": "Ray cluster to use (default: start one here)"}
            headings[flag.heading].add_argument("--ray-address", **address)
    search = options.get("search")
    number = "suggest" if search else "sample"
    about = "draw N runs of the grid at random"
    if search:
        about = f"number of runs that the search suggests, including earlier runs (default: {search.n})"
    headings[EXECUTION].add_argument(f"--{number}", type=int, metavar="N", help=about)


def _options(given: Mapping[str, Any], options: Mapping[str, Any], grid: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `run_grid`; the command line takes precedence over the script."""
    flags = {name: value for name, value in given.items() if value is not None and not name.startswith("axis ")}
    flags.pop("sample", None)
    address, suggest = (flags.pop(name, None) for name in ("ray_address", "suggest"))
    chosen = {**options, **flags}
    if suggest is not None:
        chosen["search"] = replace(chosen["search"], n=suggest)
    repeats = options.get("repeats")
    if repeats and not options.get("decide"):  # `Decide` adds the repeat axis itself
        names = [repeats] if isinstance(repeats, str) else repeats
        chosen["repeats"] = [name for name in names if name in grid] or None
    if address is not None:
        from runmanager.executors.ray import RayExecutor

        how = {name: chosen.pop(name) for name in ("jobs", "runs_per_device", "timeout") if name in chosen}
        chosen["executor"] = RayExecutor(address=address, **how)
    return chosen
