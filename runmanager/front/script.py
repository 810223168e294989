"""The command line of a script with a grid: a flag for each axis, and each setting of its training function."""

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from runmanager.core.grid import Grid, RunBuilder, flat, mapping_of, space_of
from runmanager.core.loop import INTERRUPTED, STORAGE_FAILED
from runmanager.core.outcome import from_command_line
from runmanager.core.ranges import IntRange, Range
from runmanager.core.values import text
from runmanager.core.wording import did_you_mean
from runmanager.errors import GridError, InvalidArgumentError, Problems, RunManagerError, StorageError
from runmanager.front.options import EXECUTION, GridOptions
from runmanager.front.run_grid import run_grid

REFUSED = 2
"""The exit code of a grid that was not started."""

Allowed = tuple[Callable[[Any], bool], str]
"""A predicate for allowed values, and a description of these values."""

_AXES, _SETTINGS, _CONSTANTS = (
    "axes of the grid, each with one value or several",
    "settings, which become axes if their flags are used",
    "experiment",
)
_NEGATIVE = re.compile(r"-\.?\d")


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
    axes = _axes(params, train, allowed or {}, help or {}, flags or {}, constants)
    name = experiment or Path(sys.argv[0]).stem or "experiment"
    try:
        parser = _parser(axes, inspect.getdoc(train), name, options)
    except argparse.ArgumentError as error:
        raise InvalidArgumentError([f"{error}: rename the axis, or write flags={{its name: '--x'}}"]) from error
    namespace, unknown = parser.parse_known_args(arguments)
    if unknown:
        names = re.findall(r"(?<!\S)--[\w.-]+", parser.format_help())
        wrong = next((word for word in unknown if word.startswith("-")), unknown[0]).partition("=")[0]
        parser.error(
            f"unrecognized arguments: {' '.join(unknown)}; {did_you_mean(wrong, names, 'the flags are')}"
        )
    given = {name: value for name, value in vars(namespace).items() if value is not None}
    try:
        grid, values = _grid(axes, given)
        bound = partial(_bound, values)
        chosen = _options(given, options, grid)
        num_runs = chosen.pop("sample", None)
        runs = grid if num_runs is None else RunBuilder.sample(grid, num_runs, seed=0)
        with from_command_line():
            outcome = run_grid(runs, bound(train), data=bound(data) if callable(data) else data, **chosen)
    except RunManagerError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)  # noqa: T201 - argparse prints its errors too
        return STORAGE_FAILED if isinstance(error, StorageError) else REFUSED
    except KeyboardInterrupt:
        print("Forced stop. Start the same command again to go on.", file=sys.stderr)  # noqa: T201
        return INTERRUPTED
    return outcome.exit_code


@dataclass(frozen=True)
class _Axis:
    """An axis of the grid, or a setting or constant of `train`, with its flag."""

    group: str
    values: Any  # the values in the grid, a sequence or a range; of a setting, its default
    flag: str
    help: str
    allowed: Allowed | None

    def read(self, words: Sequence[str], problems: Problems) -> list[Any]:
        """Parse the words after the flag."""
        read = []
        is_allowed, which = self.allowed or (lambda _: True, "")
        for word in words:
            try:
                value = _value(self.values, word)
            except ValueError as error:
                problems.append(f"{self.flag} takes {which or error}, got {word!r}")
                continue
            ends = (value.low, value.high) if isinstance(value, Range) else (value,)
            if all(map(is_allowed, ends)):
                read.append(value)
            else:
                problems.append(f"{self.flag} takes {which}, got {word!r}")
        return read


def _axes(
    params: Grid,
    train: Callable[..., object],
    allowed: Mapping[str, Allowed],
    help_: Mapping[str, str],
    flags: Mapping[str, str],
    constants: Sequence[str],
) -> dict[str, _Axis]:
    space_of(params)
    axes: Mapping[str, Any] = dict(flat(mapping_of(params) or {}))
    further = list(inspect.signature(train).parameters.values())[2:]
    by_name = [each for each in further if each.kind is not each.POSITIONAL_ONLY]
    settings = {each.name: each.default for each in by_name if each.default is not each.empty}
    problems = Problems()
    named = {"allowed": allowed, "help": help_, "flags": flags, "constants": constants}
    for what, names in named.items():
        for name in names:
            if name not in axes and name not in settings:
                problems.append(f"{what}= has {name!r}, which is no axis and no parameter of train")
    for name in settings:
        if name in axes:
            problems.append(f"{name!r} is an axis and a parameter of train: leave one out")
    problems.raise_if_any(InvalidArgumentError)
    all_values = {**axes, **{name: [value] for name, value in settings.items()}}
    read: dict[str, _Axis] = {}
    for name, values in all_values.items():
        group = _AXES if name in axes else _CONSTANTS if name in constants else _SETTINGS
        flag = flags.get(name, _flag(name))
        read[name] = _Axis(group, values, flag, help_.get(name, ""), allowed.get(name))
    return read


