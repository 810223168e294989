"""Configurations: `expand` returns the runs of a grid over a data class, mapping, OmegaConf or Namespace."""

import copy
import dataclasses
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from runmanager.core.grid import Grid, RunBuilder, chosen_runs, mapping_of
from runmanager.core.run import Run, make_run
from runmanager.core.values import OMEGACONF, check_names, check_values, plain
from runmanager.core.wording import did_you_mean
from runmanager.errors import GridError, Problems


def expand(
    config: Any,
    params: "Grid | Sequence[Run]",
    *,
    constants: Collection[str] = (),
    where: Callable[[Run], bool] | None = None,
    max_runs: int | None = None,
) -> list[Run]:
    """Return the runs of a grid over an existing configuration; each has a copy as ``run.config``.

    All values of the configuration but `constants` are hyperparameters with dotted names, so another base
    configuration gives other runs. `run_grid` accepts the result, alone or combined with other runs.

    Args:
        config: A nested data class, a mapping (as from a YAML file), an OmegaConf configuration, or a Namespace
            of argparse. Copies have the same types.
        params: The axes over fields, as for `RunBuilder.get_runs`, or the runs of a sample. The axis `device`
            need not be a field.
        constants: The fields that are no hyperparameters, such as ``["log_interval"]``: they are in
            ``run.config``, and another value gives the same runs.
        where: A filter: only runs for which the function returns true.
        max_runs: The maximum number of combinations; with None, the maximum is a million.

    Returns:
        The runs, last axis fastest, for `run_grid`.

    Raises:
        GridError: A field does not exist, or a value cannot be stored; the message lists all problems.
        Exception: The class of the configuration refuses a value.

    Example:
        >>> from dataclasses import dataclass, field
        >>> @dataclass
        ... class Optimizer:
        ...     name: str = "sgd"
        ...     lr: float = 0.1
        >>> @dataclass
        ... class Config:
        ...     opt: Optimizer = field(default_factory=Optimizer)
        ...     width: int = 64
        >>> first, second = expand(Config(), {"opt.lr": [0.1, 0.01]})
        >>> second, second.config.opt
        (Run(opt.name='sgd', opt.lr=0.01, width=64), Optimizer(name='sgd', lr=0.01))
    """
    content = vars(config) if isinstance(config, Namespace) else config
    outline = mapping_of(plain(content, resolve=False))
    if outline is None:
        raise GridError(f"a configuration is a data class, a mapping or a Namespace, got {config!r:.60}")
    if "config" in outline:
        raise GridError("the configuration has the field 'config', which is run.config: rename it")
    combinations: Any = params
    if not (isinstance(params, Sequence) and params and all(isinstance(run, Run) for run in params)):
        combinations = RunBuilder.get_runs(combinations, max_runs=max_runs)
    problems = Problems()
    axes = (name for run in combinations for name in run._fields if name != "device")
    unexpanded = [*dict.fromkeys(axes), *constants]
    fields = dict(leaves(outline, unexpanded))
    for name in unexpanded:
        if name not in fields:
            problems.append(f"the configuration has no field {name!r}; {did_you_mean(name, fields, 'it has')}")
    problems += check_names(fields)
    problems.raise_if_any()
    runs: list[Run] = []
    for run in combinations:
        values = run._asdict()
        changes = {name: value for name, value in values.items() if name in fields}
        copied = replaced(copy.deepcopy(content), changes)
        # the classes of the configuration may convert a value
        converted = {name: plain(value) for name, value in leaves(copied, unexpanded) if name not in constants}
        hyperparameters = converted | values | converted  # the fields come first
        runs.append(make_run(tuple(hyperparameters), hyperparameters.values()))
        vars(runs[-1])["config"] = copied if content is config else Namespace(**copied)
    problems += check_values(pair for run in runs for pair in run._asdict().items())
    problems.raise_if_any()
    return chosen_runs(runs, where)


def leaves(config: Any, unexpanded: Collection[str] = (), prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in a configuration by their dotted names."""
    for key, value in (mapping_of(config) or {}).items():
        name = f"{prefix}{key}" if isinstance(key, str) else key
        inner = None if name in unexpanded else mapping_of(value)
        if inner and all(isinstance(key, str) and not check_names([f"x.{key}"]) for key in inner):
            yield from leaves(inner, unexpanded, f"{name}.")
        else:
            yield name, value


def replaced(config: Any, values: Mapping[str, Any]) -> Any:
    """Return a configuration with some values replaced, by dotted name: in place if it is mutable."""
    if type(config).__module__ in OMEGACONF:
        omega = sys.modules["omegaconf"].OmegaConf
        omega.set_readonly(config, False)
        for name, value in values.items():
            omega.update(config, name, value, merge=False)
        return config
    fields = mapping_of(config) or {}
    changes: dict[str, Any] = {}
    below: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        head, _, rest = name.partition(".")
        if rest:
            below.setdefault(head, {})[rest] = value
        else:
            changes[head] = copy.deepcopy(value)
    for head, inner in below.items():
        # a copy, as another field may have the same object
        changes[head] = replaced(copy.deepcopy(fields[head]), inner)
    if isinstance(config, MutableMapping):
        config.update(changes)
        return config
    return dataclasses.replace(config, **changes)
