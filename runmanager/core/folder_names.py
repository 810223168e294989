"""The hyperparameters in a run folder's name, and their order."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runmanager.core.values import key_of, text

_DEVICE = "device"


def varying(grid: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return, in order, the names of hyperparameters that differ between runs or are missing in some runs."""
    values: dict[str, list[str]] = {}
    for params in grid:
        for name, value in params.items():
            values.setdefault(name, []).append(key_of(value))
    return [name for name, texts in values.items() if len(set(texts)) > 1 or len(texts) < len(grid)]


def telling_first(names: Iterable[str], repeats: Sequence[str]) -> list[str]:
    """Sort hyperparameters for a folder name: repeat axes last, the device before them.

    >>> telling_first(["device", "seed", "lr"], ["seed"])
    ['lr', 'device', 'seed']
    """
    return sorted(names, key=lambda name: (name in repeats, name == _DEVICE))


def of_loop(
    params: Mapping[str, Any], others: Iterable[Mapping[str, Any]], repeats: Sequence[str]
) -> dict[str, Any]:
    """Return the hyperparameters that name a run of a loop: all, as any of them may vary in later runs."""
    devices = {text(run.get(_DEVICE)) for run in (params, *others)}
    names = [name for name in params if name != _DEVICE or len(devices) > 1]
    return {name: params[name] for name in telling_first(names, repeats)}
