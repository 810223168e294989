"""Grids over an existing configuration; each run has a copy of the configuration."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runmanager.core.grid import RunBuilder
from runmanager.core.hyperparameters import check_groups, check_names, check_values, common_kind, kind, plain
from runmanager.core.nested import Grid, leaves, mapping_of, outline, plain_config, replaced
from runmanager.core.run import Run, make_run
from runmanager.core.wording import did_you_mean
from runmanager.errors import GridError, Problems, first_line

_DEVICE = "device"  # the name of an axis that a configuration may lack
_OWN = "config"  # the attribute of a run that holds its configuration
_MOST_REFUSALS = 5


def expand(
    config: Any,
    params: "Grid | Sequence[Run]",
    *,
    where: Callable[[Run], bool] | None = None,
    max_runs: int | None = None,
) -> list[Run]:
    """Return the runs of a grid over an existing configuration; each has a copy as ``run.config``.

    All values of the configuration are hyperparameters with dotted names, so another base configuration gives
    other runs. `run_grid` accepts the result, alone or combined with other runs.

    Args:
        config: A nested data class, mapping (as from a YAML file) or OmegaConf configuration. Copies have the
            same types.
        params: The axes over fields, as for `RunBuilder.get_runs`, or the runs of a sample. The axis `device`
            need not be a field.
        where: A filter: only runs for which the function returns true.
        max_runs: The maximum number of combinations; with None, the maximum is a million.

    Returns:
        The runs, last axis fastest, for `run_grid`.

    Raises:
        GridError: A field does not exist, or a value is refused; the message lists all problems.

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
    problems = Problems()
    combinations: Sequence[Run] = []
    fields: Mapping[Any, Any] | None = None
    with problems.collecting():
        fields = mapping_of(outline(config))
        if fields is None:
            step = f": write {config.__name__}()" if isinstance(config, type) else ""
            problems.append(f"a configuration is a data class or a mapping, got {config!r:.60}{step}")
    with problems.collecting():
        axes: Any = params
        is_sample = isinstance(axes, Sequence) and axes and all(isinstance(run, Run) for run in axes)
        combinations = axes if is_sample else RunBuilder.get_runs(axes, max_runs=max_runs)
    names = list(dict.fromkeys(name for run in combinations for name in run._fields))
    if fields is not None:
        problems += [_no_field(name, config) for name in names if name != _DEVICE and not _has(config, name)]
        problems += [f"the configuration has the field {_OWN!r}, which is run.{_OWN}: rename it"] * (
            _OWN in fields
        )
    problems.raise_if_any()
    pairs = [(_params_of(run, copied), copied) for run, copied in _copies(config, combinations)]
    values = [pair for params, _ in pairs for pair in params.items()]
    names = list(dict.fromkeys(name for name, _ in values))
    problems += [*check_names(names), *check_groups(names), *check_values(values)]
    problems.raise_if_any()
    kinds = {name: common_kind(kind(params[name]) for params, _ in pairs if name in params) for name in names}
    runs = [
        make_run(tuple(params), params.values(), tuple(kinds[name] for name in params), "run", copied)
        for params, copied in pairs
    ]
    selected = [run for run in runs if where is None or where(run)]
    if not selected:
        raise GridError([f"where= keeps none of {len(runs):,} runs: keep at least one"])
    return selected


def _has(config: Any, name: str) -> bool:
    value = outline(config)
    for part in name.split("."):
        fields = mapping_of(value)
        if fields is None or part not in fields:
            return False
        value = fields[part]
    return True


def _no_field(name: str, config: Any) -> str:
    names = dict(leaves(outline(config)))
    return f"the configuration has no field {name!r}; {did_you_mean(name, names, 'it has')}"


def _copies(config: Any, combinations: Sequence[Run]) -> list[tuple[Run, Any]]:
    """Return each combination with a copy of the configuration that has its values."""
    problems = Problems()
    copies: list[tuple[Run, Any]] = []
    base = mapping_of(outline(config)) or {}
    for run in combinations:
        values = {name: value for name, value in run._asdict().items() if name != _DEVICE or _DEVICE in base}
        try:
            copies.append((run, replaced(config, values)))
        except Exception as error:  # noqa: BLE001 - whatever the code of its class does
            problems.append(f"the configuration refuses {run!r} ({type(error).__name__}: {first_line(error)})")
            if len(problems) == _MOST_REFUSALS:
                break
    problems.raise_if_any()
    return copies


def _params_of(run: Run, config: Any) -> dict[str, Any]:
    """Return all values of a configuration by name, and the values of axes that the configuration lacks."""
    values = dict(leaves(config, run._fields))  # the values as converted by the classes of the configuration
    values |= {name: value for name, value in run._asdict().items() if name not in values}
    return {name: plain(plain_config(value)) for name, value in values.items()}