def _parser(
    axes: Mapping[str, _Axis], description: str | None, experiment: str, options: Mapping[str, Any]
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description,
        usage="%(prog)s [--AXIS VALUE ...] [OPTION ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Started again, the command executes only the missing runs.",
        allow_abbrev=False,  # a misspelt axis must not match another flag
    )
    parser._negative_number_matcher = _NEGATIVE  # noqa: SLF001 - argparse parses neither -1e-3 nor -1..1
    groups = {title: parser.add_argument_group(title) for title in (_AXES, _SETTINGS, _CONSTANTS)}
    where = groups[_CONSTANTS]
    where.add_argument(
        "--experiment", metavar="NAME", default=experiment, help="its name (default: %(default)s)"
    )
    where.add_argument(
        "--root", metavar="FOLDER", default=options.get("root", "runs"),
        help="folder of all experiments (default: %(default)s)",
    )  # fmt: skip
    where.add_argument("--note", metavar="TEXT", help="why the grid is executed, as Markdown")
    for name, axis in axes.items():
        written = repr(axis.values) if isinstance(axis.values, Range) else " ".join(map(text, axis.values))
        groups[axis.group].add_argument(
            axis.flag, dest=f"axis {name}", nargs=1 if axis.group == _CONSTANTS else "+", metavar="X",
            help=f"{axis.help} (default: {written})".replace("%", "%%").strip(),
        )  # fmt: skip
    for name, flag in GridOptions.flags():
        if flag.heading not in groups:
            groups[flag.heading] = parser.add_argument_group(flag.heading)
        about = flag.help
        if flag.default is not None:
            value = options.get(name) or flag.default
            about += f" (default: {value if isinstance(value, str | int | float) else type(value).__name__})"
        groups[flag.heading].add_argument(flag.name, dest=name, help=about, **flag.settings)
        if name == "executor":
            groups[flag.heading].add_argument(
                "--ray-address", metavar="HOST:PORT", help="Ray cluster to use (default: start one here)"
            )
    number, about = "--sample", "draw N runs of the grid at random"
    if search := options.get("search"):
        number = "--suggest"
        about = f"number of runs that the search suggests, including earlier runs (default: {search.n})"
    groups[EXECUTION].add_argument(number, type=int, metavar="N", help=about)
    return parser


def _grid(axes: Mapping[str, _Axis], given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the grid with the values from the flags that were used, and the values of the constants."""
    grid: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    problems = Problems()
    for name, axis in axes.items():
        read = axis.read(given.get(f"axis {name}", ()), problems)
        if axis.group == _CONSTANTS:
            constants[name] = [*read, *axis.values][0]
        elif len(read) == 1 and isinstance(read[0], Range):
            grid[name] = read[0]  # a single range becomes the axis itself
        elif read or axis.group == _AXES:
            grid[name] = read or axis.values
    with problems.collecting():
        space_of(grid)
    problems.raise_if_any(GridError)
    return grid, constants


def _bound(constants: Mapping[str, Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with its parameters bound to the constants of the same names."""
    parameters = inspect.signature(function).parameters
    named = {name: value for name, value in constants.items() if name in parameters}
    return partial(function, **named) if named else function


def _flag(name: str) -> str:
    """Return the flag of a hyperparameter.

    >>> _flag("batch_size"), _flag("opt._target_")
    ('--batch-size', '--opt.target')
    """
    return f"--{'.'.join(part.strip('_').replace('_', '-') for part in name.split('.'))}"


def _value(values: Sequence[Any] | Range, word: str) -> Any:
    """Parse a word as a value of the same type; the message of the ValueError describes the valid values."""
    number: Callable[[str], float]
    if isinstance(values, Range):
        number, numbers = (int, "whole numbers") if isinstance(values, IntRange) else (float, "numbers")
        low, dots, high = word.partition("..")
        try:
            return replace(values, low=number(low), high=number(high)) if dots else number(word)
        except ValueError:
            raise ValueError(f"{numbers}, or a range as {values.low}..{values.high}") from None
    kinds = {type(value) for value in values}
    if kinds <= {str}:
        return word
    if kinds <= {int, float}:
        number, numbers = (int, "whole numbers") if kinds == {int} else (float, "numbers")
        try:
            return number(word)
        except ValueError:
            raise ValueError(numbers) from None
    choices = {"true": True, "false": False} if kinds == {bool} else {text(value): value for value in values}
    if word not in choices:
        raise ValueError(f"one of {', '.join(choices)}")
    return choices[word]


def _options(given: Mapping[str, Any], options: Mapping[str, Any], grid: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `run_grid`; the command line takes precedence over the script."""
    flags = {name: value for name, value in given.items() if not name.startswith("axis ")}
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
